// The page's other decisions: words, rows in sight, steps of a chart, the question of the form, the stream's text.
import assert from "node:assert/strict";
import { test } from "node:test";
const page = "../../../services/registry/hami_registry/web/page";
const { changesIn } = await import(`${page}/api.js`);
const { stairs, steps } = await import(`${page}/chart.js`);
const { question } = await import(`${page}/question.js`);
const { rowAfter, rowsInSight, scrolledTo } = await import(`${page}/window.js`);
const words = await import(`${page}/words.js`);

test("memory and percent are said as people say them", () => {
  assert.deepEqual([0, 8000, 10240, 16000, 655360, 323899392].map(words.memory), ["0 MiB", "8000 MiB", "10 GiB", "15.6 GiB", "640 GiB", "309 TiB"]);
  assert.equal(words.percent(1, 3), "33 %");
  assert.equal(words.percent(1, 0), "–");
  assert.equal(words.share(1, 0), 0);
});

test("ages are rough, and what nobody remembers says so", () => {
  assert.deepEqual([5, 65, 7200, 3 * 86400].map((age) => words.ago(1e9 - age, 1e9)), ["5 s", "1 min", "2 h", "3 d"]);
  assert.equal(words.ago(0, 1e9), "for more than a day");
  assert.equal(words.ago(1e9 + 50, 1e9), "0 s");
});

test("every event has its words, and one of tomorrow is told by its type", () => {
  const line = { node: "n1", memoryMib: 3000, cores: 30, reason: "why" };
  assert.deepEqual(words.event({ ...line, type: "pod_assigned" }), ["assigned", "to n1 · 3000 MiB, 30 %"]);
  assert.deepEqual(words.event({ ...line, type: "allocation_failed" }), ["failed", "on n1 · why"]);
  assert.deepEqual(words.event({ ...line, type: "pod_danced_twice" }), ["pod danced twice", "on n1"]);
});

test("of a thousand rows those in sight are drawn, and a few around", () => {
  assert.deepEqual(rowsInSight({ scrollTop: 0, height: 440, rowHeight: 44, count: 1000 }), { first: 0, last: 18 });
  assert.deepEqual(rowsInSight({ scrollTop: 4400, height: 440, rowHeight: 44, count: 1000 }), { first: 92, last: 118 });
  assert.deepEqual(rowsInSight({ scrollTop: 4400, height: 440, rowHeight: 44, count: 3 }), { first: 3, last: 3 });
  assert.deepEqual(rowsInSight({ scrollTop: 0, height: 440, rowHeight: 44, count: 0 }), { first: 0, last: 0 });
});

test("keys lead through the list and stay in it", () => {
  const at = (key, index) => rowAfter(key, { index, count: 100, page: 10 });
  assert.deepEqual([at("ArrowDown", 5), at("ArrowUp", 5), at("PageDown", 5), at("PageUp", 5), at("Home", 5), at("End", 5)], [6, 4, 15, 0, 0, 99]);
  assert.deepEqual([at("ArrowDown", 99), at("ArrowUp", 0), at("ArrowDown", -1)], [99, 0, 0]);
  assert.equal(at("x", 5), -1);
  assert.equal(rowAfter("ArrowDown", { index: -1, count: 0, page: 10 }), -1);
});

test("scrolling moves as little as may be", () => {
  const to = (index) => scrolledTo({ index, scrollTop: 440, height: 440, rowHeight: 44 });
  assert.deepEqual([to(12), to(5), to(25)], [440, 220, 704]);
});

