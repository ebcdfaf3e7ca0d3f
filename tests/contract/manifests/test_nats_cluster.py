"""The production overlay's three servers, with its own configuration: they find each other over TLS, and each stream is on all of them."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hami_protocol import subjects
from hami_runtime.bus import BusUnavailable, api, jetstream
from hami_runtime.bus.jetstream import JetStreamBus
from tests.certificates import Authority
from tests.contract.bus.conftest import NatsServer
from tests.contract.manifests.production import ProductionBus, configure
from tests.contract.manifests.test_nats_accounts import a_message

pytestmark = pytest.mark.nats
NAMES = tuple(f"hami-nats-{number}" for number in range(3))
DEVICES = subjects.devices("node-1", "nvidia")


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    found = [socket.socket() for _ in range(count)]
    for each in found:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in found]
    for each in found:
        each.close()
    return ports


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[list[ProductionBus]]:
    authority = Authority(tmp_path)
    routes = dict(zip(NAMES, free_ports(3), strict=True))
    started: list[ProductionBus] = []
    for name, port in routes.items():
        folder = tmp_path / name
        folder.mkdir()
        given = {"0.0.0.0:6222": f"127.0.0.1:{port}"}
        given |= {'lame_duck_grace_period: "5s"': 'lame_duck_grace_period: "1s"'}
        given |= {f"{other}.hami-nats-servers.hami-system.svc:6222": f"127.0.0.1:{routes[other]}" for other in NAMES}
        conf = configure(folder, authority, "nats-accounts", "nats-cluster", server=name, given=given)
        server = NatsServer(folder, "--config", str(conf))
        await server.start()
        started.append(ProductionBus(server, authority))
    yield started
    for each in started:
        await each.server.kill()


async def stream(bus: JetStreamBus, spec: subjects.StreamSpec) -> api.Answer:
    """The stream, once it is there."""
    for _ in range(600):
        try:
            return await api.call(await bus.session(), f"STREAM.INFO.{spec.name}")
        except (BusUnavailable, api.NotThere):
            await asyncio.sleep(0.05)
    pytest.fail("no stream")


async def made(scheduler: JetStreamBus) -> None:
    """Return once the streams are there, as the services do: before the servers have chosen who leads them, nobody answers."""
    for _ in range(20):
        try:
            return await scheduler.ensure_streams(subjects.STREAMS)
        except BusUnavailable:
            await asyncio.sleep(0.05)
    pytest.fail("no streams")


async def test_who_starts_before_the_cluster_is_whole_gets_his_streams_on_all_servers_and_loses_none_with_one(
    servers: list[ProductionBus],
) -> None:
    url = ",".join(each.server.url for each in servers)
    tls = servers[0].tls("hami-scheduler")
    async with jetstream.connect(url, name="hami-scheduler", tls=tls, replicas=3) as scheduler:
        await made(scheduler)
        for spec in subjects.STREAMS:
            assert (await stream(scheduler, spec)).config["num_replicas"] == 3
        async with servers[1].connect("hami-node-agent", looks_up_directly=True) as agent, servers[2].connect("hami-registry") as registry:
            assert await agent.publish(a_message(DEVICES)) == 1
            await servers[0].server.kill()
            for _ in range(600):
                try:
                    assert await registry.publish(a_message(subjects.liveness("node-1", "nvidia"))) == 2
                    break
                except BusUnavailable:
                    await asyncio.sleep(0.05)
            kept = await agent.last(subjects.DEVICES, DEVICES)
            assert kept is not None


async def test_a_server_that_is_told_to_stop_sends_its_clients_to_the_others(servers: list[ProductionBus], tmp_path: Path) -> None:
    going = servers[0]
    pid = tmp_path / NAMES[0] / "nats.pid"
    async with going.connect("hami-scheduler", replicas=3) as scheduler:
        await made(scheduler)
        await stream(scheduler, subjects.VERDICTS)
    url = ",".join(each.server.url for each in servers)
    async with going.connect("hami-scheduler") as here, jetstream.connect(url, name="any", tls=going.tls("hami-scheduler")) as anywhere:
        session = await here.session()
        program = Path(sys.executable).with_name("nats-server")
        signalled = await asyncio.create_subprocess_exec(program, f"-sl=ldm={pid}")
        assert await signalled.wait() == 0
        going.server.terminate()  # as kubelet does once the hook has returned
        async with asyncio.timeout(60):
            await session.closed.wait()
        assert await going.server.ended() == 0
        for _ in range(600):
            try:
                assert await anywhere.publish(a_message(subjects.verdict("default", "p"))) > 0
                break
            except BusUnavailable:
                await asyncio.sleep(0.05)
        else:
            pytest.fail("never published")


async def test_a_server_without_a_certificate_of_the_authority_is_no_member(servers: list[ProductionBus], tmp_path: Path) -> None:
    stranger_folder = tmp_path / "stranger"
    stranger_folder.mkdir()
    routes = (tmp_path / NAMES[0] / "cluster.conf").read_text()
    other = Authority(stranger_folder)
    certificate, key = other.issue("stranger")
    known, its_key = tmp_path / f"{NAMES[0]}.crt", tmp_path / f"{NAMES[0]}.key"
    (own,) = free_ports(1)
    listened = next(line for line in routes.splitlines() if "listen:" in line)
    text = routes.replace(listened, f'  listen: "127.0.0.1:{own}"').replace(str(known), str(certificate)).replace(str(its_key), str(key))
    (stranger_folder / "nats.conf").write_text(text)
    stranger = NatsServer(stranger_folder, "--config", str(stranger_folder / "nats.conf"), "--name", "stranger")
    await stranger.start()
    try:
        for _ in range(200):
            refusals = [line for line in (tmp_path / NAMES[0] / "log").read_text().splitlines() if "CN=stranger" in line]
            if refusals:
                break
            await asyncio.sleep(0.05)
        assert "TLS route handshake error" in refusals[0]
    finally:
        await stranger.kill()
