"""Loops that no other suite here runs: the callout, the gate of reports, the page, the webhook's certificate, and the agent's at its edges. An item
whose handler raises keeps the next one from nothing."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hami_billing.follower import SWEEP_SECONDS, Follower
from hami_node_agent.bus_certificate import RETRY_SECONDS, BusCertificate
from hami_node_agent.kubelet import KubeletConnection
from hami_node_agent.node_config import LOOK_SECONDS, NodeConfig
from hami_node_agent.sharing import Sharing
from hami_protocol import subjects
from hami_protocol.devices import PodRef
from hami_protocol.envelope import seal
from hami_protocol.events import AllocationSucceeded, DevicesReported, NodeUsage, PodAllocating
from hami_registry.callout.responder import AUTH_QUESTIONS, Responder
from hami_registry.web.feed import Feed
from hami_runtime import virtual
from hami_runtime.bus.jetstream import JetStreamBus
from hami_runtime.bus.memory import MemoryBus
from hami_runtime.bus.nkeys import Kind, SigningKey
from hami_runtime.kube.memory import MemoryCluster
from hami_runtime.kube.store import ObjectStore
from hami_runtime.virtual import VirtualClock
from hami_webhook.certificates import issue
from hami_webhook.keeper import CHECK_SECONDS, CertificateKeeper, MountedCertificate, server_context
from hami_webhook.stores import SecretStore
from tests.contract.node_agent.world import NODE, play
from tests.contract.node_agent.world import World as AgentWorld
from tests.contract.registry.conftest import World
from tests.contract.registry.test_reports import logged, report
from tests.security.failing import ERRORS, fail

errors = pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
NAMES = ("127.0.0.1",)
BAD, GOOD = (PodRef(namespace="default", name=name, uid=name) for name in ("bad", "good"))


@asynccontextmanager
async def running(loop: Any) -> AsyncIterator[None]:
    """A loop, which must be running still at the end."""
    stop = asyncio.Event()
    task = asyncio.create_task(loop(stop))
    await asyncio.sleep(0)
    yield
    assert not task.done()
    stop.set()
    await task


def a_cluster() -> MemoryCluster:
    return MemoryCluster(ObjectStore(now=VirtualClock().utc, rng=random.Random(1)))


# The auth callout


class Connection:
    """As much of a bus as the callout has: questions come in by ``ask``, answers are in ``told``."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self.hear: Any = None
        self.told: list[str] = []

    async def session(self) -> Any:
        return self

    async def subscribe(self, subject: str, hear: Any, *, group: str) -> None:
        assert subject == AUTH_QUESTIONS
        assert group
        self.hear = hear

    async def tell(self, subject: str, _data: bytes) -> None:
        self.told.append(subject)

    async def ask(self, name: str) -> None:
        await self.hear(SimpleNamespace(data=name.encode(), reply=name))


def a_responder(connection: Connection) -> Any:
    return Responder(
        cast("JetStreamBus", connection),
        a_cluster(),
        VirtualClock(),
        SigningKey.new(Kind.ACCOUNT),
        agent_namespace="hami-node-agent",
        agent_account="hami-node-agent",
        account="AGENTS",
        user_seconds=60,
        device_types=("nvidia",),
    )


@errors
def test_the_callout_answers_the_next_question(error: Exception) -> None:
    async def main() -> None:
        connection = Connection()
        responder = a_responder(connection)
        passed = fail(responder, "_answer", lambda message: message.reply == "bad", error=error)
        async with running(responder.run):
            await asyncio.sleep(1)
            for name in ("bad", "good"):
                await connection.ask(name)
            await asyncio.sleep(1)
        assert [message.reply for (message,) in passed] == ["good"]

    virtual.run(main())


@errors
def test_the_callout_subscribes_again(error: Exception) -> None:
    async def main() -> None:
        connection = Connection()
        fail(connection, "subscribe", times=2, error=error)
        async with running(a_responder(connection).run):
            await asyncio.sleep(30)
        assert connection.hear is not None

    virtual.run(main())


# The registry


