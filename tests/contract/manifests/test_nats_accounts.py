"""The bus of the production overlay, its own configuration on a real server: each service can do all that it does, and nobody more."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from hami_protocol import subjects
from hami_protocol.envelope import MESSAGE_ID, Message
from hami_registry import reports
from hami_registry.outcomes import DURABLE
from hami_runtime.bus import BusError, MessageRefused, NoReply, api, jetstream, permissions, reading
from hami_runtime.bus.filters import matches
from hami_runtime.bus.jetstream import JetStreamBus
from hami_runtime.settings import ProcessSettings
from tests.certificates import Authority
from tests.contract.manifests.production import ProductionBus, production_bus
from tools import nats_configuration

pytestmark = pytest.mark.nats
WIRE = Path(__file__).parents[1] / "wire"
GRANT = subjects.grant("node-1", "default", "p")
OUTCOME = subjects.outcome("node-1", "default", "p")
DEVICES = subjects.devices("node-1", "nvidia")


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[ProductionBus]:
    async with production_bus(tmp_path, "nats-accounts") as bus:
        yield bus


def a_message(subject: str) -> Message:
    return Message(subject=subject, data=b"{}", headers={MESSAGE_ID: secrets.token_hex(8)})


async def first(bus: JetStreamBus, stream: subjects.StreamSpec, subject: str, *, durable: str | None = None) -> str:
    """The subject of the first message, acknowledged."""
    async with asyncio.timeout(20), bus.consume(stream, subjects=[subject], durable=durable) as deliveries:
        delivery = await anext(deliveries)
        await delivery.ack()
        return delivery.message.subject


async def first_live(agent: JetStreamBus, subject: str, publish: Callable[[], Awaitable[object]]) -> str:
    """The subject of the first message that is kept from now on, published until one comes: a new connection's accounts are linked in a moment."""

    async def publishing() -> None:
        while True:
            await publish()
            await asyncio.sleep(0.5)

    publisher: asyncio.Task[None] | None = None
    try:
        async with asyncio.timeout(20), agent.live(subjects.ALLOCATIONS, subject) as messages:
            async for published in messages:
                if published is not None:
                    return published.message.subject
                publisher = publisher or asyncio.create_task(publishing())
    finally:
        if publisher is not None:
            publisher.cancel()
    raise AssertionError("the messages ended")


async def test_each_service_does_all_that_it_does(bus: ProductionBus) -> None:
    async with (
        bus.connect("hami-scheduler") as scheduler,
        bus.connect("hami-registry") as registry,
        bus.connect("hami-node-agent", looks_up_directly=True) as agent,
        bus.connect("hami-reader") as reader,
    ):
        await scheduler.ensure_streams(subjects.STREAMS)
        await registry.ensure_streams((subjects.DEVICES, subjects.ALLOCATIONS, subjects.REPORTS))
        for who, said in (
            (agent, (DEVICES, OUTCOME, subjects.usage("node-1"))),
            (scheduler, (GRANT, subjects.verdict("default", "p"))),
            (registry, (subjects.liveness("node-1", "nvidia"), subjects.devices("node-1", "mlu"), OUTCOME)),
        ):
            for subject in said:
                assert await who.publish(a_message(subject)) > 0
        assert await first(scheduler, subjects.DEVICES, subjects.ALL_DEVICES) == DEVICES
        assert await first(scheduler, subjects.ALLOCATIONS, subjects.ALL_ALLOCATIONS) == GRANT
        assert await first(registry, subjects.DEVICES, subjects.ALL_LIVENESS) == subjects.liveness("node-1", "nvidia")
        assert await first(registry, subjects.ALLOCATIONS, subjects.ALL_OUTCOMES, durable=DURABLE) == OUTCOME
        assert await first(registry, subjects.REPORTS, subjects.ALL_REPORTS, durable=reports.DURABLE) == "hami.v1.reports.node-1"
        assert await first_live(agent, subjects.node_grants("node-1"), lambda: scheduler.publish(a_message(GRANT))) == GRANT
        assert (await agent.last(subjects.ALLOCATIONS, GRANT)) is not None
        assert (await agent.last(subjects.DEVICES, DEVICES)) is not None
        for stream in subjects.STREAMS:
            assert await first(reader, stream, "hami.v1.>")
        for who in (reader, registry):  # the registry for people who have no way to the bus
            for stream in subjects.STREAMS:
                assert await who.has(stream)
                assert await reading.newest(who, stream, "hami.v1.>")
        await registry.purge(subjects.DEVICES, DEVICES)
        assert await agent.last(subjects.DEVICES, DEVICES) is None


