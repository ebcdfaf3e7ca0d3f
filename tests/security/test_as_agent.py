"""A compromised node on the bus: what its agent's user can try, against the production overlay's own configuration, a real server and the real auth
callout. Each test prints how much it tried; what must not happen is looked for in the streams and on the other side, not in error messages alone."""

from __future__ import annotations

import asyncio
import itertools
import random
import secrets
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from nats.aio.msg import Msg

from hami_protocol import envelope, events, subjects
from hami_protocol.devices import PodRef
from hami_protocol.envelope import MESSAGE_ID, Message
from hami_registry.outcomes import DURABLE
from hami_registry.reports import ReportGate
from hami_runtime.bus import BusError, BusUnavailable, MessageRefused, api
from hami_runtime.bus.jetstream import JetStreamBus
from hami_runtime.bus.session import Session
from hami_runtime.clock import SystemClock
from hami_runtime.kube.memory import MemoryCluster
from hami_runtime.kube.store import ObjectStore
from tests.contract.manifests import test_nats_auth_callout as callout
from tests.contract.manifests.test_nats_auth_callout import World, connected

pytestmark = [pytest.mark.nats, pytest.mark.asyncio(loop_scope="module")]

OWN = "node-1"
VICTIM = "node-2"
ALL_STREAMS = (*subjects.STREAMS, subjects.REPORTS)
OWN_SUBJECTS = (subjects.devices(OWN, "nvidia"), subjects.usage(OWN), subjects.outcome(OWN, "default", "p"))
LOOKED_UP = f"{api.PREFIX}DIRECT.GET.{subjects.DEVICES.name}.{subjects.devices(OWN, 'nvidia')}"
FOREIGN = (
    subjects.devices(VICTIM, "nvidia"),
    subjects.devices(VICTIM, "mlu"),
    subjects.liveness(OWN, "nvidia"),
    subjects.liveness(VICTIM, "nvidia"),
    subjects.grant(OWN, "default", "p"),
    subjects.grant(VICTIM, "default", "p"),
    subjects.outcome(VICTIM, "default", "p"),
    subjects.verdict("default", "p"),
    subjects.usage(VICTIM),
    subjects.ASK_EXPLAIN,
    subjects.ASK_SIMULATE,
    subjects.ASK_INVENTORY,
    subjects.ASK_HOLDINGS,
    subjects.ask_agent(VICTIM, "nvidia"),
    f"hami.v1.granted.{VICTIM}.default.p",
    f"hami.v1.granted.{OWN}.default.p",
    f"hami.v1.reports.{OWN}.default.p",
    f"hami.v1.reports.{VICTIM}.default.p",
    f"{subjects.inbox(VICTIM)}.x.1",
)
"""Where nothing of this node's agent may ever arrive."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    folder, other = tmp_path_factory.mktemp("bus"), tmp_path_factory.mktemp("callout")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AUTH_ISSUER", callout.SECRET["issuer"])
        async with callout.running(folder, other) as world, world.bus.connect("hami-registry") as registry:
            async with world.bus.connect("hami-scheduler") as scheduler:
                await scheduler.ensure_streams(subjects.STREAMS)
            await registry.ensure_streams((subjects.REPORTS,))
            yield world


def tried(count: int, what: str) -> None:
    print(f"as agent: {count} times tried {what}")


async def kept(bus: JetStreamBus, stream: subjects.StreamSpec) -> dict[str, int]:
    """How many messages each subject of a stream has."""
    answer = await (await bus.session()).ask(f"{api.PREFIX}STREAM.INFO.{stream.name}", b'{"subjects_filter": ">"}', timeout_seconds=10)
    return msgspec.json.decode(answer.data)["state"].get("subjects") or {}  # type: ignore[no-any-return]


async def everything(world: World) -> dict[str, int]:
    """What all streams have, by subject."""
    async with world.bus.connect("hami-registry") as registry:
        return {subject: count for stream in ALL_STREAMS for subject, count in (await kept(registry, stream)).items()}


async def send_all(session: Session, messages: Iterable[tuple[str, bytes, str, dict[str, str]]]) -> int:
    """Send without waiting for answers; return how many, once the server has looked at all."""
    count = 0
    for subject, data, reply, headers in messages:
        await session.send(subject, data, reply=reply, headers=headers)
        count += 1
    await session.flush()
    return count


async def test_nothing_arrives_where_another_may_publish(world: World) -> None:
    before = await everything(world)
    async with world.agent(OWN) as agent, world.bus.connect("hami-scheduler") as scheduler:
        heard: list[str] = []

        async def hear(message: Msg) -> None:
            heard.append(message.subject)

        for subject in (subjects.ASK_EXPLAIN, subjects.ASK_SIMULATE, subjects.ASK_HOLDINGS):
            await (await scheduler.session()).subscribe(subject, hear)
        session = await (await connected(agent)).session()
        count = await send_all(session, ((subject, b"{}", "", {}) for subject in (*FOREIGN, "$SYS.REQ.SERVER.PING", "$SRV.PING", "_R_.x")))
        for subject in FOREIGN:
            with pytest.raises(BusError):
                await agent.publish(Message(subject=subject, data=b"{}"), timeout_seconds=2)
        assert heard == []
    assert await everything(world) == before
    tried(2 * count, "to publish for others")


async def test_no_answer_of_the_server_lands_in_a_stream_or_reaches_a_responder(world: World) -> None:
    """A reply subject is not looked at by permissions: the server's own answer goes wherever it says, unless accounts part them."""
    async with world.agent(OWN) as agent, world.bus.connect("hami-scheduler") as scheduler, world.bus.connect("hami-registry") as registry:
        heard: list[str] = []

        async def hear(message: Msg) -> None:
            heard.append(message.subject)

        for bus, subject in (
            *((scheduler, each) for each in (subjects.ASK_EXPLAIN, subjects.ASK_SIMULATE, subjects.ASK_HOLDINGS)),
            (registry, subjects.ASK_INVENTORY),
        ):
            session = await bus.session()
            await session.subscribe(subject, hear)
            await session.flush()
        await agent_publishes(await connected(agent))
        before = await everything(world)
        acks = [f"$JS.ACK.{subjects.ALLOCATIONS.name}.{DURABLE}.1.{n}.{n}.1700000000000000000.0" for n in range(1, 4)]
        calls = [f"{api.PREFIX}STREAM.PURGE.{stream.name}" for stream in ALL_STREAMS]
        calls += [f"{api.PREFIX}STREAM.DELETE.{stream.name}" for stream in ALL_STREAMS]
        sources = (*OWN_SUBJECTS, LOOKED_UP)
        replies = (*FOREIGN, *OWN_SUBJECTS, *acks, *calls)
        session = await agent.session()
        count = await send_all(session, ((source, b"{}", reply, {}) for source, reply in itertools.product(sources, replies)))
        await agent_publishes(agent)  # answered behind all of these
        after = await everything(world)
        assert heard == []
        assert {subject for subject in after if VICTIM in subject} == {subject for subject in before if VICTIM in subject}
        assert after.keys() == before.keys()
        assert after.get(subjects.grant(OWN, "default", "p")) == before.get(subjects.grant(OWN, "default", "p"))
        last = await registry.last(subjects.DEVICES, subjects.devices(OWN, "nvidia"))
        assert last is not None
        assert last.data == b"{}"
    tried(count, "to have an answer sent elsewhere")


