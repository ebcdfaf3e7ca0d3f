"""``/v1`` through the API server's service proxy: what the proxy does to a request is done here as the real one does it, and the rest is real."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from hami_cli import ask, live
from hami_cli.exits import CommandError
from hami_runtime import self_signed
from hami_runtime.clock import SystemClock
from hami_runtime.http import serve_app
from hami_runtime.kube import http
from hami_runtime.kube.access import AccessReviewer, ResourceAccess
from hami_runtime.kube.login import TOKEN_HEADER
from hami_runtime.kube.memory import MemoryCluster
from hami_runtime.kube.readers import Readers
from tests.cluster.harness.ports import own_address
from tests.contract.scheduler.world import World
from tests.web.scene import CARDS, scene

PLACE = "service://hami-system/hami-scheduler:api"


class Proxied:
    """An API server whose proxy leads to a service that reviews tokens, and a kubeconfig for it."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self.paths: list[str] = []

    def scheduler(self, url: str = PLACE, token: str = "") -> ask.Service:
        return ask.scheduler(url, token, str(self.kubeconfig), "")


@pytest.fixture
async def proxied(tmp_path: Path) -> AsyncIterator[Proxied]:
    found = Proxied(tmp_path / "kubeconfig")
    readers = Readers(AccessReviewer(MemoryCluster(World(SystemClock()).store), SystemClock()))

    async def service(request: web.Request) -> web.Response:
        refusal = await readers(request, ResourceAccess(verb="list", resource="nodes"))
        if refusal is not None:
            return web.json_response({"error": refusal[1]}, status=refusal[0])
        return web.json_response({"asked": (await request.read()).decode()})

    unverified = ssl.create_default_context()
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE  # as the API server's proxy speaks to services

    async def proxy(request: web.Request) -> web.Response:
        """As kube-apiserver: who may not use the proxy is turned away; a login that was good is not passed on."""
        if request.headers.get("Authorization") != "Bearer alice":
            return web.json_response({"message": "Unauthorized"}, status=401)
        found.paths.append(request.path)
        passed = {name: value for name, value in request.headers.items() if name.lower() not in {"authorization", "host", "content-length"}}
        url = f"https://127.0.0.1:{port}{request.path.partition('/proxy')[2]}"
        async with session.request(request.method, url, headers=passed, data=await request.read(), ssl=unverified) as answer:
            return web.Response(body=await answer.read(), status=answer.status)

    def app(handler: object) -> web.Application:
        made = web.Application()
        made.router.add_route("*", "/{path:.*}", handler)  # type: ignore[arg-type]
        return made

    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        port = await stack.enter_async_context(serve_app(app(service), ssl=self_signed.context("hami-scheduler")))
        server = await stack.enter_async_context(serve_app(app(proxy)))
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server}"}}],
            "users": [{"name": "u", "user": {"token": "alice"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        found.kubeconfig.write_bytes(msgspec.yaml.encode(config))
        yield found


async def test_a_service_is_asked_with_the_kubeconfigs_login_and_reviews_its_token(proxied: Proxied) -> None:
    assert msgspec.json.decode(await ask.post(proxied.scheduler(), "/v1/simulate", b"{}")) == {"asked": "{}"}
    await ask.get(proxied.scheduler(token="another"), "/v1/explain/default/p1")
    root = "/api/v1/namespaces/hami-system/services/https:hami-scheduler:api/proxy"
    assert proxied.paths == [f"{root}/v1/simulate", f"{root}/v1/explain/default/p1"]


@pytest.mark.parametrize(
    "url", ["service://", "service://hami-system/hami-scheduler", "service://a/b:c/d", "service://A/b:c", "service://../b:c"]
)
async def test_a_place_that_names_no_service_is_refused(proxied: Proxied, url: str) -> None:
    with pytest.raises(CommandError, match="no service; accepted: service://NAMESPACE/NAME:PORT"):
        await ask.get(proxied.scheduler(url), "/v1/explain/default/p1")
    assert not proxied.paths


async def test_a_refusal_is_said_as_it_is(proxied: Proxied) -> None:
    text = proxied.kubeconfig.read_text()
    proxied.kubeconfig.write_text(text.replace("alice", "nobody"))
    with pytest.raises(CommandError, match="401"):
        await ask.get(proxied.scheduler(), "/v1/explain/default/p1")


async def test_the_cluster_is_asked_where_nobody_says_anything_else(tmp_path: Path) -> None:
    config = str(tmp_path / "kubeconfig")
    assert ask.scheduler("", "", config, "").url == PLACE
    assert ask.registry("", "", config, "").url == "service://hami-system/hami-registry:api"
    (tmp_path / "rig.json").write_text('{"scheduler_url": "http://127.0.0.1:1", "nats_url": "nats://rig"}')
    assert ask.scheduler("", "", config, "").url == "http://127.0.0.1:1"
    assert ask.scheduler("", "", "another", "").url == PLACE
    assert [live.Where(kubeconfig=config).nats_url, live.Where(kubeconfig="another").nats_url] == ["nats://rig", ""]
    assert live.Where(kubeconfig=config, registry="http://127.0.0.1:2").nats_url == "", "who names the registry has it asked"


def test_the_certificate_is_nobodys_and_kept_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    self_signed.context("hami-registry")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.cluster
async def test_the_page_and_its_changes_are_reached_through_a_real_api_server(real_kubeconfig: Path) -> None:
    host = own_address()
    place = ask.scheduler("service://default/hami-registry:api", "", str(real_kubeconfig), "")
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(http.connect(str(real_kubeconfig)))
        readers = Readers(AccessReviewer(cluster, SystemClock()))
        shown = await stack.enter_async_context(scene(authorize=readers, host=host, tls=self_signed.context("hami-registry")))
        way = await ask._through_api_server(place)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=way.tls)))
        port = {"name": "api", "port": int(shown.url.rpartition(":")[2].rstrip("/"))}
        labels = {"app": "hami-registry"}
        spec = {"nodeName": "hami-registry", "containers": [{"name": "main", "image": "none"}]}
        pod = {"metadata": {"name": "hami-registry", "labels": labels}, "spec": spec}
        service = {"metadata": {"name": "hami-registry"}, "spec": {"selector": labels, "ports": [port]}}
        # The API server leads to pods alone, and at the address that kubelet has said they have.
        running = {"phase": "Running", "podIP": host, "podIPs": [{"ip": host}], "conditions": [{"type": "Ready", "status": "True"}]}
        core = way.base.partition("/services/")[0]
        cluster_wide = f"{way.base.partition('/namespaces/')[0]}/nodes"
        for method, url, body in (
            ("POST", cluster_wide, {"metadata": {"name": "hami-registry"}}),
            ("POST", f"{core}/pods", pod),
            ("PATCH", f"{core}/pods/hami-registry/status", {"status": running}),
            ("POST", f"{core}/services", service),
        ):
            content = {"Content-Type": "application/merge-patch+json" if method == "PATCH" else "application/json"}
            async with session.request(method, url, data=msgspec.json.encode(body), headers=way.headers | content) as answer:
                assert answer.ok, await answer.text()
        try:
            await answers(session, f"{way.base}/", way.headers)  # the page itself, which needs no token of its own
            overview = await answers(session, f"{way.base}/v1/page/overview", way.headers)
            assert overview["nodes"] == []
            without = {name: value for name, value in way.headers.items() if name != TOKEN_HEADER}
            async with session.get(f"{way.base}/v1/page/overview", headers=without) as answer:
                assert answer.status == 401  # the proxy has kept our login to itself
            async with session.get(f"{way.base}/v1/page/changes", headers=way.headers) as stream, asyncio.timeout(20):
                await shown.add_node("n1", *CARDS[1])
                while b"event: change" not in await stream.content.readline():
                    pass
        finally:
            for url in (f"{core}/services", f"{core}/pods", cluster_wide):
                async with session.delete(f"{url}/hami-registry", params={"gracePeriodSeconds": "0"}, headers=way.headers) as answer:
                    assert answer.status in {200, 404}


async def answers(session: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> Any:
    """The answer, once the API server knows where the service is."""
    said = ""
    for _ in range(300):
        async with session.get(url, headers=headers) as answer:
            if answer.status == 200:
                return await answer.json() if answer.content_type == "application/json" else await answer.text()
            said = f"{answer.status}: {await answer.text()}"
            assert answer.status in (404, 503), said  # it knows neither the service nor its endpoints in the same moment
        await asyncio.sleep(0.2)
    pytest.fail(f"{url}: {said}")