async def asked(reader: JetStreamBus, subject: str) -> bytes | None:
    """The answer, or None where nobody answers yet."""
    try:
        return await reader.request(subject, b"it is", timeout_seconds=10)
    except NoReply:
        return None


async def test_questions_are_answered_by_whom_they_are_for(bus: ProductionBus) -> None:
    async def answer(question: bytes) -> bytes:
        return b"because " + question

    async with (
        bus.connect("hami-scheduler") as scheduler,
        bus.connect("hami-registry") as registry,
        bus.connect("hami-reader") as reader,
        scheduler.answer(subjects.ASK_EXPLAIN, answer),
        registry.answer(subjects.ASK_INVENTORY, answer),
    ):
        for subject in (subjects.ASK_EXPLAIN, subjects.ASK_INVENTORY):
            found = None
            for _ in range(600):  # the server hears of who answers on another connection, in its own time
                if (found := await asked(reader, subject)) is not None:
                    break
                await asyncio.sleep(0.05)
            assert found == b"because it is"


@pytest.mark.parametrize(
    ("user", "subject"),
    [
        ("hami-node-agent", GRANT),
        ("hami-node-agent", subjects.liveness("node-1", "nvidia")),
        ("hami-node-agent", subjects.verdict("default", "p")),
        ("hami-scheduler", OUTCOME),
        ("hami-scheduler", DEVICES),
        ("hami-registry", GRANT),
        ("hami-reader", GRANT),
        ("hami-reader", DEVICES),
    ],
)
async def test_nobody_speaks_for_another(bus: ProductionBus, user: str, subject: str) -> None:
    async with bus.connect("hami-scheduler") as scheduler, bus.connect(user) as somebody:
        await scheduler.ensure_streams(subjects.STREAMS)
        with pytest.raises(MessageRefused):
            await somebody.publish(a_message(subject))


@pytest.mark.parametrize("user", ["hami-node-agent", "hami-reader"])
async def test_who_only_reads_changes_no_stream_and_nobody_elses_consumer(bus: ProductionBus, user: str) -> None:
    async with bus.connect("hami-scheduler") as scheduler, bus.connect("hami-registry") as registry, bus.connect(user) as somebody:
        await scheduler.ensure_streams(subjects.STREAMS)
        await scheduler.publish(a_message(GRANT))
        assert await first(registry, subjects.ALLOCATIONS, subjects.ALL_GRANTS, durable=DURABLE) == GRANT
        session, stream = await somebody.session(), subjects.ALLOCATIONS.name
        for what in (
            f"STREAM.DELETE.{stream}",
            f"STREAM.PURGE.{stream}",
            f"STREAM.UPDATE.{stream}",
            f"CONSUMER.DELETE.{stream}.{DURABLE}",
            f"CONSUMER.MSG.NEXT.{stream}.{DURABLE}",
            f"CONSUMER.CREATE.{stream}.{DURABLE}",
            f"CONSUMER.DURABLE.CREATE.{stream}.{DURABLE}",
        ):
            with pytest.raises(BusError, match="may not publish"):
                await api.call(session, what, {})


@pytest.mark.parametrize("user", [None, "hami-nobody", "system"])
async def test_who_has_no_certificate_for_a_user_is_not_let_in(bus: ProductionBus, user: str | None) -> None:
    async with jetstream.connect(bus.server.url, name="stranger", tls=bus.tls(user)) as stranger:
        await asyncio.sleep(0.5)
        assert not stranger.connected


