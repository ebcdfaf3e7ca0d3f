// The page's state: what happens in, state out.
import assert from "node:assert/strict";
import { test } from "node:test";
import { concerns, devicesOf, initial, listed, nodesOf, reduce, totals } from "../../../services/registry/hami_registry/web/page/state.js";

const node = (name, more = {}) => ({
  name, status: "ok", models: ["A100"], cardCount: 2, memoryMib: 1000, bookedMemoryMib: 250, cores: 200, bookedCores: 20, podCount: 1, loads: [50, 0], ...more,
});
const overview = (nodes, more = {}) => ({
  time: 100, now: 100, begins: 10, nodes, waiting: [], waitingCount: 0, log: [], resources: [], caveats: [], ...more,
});
const change = (more) => ({ now: 101, nodes: [], gone: [], log: [], waiting: null, waitingCount: 0, caveats: [], ...more });
const line = (sequence) => ({ sequence, time: sequence, type: "pod_assigned" });
const played = (...happened) => happened.reduce(reduce, initial());
const names = (state) => listed(state).map((each) => each.name);

test("a change replaces the nodes that it names, removes those that are gone, and leaves the rest", () => {
  const before = played({ type: "overview", overview: overview([node("a"), node("b"), node("c")]) });
  const after = reduce(before, { type: "change", change: change({ nodes: [node("b", { podCount: 9 }), node("d")], gone: ["c"] }) });
  assert.deepEqual(names(after), ["a", "b", "d"]);
  assert.equal(after.live.get("b").podCount, 9);
  assert.equal(before.live.get("b").podCount, 1);
});

test("who waits stays as it was where a change does not say", () => {
  const waiting = [{ pod: { name: "p" } }];
  let state = played({ type: "overview", overview: overview([], { waiting, waitingCount: 1 }) });
  state = reduce(state, { type: "change", change: change({ waitingCount: 1 }) });
  assert.equal(state.waiting, waiting);
  assert.deepEqual(reduce(state, { type: "change", change: change({ waiting: [] }) }).waiting, []);
});

test("a line of the log is there once, however often it is told, and the newest hundred are kept in order", () => {
  let state = played({ type: "overview", overview: overview([], { log: [line(2), line(3)] }) });
  state = reduce(state, { type: "change", change: change({ log: [line(1), line(3), line(4)] }) });
  assert.deepEqual(state.log.map((each) => each.sequence), [1, 2, 3, 4]);
  state = reduce(state, { type: "change", change: change({ log: Array.from({ length: 200 }, (_, place) => line(place + 5)) }) });
  assert.equal(state.log.length, 100);
  assert.equal(state.log.at(-1).sequence, 204);
});

test("while the past is looked at, changes are kept for later and not shown", () => {
  let state = played(
    { type: "overview", overview: overview([node("a")]) },
    { type: "past", overview: overview([node("a", { podCount: 7 })], { time: 50 }) },
    { type: "change", change: change({ nodes: [node("a", { podCount: 3 })] }) },
  );
  assert.equal(nodesOf(state).get("a").podCount, 7);
  assert.equal(state.past.at, 50);
  state = reduce(state, { type: "present" });
  assert.equal(nodesOf(state).get("a").podCount, 3);
});

test("a search needs every word, in name, model or status", () => {
  const state = played({ type: "overview", overview: overview([node("gpu-1"), node("gpu-2", { models: ["L40S"] }), node("cpu-1", { status: "away" })]) });
  const found = (text) => names(reduce(state, { type: "search", text }));
  assert.deepEqual(found("GPU"), ["gpu-1", "gpu-2"]);
  assert.deepEqual(found("gpu l40"), ["gpu-2"]);
  assert.deepEqual(found("away"), ["cpu-1"]);
  assert.deepEqual(found("nothing"), []);
});

test("orders: numbers in names count as numbers, and ties end at the name", () => {
  const state = played({
    type: "overview",
    overview: overview([node("n10", { bookedMemoryMib: 900 }), node("n9", { podCount: 5 }), node("n1", { status: "unhealthy" }), node("n2", { memoryMib: 0 })]),
  });
  const sorted = (key) => names(reduce(state, { type: "sort", key }));
  assert.deepEqual(sorted("name"), ["n1", "n2", "n9", "n10"]);
  assert.deepEqual(sorted("memory"), ["n10", "n1", "n9", "n2"]);
  assert.deepEqual(sorted("free"), ["n2", "n1", "n9", "n10"]);
  assert.deepEqual(sorted("pods"), ["n9", "n1", "n2", "n10"]);
  assert.deepEqual(sorted("status"), ["n1", "n2", "n9", "n10"]);
  assert.deepEqual(sorted("unheard of"), sorted("name"));
});

test("totals add up what is shown", () => {
  const sums = totals(played({ type: "overview", overview: overview([node("a"), node("b", { status: "away" })]) }));
  assert.deepEqual(sums, { nodes: 2, away: 1, cards: 4, memoryMib: 2000, bookedMemoryMib: 500, cores: 400, bookedCores: 40, pods: 2 });
});

test("details of another node than the chosen one come too late", () => {
  let state = played({ type: "select", node: "a" }, { type: "detail", detail: { name: "b", cards: [] } });
  assert.equal(state.detail, null);
  state = reduce(state, { type: "detail", detail: { name: "a", cards: [] } });
  assert.equal(state.detail.name, "a");
  assert.equal(reduce(state, { type: "select", node: "b" }).detail, null);
});

test("the open node is read again where a change names it, but not while the past is looked at", () => {
  const state = played({ type: "select", node: "a" });
  assert.equal(concerns(state, change({ nodes: [node("a")] })), true);
  assert.equal(concerns(state, change({ nodes: [node("b")] })), false);
  assert.equal(concerns(reduce(state, { type: "past", overview: overview([]) }), change({ nodes: [node("a")] })), false);
});

test("what nobody knows is a mistake of ours", () => {
  assert.throws(() => reduce(initial(), { type: "surprise" }), /surprise/);
});

test("time goes on while nothing happens, and what is a day old can be looked at no more", () => {
  let state = played({ type: "overview", overview: overview([]) });
  state = reduce(state, { type: "tick", now: 130 });
  assert.deepEqual([state.begins, state.now], [10, 130]);
  state = reduce(state, { type: "tick", now: 120 });
  assert.equal(state.now, 130);
  assert.deepEqual(reduce(state, { type: "tick", now: 100000 }).begins, 100000 - 86400);
  assert.equal(reduce(initial(), { type: "tick", now: 100000 }).begins, 0);
});

test("a moment from before anybody watched the devices says from when on somebody did", () => {
  const past = (time) => played({ type: "past", overview: overview([], { time, devicesSince: 50 }) });
  assert.equal(devicesOf(past(49)), 50);
  assert.equal(devicesOf(past(50)), null);
  assert.equal(devicesOf(reduce(past(49), { type: "present" })), null);
  assert.equal(devicesOf(initial()), null);
});
