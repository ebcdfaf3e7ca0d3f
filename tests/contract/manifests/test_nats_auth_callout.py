"""Agents on the production overlay's bus, with the auth callout as a process, a real server and tokens that an API server reviews."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from hami_protocol import subjects
from hami_registry import reports
from hami_registry.outcomes import DURABLE
from hami_rig.apiserver.server import ApiServer
from hami_rig.apiserver.settings import ApiServerSettings
from hami_runtime.bus import BusUnavailable, MessageRefused, api, nkeys
from hami_runtime.bus.credentials import Credentials
from hami_runtime.bus.jetstream import JetStreamBus, connect
from hami_runtime.bus.signing_secret import new_secret
from hami_runtime.kube import accounts
from tests.contract.manifests.production import ProductionBus, production_bus
from tests.contract.manifests.test_nats_accounts import a_message, first, first_live

pytestmark = [pytest.mark.nats, pytest.mark.asyncio(loop_scope="module")]
AGENT = accounts.user(accounts.AGENT, accounts.AGENT_NAMESPACE)
SECRET = yaml.safe_load(new_secret())["stringData"]


class Callout:
    """The process ``hami-auth-callout``, which may be killed and started again."""

    def __init__(self, folder: Path, bus: ProductionBus, kubeconfig: Path) -> None:
        seed = folder / "seed"
        seed.write_text(SECRET["seed"])
        certificate, key = bus.issue("hami-auth-callout")
        self._environ = {
            "HAMI_NAMESPACE": "hami-system",
            "HAMI_NATS_URL": bus.server.url,
            "HAMI_NATS_CA": str(bus.authority.certificate),
            "HAMI_NATS_CERTIFICATE": str(certificate),
            "HAMI_NATS_KEY": str(key),
            "HAMI_SIGNING_KEY_FILE": str(seed),
            "HAMI_KUBECONFIG": str(kubeconfig),
            "HAMI_LOG_LEVEL": "debug",
        }
        self._log = folder / "callout.log"
        self._process: asyncio.subprocess.Process | None = None

    @property
    def log(self) -> str:
        return self._log.read_text()

    async def start(self, **more: str) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "hami_registry.callout.main",
                env={**os.environ, **self._environ, **more},
                stdout=log,
                stderr=log,
            )

    async def ended(self) -> int:
        """How it ended by itself."""
        process, self._process = self._process, None
        assert process is not None
        return await process.wait()

    async def stop(self, signum: signal.Signals = signal.SIGKILL) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(signum)
        return await process.wait()


class World:
    """A bus that asks who its agents are."""

    def __init__(self, bus: ProductionBus, callout: Callout, folder: Path) -> None:
        self.bus = bus
        self.callout = callout
        self._folder = folder

    def token_file(self, name: str, token: str) -> Path:
        path = self._folder / f"{name}.token"
        path.write_text(token)
        return path

    def agent(self, node: str, token: str = "") -> AbstractAsyncContextManager[JetStreamBus]:
        """An agent's connection, open or not."""
        file = self.token_file(node, token or f"{AGENT}@{node}")
        return connect(
            self.bus.server.url,
            name=f"hami-node-agent-{node}",
            tls=self.bus.tls("hami-node-agent"),
            credentials=Credentials(token_file=str(file)),
            inbox=subjects.inbox(node),
            looks_up_directly=True,
        )

    async def logged(self, text: str) -> str:
        """The callout's line with ``text`` in it, once there is one."""
        async with asyncio.timeout(20):
            while not (found := [line for line in self.callout.log.splitlines() if text in line]):  # noqa: ASYNC110 - a file is looked at
                await asyncio.sleep(0.05)
        return found[-1]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    folder, tmp_path = tmp_path_factory.mktemp("bus"), tmp_path_factory.mktemp("callout")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AUTH_ISSUER", SECRET["issuer"])
        async with running(folder, tmp_path) as world:
            yield world


