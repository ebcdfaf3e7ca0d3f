// The list of nodes: a listbox of which only the rows in sight exist, however many nodes there are.

import { badge, h, meter, named } from "./dom.js";
import { rowAfter, rowsInSight, scrolledTo } from "./window.js";
import { memory, nodeStatus, percent, share } from "./words.js";

const NARROW = matchMedia("(max-width: 40rem)");
const MOST_CELLS = 16;

export class NodeList {
  /** `box` is the listbox; `open` is called with a node's name, and whether its details are to have the focus. */
  constructor(box, open) {
    this.box = box;
    this.open = open;
    this.nodes = [];
    this.active = "";
    this.selected = "";
    this.rows = h("div", { class: "rows", role: "presentation" });
    this.drawn = new Map();
    box.append(this.rows);
    box.addEventListener("scroll", () => this.draw(), { passive: true });
    box.addEventListener("keydown", (event) => this.key(event));
    box.addEventListener("focus", () => this.draw());
    new ResizeObserver(() => this.draw()).observe(box);
    NARROW.addEventListener("change", () => this.redraw());
  }

  get rowHeight() {
    return NARROW.matches ? 84 : 44;
  }

  show(nodes, selected) {
    this.nodes = nodes;
    this.selected = selected;
    if (!nodes.some((node) => node.name === this.active)) this.active = selected || (nodes[0]?.name ?? "");
    this.draw();
  }

  redraw() {
    this.drawn.clear();
    this.rows.replaceChildren();
    this.draw();
  }

  draw() {
    const { rowHeight } = this;
    this.rows.style.height = `${rowHeight * this.nodes.length}px`;
    const { first, last } = rowsInSight({ scrollTop: this.box.scrollTop, height: this.box.clientHeight, rowHeight, count: this.nodes.length });
    const wanted = new Map();
    for (let index = first; index < last; index += 1) {
      const node = this.nodes[index];
      const before = this.drawn.get(node.name);
      const row = before?.node === node ? before.row : this.row(node);
      row.style.transform = `translateY(${index * rowHeight}px)`;
      row.style.height = `${rowHeight}px`;
      row.setAttribute("aria-posinset", index + 1);
      row.setAttribute("aria-setsize", this.nodes.length);
      row.setAttribute("aria-selected", node.name === this.selected);
      row.classList.toggle("active", node.name === this.active);
      if (before && before.row !== row) before.row.replaceWith(row);
      else if (!row.isConnected) this.rows.append(row);
      wanted.set(node.name, { node, row });
    }
    for (const [name, { row }] of this.drawn) if (!wanted.has(name)) row.remove();
    this.drawn = wanted;
    const active = wanted.get(this.active);
    if (active) this.box.setAttribute("aria-activedescendant", active.row.id);
    else this.box.removeAttribute("aria-activedescendant");
  }

  row(node) {
    const figures = [
      `memory ${percent(node.bookedMemoryMib, node.memoryMib)} booked`,
      `cores ${percent(node.bookedCores, node.cores)} booked`,
      `${node.podCount} pods on ${node.cardCount} cards`,
    ];
    const label = `${node.name}, ${nodeStatus(node.status)}, ${figures.join(", ")}`;
    const cells = node.loads.slice(0, MOST_CELLS).map((load) => h("i", { class: `cell load-${step(load)}`, title: `${load} %` }));
    return h(
      "div",
      { class: "row", role: "option", id: `node-${node.name}`, "aria-label": label, onclick: () => this.choose(node.name) },
      h(
        "span",
        { class: "who" },
        named(node.name),
        node.status === "ok" ? h("small", { title: node.models.join(", ") }, node.models.join(", ")) : badge(node.status),
      ),
      h("span", { class: "cells" }, ...cells, node.loads.length > MOST_CELLS ? h("small", {}, `+${node.loads.length - MOST_CELLS}`) : null),
      meter({
        kind: "memory",
        value: share(node.bookedMemoryMib, node.memoryMib),
        label: "memory",
        text: `${memory(node.bookedMemoryMib)} of ${memory(node.memoryMib)}`,
      }),
      meter({ kind: "cores", value: share(node.bookedCores, node.cores), label: "cores", text: percent(node.bookedCores, node.cores) }),
      h("span", { class: "number" }, h("small", { class: "narrow-only" }, "pods "), node.podCount),
    );
  }

  choose(name) {
    this.active = name;
    this.open(name, false);
  }

  key(event) {
    if (event.key === "Enter" || event.key === " ") {
      if (this.active) this.open(this.active, true);
      event.preventDefault();
      return;
    }
    const { rowHeight, box } = this;
    const index = this.nodes.findIndex((node) => node.name === this.active);
    const page = Math.max(1, Math.floor(box.clientHeight / rowHeight) - 1);
    const next = rowAfter(event.key, { index, count: this.nodes.length, page });
    if (next < 0) return;
    event.preventDefault();
    this.active = this.nodes[next].name;
    box.scrollTop = scrolledTo({ index: next, scrollTop: box.scrollTop, height: box.clientHeight, rowHeight });
    this.draw();
  }
}

/** One of five shades, 0 for nothing booked. */
function step(load) {
  return load <= 0 ? 0 : Math.min(4, Math.ceil(load / 25));
}
