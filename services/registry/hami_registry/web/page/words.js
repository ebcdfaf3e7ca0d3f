// Figures and events in words. Pure.

const KIB = 1024;

/** Memory for people: MiB below 10 GiB, GiB below 10 TiB, TiB above. */
export function memory(mib) {
  if (mib < 10 * KIB) return `${mib} MiB`;
  return mib < 10 * KIB * KIB ? `${trimmed(mib / KIB)} GiB` : `${trimmed(mib / KIB / KIB)} TiB`;
}

/** Part of a whole in percent; a dash where there is no whole. */
export function percent(part, whole) {
  return whole > 0 ? `${Math.round((100 * part) / whole)} %` : "–";
}

/** 0 to 100 and beyond, for bars; 0 where there is no whole. */
export function share(part, whole) {
  return whole > 0 ? (100 * part) / whole : 0;
}

/** A moment on this reader's clock: the time, and the day where it is another one. */
export function moment(seconds, now) {
  const at = new Date(seconds * 1000);
  const clock = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
  const sameDay = at.toDateString() === new Date(now * 1000).toDateString();
  return sameDay ? clock : `${at.toLocaleDateString([], { month: "short", day: "numeric" })} ${clock}`;
}

/** How long ago, roughly. `since` is 0 for longer than anybody remembers. */
export function ago(since, now) {
  if (!since) return "for more than a day";
  const seconds = Math.max(0, now - since);
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 48 * 3600) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

const EVENTS = {
  pod_assigned: ["assigned", (line) => `to ${line.node}${held(line)}`],
  assignment_lapsed: ["lapsed", (line) => `on ${line.node}${because(line)}`],
  pod_allocating: ["bound", (line) => `to ${line.node}${held(line)}`],
  share_resized: ["resizing", (line) => `on ${line.node}${held(line)}`],
  container_served: ["served", (line) => `on ${line.node}`],
  allocation_succeeded: ["allocated", (line) => `on ${line.node}`],
  allocation_failed: ["failed", (line) => `on ${line.node}${because(line)}`],
  share_resize_applied: ["resized", (line) => `on ${line.node}${held(line)}`],
  share_resize_refused: ["kept", (line) => `on ${line.node}${because(line)}`],
  pod_released: ["released", (line) => `from ${line.node}${because(line)}`],
};

/** A line of the log as [word, rest]; an event that this page does not know yet is told by its type. */
export function event(line) {
  const [word, rest] = EVENTS[line.type] ?? [line.type.replaceAll("_", " "), (each) => `on ${each.node}`];
  return [word, rest(line)];
}

/** What simulate grants a pod: a share after the other. */
export function shares(assignments) {
  return assignments
    .flatMap((assignment) => assignment.containers)
    .flatMap((container) => container.shares ?? [])
    .map((each) => `${memory(each.memoryMib)}${each.cores ? `, ${each.cores} %` : ""} of ${each.uuid}`)
    .join("; ");
}

const STATUS = {
  ok: "ok",
  away: "away: nobody reports",
  unhealthy: "a card is unhealthy",
  cordoned: "a card is cordoned",
};

/** A node's status in words. */
export function nodeStatus(status) {
  return STATUS[status] ?? status;
}

function held(line) {
  return line.memoryMib ? ` · ${memory(line.memoryMib)}${line.cores ? `, ${line.cores} %` : ""}` : "";
}

function because(line) {
  return line.reason ? ` · ${line.reason}` : "";
}

function trimmed(number) {
  return number >= 100 ? String(Math.round(number)) : number.toFixed(1).replace(/\.0$/, "");
}
