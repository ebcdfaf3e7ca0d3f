// Follows what is granted where, with NATS' client and the JSON Schema of the events alone. NATS_URL says where the bus is.
//
//   node follow.mjs my-dashboard          until Ctrl-C
//   node follow.mjs my-dashboard --once   what has come since the last run
//
// The consumer's place is kept on the server under its durable name: a second run goes on where the first one ended. What is done with an event is done
// before it is acknowledged, so it can be done twice: the id tells.
import { readFile } from "node:fs/promises";
import { AckPolicy, jetstream, jetstreamManager } from "@nats-io/jetstream";
import { connect } from "@nats-io/transport-node";
import Ajv from "ajv/dist/2020.js";

const STREAM = "HAMI_ALLOCATIONS";
const SCHEMA = process.env.HAMI_EVENT_SCHEMA ?? new URL("../../../docs/protocol/event.schema.json", import.meta.url);

const [durable, how] = process.argv.slice(2);
if (!durable) {
  console.error("usage: node follow.mjs DURABLE [--once]");
  process.exit(2);
}
const isEvent = new Ajv({ strict: false }).compile(JSON.parse(await readFile(SCHEMA, "utf8")));
const connection = await connect({ servers: process.env.NATS_URL, maxReconnectAttempts: -1 });
const manager = await jetstreamManager(connection);
await manager.consumers.add(STREAM, {
  durable_name: durable,
  ack_policy: AckPolicy.Explicit,
  filter_subject: "hami.v1.allocations.*.*.*.grant",
});
const consumer = await jetstream(connection).consumers.get(STREAM, durable);

let stopped = false;
process.on("SIGINT", () => {
  stopped = true;
});
while (!stopped) {
  let count = 0;
  for await (const message of await consumer.fetch({ max_messages: 64, expires: 1000 })) {
    count += 1;
    show(message);
    await message.ackAck(); // after the work: what was not acknowledged comes again
  }
  if (how === "--once" && count === 0) break;
}
await connection.close();

/** Where such a grant is published: who may publish there is enforced, what a body says is not. */
function subjectOf({ node, pod }) {
  return `hami.v1.allocations.${[node, pod.namespace, pod.name].map((name) => name.replaceAll(".", "_")).join(".")}.grant`;
}

/** Print a grant; of other events, of those that the schema does not know, and of those on another's subject, nothing. */
function show(message) {
  let event;
  try {
    event = message.json();
  } catch {
    return;
  }
  if (!isEvent(event) || event.type !== "pod_allocating" || message.subject !== subjectOf(event)) return;
  for (const { containers } of event.assignments) {
    for (const { container, shares = [] } of containers) {
      for (const { uuid, memoryMib, cores } of shares) {
        console.log(`${event.pod.namespace}/${event.pod.name} ${container} on ${event.node}: ${memoryMib} MiB ${cores} % of ${uuid}`);
      }
    }
  }
}