@asynccontextmanager
async def running(folder: Path, tmp_path: Path) -> AsyncIterator[World]:
    async with (
        ApiServer(ApiServerSettings(token="of-the-administrator")) as api_server,
        production_bus(folder, "nats-accounts", "nats-auth-callout", given={"timeout: 4": "timeout: 1"}) as bus,
    ):
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(api_server.kubeconfig)
        callout = Callout(tmp_path, bus, kubeconfig)
        world = World(bus, callout, tmp_path)
        await callout.start()
        await world.logged("NATS is connected")
        yield world
        await callout.stop()


async def connected(bus: JetStreamBus) -> JetStreamBus:
    async with asyncio.timeout(20):
        await bus.wait_connected()
    return bus


async def publishes(bus: JetStreamBus, subject: str) -> int:
    """The sequence, once there is a connection, over whatever happens to it."""
    for _ in range(400):
        try:
            return await bus.publish(a_message(subject))
        except BusUnavailable:
            await asyncio.sleep(0.05)
    pytest.fail("never published")


def spoken_for(node: str) -> tuple[str, str, str]:
    return subjects.devices(node, "nvidia"), subjects.outcome(node, "default", "p"), subjects.usage(node)


async def test_two_agents_do_all_that_they_do_and_neither_speaks_for_the_other(world: World) -> None:
    async with (
        world.bus.connect("hami-scheduler") as scheduler,
        world.bus.connect("hami-registry") as registry,
        world.agent("node-1.example") as one,
        world.agent("node-2") as two,
    ):
        await scheduler.ensure_streams(subjects.STREAMS)
        await registry.ensure_streams((subjects.REPORTS,))
        for agent, own, other in ((one, "node-1.example", "node-2"), (two, "node-2", "node-1.example")):
            await connected(agent)
            for subject in spoken_for(own):
                assert await agent.publish(a_message(subject)) > 0
            for subject in (*spoken_for(other), subjects.grant(own, "default", "p"), subjects.liveness(own, "nvidia")):
                with pytest.raises(MessageRefused):
                    await agent.publish(a_message(subject))
            grant = subjects.grant(own, "default", "p")
            assert await first_live(agent, subjects.node_grants(own), partial(scheduler.publish, a_message(grant))) == grant
            assert (await agent.last(subjects.ALLOCATIONS, grant)) is not None
            with pytest.raises(MessageRefused):
                await agent.last(subjects.ALLOCATIONS, subjects.grant(other, "default", "p"))
        assert await first(registry, subjects.REPORTS, subjects.ALL_REPORTS, durable=reports.DURABLE)
        session, stream = await two.session(), subjects.ALLOCATIONS.name
        for what in (f"STREAM.DELETE.{stream}", f"STREAM.PURGE.{stream}", f"CONSUMER.DELETE.{stream}.{DURABLE}"):
            with pytest.raises(api.BusError, match="may not publish"):
                await api.call(session, what, {})


async def test_an_agent_hears_no_answers_but_its_own(world: World) -> None:
    heard: list[str] = []

    async def hear(message: object) -> None:
        heard.append(str(message))

    async with world.bus.connect("hami-scheduler") as scheduler, world.agent("node-1") as one, world.agent("node-2") as two:
        await scheduler.ensure_streams(subjects.STREAMS)
        await (await (await connected(two)).session()).subscribe("_INBOX.>", hear)
        await (await two.session()).subscribe(f"{subjects.inbox('node-1')}.>", hear)
        assert await publishes(await connected(one), subjects.usage("node-1")) > 0
        assert await publishes(two, subjects.usage("node-2")) > 0
    assert heard == []


REFUSED = {
    "expired-or-invented": "does not know the token",
    "system:serviceaccount:hami-system:hami-registry@node-1": "hami-registry's; accepted",
    "system:serviceaccount:kube-system:hami-node-agent@node-1": "kube-system:hami-node-agent's; accepted",
    AGENT: "names no pod on a node",
    "": "no token was shown",
}
"""What is shown, and what the log says of it. A token of the rig's API server is its user's name, with the node behind it."""


