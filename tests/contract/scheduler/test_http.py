"""The extender and /v1 over real HTTP."""

import asyncio
import io
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from hami_devices.catalog import Catalog
from hami_protocol import keys, subjects
from hami_protocol.envelope import TRACE_PARENT
from hami_protocol.kubernetes import Pod
from hami_runtime.clock import SystemClock
from hami_runtime.http import HealthServer, serve_app
from hami_runtime.kube.access import AccessReviewer
from hami_runtime.kube.lease import LeaderElector
from hami_runtime.kube.memory import MemoryCluster
from hami_runtime.kube.readers import Readers, let_all_in
from hami_runtime.telemetry import OFF, Telemetry
from hami_scheduler import extender, questions, resize_api
from hami_scheduler.forwarding import forwarding, identity
from hami_scheduler.main import extender_tls
from hami_scheduler.service import Scheduler
from hami_scheduler.settings import Settings
from tests.certificates import Authority
from tests.contract.scheduler.world import World


@dataclass
class Replica:
    """A running replica and where it listens."""

    scheduler: Scheduler
    session: aiohttp.ClientSession
    extender: str
    api: str
    health: str

    async def post(self, verb: str, body: Any, **headers: str) -> Any:
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        async with self.session.post(f"{self.extender}/{verb}", data=io.BytesIO(data), headers=headers) as answer:
            assert answer.status == 200
            assert answer.content_type == "application/json"
            return msgspec.json.decode(await answer.read())

    async def place(self, pod: Pod, *names: str) -> str:
        answer = await self.post("filter", {"Pod": msgspec.to_builtins(pod), "Nodes": None, "NodeNames": names or ["n1"]})
        assert answer["Error"] == ""
        bound = {"PodName": pod.metadata.name, "PodNamespace": "default", "PodUID": pod.metadata.uid, "Node": answer["NodeNames"][0]}
        assert await self.post("bind", bound) == {"Error": ""}
        return str(answer["NodeNames"][0])

    async def get(self, url: str, **headers: str) -> tuple[int, Any]:
        async with self.session.get(url, headers=headers) as answer:
            body = await answer.read()
            return answer.status, msgspec.json.decode(body) if answer.content_type == "application/json" else body.decode()


@asynccontextmanager
async def replica(world: World, name: str, *, guarded: bool = False, telemetry: Telemetry = OFF) -> AsyncIterator[Replica]:
    clock = SystemClock()
    cluster = MemoryCluster(world.store)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    elector = LeaderElector(
        cluster,
        clock,
        name="lease",
        namespace="kube-system",
        identity=identity(name, url),
        lease_seconds=4,
        renew_seconds=2,
        retry_seconds=0.1,
    )
    scheduler = Scheduler(
        cluster=cluster, bus=world.bus, clock=clock, catalog=Catalog(), identity=name, elector=elector, telemetry=telemetry
    )
    authorize = Readers(AccessReviewer(cluster, clock)) if guarded else let_all_in
    async with AsyncExitStack() as stack:
        forwarder = await stack.enter_async_context(forwarding())
        extender_app = extender.application(scheduler, forwarder)
        extender_app.add_routes([resize_api.route(scheduler, authorize)])
        await stack.enter_async_context(serve_app(extender_app, port=port))
        api_port = await stack.enter_async_context(serve_app(questions.application(scheduler, world.bus, authorize, forwarder)))
        health = await stack.enter_async_context(HealthServer(scheduler.unready, telemetry=telemetry))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        stop = asyncio.Event()
        running = [asyncio.create_task(scheduler.run(stop)), asyncio.create_task(questions.answer_on_bus(scheduler, world.bus, stop))]
        try:
            async with asyncio.timeout(10):
                while scheduler.unready() or (scheduler.leader is None and scheduler.obstacle()):  # noqa: ASYNC110 - losers get no event
                    await asyncio.sleep(0.01)
            yield Replica(scheduler, session, url, f"http://127.0.0.1:{api_port}", f"http://127.0.0.1:{health.port}")
        finally:
            stop.set()
            await asyncio.gather(*running)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def world() -> World:
    return World(SystemClock())


