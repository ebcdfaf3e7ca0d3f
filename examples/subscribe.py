"""Follow what is granted where, from the beginning of the log: ten lines with the project's own types. NATS_URL says where the bus is."""

import asyncio
import os

import nats

from hami_protocol.envelope import Message, open_message


async def main() -> None:
    connection = await nats.connect(os.environ.get("NATS_URL", "nats://127.0.0.1:4222"))
    subscription = await connection.jetstream().subscribe("hami.v1.allocations.>", ordered_consumer=True)
    async for message in subscription.messages:
        event = open_message(Message(subject=message.subject, data=message.data))
        print(message.metadata.sequence.stream, type(event).__name__, event.pod, "on", event.node, flush=True)


asyncio.run(main())