async def test_who_has_a_certificate_of_another_authority_is_not_let_in(bus: ProductionBus, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    context = bus.tls(None)
    context.load_cert_chain(*Authority(elsewhere).issue("hami-scheduler", "hami-scheduler"))
    async with jetstream.connect(bus.server.url, name="stranger", tls=context) as stranger:
        await asyncio.sleep(0.5)
        assert not stranger.connected


async def test_a_renewed_certificate_is_taken_at_the_next_connection(bus: ProductionBus, tmp_path: Path) -> None:
    authority, certificate, key = (tmp_path / name for name in ("mounted.ca", "mounted.crt", "mounted.key"))
    authority.write_bytes((tmp_path / "ca.crt").read_bytes())

    def mount(user: str) -> None:
        issued, its_key = bus.issue(user)
        certificate.write_bytes(issued.read_bytes())
        key.write_bytes(its_key.read_bytes())

    mount("hami-nobody")
    settings = ProcessSettings(nats_url=bus.server.url, nats_ca=str(authority), nats_certificate=str(certificate), nats_key=str(key))
    async with jetstream.connect_process(settings, name="test") as service:
        await asyncio.sleep(0.3)
        assert not service.connected
        certificate.write_text("being written")
        await asyncio.sleep(0.3)
        mount("hami-reader")
        async with asyncio.timeout(20):
            await service.wait_connected()


async def test_who_is_not_let_in_can_stop_at_any_moment(bus: ProductionBus) -> None:
    tls = bus.tls("hami-nobody")
    for hundredths in range(1, 16):
        async with asyncio.timeout(10), jetstream.connect(bus.server.url, name="stranger", tls=tls):
            await asyncio.sleep(hundredths / 100)


def test_an_agents_own_permissions_are_of_its_own_node() -> None:
    may = permissions.node_agent("node-1.example", device_types=("nvidia",)).publish
    assert not any(matches(pattern, subjects.devices("node-1.example", "invented")) for pattern in may)
    assert any(matches(pattern, subjects.devices("node-1.example", "nvidia")) for pattern in may)
    assert any(matches(pattern, subjects.outcome("node-1.example", "default", "p")) for pattern in may)
    for subject in (subjects.devices("node-2", "nvidia"), subjects.outcome("node-2", "default", "p"), subjects.usage("node-2")):
        assert not any(matches(pattern, subject) for pattern in may)


def test_every_subject_has_one_service_that_may_publish_on_it() -> None:
    said = {
        GRANT: {"hami-scheduler"},
        OUTCOME: {"hami-node-agent", "hami-registry"},  # which has checked it, where agents have an account of their own
        DEVICES: {"hami-node-agent", "hami-registry"},
        subjects.liveness("n", "nvidia"): {"hami-registry"},
        subjects.verdict("default", "p"): {"hami-scheduler"},
        subjects.usage("n"): {"hami-node-agent"},
    }
    for subject, wanted in said.items():
        may = {name for name, user in nats_configuration.users().items() if any(matches(each, subject) for each in user.publish)}
        assert may == wanted


@pytest.mark.parametrize("subject", [subjects.ASK_EXPLAIN, subjects.ASK_SIMULATE, subjects.ASK_INVENTORY, subjects.ASK_HOLDINGS])
def test_a_question_has_one_service_that_answers_it(subject: str) -> None:
    users = nats_configuration.users()
    hears = {name for name, user in users.items() if any(matches(each, subject) for each in user.subscribe)}
    asks = {name for name, user in users.items() if any(matches(each, subject) for each in user.publish)}
    assert hears == {"hami-registry" if subject == subjects.ASK_INVENTORY else "hami-scheduler"}
    assert all(users[name].answers for name in hears)
    page = {"hami-registry"} if subject in {subjects.ASK_SIMULATE, subjects.ASK_HOLDINGS} else set()
    forwarded = {"hami-scheduler"} if subject in {subjects.ASK_EXPLAIN, subjects.ASK_SIMULATE} else set()  # to the scheduler that leads
    assert asks == {"hami-reader", *page, *forwarded}


SAID_BY_OTHERS = {
    "liveness_changed": "hami-registry",
    **dict.fromkeys(
        ("pod_assigned", "assignment_lapsed", "pod_allocating", "share_resized", "pod_refused", "pod_placed"), "hami-scheduler"
    ),
}
"""Kinds of events that no agent says."""


@pytest.mark.parametrize("path", sorted(WIRE.glob("*.json")), ids=lambda path: path.stem)
def test_whoever_says_an_event_may_publish_it(path: Path) -> None:
    recorded = json.loads(path.read_text())
    kind = recorded["headers"]["ce-type"].rpartition(".")[2]
    said_by = {SAID_BY_OTHERS.get(kind, "hami-node-agent")} | ({"hami-scheduler"} if kind == "pod_released" else set())
    may = {name for name, user in nats_configuration.users().items() if any(matches(each, recorded["subject"]) for each in user.publish)}
    assert may & said_by
