"""The bounds of our streams on a real server: of new ones, and of those that an earlier version made."""

from __future__ import annotations

import msgspec
import pytest

from hami_protocol import subjects
from hami_protocol.envelope import Message
from hami_runtime.bus import MessageRefused, api, jetstream
from hami_runtime.bus.jetstream import JetStreamBus
from tests.contract.bus.conftest import NatsServer

pytestmark = pytest.mark.nats
STREAMS = (*subjects.STREAMS, subjects.REPORTS)


async def bounds(bus: JetStreamBus, stream: subjects.StreamSpec) -> tuple[int, int, int]:
    found = (await api.call(await bus.session(), f"STREAM.INFO.{stream.name}")).config
    return found["max_bytes"], found["max_msg_size"], found["max_consumers"]


@pytest.mark.parametrize("earlier", [False, True], ids=["new", "made by an earlier version"])
async def test_streams_are_made_with_bounds_and_earlier_ones_get_them(server: NatsServer, earlier: bool) -> None:
    async with jetstream.connect(server.url, name="test") as bus:
        session = await bus.session()
        if earlier:
            for stream in subjects.STREAMS:
                config = {"name": stream.name, "subjects": list(stream.subjects), "storage": "file"}
                await api.call(session, f"STREAM.CREATE.{stream.name}", config)
        await bus.ensure_streams(STREAMS)
        for stream in STREAMS:
            assert min(await bounds(bus, stream)) > 0
            assert await bounds(bus, stream) == (stream.max_bytes, stream.max_message_bytes, stream.max_consumers)
        with pytest.raises(MessageRefused, match="message size exceeds"):
            await bus.publish(Message(subject=subjects.verdict("default", "p"), data=b"x" * (subjects.MAX_MESSAGE_BYTES + 1)))
        assert await bus.publish(Message(subject=subjects.verdict("default", "p"), data=b"{}")) > 0


async def test_a_bound_that_an_operator_has_set_stays(server: NatsServer) -> None:
    async with jetstream.connect(server.url, name="test") as bus:
        await bus.ensure_streams(STREAMS)
        await bus.wait_connected()
        session, name = await bus.session(), subjects.ALLOCATIONS.name
        await bus.ensure_streams(STREAMS)
        config = (await api.call(session, f"STREAM.INFO.{name}")).config
        await api.call(session, f"STREAM.UPDATE.{name}", {**config, "max_bytes": 1_000_000_000})
        await bus.ensure_streams(STREAMS)
        assert (await bounds(bus, subjects.ALLOCATIONS))[0] == 1_000_000_000


async def test_a_full_log_delays_no_grant(server: NatsServer) -> None:
    """As if the bus were away: who follows live has the grant all the same, and the publisher knows that it is not kept."""
    full = msgspec.structs.replace(subjects.ALLOCATIONS, max_bytes=-1)
    async with jetstream.connect(server.url, name="scheduler") as scheduler, jetstream.connect(server.url, name="agent") as agent:
        await scheduler.ensure_streams([full])
        await scheduler.wait_connected()
        session, name = await scheduler.session(), full.name
        await scheduler.ensure_streams([full])
        config = (await api.call(session, f"STREAM.INFO.{name}")).config
        await api.call(session, f"STREAM.UPDATE.{name}", {**config, "max_msgs": 1, "discard": "new"})
        grant = Message(subject=subjects.grant("n1", "default", "p"), data=b"the grant")
        async with agent.live(subjects.ALLOCATIONS, subjects.node_grants("n1")) as messages:
            assert await anext(messages) is None
            await scheduler.publish(Message(subject=subjects.grant("n1", "default", "first"), data=b"{}"))
            assert await anext(messages) == (Message(subject=subjects.grant("n1", "default", "first"), data=b"{}"), True)
            with pytest.raises(jetstream.BusUnavailable):
                await scheduler.publish(grant)
            received = await anext(messages)
        assert received == (grant, False)
