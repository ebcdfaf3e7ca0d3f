"""What only the HTTP adapter can get wrong: lost answers, throttling, identities, and bytes that are no objects."""

import asyncio
import json
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from hami_protocol.devices import PodRef
from hami_protocol.kubernetes import Pod, PodSpec
from hami_rig.apiserver.faults import Fault
from hami_rig.apiserver.server import ApiServer
from hami_runtime.http import serve_app
from hami_runtime.kube import http, login
from hami_runtime.kube.cluster import PODS, ClusterError, Forbidden, NotFound, TooManyRequests, Unavailable
from hami_runtime.telemetry import Telemetry
from tests.certificates import Authority
from tests.contract.cluster.test_cluster import a_pod, seen

POD = json.dumps({"metadata": {"name": "p", "namespace": "default", "uid": "u", "resourceVersion": "7"}}).encode()
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture
def cluster(http_cluster: http.HttpCluster) -> http.HttpCluster:
    return http_cluster


def a_kubeconfig(folder: Path, server: str, user: dict[str, Any] | None = None, **more: Any) -> str:
    path = folder / "kubeconfig"
    body = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server, **more}}],
        "users": [{"name": "u", "user": user or {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(body))
    return str(path)


@asynccontextmanager
async def an_api(handler: Handler, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server that answers everything with ``handler``."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    async with serve_app(app, ssl=context, shutdown_seconds=0.1) as port:
        yield port


class TestAnswersThatAreLost:
    @pytest.mark.parametrize(("status", "after_commit"), [(0, True), (0, False), (500, True), (504, False)])
    async def test_a_write_without_an_answer_may_have_been_applied(
        self, server: ApiServer, cluster: http.HttpCluster, status: int, after_commit: bool
    ) -> None:
        pod = await cluster.create(PODS, a_pod("p"), namespace="default")
        server.faults.order(Fault(verb="create", resource="pods", subresource="binding", status=status, after_commit=after_commit))
        with pytest.raises(Unavailable) as caught:
            await cluster.bind(PodRef(namespace="default", name="p", uid=pod.metadata.uid), "n1", annotations={}, labels={})
        assert caught.value.maybe_applied
        found = await cluster.get(PODS, "p", namespace="default")
        assert found.spec.node_name == ("n1" if after_commit else "")

    async def test_a_server_that_is_not_there_has_applied_nothing(self, tmp_path: Path) -> None:
        async def handler(_request: web.Request) -> web.Response:
            return web.Response()

        async with an_api(handler) as port:
            pass
        async with http.connect(a_kubeconfig(tmp_path, f"http://127.0.0.1:{port}")) as cluster:
            with pytest.raises(Unavailable) as caught:
                await cluster.create(PODS, a_pod("p"), namespace="default")
        assert not caught.value.maybe_applied

    async def test_a_read_is_tried_again(self, server: ApiServer, cluster: http.HttpCluster) -> None:
        await cluster.create(PODS, a_pod("p"), namespace="default")
        server.faults.order(Fault(verb="get", resource="pods", status=0))
        server.faults.order(Fault(verb="get", resource="pods", status=503))
        assert (await cluster.get(PODS, "p", namespace="default")).metadata.name == "p"

    async def test_a_read_that_fails_again_and_again_fails(self, server: ApiServer, cluster: http.HttpCluster) -> None:
        server.faults.order(Fault(verb="get", resource="pods", status=500, times=9))
        with pytest.raises(Unavailable) as caught:
            await cluster.get(PODS, "p", namespace="default")
        assert (caught.value.code, caught.value.maybe_applied) == (500, False)


class TestThrottling:
    @asynccontextmanager
    async def throttled(self, tmp_path: Path, times: int) -> AsyncIterator[tuple[http.HttpCluster, list[str]]]:
        calls: list[str] = []

        async def handler(request: web.Request) -> web.Response:
            calls.append(request.method)
            if len(calls) <= times:
                return web.Response(status=429, headers={"Retry-After": "0"}, text="slow down")
            return web.Response(body=POD)

        async with an_api(handler) as port, http.connect(a_kubeconfig(tmp_path, f"http://127.0.0.1:{port}")) as cluster:
            yield cluster, calls

    async def test_who_is_asked_to_wait_waits(self, tmp_path: Path) -> None:
        async with self.throttled(tmp_path, 2) as (cluster, calls):
            await cluster.patch(PODS, "p", {}, namespace="default")
            assert calls == ["PATCH"] * 3

    async def test_but_not_for_ever(self, tmp_path: Path) -> None:
        async with self.throttled(tmp_path, 100) as (cluster, calls):
            with pytest.raises(TooManyRequests, match="slow down"):
                await cluster.patch(PODS, "p", {}, namespace="default")
            assert len(calls) == 4

    async def test_a_budget_that_forbids_an_eviction_is_told_at_once(self, tmp_path: Path) -> None:
        async with self.throttled(tmp_path, 100) as (cluster, calls):
            with pytest.raises(TooManyRequests):
                await cluster.evict(PodRef(namespace="default", name="p", uid="u"))
            assert calls == ["POST"]


class TestIdentity:
    async def test_a_token_that_was_replaced_is_read_again(self, tmp_path: Path) -> None:
        accepted = "Bearer old"

        async def handler(request: web.Request) -> web.Response:
            return web.Response(body=POD) if request.headers.get("Authorization") == accepted else web.Response(status=401)

        async with an_api(handler) as port:
            kubeconfig = a_kubeconfig(tmp_path, f"http://127.0.0.1:{port}", {"token": "old"})
            async with http.connect(kubeconfig) as cluster:
                await cluster.get(PODS, "p", namespace="default")
                accepted = "Bearer new"
                with pytest.raises(Forbidden):
                    await cluster.get(PODS, "p", namespace="default")
                a_kubeconfig(tmp_path, f"http://127.0.0.1:{port}", {"token": "new"})
                await asyncio.gather(*(cluster.create(PODS, a_pod("p"), namespace="default") for _ in range(5)))

    async def test_files_alone_are_read_without_the_classes_of_the_whole_api(self, tmp_path: Path) -> None:
        """They are 37 MiB in each service."""
        kubeconfig = a_kubeconfig(tmp_path, "http://127.0.0.1:1", {"token": "t"})
        text = "import asyncio, sys; from hami_runtime.kube.login import login; print(asyncio.run(asyncio.wait_for(login(sys.argv[1]), 9)).server)"
        program = f"{text}; sys.exit('kubernetes_asyncio' in sys.modules)"
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, kubeconfig, stdout=asyncio.subprocess.PIPE)
        said, _ = await process.communicate()
        assert (process.returncode, said) == (0, b"http://127.0.0.1:1\n")

    async def test_an_exec_plugin_gives_a_token(self, tmp_path: Path) -> None:
        async def handler(request: web.Request) -> web.Response:
            return web.Response(body=POD) if request.headers.get("Authorization") == "Bearer made" else web.Response(status=401)

        credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "made"}}
        plugin = {
            "apiVersion": credential["apiVersion"],
            "command": sys.executable,
            "args": ["-c", f"print('''{json.dumps(credential)}''')"],
        }
        async with an_api(handler) as port, http.connect(a_kubeconfig(tmp_path, f"http://127.0.0.1:{port}", {"exec": plugin})) as cluster:
            assert (await cluster.get(PODS, "p", namespace="default")).metadata.name == "p"

    async def test_a_client_certificate_opens_the_door(self, tmp_path: Path) -> None:
        authority = Authority(tmp_path)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.certificate))
        context.load_cert_chain(*authority.issue("server"))
        context.verify_mode = ssl.CERT_REQUIRED
        certificate, key = authority.issue("scheduler")
        names: list[Any] = []

        async def handler(request: web.Request) -> web.Response:
            assert request.transport is not None
            names.append(request.transport.get_extra_info("peercert")["subject"])
            return web.Response(body=POD)

        async with an_api(handler, context) as port:
            url, ca = f"https://127.0.0.1:{port}", {"certificate-authority": str(authority.certificate)}
            user = {"client-certificate": str(certificate), "client-key": str(key)}
            async with http.connect(a_kubeconfig(tmp_path, url, user, **ca)) as cluster:
                await cluster.get(PODS, "p", namespace="default")
            assert names == [((("commonName", "scheduler"),),)]
            async with http.connect(a_kubeconfig(tmp_path, url, user)) as stranger:
                with pytest.raises(Unavailable, match="cannot be reached"):
                    await stranger.get(PODS, "p", namespace="default")

    async def test_a_service_accounts_token_is_used_and_rotated(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        authority = Authority(tmp_path)
        (tmp_path / "token").write_text("first\n")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
        account = await login.login(None, service_account=str(tmp_path))
        assert (account.server, await account.authorization()) == ("https://127.0.0.1:6443", "Bearer first")
        (tmp_path / "token").write_text("second")
        assert await account.renew("Bearer first")
        assert await account.authorization() == "Bearer second"
        assert not await account.renew("Bearer second")
        assert authority.certificate.name == "ca.crt"

    @pytest.mark.parametrize(("bypass", "through"), [("", True), ("127.0.0.1", False)])
    async def test_the_environments_proxy_is_used_but_where_it_says_not(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bypass: str, through: bool
    ) -> None:
        asked: list[str] = []

        async def answer(request: web.Request) -> web.Response:
            asked.append(request.headers["Host"])
            return web.Response(body=POD, content_type="application/json")

        async with an_api(answer) as proxy, an_api(answer) as api:
            monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy}")
            monkeypatch.setenv("no_proxy", bypass)
            configuration = a_kubeconfig(tmp_path, f"http://127.0.0.1:{api}")
            assert (await login.login(configuration)).proxy == (f"http://127.0.0.1:{proxy}" if through else None)
            async with http.connect(configuration) as cluster:
                await cluster.get(PODS, "p", namespace="default")
        assert asked == [f"127.0.0.1:{api}"]

    @pytest.mark.parametrize("text", [None, "", "no: kubeconfig", "[1, 2]", "{", '{"current-context": "x", "contexts": []}'])
    async def test_what_is_no_kubeconfig_is_refused_by_name(self, tmp_path: Path, text: str | None) -> None:
        path = tmp_path / "config"
        if text is not None:
            path.write_text(text)
        with pytest.raises(ClusterError, match=r"kubeconfig .*config"):
            async with http.connect(str(path)):
                pass

    async def test_without_a_kubeconfig_and_outside_a_pod_it_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        with pytest.raises(ClusterError, match="no kubeconfig is set"):
            async with http.connect(None):
                pass

    async def test_we_say_who_we_are_and_are_counted(self, server: ApiServer, cluster: http.HttpCluster, tmp_path: Path) -> None:
        (tmp_path / "other").write_text(server.kubeconfig)
        telemetry = Telemetry("test")
        async with http.connect(str(tmp_path / "other"), user_agent="hami-registry/1", telemetry=telemetry) as other:
            with pytest.raises(NotFound):
                await other.get(PODS, "p", namespace="default")
        rows = [row for row in server._counts.rows() if row["user_agent"] == "hami-registry/1"]
        assert [(row["verb"], row["resource"], row["count"]) for row in rows] == [("get", "pods", 1)]
        assert 'hami_kube_requests_total{code="404",resource="pods",verb="get"} 1.0' in telemetry.prometheus_text().decode()


