// The page: wires what happens (answers, changes, keys, the slider) to `reduce`, and draws the state that comes of it.

import { follow, get, keepToken, post, Refused } from "./api.js";
import { detailView } from "./detail-view.js";
import { h } from "./dom.js";
import { NodeList } from "./node-list.js";
import { question } from "./question.js";
import { logView, simulationView, totalsView, waitingView } from "./side-view.js";
import { concerns, devicesOf, initial, listed, nodesOf, reduce, totals } from "./state.js";
import { moment } from "./words.js";

const SETTLE_MILLISECONDS = 120;
const PLAY_MILLISECONDS = 400;
const PLAY_STEPS = 150;
const TICK_MILLISECONDS = 10_000;

const at = (id) => document.getElementById(id);
let state = initial();
let drawing = false;
let playing = null;
let ahead = 0; // the registry's clock before ours, in seconds
const list = new NodeList(at("list"), open);

function happened(what) {
  state = reduce(state, what);
  if (!drawing) {
    drawing = true;
    requestAnimationFrame(draw);
  }
}

// Drawing

const drawn = {};

/** Run `paint` where one of `values` is another than at the last time. */
function when(name, values, paint) {
  const before = drawn[name];
  if (before && before.every((value, place) => value === values[place])) return;
  drawn[name] = values;
  paint();
}

function draw() {
  drawing = false;
  const nodes = nodesOf(state);
  when("nodes", [nodes, state.search, state.sort, state.selected], () => {
    const found = listed(state);
    list.show(found, state.selected);
    at("node-count").textContent = found.length === nodes.size ? nodes.size : `${found.length} of ${nodes.size}`;
    at("list-empty").hidden = found.length > 0;
    at("list-empty").textContent = nodes.size ? "No node is like that." : "No node has registered devices yet.";
  });
  when("totals", [nodes, state.waitingCount], () => at("totals").replaceChildren(...totalsView(totals(state), state.waitingCount)));
  when("waiting", [state.waiting, state.waitingCount], () => {
    at("waiting-count").textContent = state.waitingCount || "";
    at("waiting").replaceChildren(...waitingView(state.waiting, state.waitingCount, state.now));
  });
  when("log", [state.log], () => at("log").replaceChildren(...logView(state.log, state.now)));
  when("detail", [state.selected, state.detail, state.history], drawDetail);
  when("caveats", [state.caveats, devicesOf(state)], drawCaveats);
  when("resources", [state.resources], drawResources);
  when("connection", [state.connection, state.past], () => {
    at("connection").textContent = state.past ? "replay" : state.connection;
    at("connection").className = `connection ${state.past ? "replay" : state.connection.split(" ")[0]}`;
  });
  drawTime();
}

function drawDetail() {
  const body = at("detail-body");
  at("detail-title").textContent = state.selected || "Node";
  at("close").hidden = !state.selected;
  at("detail").classList.toggle("open", Boolean(state.selected));
  if (!state.selected) {
    body.replaceChildren(h("p", { class: "empty" }, "Choose a node to see its cards and who holds them."));
  } else if (state.detail) {
    const focused = document.activeElement?.getAttribute("data-history");
    body.replaceChildren(...detailView(state.detail, state.history, state.past?.at ?? state.now, showHistory));
    if (focused) [...body.querySelectorAll("[data-history]")].find((each) => each.getAttribute("data-history") === focused)?.focus();
  } else {
    body.replaceChildren(h("p", { class: "empty" }, "Reading …"));
  }
}

function drawCaveats() {
  const since = devicesOf(state);
  const shown = since && `Nodes and cards are shown as they were at ${moment(since, state.now)}, when this registry began to watch them; who held what is of this moment.`;
  at("caveats").replaceChildren(...[...state.caveats, shown].filter(Boolean).map((each) => h("p", {}, each)));
}

function drawResources() {
  const select = at("simulate").elements.deviceType;
  const before = select.value || "nvidia";
  select.replaceChildren(...state.resources.map((each) => h("option", { value: each.deviceType, selected: each.deviceType === before }, each.deviceType)));
}

function drawTime() {
  const slider = at("moment");
  slider.min = Math.floor(state.begins);
  slider.max = Math.ceil(state.now);
  slider.disabled = state.now - state.begins < 2;
  at("play").disabled = slider.disabled;
  if (!state.past && wanted === null) slider.value = slider.max;
  const said = state.past ? moment(Number(slider.value), state.now) : "now";
  at("moment-text").textContent = said;
  slider.setAttribute("aria-valuetext", said);
  at("live").setAttribute("aria-pressed", String(!state.past));
  at("play").textContent = playing ? "Pause" : "Replay";
}

// Asking

async function asking(work) {
  try {
    return await work();
  } catch (problem) {
    if (problem.name === "AbortError") return undefined;
    trouble(problem);
    return undefined;
  }
}

function trouble(problem) {
  const refused = problem instanceof Refused && (problem.status === 401 || problem.status === 403);
  if (refused && !at("sign-in").open) {
    at("sign-in-why").textContent = problem.message;
    at("sign-in").showModal();
  }
  happened({ type: "connection", connection: refused ? "locked" : `away: ${problem.message}` });
}

async function readOverview() {
  const overview = await get("v1/page/overview");
  ahead = overview.now - Date.now() / 1000;
  happened({ type: "overview", overview });
  await readDetail();
}

let detailAsked = null;