async def test_kube_schedulers_calls_end_in_a_binding(world: World) -> None:
    await world.node("n1")
    async with replica(world, "s1") as one:
        pod = await world.pod("p1", gpu=1, gpumem=2000)
        await asyncio.sleep(0.01)
        assert await one.place(pod) == "n1"
        assert (await world.get(pod)).metadata.annotations["hami.io/vgpu-devices-allocated"] == "GPU-n1,NVIDIA,2000,0:;"
        big = await world.pod("p2", gpu=1, gpumem=30000)
        args = {"Pod": msgspec.to_builtins(big), "Nodes": None, "NodeNames": ["n1", "n2"]}
        assert await one.post("filter", args) == {
            "Nodes": None,
            "NodeNames": None,
            "FailedNodes": {"n1": "1/1 CardInsufficientMemory"},
            "FailedAndUnresolvableNodes": {"n2": "node unregistered"},
            "Error": "",
        }
        assert await one.post("prioritize", args) == [{"Host": "n1", "Score": 0}, {"Host": "n2", "Score": 0}]
        victims = {"n1": {"Pods": [{"UID": pod.metadata.uid}], "NumPDBViolations": 0}}
        preemption = {"Pod": args["Pod"], "NodeNameToVictims": None, "NodeNameToMetaVictims": victims}
        assert await one.post("preempt", preemption) == {"NodeNameToMetaVictims": {}}
        large = await world.pod("p3", gpu=1, gpumem=24000)
        preemption["Pod"] = msgspec.to_builtins(large)
        assert await one.post("preempt", preemption) == {"NodeNameToMetaVictims": victims}


async def test_bad_requests_are_answered_and_the_next_one_is_served(world: World) -> None:
    await world.node("n1")
    async with replica(world, "s1") as one:
        pod = await world.pod("p1", gpu=1, gpumem=2000)
        await asyncio.sleep(0.01)
        given = msgspec.to_builtins(pod)
        for body in (b"", b"{", b"null", {"pod": given}, {"pod": given, "nodes": None, "nodenames": None}, {"NodeNames": ["n1"]}):
            assert (await one.post("filter", body))["Error"] != ""
        for body in ({"pod": given, "nodenames": []}, {"pod": given, "nodes": {"items": []}}):
            answer = await one.post("filter", body)
            assert (answer["Error"], answer["NodeNames"] or []) == ("", [])
        for missing in ("name", "namespace", "uid"):
            nameless = given | {"metadata": {key: value for key, value in given["metadata"].items() if key != missing}}
            assert missing in (await one.post("filter", {"Pod": nameless, "NodeNames": ["n1"]}))["Error"]
        for odd in ("a_b", "*", "a b", "\n", ">" * 70):
            strange = given | {"metadata": given["metadata"] | {"name": odd, "uid": odd}}
            assert (await one.post("filter", {"Pod": strange, "NodeNames": [odd]}))["FailedAndUnresolvableNodes"] == {
                odd: "node unregistered"
            }
            assert (await one.post("filter", {"Pod": strange, "NodeNames": ["n1"]}))["NodeNames"] == ["n1"]
            assert (await one.post("bind", {"PodName": odd, "PodNamespace": odd, "PodUID": odd, "Node": odd}))["Error"] != ""
        assert (await one.post("bind", b"{}"))["Error"] != ""
        assert await one.post("prioritize", b"rubbish") == []
        assert await one.post("preempt", b"rubbish") == {"NodeNameToMetaVictims": {}}
        assert await one.place(pod) == "n1"


async def test_a_body_over_the_limit_is_answered_with_its_reason(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extender, "MAX_BODY_BYTES", 1024 * 1024)
    async with replica(world, "s1") as one:
        answer = await one.post("filter", b" " * (1024 * 1024 + 1))
        assert answer["Error"] == "request refused: the body is over the limit of 1048576 bytes"


async def test_one_trace_leads_from_admission_to_the_grant(world: World) -> None:
    await world.node("n1")
    telemetry = Telemetry("scheduler")
    async with replica(world, "s1", telemetry=telemetry) as one:
        trace_id = "0af7651916cd43dd8448eb211c80319c"
        pod = await world.pod("p1", gpu=1, gpumem=2000, annotations={keys.TRACE_PARENT: f"00-{trace_id}-b7ad6b7169203331-01"})
        forged = await world.pod("p2", gpu=1, gpumem=2000, annotations={keys.TRACE_PARENT: "rubbish" * 1000})
        await asyncio.sleep(0.01)
        await one.place(pod)
        await one.place(forged)
        await asyncio.sleep(0.05)
    kept = world.bus.kept(subjects.ALLOCATIONS)
    assert [message.headers[TRACE_PARENT].split("-")[1] == trace_id for message in kept] == [True, True, False, False]
    telemetry.close()


