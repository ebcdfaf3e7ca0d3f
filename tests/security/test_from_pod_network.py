"""Anybody on the pod network: what can be sent to the ports of a rig of real processes. Each test prints how much it tried.

NetworkPolicies are left out on purpose: what holds here holds on a cluster whose network does not enforce them. ``attacked`` sees to it that each
test leaves all services running, and a next pod served.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import ssl
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest

from hami_protocol import subjects
from hami_protocol.envelope import Message
from hami_rig.service_settings import REGISTRY, SCHEDULER, WEBHOOK, agent_process
from hami_runtime.bus import BusError
from hami_runtime.bus.credentials import Credentials
from hami_runtime.bus.jetstream import connect
from tests.certificates import Authority
from tests.security.conftest import TENANT, Attacked
from tests.security.secured_rig import AGENT_USER

pytestmark = [pytest.mark.nats, pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

ANYTHING = ssl.create_default_context()
ANYTHING.check_hostname, ANYTHING.verify_mode = False, ssl.CERT_NONE
LISTENERS = (
    *((WEBHOOK, each) for each in ("webhook", "health")),
    *((REGISTRY, each) for each in ("api", "health")),
    *((SCHEDULER, each) for each in ("extender", "api", "health")),
    (agent_process("cdi"), "health"),
)
RAW = (
    b"",
    b"\r\n" * 1000,
    b"\x00" * 10_000,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xff" * 500,
    b"GET / HTTP/1.1\r\n",
    b"GET / HTTP/9.9\r\nHost: x\r\n\r\n",
    b"GET " + b"/a" * 50_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(20_000)) + b"\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 500_000 + b"\r\n\r\n",
    b"GET /%00%ff/../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET http://127.0.0.1/metrics HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
    b"TRACE / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\xff\xfe / HTTP/1.1\r\n\r\n",
    b"POST /webhook HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"POST /webhook HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
    b"POST /webhook HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcde",
    b"POST /webhook HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n",
    b"POST /webhook HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
    b"POST /webhook HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nabc\r\n",
    b"POST /webhook HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    b"POST /webhook HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00",
    b"POST /webhook HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
    b"GET /v1/events?since=" + b"9" * 5000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nHost: x\r\nRange: bytes=0-,0-,0-,0-,0-\r\n\r\n",
)
BODIES = (
    *(b"", b"{", b"[]", b"null", b"1", b'"x"', b"\xff" * 1000, b"\x00", b'{"request": 1}', b'{"request": {}}', b'{"Pod": 1}'),
    *(b'{"a": ' * 50_000, b"[" * 100_000, b'{"x": "' + b"y" * 3_000_000 + b'"}', b'{"uid": "\\ud800"}', b"{" * 10 + b"}" * 10),
    b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}',
    b'{"apiVersion": "admission.k8s.io/v9", "kind": "AdmissionReview", "request": {"uid": "u"}}',
    b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u", "object": '
    + b"[" * 5000
    + b"]" * 5000
    + b"}}",
    b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u", "object": {"spec": {"containers": 5}}}}',
    b'{"Pod": {"metadata": {}}, "NodeNames": [' + b'"n",' * 100_000 + b'"n"]}',
    b'{"Pod": {"metadata": {"uid": "u"}, "spec": {"containers": ['
    + b'{"name": "c"},' * 20_000
    + b'{"name": "c"}]}}, "NodeNames": ["cdi"]}',
    b'{"Pod": {"metadata": {"annotations": {"a": null}}}, "Nodes": {"items": [{}]}}',
    b'{"PodName": "a", "PodNamespace": "../..", "PodUID": "u", "Node": "cdi"}',
    b'{"PodName": "", "PodNamespace": "", "PodUID": "", "Node": ""}',
    b'{"NodeNameToVictims": {"cdi": {"Pods": [{}]}}}',
    b'{"NodeNameToMetaVictims": {"cdi": null}}',
    b'{"pods": -1, "limits": {"nvidia.com/gpu": 1e400}}',
    b'{"replicas": 999999999999, "pod": {}}',
)
PATHS = {
    (WEBHOOK, "webhook"): ("/webhook", "/validate"),
    (SCHEDULER, "extender"): ("/filter", "/bind", "/prioritize", "/preempt", "/v1/resize"),
    (SCHEDULER, "api"): ("/v1/simulate", "/v1/resize", "/v1/explain/default/p"),
    (REGISTRY, "api"): ("/v1/inventory", "/v1/events", "/v1/devices", "/v1/usage", "/v1/verdicts", "/v1/streams"),
}


def tried(count: int, what: str) -> None:
    print(f"from the pod network: {count} times tried {what}")


def scheme(listener: tuple[str, str]) -> str:
    return "https" if listener == (WEBHOOK, "webhook") else "http"


def port(world: Attacked, listener: tuple[str, str]) -> int:
    service, name = listener
    return int(world.rig.ports[service][name])


async def open_to(world: Attacked, listener: tuple[str, str]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    tls = ANYTHING if scheme(listener) == "https" else None
    return await asyncio.open_connection("127.0.0.1", port(world, listener), ssl=tls)


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError, ssl.SSLError):
        await writer.wait_closed()


async def send_raw(world: Attacked, listener: tuple[str, str], data: bytes) -> bytes:
    reader, writer = await open_to(world, listener)
    found = b""
    with suppress(OSError, TimeoutError, ssl.SSLError):
        writer.write(data)
        await writer.drain()
        writer.write_eof() if writer.can_write_eof() else None
        async with asyncio.timeout(0.3):
            found = await reader.read(1000)
    await close(writer)
    return found


async def healthy(world: Attacked, service: str) -> bool:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port(world, (service, 'health'))}/healthz") as answer:
        return answer.status == 200


async def test_no_bytes_stop_a_listener(attacked: Attacked) -> None:
    count = 0
    for listener in LISTENERS:
        for data in RAW:
            answer = await send_raw(attacked, listener, data)
            assert b" 500 " not in answer.split(b"\r\n", 1)[0], (listener, data[:80], answer)
            assert b"root:" not in answer
            count += 1
        assert await healthy(attacked, listener[0])
    tried(count, "raw bytes on a port")


async def test_no_body_makes_a_service_fail(attacked: Attacked) -> None:
    count = 0
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=ANYTHING)) as session:
        for listener, paths in PATHS.items():
            for path, body, kind in itertools.product(paths, BODIES, ("application/json", "text/plain")):
                url = f"{scheme(listener)}://127.0.0.1:{port(attacked, listener)}{path}"
                async with session.post(url, data=io.BytesIO(body), headers={"Content-Type": kind}) as answer:
                    text = await answer.read()
                    assert answer.status != 500, (path, body[:100], text)
                    assert b"Traceback" not in text
                count += 1
            assert await healthy(attacked, listener[0])
    tried(count, "a body that nobody should send")


async def test_nothing_is_answered_without_a_token(attacked: Attacked) -> None:
    listeners = ((SCHEDULER, "api"), (REGISTRY, "api"))
    paths = (
        *("/v1/inventory", "/v1/events", "/v1/devices", "/v1/usage", "/v1/verdicts", "/v1/streams", "/v1/explain/default/p"),
        *(
            "/v1/page/overview",
            "/v1/page/nodes/cdi",
            "/v1/page/card",
            "/v1/page/changes",
            "/v1/page/simulate",
            "/v1/simulate",
            "/v1/resize",
            "/v1/../v1/inventory",
            "//v1/inventory",
        ),
    )
    headers: tuple[dict[str, str], ...] = (
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer  "},
        {"Authorization": "Basic eDp5"},
        {"Authorization": "Bearer " + "x" * 20_000},
        {"X-Hami-Token": ""},
        {"X-Remote-User": "system:admin", "X-Remote-Group": "system:masters"},
        {"X-Forwarded-For": "127.0.0.1", "Forwarded": "for=127.0.0.1"},
    )
    count = 0
    async with aiohttp.ClientSession(max_line_size=65536, max_field_size=65536) as session:
        for listener, path, given, method in itertools.product(listeners, paths, headers, ("GET", "POST")):
            async with session.request(method, f"http://127.0.0.1:{port(attacked, listener)}{path}", headers=given, json={}) as answer:
                assert answer.status in {400, 401, 404, 405}, (listener, path, given, answer.status, await answer.read())
            count += 1
    tried(count, "to be answered without a token")


async def test_unfinished_bodies_do_not_fill_memory_and_a_pod_is_made_meanwhile(attacked: Attacked) -> None:
    before = attacked.rig.memory_mib(WEBHOOK)
    size = 7 * 2**20 - 100
    head = f"POST /webhook HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {size + 50}\r\n\r\n".encode()
    writers = []
    for _ in range(40):
        _, writer = await open_to(attacked, (WEBHOOK, "webhook"))
        writers.append(writer)
        with suppress(OSError, ssl.SSLError, TimeoutError):
            writer.write(head + b" " * size)
            async with asyncio.timeout(2):
                await writer.drain()
    await attacked.served_as_ever()
    grown = attacked.rig.memory_mib(WEBHOOK) - before
    for writer in writers:
        await close(writer)
    assert grown < 200, f"{grown} MiB more, of {40 * size // 2**20} sent"
    tried(40, "to fill memory with unfinished bodies")


async def test_unfinished_headers_keep_nobody_out(attacked: Attacked) -> None:
    writers = []
    for _ in range(600):
        with suppress(OSError, ssl.SSLError):
            _, writer = await open_to(attacked, (WEBHOOK, "webhook"))
            writer.write(b"POST /webhook HTTP/1.1\r\nHost: x\r\n")
            writers.append(writer)
    await attacked.served_as_ever()
    for writer in writers:
        writer.close()
    tried(600, "to hold connections with half a header")


async def test_the_bus_is_closed_to_who_has_no_certificate_or_no_agents_token(attacked: Attacked, tmp_path: Path) -> None:
    bus, count = attacked.rig.bus, 0
    own = Authority(tmp_path)
    plain = (b"", b"CONNECT {}\r\nPING\r\n", b"PUB hami.v1.x 2\r\nhi\r\n", b"SUB > 1\r\n", b"\xff" * 5000, b"INFO {}\r\n", b"+OK\r\n" * 100)
    for data in plain:
        reader, writer = await asyncio.open_connection("127.0.0.1", bus.server.port)
        writer.write(data)
        found = b""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(0.5):
                while chunk := await reader.read(4096):
                    found += chunk
        await close(writer)
        assert b"PONG" not in found
        assert b"MSG" not in found
        count += 1
    certificates: list[ssl.SSLContext] = [bus.tls(None)]
    for name in ("hami-scheduler", "hami-registry", "hami-node-agent", "hami-auth-callout"):
        context = ssl.create_default_context(cafile=str(bus.authority.certificate))
        context.load_cert_chain(*own.issue(name))  # of an authority of its own
        certificates.append(context)
    tokens = (
        "",
        "x",
        TENANT,
        f"{TENANT}@cdi",
        AGENT_USER,
        f"{AGENT_USER}@",
        "system:serviceaccount:tenant:hami-node-agent@cdi",
        "a" * 20_000,
    )
    attempts = [*((each, "") for each in certificates), *((bus.tls("hami-node-agent"), token) for token in tokens)]
    for number, (tls, token) in enumerate(attempts):
        path = tmp_path / f"token-{number}"
        path.write_text(token)
        credentials = Credentials(token_file=str(path)) if token else Credentials()
        async with connect(bus.server.url, name="intruder", tls=tls, credentials=credentials, inbox=subjects.inbox("cdi")) as intruder:
            for subject in (
                subjects.devices("cdi", "nvidia"),
                subjects.grant("cdi", "default", "p"),
                subjects.outcome("cdi", "default", "p"),
            ):
                with pytest.raises(BusError):
                    await intruder.publish(Message(subject=subject, data=b"{}"), timeout_seconds=0.5)
                count += 1
            assert not intruder.connected
    tried(count, "to get onto the bus")