/** Read the open node again, for the moment that is looked at; a later reading overtakes an earlier one. */
async function readDetail() {
  const node = state.selected;
  detailAsked?.abort();
  if (!node) return;
  detailAsked = new AbortController();
  const { signal } = detailAsked;
  await asking(async () => {
    try {
      const detail = await get(`v1/page/nodes/${encodeURIComponent(node)}`, { at: state.past?.at }, signal);
      happened({ type: "detail", detail });
    } catch (problem) {
      if (problem.status !== 404) throw problem;
      if (state.past) happened({ type: "detail", detail: { name: node, absent: true, cards: [] } });
      else happened({ type: "select", node: "" });
    }
  });
}

async function showHistory(card) {
  if (!card) return happened({ type: "history", history: null });
  const history = await asking(() => get("v1/page/card", { node: state.selected, uuid: card.uuid }));
  if (history) happened({ type: "history", history });
}

function open(node, focus) {
  if (node !== state.selected) {
    happened({ type: "select", node });
    readDetail();
  }
  if (focus) requestAnimationFrame(() => at("detail-title").focus());
  else if (matchMedia("(max-width: 70rem)").matches) requestAnimationFrame(() => at("detail").scrollIntoView({ block: "start" }));
}

function close() {
  if (!state.selected) return;
  happened({ type: "select", node: "" });
  at("list").focus();
}

// Time

let settling = 0;
let wanted = null; // the moment that the slider is on, while it is not shown yet
let momentAsked = null;

function lookAt(seconds) {
  wanted = seconds;
  clearTimeout(settling);
  settling = setTimeout(async () => {
    momentAsked?.abort();
    momentAsked = new AbortController();
    const overview = await asking(() => get("v1/page/overview", { at: seconds }, momentAsked.signal));
    if (overview && wanted !== null) {
      wanted = null;
      happened({ type: "past", overview });
      readDetail();
    }
  }, SETTLE_MILLISECONDS);
}

function goLive() {
  pause();
  wanted = null;
  clearTimeout(settling);
  momentAsked?.abort();
  happened({ type: "present" });
  readDetail();
}

function pause() {
  clearInterval(playing);
  playing = null;
}

function play() {
  if (playing) {
    pause();
    return drawTime();
  }
  const slider = at("moment");
  if (Number(slider.value) >= Number(slider.max)) slider.value = slider.min;
  const step = Math.max(1, (Number(slider.max) - Number(slider.min)) / PLAY_STEPS);
  lookAt(Number(slider.value));
  playing = setInterval(() => {
    slider.value = Number(slider.value) + step;
    if (Number(slider.value) >= Number(slider.max)) goLive();
    else lookAt(Number(slider.value));
  }, PLAY_MILLISECONDS);
  drawTime();
}

// Simulating

async function simulate(event) {
  event.preventDefault();
  const form = event.target;
  const { elements } = form;
  const values = Object.fromEntries([...elements].filter((each) => each.name).map((each) => [each.name, each.type === "checkbox" ? each.checked : each.value]));
  for (const each of elements) each.removeAttribute("aria-invalid");
  const asked = question(values, state.resources);
  const result = at("simulated");
  if (asked.problem) {
    const field = elements[asked.field];
    field.setAttribute("aria-invalid", "true");
    field.focus();
    return result.replaceChildren(h("p", { class: "problem" }, `${field.labels[0].textContent.trim()}: ${asked.problem}`));
  }
  const button = form.querySelector("button");
  button.disabled = true;
  result.replaceChildren(h("p", { class: "empty" }, "Asking the scheduler …"));
  try {
    result.replaceChildren(...simulationView(await post("v1/page/simulate", asked.question)));
  } catch (problem) {
    result.replaceChildren(h("p", { class: "problem" }, problem.message));
    if (problem.status === 401 || problem.status === 403) trouble(problem);
  } finally {
    button.disabled = false;
  }
}

// What happens

at("search").addEventListener("input", (event) => happened({ type: "search", text: event.target.value }));
at("search").addEventListener("keydown", (event) => {
  if (event.key === "ArrowDown") at("list").focus();
});
at("sort").addEventListener("change", (event) => happened({ type: "sort", key: event.target.value }));
at("close").addEventListener("click", close);
at("live").addEventListener("click", goLive);
at("play").addEventListener("click", play);
at("moment").addEventListener("input", (event) => {
  pause();
  at("moment-text").textContent = moment(Number(event.target.value), state.now);
  lookAt(Number(event.target.value));
});
at("simulate").addEventListener("submit", simulate);
at("sign-in").addEventListener("close", () => {
  keepToken(at("token").value);
  at("token").value = "";
});
document.addEventListener("keydown", (event) => {
  const typing = event.target.matches?.("input, select, textarea");
  if (event.key === "/" && !typing) {
    event.preventDefault();
    at("search").focus();
  } else if (event.key === "Escape" && !at("sign-in").open) {
    if (event.target === at("search") && state.search) {
      at("search").value = "";
      happened({ type: "search", text: "" });
    } else if (!typing) close();
  }
});

setInterval(() => happened({ type: "tick", now: Date.now() / 1000 + ahead }), TICK_MILLISECONDS);

follow("v1/page/changes", {
  opened: async () => {
    await readOverview();
    happened({ type: "connection", connection: "live" });
  },
  heard: (change) => {
    const read = concerns(state, change);
    happened({ type: "change", change });
    if (read) readDetail();
  },
  lost: async (problem) => {
    trouble(problem);
    if (problem.status === 503) await asking(readOverview); // without live changes, then
    if (at("sign-in").open) await new Promise((resolve) => at("sign-in").addEventListener("close", resolve, { once: true }));
  },
});