test("a card's day is the sum of its spans, from the beginning of what is known", () => {
  const spans = [
    { begin: 0, end: 20, memoryMib: 100, cores: 10 },
    { begin: 15, end: null, memoryMib: 50, cores: 0 },
    { begin: 20, end: 30, memoryMib: 7, cores: 5 },
  ];
  const found = steps({ spans, begins: 10, now: 40 });
  assert.deepEqual(found.map((each) => [each.time, each.memoryMib, each.cores]), [[10, 100, 10], [15, 150, 10], [20, 57, 5], [30, 50, 0]]);
  const box = { begins: 10, now: 40, most: 200, width: 300, height: 100 };
  assert.equal(stairs(found, "memoryMib", box), "M0 50H50V25H100V71.5H200V75H300");
  assert.equal(stairs(steps({ spans: [], begins: 10, now: 40 }), "cores", box), "M0 100H300");
  assert.equal(stairs(steps({ spans, begins: 40, now: 40 }), "cores", { ...box, begins: 40, most: 0 }), "M300 100H300");
});

const nvidia = { deviceType: "nvidia", count: "nvidia.com/gpu", memory: "nvidia.com/gpumem", memoryUnitMib: 1, cores: "nvidia.com/gpucores" };
const filled = { deviceType: "nvidia", copies: "2", count: "1", memoryMib: "3000", cores: "30", namespace: "default", nodes: "0", nodeCards: "8", nodeMemoryMib: "81920", onlyAdded: false };

test("the form asks as /v1/simulate is asked", () => {
  const asked = question(filled, [nvidia]).question;
  assert.equal(asked.copies, 2);
  assert.deepEqual(asked.pods[0].spec.containers[0].resources.limits, { "nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30" });
  assert.equal(asked.profiles, undefined);
});

test("what is left empty is not asked for, and nodes are added where there are any", () => {
  const asked = question({ ...filled, memoryMib: "", cores: " ", nodes: "3", onlyAdded: true }, [nvidia]).question;
  assert.deepEqual(asked.pods[0].spec.containers[0].resources.limits, { "nvidia.com/gpu": "1" });
  assert.deepEqual(asked.profiles, [{ name: "added", vendor: "nvidia", nodes: 3, count: 8, device: { memory_mib: 81920, model: "added", cores: 100 } }]);
  assert.equal(asked.onlyAdded, true);
});

test("memory is asked for in the unit of its resource, never less than was wished", () => {
  const coarse = { ...nvidia, memoryUnitMib: 256 };
  assert.equal(question(filled, [coarse]).question.pods[0].spec.containers[0].resources.limits["nvidia.com/gpumem"], "12");
});

test("a field that makes no sense is named with what is accepted", () => {
  const named = (more, resources = [nvidia]) => {
    const { field, problem } = question({ ...filled, ...more }, resources);
    assert.ok(problem);
    return field;
  };
  assert.equal(named({ copies: "0" }), "copies");
  assert.equal(named({ copies: "1.5" }), "copies");
  assert.equal(named({ count: "" }), "count");
  assert.equal(named({ memoryMib: "-1" }), "memoryMib");
  assert.equal(named({ memoryMib: "many" }), "memoryMib");
  assert.equal(named({ cores: "101" }), "cores");
  assert.equal(named({ namespace: "No Such" }), "namespace");
  assert.equal(named({ onlyAdded: true }), "nodes");
  assert.equal(named({ deviceType: "other" }), "deviceType");
  assert.equal(named({}, [{ ...nvidia, cores: "" }]), "cores");
  assert.match(question({ ...filled, cores: "101" }, [nvidia]).problem, /101 is not accepted; accepted: 0 to 100/);
});

test("the stream is read in whatever pieces it comes", () => {
  const text = ': changes follow\n\nevent: change\ndata: {"now":1}\n\n: quiet\n\nevent: change\ndata: {"now":2}\n\nevent: other\ndata: {}\n\n';
  for (let cut = 0; cut <= text.length; cut += 1) {
    const first = changesIn(text.slice(0, cut));
    const second = changesIn(first.rest + text.slice(cut));
    assert.deepEqual([...first.changes, ...second.changes], [{ now: 1 }, { now: 2 }]);
    assert.equal(second.rest, "");
  }
});