async def agent_publishes(agent: JetStreamBus) -> None:
    for subject in OWN_SUBJECTS:
        assert await agent.publish(Message(subject=subject, data=b"{}")) > 0


async def test_an_acknowledgement_cannot_be_forged_through_a_reply(world: World) -> None:
    grant = Message(subject=subjects.grant(VICTIM, "default", "acked"), data=b"{}")
    async with (
        world.agent(OWN) as agent,
        world.bus.connect("hami-scheduler") as scheduler,
        world.bus.connect("hami-registry") as registry,
        registry.consume(subjects.ALLOCATIONS, subjects=[grant.subject], durable=DURABLE, ack_wait_seconds=1.0) as deliveries,
    ):
        await scheduler.publish(grant)
        async with asyncio.timeout(20):
            delivery = await anext(deliveries)
            session = await (await connected(agent)).session()
            reply = delivery._reply  # type: ignore[attr-defined]
            count = await send_all(session, ((source, b"{}", reply, {}) for source in (*OWN_SUBJECTS, LOOKED_UP)))
            again = await anext(deliveries)
        assert (again.sequence, again.attempt) == (delivery.sequence, 2)
        await again.ack()
    tried(count, "to acknowledge for the registry")


async def test_jetstreams_interface_is_closed_but_for_its_own_last_messages(world: World) -> None:
    verbs = ("INFO", "CREATE", "UPDATE", "DELETE", "PURGE", "MSG.GET", "MSG.DELETE", "SNAPSHOT", "RESTORE", "LEADER.STEPDOWN")
    calls = [f"STREAM.{verb}.{stream.name}" for verb in verbs for stream in ALL_STREAMS]
    consumer = {"name": "mine", "deliver_subject": subjects.devices(VICTIM, "nvidia"), "ack_policy": "none", "deliver_policy": "all"}
    for stream in ALL_STREAMS:
        calls += [f"CONSUMER.{verb}.{stream.name}" for verb in ("CREATE", "NAMES", "LIST")]
        calls += [
            f"CONSUMER.{verb}.{stream.name}.{name}"
            for verb in ("CREATE", "DURABLE.CREATE", "INFO", "DELETE", "MSG.NEXT")
            for name in ("mine", DURABLE)
        ]
        calls += [f"CONSUMER.CREATE.{stream.name}.mine.{stream.subjects[0].replace('*', 'x')}", f"DIRECT.GET.{stream.name}"]
    calls += ["INFO", "STREAM.NAMES", "STREAM.LIST", "STREAM.CREATE.OTHER", "META.LEADER.STEPDOWN", "ACCOUNT.PURGE.HAMI"]
    calls += [
        f"DIRECT.GET.{subjects.DEVICES.name}.{subjects.devices(VICTIM, 'nvidia')}",
        f"DIRECT.GET.{subjects.DEVICES.name}.{subjects.ALL_DEVICES}",
        f"DIRECT.GET.{subjects.ALLOCATIONS.name}.{subjects.grant(VICTIM, 'default', 'p')}",
        f"DIRECT.GET.{subjects.ALLOCATIONS.name}.{subjects.outcome(OWN, 'default', 'p')}",
        f"DIRECT.GET.{subjects.VERDICTS.name}.{subjects.verdict('default', 'p')}",
    ]
    before = await everything(world)
    async with world.agent(OWN) as agent:
        session = await (await connected(agent)).session()
        for call in calls:
            body = {"stream_name": call.split(".")[2], "config": consumer} if call.startswith("CONSUMER.CREATE") else {}
            with pytest.raises(BusError):
                await api.call(session, call, body)
    assert await everything(world) == before
    tried(len(calls), "to manage streams and consumers")