@errors
def test_the_gate_passes_the_next_report(error: Exception) -> None:
    async def main() -> None:
        world = World()
        await world.bus.ensure_streams(subjects.STREAMS)
        async with world.registry() as registry:
            await asyncio.sleep(5)
            fail(registry._reports, "_refusal", lambda _node, event: event.pod == BAD, error=error)
            for pod in (BAD, GOOD):
                await world.bus.publish(sealed(PodAllocating(pod=pod, node="n1", assignments=(), bind_time_seconds=1)))
                await report(world, AllocationSucceeded(pod=pod, node="n1"))
            await asyncio.sleep(200)
            assert logged(world) == [(subjects.outcome("n1", "default", "good"), "AllocationSucceeded")]
            assert world.bus.kept(subjects.REPORTS) == ()  # the bad one is refused in the end

    virtual.run(main())


def sealed(event: Any) -> Any:
    return seal(event, event_id=str(event), source="/test", time="2026-01-01T00:00:00Z")


@asynccontextmanager
async def a_page() -> AsyncIterator[tuple[Any, MemoryBus]]:
    bus = MemoryBus()
    await bus.ensure_streams(subjects.STREAMS)
    page = Feed(bus, VirtualClock(), (), devices=lambda: (), find_node=lambda _: None)
    yield page, bus


@errors
def test_the_page_shows_the_next_event(error: Exception) -> None:
    async def main() -> None:
        async with a_page() as (page, bus):
            fail(page, "_take", lambda delivery: "bad" in delivery.message.subject, error=error)
            async with running(page.run):
                await asyncio.sleep(1)
                for pod in (BAD, GOOD):
                    await bus.publish(sealed(PodAllocating(pod=pod, node="n1", assignments=(), bind_time_seconds=1)))
                await asyncio.sleep(1)
                assert [line.pod for line in page.overview().log] == ["good"]

    virtual.run(main())


@errors
def test_the_page_asks_the_scheduler_again(error: Exception) -> None:
    async def main() -> None:
        async with a_page() as (page, _):
            fail(page, "_ask_all", times=2, error=error)
            silences = []
            async with running(page.run):
                for _ in range(5):
                    silences.append(page._silence)
                    await asyncio.sleep(1)
            assert "the scheduler's answer cannot be read" in silences
            assert "did not say who holds what" in page._silence  # it was asked: nobody answers here

    virtual.run(main())


@errors
def test_the_page_publishes_the_next_change(error: Exception) -> None:
    async def main() -> None:
        async with a_page() as (page, bus):
            fail(page, "_change", times=2, error=error)
            async with running(page.run):
                with page.listen() as listener:
                    await asyncio.sleep(1)
                    await bus.publish(sealed(PodAllocating(pod=GOOD, node="n1", assignments=(), bind_time_seconds=1)))
                    await bus.publish(sealed(NodeUsage(node="n1", containers=())))
                    await asyncio.sleep(2)
                    assert b'"good"' in b"".join(listener.get_nowait() or b"" for _ in range(listener.qsize()))

    virtual.run(main())


# The webhook


@errors
def test_the_webhook_looks_after_its_certificate_again(error: Exception) -> None:
    async def main() -> None:
        cluster = a_cluster()
        store = SecretStore(cluster, namespace="kube-system", name="s")
        keeper = CertificateKeeper(server_context(), store, cluster, VirtualClock(), names=NAMES, configurations=lambda _: [])
        fail(keeper, "_current", times=3, error=error)
        async with running(keeper.run):
            await asyncio.sleep(0.5)
            assert "no certificate yet" in (keeper.lacking or "")
            await asyncio.sleep(60)
            assert keeper.lacking is None

    virtual.run(main())


@errors
def test_a_mounted_certificate_is_read_again(error: Exception, tmp_path: Path) -> None:
    async def main() -> None:
        bundle = issue(NAMES, VirtualClock().utc())
        (tmp_path / "tls.crt").write_bytes(bundle.certificate)
        (tmp_path / "tls.key").write_bytes(bundle.key)
        mounted: Any = MountedCertificate(server_context(), tmp_path / "tls.crt", tmp_path / "tls.key", VirtualClock())
        fail(mounted, "_look", times=3, error=error)
        async with running(mounted.run):
            await asyncio.sleep(CHECK_SECONDS + 10)
            assert mounted.lacking is None

    virtual.run(main())


