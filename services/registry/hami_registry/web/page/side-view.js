// What stands beside the nodes: sums, waiting pods, the log, and what a simulation found.

import { badge, h, meter, named } from "./dom.js";
import { ago, event, memory, moment, percent, share, shares } from "./words.js";

const SHOWN_WAITING = 100;
const SHOWN_PODS = 100;

export function totalsView(sums, waitingCount) {
  const figure = (label, ...value) => h("div", {}, h("dt", {}, label), h("dd", {}, ...value));
  return [
    figure("Nodes", sums.nodes, sums.away ? h("small", {}, ` ${sums.away} away`) : null),
    figure("Cards", sums.cards),
    figure("Pods", sums.pods),
    figure("Waiting", waitingCount),
    figure(
      "Memory booked",
      meter({
        kind: "memory",
        value: share(sums.bookedMemoryMib, sums.memoryMib),
        label: "memory of all cards booked",
        text: `${percent(sums.bookedMemoryMib, sums.memoryMib)} of ${memory(sums.memoryMib)}`,
      }),
    ),
    figure(
      "Cores booked",
      meter({ kind: "cores", value: share(sums.bookedCores, sums.cores), label: "cores of all cards booked", text: percent(sums.bookedCores, sums.cores) }),
    ),
  ];
}

export function waitingView(pods, count, now) {
  if (!pods.length) return [h("p", { class: "empty" }, "No pod waits for a device.")];
  const shown = pods.slice(0, SHOWN_WAITING);
  const items = shown.map((each) =>
    h(
      "li",
      {},
      h("div", { class: "line" }, named(`${each.pod.namespace}/${each.pod.name}`), h("small", {}, age(each.since, now))),
      h("p", { class: "reasons" }, ...Object.entries(each.reasons ?? {}).map(([reason, nodes]) => badge(`${nodes} × ${reason}`, "plain"))),
      h("p", {}, each.summary),
    ),
  );
  const more = count > shown.length ? [h("p", { class: "empty" }, `and ${count - shown.length} more`)] : [];
  return [h("ul", { class: "waiting-list" }, ...items), ...more];
}

export function logView(lines, now) {
  return lines.toReversed().map((line) => {
    const [word, rest] = event(line);
    return h(
      "li",
      { "data-sequence": line.sequence },
      h("time", { datetime: new Date(line.time * 1000).toISOString() }, moment(line.time, now)),
      badge(word),
      named(`${line.namespace}/${line.pod}`),
      h("span", { class: "rest", title: rest }, rest),
    );
  });
}

export function simulationView(answer) {
  const said = `${answer.placedCount} of ${answer.pods.length} pods would be placed, on ${answer.nodeCount} nodes looked at.`;
  const rows = answer.pods.slice(0, SHOWN_PODS).map((pod, place) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, place + 1),
      h("td", {}, pod.node ? named(pod.node) : badge("nowhere", "failed")),
      h("td", { class: "why" }, pod.node ? shares(pod.assignments) : pod.summary),
    ),
  );
  const more = answer.pods.length > SHOWN_PODS ? h("p", { class: "empty" }, `and ${answer.pods.length - SHOWN_PODS} more`) : null;
  return [
    h("p", { class: "said" }, said),
    h(
      "div",
      { class: "wide", tabindex: "0", role: "region", "aria-label": "What each pod would get" },
      h(
        "table",
        {},
        h("thead", {}, h("tr", {}, ...["Pod", "Node", "Shares, or why not"].map((head) => h("th", { scope: "col" }, head)))),
        h("tbody", {}, ...rows),
      ),
    ),
    more,
  ].filter(Boolean);
}

function age(since, now) {
  const seconds = Date.parse(since) / 1000;
  return Number.isNaN(seconds) ? "" : `for ${ago(seconds, now)}`;
}
