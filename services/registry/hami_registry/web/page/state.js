// What the page shows, as a value. Pure: `reduce` takes a state and something that happened, and returns the next state; nothing else changes it.
//
// Nodes are kept by name as they are now, in `live`, whatever is looked at; a moment of the past has nodes of its own, in `past`.

const LOG_LINES = 100;
const DAY_SECONDS = 86400;
const TROUBLE = { away: 0, unhealthy: 1, cordoned: 2, ok: 3 };

export function initial() {
  return {
    live: new Map(),
    past: null, // { at, nodes, devicesSince } while a moment of the past is looked at
    now: 0,
    begins: 0,
    waiting: [],
    waitingCount: 0,
    log: [],
    resources: [],
    caveats: [],
    connection: "connecting",
    search: "",
    sort: "name",
    selected: "",
    detail: null,
    history: null,
  };
}

/** The next state. `happened.type` says what it was. */
export function reduce(state, happened) {
  switch (happened.type) {
    case "overview":
      return withOverview(state, happened.overview);
    case "past": {
      const { time, nodes, now, begins, devicesSince } = happened.overview;
      return { ...state, past: { at: time, nodes: byName(nodes), devicesSince }, now, begins };
    }
    case "present":
      return { ...state, past: null };
    case "change":
      return withChange(state, happened.change);
    case "tick":
      return { ...state, now: Math.max(state.now, happened.now), begins: state.begins && Math.max(state.begins, happened.now - DAY_SECONDS) };
    case "connection":
      return { ...state, connection: happened.connection };
    case "search":
      return { ...state, search: happened.text };
    case "sort":
      return { ...state, sort: happened.key };
    case "select":
      return { ...state, selected: happened.node, detail: null, history: null };
    case "detail":
      return happened.detail && happened.detail.name !== state.selected ? state : { ...state, detail: happened.detail };
    case "history":
      return { ...state, history: happened.history };
    default:
      throw new Error(`nothing is known of ${happened.type}`);
  }
}

/** The nodes of the moment that is looked at. */
export function nodesOf(state) {
  return state.past ? state.past.nodes : state.live;
}

/** From when on it is known which devices there were, where the moment that is looked at lies before that; else null. */
export function devicesOf(state) {
  return state.past && state.past.at < state.past.devicesSince ? state.past.devicesSince : null;
}

/** Those that the search leaves, in the chosen order; ties end at the name. */
export function listed(state) {
  const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
  const found = [...nodesOf(state).values()].filter((node) => {
    const text = `${node.name} ${node.status} ${node.models.join(" ")}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
  const rank = ORDERS[state.sort] ?? ORDERS.name;
  return found.sort((a, b) => rank(a) - rank(b) || compareNames(a.name, b.name));
}

/** Sums over all nodes of the moment that is looked at. */
export function totals(state) {
  const sums = { nodes: 0, away: 0, cards: 0, memoryMib: 0, bookedMemoryMib: 0, cores: 0, bookedCores: 0, pods: 0 };
  for (const node of nodesOf(state).values()) {
    sums.nodes += 1;
    sums.away += node.status === "away" ? 1 : 0;
    sums.cards += node.cardCount;
    sums.memoryMib += node.memoryMib;
    sums.bookedMemoryMib += node.bookedMemoryMib;
    sums.cores += node.cores;
    sums.bookedCores += node.bookedCores;
    sums.pods += node.podCount;
  }
  return sums;
}

/** Whether the node that is open has to be read again after `change`. */
export function concerns(state, change) {
  return !state.past && Boolean(state.selected) && change.nodes.some((node) => node.name === state.selected);
}

const ORDERS = {
  name: () => 0,
  memory: (node) => -fullness(node),
  free: (node) => fullness(node),
  pods: (node) => -node.podCount,
  status: (node) => TROUBLE[node.status] ?? 0,
};

const collator = new Intl.Collator("en", { numeric: true });

function compareNames(a, b) {
  return collator.compare(a, b) || (a < b ? -1 : a > b ? 1 : 0);
}

function fullness(node) {
  return node.memoryMib > 0 ? node.bookedMemoryMib / node.memoryMib : 0;
}

function byName(nodes) {
  return new Map(nodes.map((node) => [node.name, node]));
}

function withOverview(state, overview) {
  return {
    ...state,
    live: byName(overview.nodes),
    now: overview.now,
    begins: overview.begins,
    waiting: overview.waiting,
    waitingCount: overview.waitingCount,
    log: merged(state.log, overview.log),
    resources: overview.resources,
    caveats: overview.caveats,
  };
}

function withChange(state, change) {
  const live = new Map(state.live);
  for (const node of change.nodes) live.set(node.name, node);
  for (const name of change.gone) live.delete(name);
  return {
    ...state,
    live,
    now: change.now,
    begins: state.begins || change.now,
    waiting: change.waiting ?? state.waiting,
    waitingCount: change.waitingCount,
    log: merged(state.log, change.log),
    caveats: change.caveats,
  };
}

/** Lines by their place in the log, each once, the newest last. */
function merged(before, more) {
  if (!more.length) return before;
  const lines = new Map([...before, ...more].map((line) => [line.sequence, line]));
  return [...lines.values()].sort((a, b) => a.sequence - b.sequence).slice(-LOG_LINES);
}
