// Building elements. Text is always text: nothing here, and nothing that uses it, makes HTML of a string.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes (`on…` are listeners; null and false leave one out) and children: elements, or anything else as text. */
export function h(tag, attributes = {}, ...children) {
  return made(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  return made(document.createElementNS(SVG, tag), attributes, children);
}

/** A bar that says its figure to everybody: `label` is what it is of, `text` the figure in words. `value` is in percent. */
export function meter({ kind, value, label, text, used = null }) {
  const fill = h("span", { class: "fill" });
  fill.style.width = `${clamped(value)}%`;
  const bar = h("span", { class: `bar ${kind}${value > 100 ? " over" : ""}` }, fill);
  if (used !== null) {
    const mark = h("span", { class: "used" });
    mark.style.width = `${clamped(used)}%`;
    bar.append(mark);
  }
  return h(
    "span",
    {
      class: "meter",
      role: "meter",
      "aria-label": label,
      "aria-valuemin": 0,
      "aria-valuemax": 100,
      "aria-valuenow": Math.round(clamped(value)),
      "aria-valuetext": text,
    },
    bar,
    h("span", { class: "figure", "aria-hidden": "true" }, text),
  );
}

/** A word with a colour of its own; the word says it all. */
export function badge(word, kind = word) {
  return h("span", { class: `badge ${kind}` }, word);
}

/** A name that may be long: it can wrap, and has itself as its title. */
export function named(text, className = "name") {
  return h("span", { class: className, title: text }, text);
}

function made(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

function clamped(value) {
  return Math.min(100, Math.max(0, value));
}
