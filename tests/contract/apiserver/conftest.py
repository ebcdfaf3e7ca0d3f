"""What every API server does: these tests run on the embedded one and on a real one (``-m cluster``)."""

import asyncio
import base64
import contextlib
import io
import json
import shutil
import ssl
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from hami_rig.apiserver import ApiServer

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"
SECONDS = 60.0
"""The longest that anything takes, on a machine that has other things to do."""
KUBECTL = Path(__file__).parents[3] / ".venv" / "bin" / "kubectl"


class Answer:
    """What came back."""

    def __init__(self, code: int, body: Any, warnings: list[str]) -> None:
        self.code = code
        self.body = body
        self.warnings = warnings

    @property
    def error(self) -> tuple[int, str]:
        return self.code, self.body.get("reason", "")


class Watch:
    """The events of one watch, in order."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def next(self) -> tuple[str, dict[str, Any]]:
        async with asyncio.timeout(SECONDS):
            event = json.loads(await self._response.content.readline())
        return event["type"], event["object"]

    async def rest(self) -> list[dict[str, Any]]:
        async with asyncio.timeout(SECONDS):
            return [json.loads(line) async for line in self._response.content]


class Api:
    """A client that knows HTTP and nothing else; ``pods`` and the like are the collections of this test's own namespace."""

    def __init__(self, session: aiohttp.ClientSession, url: str, kubeconfig: Path, namespace: str) -> None:
        self._session = session
        self._url = url
        self.kubeconfig = kubeconfig
        self.namespace = namespace
        core = f"/api/v1/namespaces/{namespace}"
        self.pods = f"{core}/pods"
        self.maps = f"{core}/configmaps"
        self.events = f"{core}/events"
        self.leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self.budgets = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"

    async def call(self, method: str, path: str, body: Any = None, *, content_type: str = "application/json", **query: str) -> Answer:
        data = body if isinstance(body, bytes | io.BytesIO) else None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": content_type, "Accept": query.pop("accept", "application/json")}
        async with self._session.request(method, self._url + path, data=data, params=query, headers=headers) as response:
            text = await response.text()
            parsed = json.loads(text) if "json" in response.content_type else text
            return Answer(response.status, parsed, response.headers.getall("Warning", []))

    async def get(self, path: str, **query: str) -> Answer:
        return await self.call("GET", path, **query)

    async def post(self, path: str, body: Any, **query: str) -> Answer:
        return await self.call("POST", path, body, **query)

    async def put(self, path: str, body: Any, **query: str) -> Answer:
        return await self.call("PUT", path, body, **query)

    async def patch(self, path: str, body: Any, content_type: str = MERGE, **query: str) -> Answer:
        return await self.call("PATCH", path, body, content_type=content_type, **query)

    async def delete(self, path: str, options: Any = None, **query: str) -> Answer:
        return await self.call("DELETE", path, options, **query)

    @contextlib.asynccontextmanager
    async def watch(self, path: str, **query: str) -> AsyncIterator[Watch]:
        async with self._session.get(self._url + path, params={"watch": "true", **query}) as response:
            assert response.status == 200, await response.text()
            yield Watch(response)

    async def kubectl(self, *arguments: str, stdin: str = "") -> tuple[int, str]:
        """Exit code and output (both streams)."""
        process = await asyncio.create_subprocess_exec(
            KUBECTL,
            "--kubeconfig",
            self.kubeconfig,
            "--namespace",
            self.namespace,
            "--cache-dir",
            self.kubeconfig.parent / "cache",
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        async with asyncio.timeout(SECONDS):
            output, _ = await process.communicate(stdin.encode())
        assert process.returncode is not None
        return process.returncode, output.decode()


def a_pod(
    name: str = "p", *, container: dict[str, Any] | None = None, metadata: dict[str, Any] | None = None, **spec: Any
) -> dict[str, Any]:
    containers = [{"name": "c", "image": "i", **(container or {})}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **(metadata or {})}, "spec": {"containers": containers, **spec}}


def a_map(name: str = "m", *, metadata: dict[str, Any] | None = None, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **(metadata or {})}, "data": data}


def a_binding(name: str = "p", node: str = "n1", **metadata: Any) -> dict[str, Any]:
    target = {"kind": "Node", "name": node}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, **metadata}, "target": target}


def _connection(kubeconfig: Path) -> tuple[str, dict[str, str], ssl.SSLContext | bool]:
    config = yaml.safe_load(kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
    if not cluster["server"].startswith("https"):
        return cluster["server"], headers, True
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode() if "certificate-authority-data" in cluster else None
    context = ssl.create_default_context(cadata=authority)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return cluster["server"], headers, context


@pytest.fixture(params=["embedded", pytest.param("real", marks=pytest.mark.cluster)])
def subject(request: pytest.FixtureRequest) -> Path | None:
    """The real server's kubeconfig, or None for an embedded server of the test's own."""
    return request.getfixturevalue("real_kubeconfig") if request.param == "real" else None


@pytest.fixture
async def kubeconfig(subject: Path | None, tmp_path: Path) -> AsyncIterator[Path]:
    """Of an administrator of this test's subject, in a folder of its own."""
    written = tmp_path / "kubeconfig"
    if subject is not None:
        shutil.copyfile(subject, written)
        yield written
        return
    async with ApiServer() as server:
        written.write_text(server.kubeconfig)
        yield written


@pytest.fixture
async def api(kubeconfig: Path) -> AsyncIterator[Api]:
    url, headers, tls = _connection(kubeconfig)
    async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(ssl=tls)) as session:
        namespace = f"t{uuid.uuid4().hex[:8]}"
        client = Api(session, url, kubeconfig, namespace)
        assert (await client.post("/api/v1/namespaces", {"metadata": {"name": namespace}})).code == 201
        # Where the ServiceAccount admission plugin runs, pods need it; elsewhere it does no harm.
        await client.post(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "default"}})
        yield client
        await client.delete(f"/api/v1/namespaces/{namespace}")
