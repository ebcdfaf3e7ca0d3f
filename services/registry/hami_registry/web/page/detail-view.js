// One node: its cards, who holds them, and a card's day.

import { stairs, steps } from "./chart.js";
import { badge, h, meter, named, svg } from "./dom.js";
import { ago, memory, moment, share } from "./words.js";

const CHART = { width: 600, height: 96 };
const MOST_ROWS = 200;

/** The body of the details. `showHistory` is called with a card, or null to close its day. */
export function detailView(detail, history, now, showHistory) {
  if (detail.absent) return [h("p", { class: "empty" }, "It was not there at this moment.")];
  if (!detail.cards.length) return [h("p", { class: "empty" }, "This node has no cards.")];
  return detail.cards.map((card) => cardView(card, history?.uuid === card.uuid ? history : null, now, showHistory));
}

function cardView(card, history, now, showHistory) {
  const used = card.usedMemoryMib === null ? null : share(card.usedMemoryMib, card.memoryMib);
  return h(
    "article",
    { class: "card", "aria-label": `Card ${card.index} ${card.uuid}` },
    h(
      "header",
      {},
      h("h3", {}, h("span", { class: "index" }, card.index), ` ${card.model || "not registered any more"}`),
      card.status === "ok" ? null : badge(card.status),
      card.mode && card.mode !== "hami-core" ? badge(card.mode, "plain") : null,
      h(
        "button",
        {
          type: "button",
          class: "quiet",
          "aria-expanded": String(Boolean(history)),
          "data-history": card.uuid,
          onclick: () => showHistory(history ? null : card),
        },
        history ? "Hide its day" : "Its last day",
      ),
    ),
    named(card.uuid, "uuid"),
    h(
      "dl",
      { class: "figures" },
      h("dt", {}, "Memory"),
      h(
        "dd",
        {},
        meter({
          kind: "memory",
          value: share(card.bookedMemoryMib, card.memoryMib),
          label: `memory of card ${card.index} booked`,
          text: `${memory(card.bookedMemoryMib)} of ${memory(card.memoryMib)}`,
          used,
        }),
      ),
      h("dt", {}, "Cores"),
      h(
        "dd",
        {},
        meter({
          kind: "cores",
          value: share(card.bookedCores, card.cores),
          label: `cores of card ${card.index} booked`,
          text: `${card.bookedCores} of ${card.cores} %`,
          used: card.usedSmPercent,
        }),
      ),
      h("dt", {}, "Shares"),
      h("dd", {}, `${card.bookedShares} of ${card.shares}`),
      h("dt", {}, "Measured"),
      h("dd", {}, card.usedMemoryMib === null ? "–" : `${memory(card.usedMemoryMib)}, ${card.usedSmPercent} % SM`),
    ),
    history ? historyView(history) : null,
    card.pods.length ? podTable(card, now) : null,
  );
}

function podTable(card, now) {
  const shown = card.pods.slice(0, MOST_ROWS);
  const rows = shown.map((pod) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, named(`${pod.namespace}/${pod.name}`)),
      h(
        "td",
        {},
        meter({
          kind: "memory",
          value: share(pod.memoryMib, card.memoryMib),
          label: "memory",
          text: memory(pod.memoryMib),
          used: pod.usedMemoryMib === null ? null : share(pod.usedMemoryMib, card.memoryMib),
        }),
      ),
      h("td", {}, pod.cores ? meter({ kind: "cores", value: share(pod.cores, card.cores), label: "cores", text: `${pod.cores} %` }) : "–"),
      h("td", {}, badge(pod.phase), pod.enforced === false ? badge("unenforced") : null),
      h("td", { class: "number" }, ago(pod.since, now)),
    ),
  );
  return h(
    "div",
    { class: "wide", tabindex: "0", role: "region", "aria-label": `Pods on card ${card.index}` },
    h(
      "table",
      { class: "pods" },
      h("caption", { class: "visually-hidden" }, `Pods on card ${card.index}`),
      h("thead", {}, h("tr", {}, ...["Pod", "Memory", "Cores", "Phase", "For"].map((head) => h("th", { scope: "col" }, head)))),
      h("tbody", {}, ...rows),
    ),
    card.pods.length > shown.length ? h("p", { class: "empty" }, `and ${card.pods.length - shown.length} more`) : null,
  );
}

function historyView(history) {
  const found = steps(history);
  const box = { ...CHART, begins: history.begins, now: history.now };
  const peak = Math.max(...found.map((each) => each.memoryMib));
  const said = `Booked since ${moment(history.begins, history.now)}: at most ${memory(peak)} of ${memory(history.memoryMib)}`;
  const spans = history.spans.slice(-MOST_ROWS).toReversed();
  return h(
    "section",
    { class: "history", "aria-label": `Last day of ${history.uuid}` },
    h(
      "figure",
      {},
      h("figcaption", {}, `${said}. `, h("span", { class: "key memory" }, "memory"), " ", h("span", { class: "key cores" }, "cores")),
      svg(
        "svg",
        { viewBox: `0 -2 ${CHART.width} ${CHART.height + 4}`, role: "img", "aria-label": said, preserveAspectRatio: "none" },
        ...[0, 0.5, 1].map((part) => svg("line", { class: "rule", x1: 0, x2: CHART.width, y1: CHART.height * part, y2: CHART.height * part })),
        svg("path", { class: "cores", d: stairs(found, "cores", { ...box, most: history.cores }) }),
        svg("path", { class: "memory", d: stairs(found, "memoryMib", { ...box, most: history.memoryMib }) }),
      ),
      h("p", { class: "axis", "aria-hidden": "true" }, h("span", {}, moment(history.begins, history.now)), h("span", {}, "now")),
    ),
    spans.length
      ? h(
          "ol",
          { class: "lines" },
          ...spans.map((span) =>
            h(
              "li",
              {},
              h("time", {}, span.begin ? moment(span.begin, history.now) : "earlier"),
              named(`${span.namespace}/${span.name}`),
              h(
                "span",
                { class: "rest" },
                `${memory(span.memoryMib)}${span.cores ? `, ${span.cores} %` : ""} · ${span.end === null ? "still" : `until ${moment(span.end, history.now)}`}`,
              ),
            ),
          ),
        )
      : h("p", { class: "empty" }, "Nobody has held it since."),
  );
}