async def test_a_follower_hands_requests_to_the_leader(world: World) -> None:
    await world.node("n1")
    async with replica(world, "s1") as one, replica(world, "s2") as two:
        assert one.scheduler.leads()
        pod = await world.pod("p1", gpu=1, gpumem=2000)
        await asyncio.sleep(0.01)
        assert await two.place(pod) == "n1"
        assert one.scheduler.picture.state.entry(pod.metadata.uid) is not None
        refused = await two.post("filter", {"Pod": msgspec.to_builtins(pod), "NodeNames": ["n1"]}, **{"X-Hami-Forwarded": "1"})
        assert "does not lead" in refused["Error"]


async def test_a_follower_without_a_reachable_leader_says_try_again(world: World) -> None:
    await world.node("n1")
    cluster = MemoryCluster(world.store)
    gone = LeaderElector(
        cluster,
        SystemClock(),
        name="lease",
        namespace="kube-system",
        identity=identity("s0", f"http://127.0.0.1:{free_port()}"),
        lease_seconds=60,
    )
    await gone._try()
    async with replica(world, "s1") as one:
        pod = await world.pod("p1", gpu=1, gpumem=2000)
        answer = await one.post("filter", {"Pod": msgspec.to_builtins(pod), "NodeNames": ["n1"]})
        assert "does not lead; s0@" in answer["Error"]


async def test_explain_is_answered_by_any_replica_for_who_may_get_the_pod(world: World) -> None:
    await world.node("n1")
    async with replica(world, "s1", guarded=True) as one, replica(world, "s2", guarded=True) as two:
        big = await world.pod("p1", gpu=1, gpumem=30000)
        await asyncio.sleep(0.01)
        await one.post("filter", {"Pod": msgspec.to_builtins(big), "NodeNames": ["n1"]})
        await asyncio.sleep(0.6)
        for each in (one, two):
            status, found = await each.get(f"{each.api}/v1/explain/default/p1", Authorization="Bearer alice")
            assert status == 200
            assert "30000" in found["summary"]
            assert found["verdict"]["verdict"]["type"] == "pod_refused"
            assert found["nodes"][0]["node"] == "n1"
            status, found = await each.get(f"{each.api}/v1/explain/default/nobody", Authorization="Bearer alice")
            assert (status, found) == (404, {"error": "there is no pod default/nobody"})
            for headers in ({}, {"Authorization": "Basic x"}, {"Authorization": "Bearer "}):
                status, found = await each.get(f"{each.api}/v1/explain/default/p1", **headers)
                assert status == 401


async def test_volcanos_plugin_is_answered(world: World) -> None:
    await world.node("n1")
    async with replica(world, "s1") as one:
        recorded = Path(__file__).parent / "volcano"
        predicate, prioritize = [(recorded / f"{name}.json").read_bytes() for name in ("predicate", "prioritize")]
        first = {}
        for _ in range(600):  # a replica that has just begun to lead says so until it has read the pods anew
            first = await one.post("volcano/predicate", predicate)
            if "just begun to lead" not in first["status"]:
                break
            await asyncio.sleep(0.05)
        assert first == {"status": "", "code": 0}
        assert await one.post("volcano/prioritize", prioritize) == {"nodeScore": {"n1": 100.0, "n2": 0.0}, "errorMessage": ""}
        assert (await one.post("volcano/predicate", b"rubbish"))["code"] == 1
        assert "cannot be read" in (await one.post("volcano/prioritize", b"rubbish"))["errorMessage"]


async def test_simulations_are_answered_by_any_replica_for_who_may_list_nodes(world: World) -> None:
    await world.node("n1")
    async with replica(world, "s1", guarded=True) as one, replica(world, "s2", guarded=True) as two:
        pod = await world.pod("p1", gpu=1, gpumem=20000)
        await asyncio.sleep(0.6)
        question = {
            "pods": [msgspec.to_builtins(pod)],
            "copies": 3,
            "profiles": [{"name": "big", "count": 1, "device": {"memory_mib": 32768, "model": "Tesla V100"}}],
        }
        for each in (one, two):
            url = f"{each.api}/v1/simulate"
            async with each.session.post(url, json=question, headers={"Authorization": "Bearer alice"}) as answer:
                found = await answer.json()
                assert answer.status == 200
            assert sorted(pod["node"] for pod in found["pods"]) == ["", "big-0", "n1"]
            assert (found["nodeCount"], found["placedCount"]) == (2, 2)
            for body, status in ((b"rubbish", 400), (b'{"pods": []}', 400), (b"[" * 100_000, 400)):
                async with each.session.post(url, data=body, headers={"Authorization": "Bearer alice"}) as answer:
                    assert answer.status == status
                    assert "cannot be read" in (await answer.json())["error"]
            async with each.session.post(url, json=question) as answer:
                assert answer.status == 401
        assert one.scheduler.picture.state.nodes() == ("n1",)
        assert not list(one.scheduler.picture.state.entries())