async def test_nothing_of_others_is_received(world: World) -> None:
    filters = (
        ">",
        "hami.>",
        "hami.v1.granted.>",
        f"hami.v1.granted.{VICTIM}.*.*",
        f"{subjects.inbox(VICTIM)}.>",
        "_INBOX.>",
        "_R_.>",
        "$SYS.>",
        "$JS.>",
        f"hami.v1.agent.{VICTIM}.*",
        subjects.ALL_ALLOCATIONS,
        subjects.ALL_DEVICES,
    )
    heard: list[str] = []

    async def hear(message: Msg) -> None:
        heard.append(message.subject)

    async with world.agent(OWN) as one, world.agent(VICTIM) as two, world.bus.connect("hami-scheduler") as scheduler:
        session = await (await connected(one)).session()
        for each in filters:
            await session.subscribe(each, hear)
        await session.flush()
        await (await connected(two)).publish(Message(subject=subjects.usage(VICTIM), data=b"{}"))
        await scheduler.publish(Message(subject=subjects.grant(VICTIM, "default", "heard"), data=b"{}"))
        await session.flush()
        assert heard == []
    tried(len(filters), "to listen to others")


async def test_an_id_taken_before_hides_no_message(world: World) -> None:
    """Ids that follow from what happens can be foretold; the stream's own cannot, and one that is taken is noticed."""
    uid = "11111111-1111-1111-1111-111111111111"
    guesses = [f"{uid}/{what}/{second}" for what in ("assigned", "allocating", "lapsed") for second in range(1700000000, 1700000040)]
    guesses += [f"{uid}/released", *(f"{VICTIM}/nvidia/boot/{n}" for n in range(100))]
    grant = events.PodAllocating(
        pod=PodRef(namespace="default", name="hidden", uid=uid), node=VICTIM, assignments=(), bind_time_seconds=1700000007
    )
    sealed = envelope.seal(
        grant, event_id=f"{uid}/allocating/1700000007", message_id=f"{uid}/allocating/1700000007", source="/s", time="2026-01-01T00:00:00Z"
    )
    async with world.agent(OWN) as agent, world.bus.connect("hami-scheduler") as scheduler:
        session = await (await connected(agent)).session()
        sent = itertools.product(OWN_SUBJECTS, guesses)
        count = await send_all(session, ((subject, b"{}", "", {MESSAGE_ID: guess}) for subject, guess in sent))
        await agent.publish(Message(subject=subjects.usage(OWN), data=b"{}"))
        sequence = await scheduler.publish(sealed)  # even under an id that was foretold
        assert sequence > 0
        last = await scheduler.last(subjects.ALLOCATIONS, sealed.subject)
        assert last is not None
        assert last.data == sealed.data
    tried(count, "to take another's message id")