async def test_who_is_no_agent_is_refused_and_the_log_says_why_without_the_token(world: World) -> None:
    async with AsyncExitStack() as stack:
        tls = world.bus.tls("hami-node-agent")
        strangers = [
            await stack.enter_async_context(
                connect(world.bus.server.url, name=f"stranger-{number}", tls=tls, credentials=Credentials(token=token))
            )
            for number, token in enumerate(REFUSED)
        ]
        for number, reason in enumerate(REFUSED.values()):
            assert reason in await world.logged(f"stranger-{number}")
        assert not any(each.connected for each in strangers)
    for token in REFUSED.keys() - {AGENT, ""}:
        assert token not in world.callout.log
        assert token not in (world.bus.server.folder / "log").read_text()


async def test_a_token_without_a_certificate_opens_nothing(world: World) -> None:
    file = world.token_file("node-1", f"{AGENT}@node-1")
    async with connect(
        world.bus.server.url, name="stranger", tls=world.bus.tls(None), credentials=Credentials(token_file=str(file))
    ) as stranger:
        await asyncio.sleep(0.5)
        assert not stranger.connected


async def test_who_is_in_stays_in_while_the_callout_is_away_and_who_comes_waits_for_it(world: World) -> None:
    async with world.bus.connect("hami-scheduler") as scheduler, world.agent("node-1") as one:
        await scheduler.ensure_streams(subjects.STREAMS)
        await connected(one)
        await world.callout.stop()
        session = await one.session()
        async with world.agent("node-2") as two:
            await asyncio.sleep(0.5)
            assert not two.connected
            assert await one.publish(a_message(subjects.usage("node-1"))) > 0
            await world.callout.start()
            await connected(two)
        assert await one.session() is session


async def test_a_user_ends_and_the_agent_comes_back_with_the_token_that_it_has_by_then(world: World) -> None:
    assert await world.callout.stop(signal.SIGTERM) == 0
    await world.callout.start(HAMI_USER_SECONDS="2")
    async with world.bus.connect("hami-scheduler") as scheduler, world.agent("node-1") as one:
        await scheduler.ensure_streams(subjects.STREAMS)
        session = await (await connected(one)).session()
        world.token_file("node-1", "expired-or-invented")
        async with asyncio.timeout(20):
            await session.closed.wait()
        await world.logged("does not know the token")
        assert not one.connected
        world.token_file("node-1", f"{AGENT}@node-1")
        assert await publishes(one, subjects.usage("node-1")) > 0
        assert await one.session() is not session


async def test_a_key_that_is_none_of_an_account_ends_the_process_and_says_so(world: World, tmp_path: Path) -> None:
    seed = tmp_path / "other-seed"
    seed.write_text(nkeys.SigningKey.new(nkeys.Kind.USER).seed)
    await world.callout.stop()
    await world.callout.start(HAMI_SIGNING_KEY_FILE=str(seed))
    assert await world.callout.ended() == 1
    assert "accepted: an account's, beginning with SA" in await world.logged("auth-callout ends")
    assert seed.read_text() not in world.callout.log


async def test_a_server_takes_a_renewed_certificate_over_and_nobody_is_locked_out(world: World) -> None:
    await world.callout.stop()
    await world.callout.start()
    async with world.bus.connect("hami-scheduler") as scheduler, world.agent("node-1") as one:
        await scheduler.ensure_streams(subjects.STREAMS)
        await connected(one)
        world.bus.issue("hami-nats-0")  # into the files that the configuration names
        world.bus.server.reload()
        log = world.bus.server.folder / "log"
        async with asyncio.timeout(20):
            while "Reloaded server configuration" not in log.read_text():  # noqa: ASYNC110 - a file is looked at
                await asyncio.sleep(0.05)
        assert await publishes(one, subjects.usage("node-1")) > 0
        assert await publishes(scheduler, subjects.grant("node-1", "default", "p")) > 0
        async with world.agent("node-2") as two:
            assert await publishes(two, subjects.usage("node-2")) > 0