async def test_metrics_have_the_references_names_and_ours(world: World) -> None:
    await world.node("n1")
    telemetry = Telemetry("scheduler")
    async with replica(world, "s1", telemetry=telemetry) as one:
        pod = await world.pod("p1", gpu=1, gpumem=2048, gpucores=30)
        await asyncio.sleep(0.01)
        await one.place(pod)
        status, text = await one.get(f"{one.health}/metrics")
        assert status == 200
        card = 'device_index="0",device_type="NVIDIA A10",device_uuid="GPU-n1",node="n1",zone="vGPU"'
        assert _series(text, "hami_gpu_memory_limit_bytes") == [(_labels(card), 24576 * 2**20)]
        assert _series(text, "hami_gpu_shared_count") == [(_labels(card), 1)]
        assert _series(text, "hami_gpu_core_allocated_ratio") == [(_labels(card), 30)]
        share = 'container_index="0",device_uuid="GPU-n1",namespace="default",node="n1",pod="p1",zone="vGPU"'
        assert _series(text, "hami_vgpu_memory_allocated_bytes") == [(_labels(share), 2048 * 2**20)]
        assert len(_series(text, "GPUDeviceMemoryAllocated")) == 1
        assert len(_series(text, "nodeGPUMemoryPercentage")) == 1
        assert "hami_scheduler_filter_seconds_count" in text
        assert await one.get(f"{one.health}/readyz") == (200, "ok\n")
    telemetry.close()


def _labels(text: str) -> dict[str, str]:
    return {key: value.strip('"') for key, _, value in (part.partition("=") for part in text.split(","))}


def _series(text: str, name: str) -> list[tuple[dict[str, str], float]]:
    found = [line.removeprefix(name + "{").rpartition("} ") for line in text.splitlines() if line.startswith(name + "{")]
    return [(_labels(labels), float(value)) for labels, _, value in found]


async def test_behind_tls_only_who_shows_a_certificate_of_the_authority_is_answered(world: World, tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    write_self_signed(certificate, key)
    settings = Settings(extender_certificate=str(certificate), extender_key=str(key), extender_client_ca=str(certificate))
    server, client = extender_tls(settings)
    assert server is not None
    assert client is not None
    stranger = ssl.create_default_context(cafile=str(certificate))
    async with replica(world, "s1") as one, forwarding(client) as forwarder:
        app = extender.application(one.scheduler, forwarder)
        async with serve_app(app, port=0, ssl=server) as port:
            url = f"https://127.0.0.1:{port}"
            answer = await forwarder.post(identity("s1", url), "/filter", b"{}")
            assert msgspec.json.decode(answer)["Error"] == "extender args missing pod"
            with pytest.raises(aiohttp.ClientError):
                await one.session.post(f"{url}/filter", data=b"{}", ssl=stranger)


async def test_replicas_that_are_called_by_address_have_one_name_in_their_certificates(world: World, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("extender", "hami-scheduler")
    settings = Settings(extender_certificate=str(certificate), extender_key=str(key), extender_client_ca=str(authority.certificate))
    server, client = extender_tls(settings)
    async with (
        replica(world, "s1") as one,
        forwarding(client, server_name="hami-scheduler") as right,
        forwarding(client, server_name="another") as wrong,
        serve_app(extender.application(one.scheduler, right), port=0, ssl=server) as port,
    ):
        leader = identity("s1", f"https://127.0.0.1:{port}")
        assert msgspec.json.decode(await right.post(leader, "/filter", b"{}"))["Error"] == "extender args missing pod"
        with pytest.raises(ConnectionError, match="another"):
            await wrong.post(leader, "/filter", b"{}")


def write_self_signed(certificate: Path, key: Path) -> None:
    """A certificate for 127.0.0.1 that is its own authority."""
    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hami-scheduler")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(secret.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(secret, hashes.SHA256())
    )
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key.write_bytes(secret.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