async def test_no_header_makes_the_server_publish_or_remove_anything(world: World) -> None:
    headers: list[dict[str, str]] = [
        {"Nats-Rollup": "all"},
        {"Nats-Rollup": "sub"},
        {"Nats-TTL": "1s"},
        {"Nats-Schedule": "@at 2026-01-01T00:00:00Z", "Nats-Schedule-Target": subjects.devices(VICTIM, "nvidia")},
        {"Nats-Incr": "+1"},
        {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1", "Nats-Batch-Commit": "1"},
        *({"Nats-Trace-Dest": subject} for subject in FOREIGN),
        *({"Nats-Trace-Dest": subject, "Nats-Trace-Only": "true"} for subject in FOREIGN),
    ]
    async with world.agent(OWN) as agent:
        await agent_publishes(await connected(agent))
        before = await everything(world)
        session = await agent.session()
        count = await send_all(session, ((subject, b"{}", "", each) for subject in OWN_SUBJECTS for each in headers))
        await agent_publishes(agent)
        after = await everything(world)
        assert after.keys() == before.keys()
        assert {s: n for s, n in after.items() if OWN not in s} == {s: n for s, n in before.items() if OWN not in s}
    tried(count, "headers that ask something of the server")


async def test_large_messages_and_floods_fill_the_nodes_own_part_and_pods_are_granted_all_the_while(world: World) -> None:
    async with world.agent(OWN) as agent, world.bus.connect("hami-scheduler") as scheduler, world.agent(VICTIM) as victim:
        await connected(victim)
        await connected(agent)
        for _ in range(3):  # the server ends a connection for it
            with pytest.raises((MessageRefused, BusUnavailable)):
                await agent.publish(Message(subject=OWN_SUBJECTS[0], data=b"x" * 900_000), timeout_seconds=5)
            await connected(agent)
        body = b"x" * 100_000
        count = 0
        for start in range(0, 2 * subjects.MOST_REPORTS, 200):
            session = await (await connected(agent)).session()
            names = (subjects.outcome(OWN, "default", f"p{start + n}") for n in range(200))
            count += await send_all(session, ((name, body, "", {}) for name in names))
            grant = subjects.grant(VICTIM, "default", f"in-flood-{start}")
            assert await scheduler.publish(Message(subject=grant, data=b"{}")) > 0
            assert await victim.last(subjects.ALLOCATIONS, grant) is not None
            assert await victim.publish(Message(subject=subjects.outcome(VICTIM, "default", f"p{start}"), data=b"{}")) > 0
        with pytest.raises(BusUnavailable, match="maximum messages per subject"):
            await agent.publish(Message(subject=OWN_SUBJECTS[2], data=b"{}"))
        found = await everything(world)
        assert found[f"hami.v1.reports.{OWN}"] == subjects.MOST_REPORTS
        assert await agent.publish(Message(subject=OWN_SUBJECTS[0], data=b"{}")) > 0
        invented = [f"hami.v1.devices.{OWN}.{secrets.token_hex(4)}" for _ in range(100)]
        for name in invented:
            await session.send(name, b"{}")
        await session.flush()
        assert not [name for name in await everything(world) if name in invented]
    tried(count + 103, "to fill the bus")


async def test_what_it_reports_of_other_nodes_pods_is_refused(world: World) -> None:
    pod = PodRef(namespace="default", name="elsewhere", uid="u-elsewhere")
    grant = envelope.seal(
        events.PodAllocating(pod=pod, node=VICTIM, assignments=(), bind_time_seconds=1),
        event_id="g",
        source="/s",
        time="2026-01-01T00:00:00Z",
    )
    stop = asyncio.Event()
    async with (
        world.bus.connect("hami-registry") as registry,
        world.bus.connect("hami-scheduler") as scheduler,
        world.agent(VICTIM) as victim,
    ):
        await scheduler.publish(grant)
        async with world.agent(OWN) as agent:
            await connected(agent)
            lies = [
                Message(subject=subjects.outcome(OWN, "default", name), data=data)
                for name in ("elsewhere", "p")
                for node in (OWN, VICTIM)
                for data in (
                    msgspec.json.encode(events.PodReleased(pod=pod, node=node)),
                    msgspec.json.encode(events.AllocationFailed(pod=pod, node=node, reason="x")),
                    msgspec.json.encode(events.PodAllocating(pod=pod, node=node, assignments=(), bind_time_seconds=2)),
                )
            ]
            gate = ReportGate(registry, MemoryCluster(ObjectStore(now=SystemClock().utc, rng=random.Random(1))), SystemClock())
            checking = asyncio.create_task(gate.run(stop))
            for lie in lies:
                for _ in range(400):
                    try:
                        await agent.publish(lie)
                        break
                    except BusUnavailable:  # what the flood has left is being refused
                        await asyncio.sleep(0.05)
            truth = events.PodReleased(pod=pod, node=VICTIM)
            await (await connected(victim)).publish(
                Message(subject=subjects.subject_of(truth, subjects.agent_source(VICTIM)), data=msgspec.json.encode(truth))
            )
            async with asyncio.timeout(60):
                found = await everything(world)
                while any("reports" in subject for subject in found):
                    await asyncio.sleep(0.1)
                    found = await everything(world)
            stop.set()
            await checking
        outcomes = {subject for subject in found if subject.endswith(".outcome")}
        assert outcomes == {subjects.outcome(VICTIM, "default", "elsewhere")}
    tried(len(lies), "to speak of another node's pod")


async def test_one_node_has_few_connections(world: World, tmp_path: Path) -> None:
    """Users are issued one by one after the first; each replica of the callout counts for itself."""
    refused = "has had"
    count = 0
    async with asyncio.timeout(60):
        while refused not in world.callout.log:
            async with world.agent("node-3") as agent:
                count += 1
                for _ in range(40):
                    if agent.connected or refused in world.callout.log:
                        break
                    await asyncio.sleep(0.05)
    assert count <= 25
    async with world.agent("node-4") as other:
        await connected(other)
    tried(count, "to connect")
