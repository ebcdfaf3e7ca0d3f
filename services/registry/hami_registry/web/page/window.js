// Which rows of a long list are drawn: those in sight, and a few around them. Pure.

const AROUND = 8;

/** The first row to draw and the one behind the last. */
export function rowsInSight({ scrollTop, height, rowHeight, count }) {
  const first = Math.min(Math.max(0, Math.floor(scrollTop / rowHeight) - AROUND), count);
  const last = Math.min(count, Math.ceil((scrollTop + height) / rowHeight) + AROUND);
  return { first, last: Math.max(first, last) };
}

/** Where to scroll so that row `index` is in sight, moving as little as may be. */
export function scrolledTo({ index, scrollTop, height, rowHeight }) {
  const top = index * rowHeight;
  if (top < scrollTop) return top;
  return top + rowHeight > scrollTop + height ? top + rowHeight - height : scrollTop;
}

/** Which row a key leads to; -1 where the key is none of the list's. */
export function rowAfter(key, { index, count, page }) {
  if (!count) return -1;
  const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -count, End: count };
  return key in steps ? Math.min(Math.max(0, index + steps[key]), count - 1) : -1;
}
