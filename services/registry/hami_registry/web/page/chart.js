// A card's day as steps: how much was booked when. Pure.

/** [{ time, memoryMib, cores }], each until the next; from `begins` on. Spans have a `begin` of 0 where nobody remembers it. */
export function steps({ spans, begins, now }) {
  const turns = [];
  for (const span of spans) {
    turns.push({ time: Math.max(span.begin, begins), memoryMib: span.memoryMib, cores: span.cores });
    if (span.end !== null && span.end < now) turns.push({ time: Math.max(span.end, begins), memoryMib: -span.memoryMib, cores: -span.cores });
  }
  turns.sort((a, b) => a.time - b.time);
  const found = [{ time: begins, memoryMib: 0, cores: 0 }];
  for (const turn of turns) {
    const last = found[found.length - 1];
    const next = { time: turn.time, memoryMib: last.memoryMib + turn.memoryMib, cores: last.cores + turn.cores };
    if (turn.time === last.time) found[found.length - 1] = next;
    else found.push(next);
  }
  return found;
}

/** The `d` of an SVG path that draws one figure of `steps` in a box, from left to right, as a line of stairs. */
export function stairs(found, figure, { begins, now, most, width, height }) {
  const x = (time) => round(now > begins ? (width * (time - begins)) / (now - begins) : width);
  const y = (value) => round(most > 0 ? height - (height * Math.min(value, most)) / most : height);
  let d = "";
  found.forEach((step, place) => {
    d += place ? `H${x(step.time)}V${y(step[figure])}` : `M${x(step.time)} ${y(step[figure])}`;
  });
  return found.length ? `${d}H${x(now)}` : "";
}

function round(number) {
  return Math.round(number * 10) / 10;
}