# Billing: a ledger passes over nothing, so what cannot be written is tried again, and other streams are followed meanwhile


class Ledger:
    """As much of a store as the follower has."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, int]] = []

    def position(self, _stream: str) -> int:
        return 0

    def take(self, stream: str, events: list[Any]) -> None:
        self.taken += [(stream, event[0]) for event in events]

    def forget(self, _before: int) -> int:
        return 0


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads know nothing of virtual time."""

    async def called(function: Any, *given: Any) -> Any:
        return function(*given)

    monkeypatch.setattr(asyncio, "to_thread", called)


@asynccontextmanager
async def a_ledger(ledger: Any, error: Exception, what: str, times: int) -> AsyncIterator[list[Any]]:
    bus = MemoryBus()
    await bus.ensure_streams(subjects.STREAMS)
    passed = fail(ledger, what, lambda *given: given[0] != subjects.DEVICES.name, error=error, times=times)
    follower = Follower(bus, ledger, VirtualClock(), kept_days=1)
    await bus.publish(sealed(PodAllocating(pod=GOOD, node="n1", assignments=(), bind_time_seconds=1)))
    await bus.publish(sealed(DevicesReported(node="n1", device_type="nvidia", generation=1, devices=())))
    async with running(follower.allocations), running(follower.devices), running(follower.sweep):
        yield passed


@errors
@pytest.mark.usefixtures("inline")
def test_the_ledger_follows_a_stream_again(error: Exception) -> None:
    async def main() -> None:
        ledger = Ledger()
        async with a_ledger(ledger, error, "take", 3):
            await asyncio.sleep(60)
        assert sorted(ledger.taken) == [(subjects.ALLOCATIONS.name, 1), (subjects.DEVICES.name, 1)]

    virtual.run(main())


@errors
@pytest.mark.usefixtures("inline")
def test_the_ledger_is_swept_again(error: Exception) -> None:
    async def main() -> None:
        async with a_ledger(Ledger(), error, "forget", 2) as swept:
            await asyncio.sleep(4 * SWEEP_SECONDS)
            assert swept

    virtual.run(main())


# The agent


@errors
def test_the_agents_certificate_for_nats_is_read_again(error: Exception) -> None:
    async def main() -> None:
        certificate = BusCertificate(a_cluster(), "hami-system/tls", VirtualClock())
        passed = fail(certificate, "refresh", times=3, error=error)
        async with running(certificate.run):
            await asyncio.sleep(6 * RETRY_SECONDS)
        assert passed

    virtual.run(main())


@errors
def test_the_nodes_configuration_is_read_again(error: Exception, tmp_path: Path) -> None:
    async def scenario(world: AgentWorld) -> None:
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"nodeconfig": [{"name": NODE, "devicesplitcount": 4}]}))
        config = NodeConfig(path, node=NODE, cluster_wide=Sharing(), devices=world.agent.devices, clock=world.clock)
        fail(config, "look", times=3, error=error)
        async with running(config.run):
            await asyncio.sleep(6 * LOOK_SECONDS)
            assert world.agent.devices.configured.split_count == 4

    play(scenario)


@errors
def test_the_agent_registers_with_kubelet_again(error: Exception, tmp_path: Path) -> None:
    async def scenario(world: AgentWorld) -> None:
        connection: Any = KubeletConnection(world.agent, world.clock, folder=tmp_path)
        cleared = fail(connection, "_remove_dead", times=3, error=error)
        fail(connection, "_stay_registered", error=error)
        async with running(connection.run):
            await asyncio.sleep(120)
        assert cleared

    play(scenario)


@errors
def test_grants_are_looked_up_again(error: Exception) -> None:
    async def scenario(world: AgentWorld) -> None:
        passed = fail(world.agent.view, "_refresh", times=2, error=error)
        await asyncio.sleep(3600)
        assert passed

    play(scenario)
