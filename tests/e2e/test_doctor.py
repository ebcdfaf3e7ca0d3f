"""``hami doctor`` at a running rig whose answers are spoiled one at a time: each failure is found, and it says what to do.

A proxy stands before the rig's API server and changes one answer; a second NATS lacks what the rig's has. The rig itself stays whole.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio
import yaml
from aiohttp import web

from hami_protocol import subjects
from hami_protocol.envelope import seal
from hami_protocol.events import DevicesReported
from hami_protocol.inventory import DeviceGroup, Inventory, InventoryNode
from hami_rig.apiserver import kubeconfig
from hami_runtime.bus import jetstream
from hami_runtime.http import serve_app
from tests.builders import a_device
from tests.contract.bus.conftest import NatsServer
from tests.e2e.conftest import World
from tests.e2e.shell import Shell

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

Body = dict[str, Any]
Spoil = Callable[[str, str, Body], Body | None]
"""Method, path and body to the body that is answered in its place; None for the rig's own."""


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def empty_bus(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """A NATS where nobody is."""
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    await server.start()
    yield server.url
    await server.kill()


@asynccontextmanager
async def spoiled(world: World, folder: Path, spoil: Spoil) -> AsyncIterator[Path]:
    """A kubeconfig that leads to the rig by way of a proxy."""
    async with aiohttp.ClientSession() as session:

        async def pass_on(request: web.Request) -> web.Response:
            data = await request.read()
            headers = {key: value for key, value in request.headers.items() if key in {"Authorization", "Content-Type", "Accept"}}
            async with session.request(request.method, world.api_url + str(request.rel_url), data=data, headers=headers) as answer:
                body = await answer.json(content_type=None)
                changed = spoil(request.method, request.path, body)
                if changed is None:
                    return web.json_response(body, status=answer.status)
                return web.json_response(changed, status=changed.get("code", 200) if changed.get("kind") == "Status" else answer.status)

        application = web.Application()
        application.router.add_route("*", "/{path:.*}", pass_on)
        async with serve_app(application) as port:
            path = folder / "kubeconfig"
            path.write_text(kubeconfig(f"http://127.0.0.1:{port}"))
            yield path


async def found(world: World, config: Path, *arguments: str, nats: str = "") -> list[Body]:
    """What the doctor finds wrong."""
    given = ["--nats", nats or world.rig.nats_url, "--system-namespace", "kube-system", "--scheduler-config", scheduler_config(world)]
    said = await Shell(config).hami("doctor", "-o", "json", *given, *arguments)
    checks: list[Body] = json.loads(said.out)
    wrong = [check for check in checks if check["outcome"] not in {"ok", "unknown"}]
    assert said.code == (3 if any(check["outcome"] == "failed" for check in wrong) else 0)
    assert all(check["remedy"] for check in wrong), wrong
    return wrong


def scheduler_config(world: World) -> str:
    return str(world.rig.folder / "kube-scheduler.yaml")


def status(code: int, message: str) -> Body:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": "InternalError", "message": message}


def denying(resource: str, *, review: str = "subjectaccessreviews") -> Spoil:
    def spoil(method: str, path: str, body: Body) -> Body | None:
        asked = (body.get("spec") or {}).get("resourceAttributes") or {}
        if path.endswith(f"/{review}") and asked.get("resource") == resource:
            return {**body, "status": {"allowed": False}}
        return None

    return spoil


def in_webhooks(change: Callable[[Body], None], *, items: bool = True) -> Spoil:
    def spoil(method: str, path: str, body: Body) -> Body | None:
        if method != "GET" or not path.endswith("/mutatingwebhookconfigurations"):
            return None
        if not items:
            return {**body, "items": []}
        for each in body["items"]:
            for webhook in each["webhooks"]:
                change(webhook)
        return body

    return spoil


def in_rehearsal(change: Callable[[Body], Body]) -> Spoil:
    return lambda method, path, body: change(body) if method == "POST" and path.endswith("/pods") else None


def without_scheduler(body: Body) -> Body:
    body["spec"]["schedulerName"] = "default-scheduler"
    return body


def later(body: Body) -> Body:
    body["metadata"]["creationTimestamp"] = (datetime.now(UTC) + timedelta(seconds=300)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return body


def fast_node(method: str, path: str, body: Body) -> Body | None:
    if method != "GET" or not path.endswith("/namespaces/kube-node-lease/leases"):
        return None
    renewed = (datetime.now(UTC) + timedelta(seconds=300)).isoformat()
    return {**body, "items": [{"metadata": {"name": "cdi"}, "spec": {"renewTime": renewed}}]}


def one_more_node(method: str, path: str, body: Body) -> Body | None:
    if method != "GET" or not path.endswith("/nodes"):
        return None
    return {**body, "items": [*body["items"], {"metadata": {"name": "bare", "labels": {"gpu": "on"}}}]}


SPOILED: dict[str, tuple[Spoil, str, str, str]] = {
    "a service lacks a right": (denying("nodes"), "rights of hami-registry", "it may not get nodes", "rbac.yaml"),
    "you lack a right": (denying("pods", review="selfsubjectaccessreviews"), "rights", "you may not list pods", "role"),
    "no webhook configuration": (in_webhooks(dict, items=False), "webhook vgpu.hami.io", "no such configuration", "webhook's pods run"),
    "a caBundle that is none": (
        in_webhooks(lambda webhook: webhook["clientConfig"].update(caBundle="bm9uZQ==")),
        "webhook vgpu.hami.io",
        "no certificate",
        "restart the webhook's pods",
    ),
    "a webhook that is ignored": (in_webhooks(lambda webhook: webhook.update(failurePolicy="Ignore")), "webhook vgpu.hami.io", "Ignore", "Fail"),
    "a webhook that is not reached": (
        in_rehearsal(lambda _: status(500, 'failed calling webhook "vgpu.hami.io": connection refused')),
        "admission",
        "connection refused",
        "webhook's pods are Ready",
    ),
    "a webhook that is passed by": (in_rehearsal(without_scheduler), "admission", "created as it is", "mutatingwebhookconfiguration"),
    "another clock": (in_rehearsal(later), "clock", "differ by", "NTP"),
    "a node with another clock": (fast_node, "clock of cdi", "ahead", "NTP"),
    "a node without an agent": (one_more_node, "agent on bare", "registers no devices", "spec.nodeName=bare"),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILED)
async def test_what_the_api_server_shows_to_be_wrong_is_found(world: World, tmp_path: Path, name: str) -> None:
    spoil, what, detail, remedy = SPOILED[name]
    async with spoiled(world, tmp_path, spoil) as config:
        wrong = await found(world, config)
    (check,) = [each for each in wrong if each["what"] == what]
    assert detail in check["detail"]
    assert remedy in check["remedy"]


async def test_an_api_server_that_is_away_is_all_that_is_said(world: World, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(kubeconfig("http://127.0.0.1:1"))
    (check,) = await found(world, path)
    assert (check["what"], check["outcome"]) == ("API server", "failed")
    assert "KUBECONFIG" in check["remedy"]


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        (lambda extender: extender.update(ignorable=True), "ignorable"),
        (lambda extender: extender["managedResources"].pop(), "managedResources lacks"),
        (lambda extender: extender["managedResources"][0].update(ignoredByScheduler=False), "counts"),
        (lambda extender: extender.pop("preemptVerb"), "preemptVerb"),
        (lambda extender: extender.pop("bindVerb"), "no extender"),
    ],
)
async def test_what_is_wrong_in_kube_schedulers_configuration_is_found(
    world: World, tmp_path: Path, change: Callable[[Body], Any], detail: str
) -> None:
    configuration = yaml.safe_load((world.rig.folder / "kube-scheduler.yaml").read_text())
    change(configuration["extenders"][0])
    path = tmp_path / "kube-scheduler.yaml"
    path.write_text(yaml.safe_dump(configuration))
    wrong = await found(world, world.rig.kubeconfig, "--scheduler-config", str(path))
    assert len(wrong) == 1, wrong
    (check,) = wrong
    assert check["outcome"] == "failed"
    assert detail in check["detail"]


async def test_on_a_bus_where_nobody_is_everybody_is_missed(world: World, empty_bus: str) -> None:
    wrong = {check["what"]: check for check in await found(world, world.rig.kubeconfig, nats=empty_bus)}
    assert set(wrong) == {"streams", "scheduler", "registry"}
    assert "HAMI_ALLOCATIONS" in wrong["streams"]["detail"]
    assert "Lease" in wrong["scheduler"]["remedy"]


async def test_agents_that_are_away_and_shims_that_differ_are_found(world: World, empty_bus: str) -> None:
    card = a_device("GPU-a")
    groups = {
        name: DeviceGroup(device_type="nvidia", alive=name == "cdi", since="2026-01-01T00:00:00Z", devices=(card,))
        for name in ("cdi", "locked")
    }
    inventory = Inventory(
        time="2026-01-01T00:00:00Z", nodes=tuple(InventoryNode(name=name, device_groups=(group,)) for name, group in groups.items())
    )

    async def answer(_question: bytes) -> bytes:
        return msgspec.json.encode(inventory)

    async with jetstream.connect(empty_bus, name="registry") as bus:
        await bus.wait_connected()
        await bus.ensure_streams(subjects.STREAMS)
        for node, version in (("cdi", "one"), ("locked", "another")):
            event = DevicesReported(node=node, device_type="nvidia", generation=1, devices=(card,), shim_version=version)
            await bus.publish(seal(event, event_id=node, source="/test", time="2026-01-01T00:00:00Z"))
        async with bus.answer(subjects.ASK_INVENTORY, answer), bus.answer(subjects.ASK_EXPLAIN, answer):
            wrong = {check["what"]: check for check in await found(world, world.rig.kubeconfig, nats=empty_bus)}
    assert set(wrong) == {"agent on locked", "shim"}
    assert "another on locked" in wrong["shim"]["detail"]