class TestBytes:
    @asynccontextmanager
    async def serving(self, tmp_path: Path, *bodies: bytes) -> AsyncIterator[http.HttpCluster]:
        """A server that gives each list page, and to a watch all bodies at once."""
        pages = list(bodies)

        async def handler(request: web.Request) -> web.StreamResponse:
            if "watch" not in request.query:
                return web.Response(body=pages.pop(0))
            response = web.StreamResponse()
            await response.prepare(request)
            for body in pages:
                await response.write(body)
            return response

        async with an_api(handler) as port, http.connect(a_kubeconfig(tmp_path, f"http://127.0.0.1:{port}")) as cluster:
            yield cluster

    async def test_a_list_comes_in_pages(self, tmp_path: Path) -> None:
        first = b'{"metadata":{"resourceVersion":"9","continue":"more"},"items":[' + POD + b"]}"
        last = b'{"metadata":{"resourceVersion":"9"},"items":[' + POD.replace(b'"p"', b'"q"') + b"]}"
        async with self.serving(tmp_path, first, last) as cluster:
            listing = await cluster.list(PODS)
        assert ([pod.metadata.name for pod in listing.items], listing.resource_version) == (["p", "q"], "9")

    async def test_each_page_is_kept_in_its_form_before_the_next_is_asked_for(self, tmp_path: Path) -> None:
        kept: list[str] = []
        kept_at_page: list[int] = []

        async def handler(request: web.Request) -> web.Response:
            kept_at_page.append(len(kept))
            more = b"" if "continue" in request.query else b',"continue":"more"'
            return web.Response(body=b'{"metadata":{"resourceVersion":"9"' + more + b'},"items":[' + POD + b"," + POD + b"]}")

        def keep(pod: Pod) -> Pod:
            kept.append(pod.metadata.name)
            return msgspec.structs.replace(pod, spec=PodSpec(node_name="kept"))

        async with an_api(handler) as port, http.connect(a_kubeconfig(tmp_path, f"http://127.0.0.1:{port}")) as cluster:
            listing = await cluster.list(PODS, keep_as=keep)
        assert kept_at_page == [0, 2]
        assert [pod.spec.node_name for pod in listing.items] == ["kept"] * 4

    async def test_pages_that_expired_are_asked_for_all_at_once(self, tmp_path: Path) -> None:
        async def handler(request: web.Request) -> web.Response:
            more = b',"continue":"more"' if "limit" in request.query else b""
            if "continue" in request.query:
                return web.json_response({"kind": "Status", "reason": "Expired", "message": "too old", "code": 410}, status=410)
            return web.Response(body=b'{"metadata":{"resourceVersion":"9"' + more + b'},"items":[' + POD + b"]}")

        async with an_api(handler) as port, http.connect(a_kubeconfig(tmp_path, f"http://127.0.0.1:{port}")) as cluster:
            assert len((await cluster.list(PODS)).items) == 1

    async def test_an_object_that_is_none_is_left_out_of_a_list(self, tmp_path: Path) -> None:
        body = b'{"metadata":{"resourceVersion":"9"},"items":[' + POD + b',{"metadata":{"name":7}},{"metadata":{"name":"bad"},"spec":3}]}'
        async with self.serving(tmp_path, body) as cluster:
            assert [pod.metadata.name for pod in (await cluster.list(PODS)).items] == ["p"]

    @pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"items":7}', b"\xff"])
    async def test_a_list_that_is_none_is_an_error(self, tmp_path: Path, body: bytes) -> None:
        async with self.serving(tmp_path, body) as cluster:
            with pytest.raises(ClusterError, match="list of pods cannot be decoded"):
                await cluster.list(PODS)

    async def test_lines_may_be_cut_anywhere_and_be_large(self, tmp_path: Path) -> None:
        large = json.dumps({"metadata": {"name": "large", "resourceVersion": "8", "annotations": {"a": "x" * 1_200_000}}}).encode()
        lines = b'{"type":"ADDED","object":' + POD + b'}\n{"type":"ADDED","object":' + large + b"}\n"
        pieces = [lines[:30], lines[30:31], lines[31:700_000], lines[700_000:], b'{"type":"ADDED","obj']
        async with self.serving(tmp_path, *pieces) as cluster, cluster.watch(PODS, since="1") as changes:
            assert await seen(changes, 2) == [("ADDED", "p"), ("ADDED", "large")]
            with pytest.raises(StopAsyncIteration):
                await anext(changes)

    async def test_an_object_that_is_none_only_moves_the_version(self, tmp_path: Path) -> None:
        line = b'{"type":"MODIFIED","object":{"metadata":{"name":"bad","resourceVersion":"8"},"spec":3}}\n'
        async with self.serving(tmp_path, line) as cluster, cluster.watch(PODS, since="1") as changes:
            change = await anext(changes)
        assert (change.object, change.resource_version) == (None, "8")

    @pytest.mark.parametrize("line", [b"<html>\n", b'{"type":"ODD","object":{}}\n', b"7\n", b'{"type":"ERROR","object":{"code":500}}\n'])
    async def test_a_line_that_is_none_is_an_error(self, tmp_path: Path, line: bytes) -> None:
        async with self.serving(tmp_path, line) as cluster, cluster.watch(PODS, since="1") as changes:
            with pytest.raises(ClusterError):
                await anext(changes)

    async def test_a_proxys_page_is_told_in_part(self, tmp_path: Path) -> None:
        async def handler(_request: web.Request) -> web.Response:
            return web.Response(status=403, text="<html>" + "no " * 1000)

        async with an_api(handler) as port, http.connect(a_kubeconfig(tmp_path, f"http://127.0.0.1:{port}")) as cluster:
            with pytest.raises(Forbidden) as caught:
                await cluster.get(PODS, "p", namespace="default")
        assert len(str(caught.value)) < 300

    async def test_a_namespace_that_was_forgotten_is_told(self, cluster: http.HttpCluster) -> None:
        with pytest.raises(ClusterError, match="without its namespace"):
            await cluster.get(PODS, "p")
