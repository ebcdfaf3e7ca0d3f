"""``hami doctor``: whether an installation is as it must be. Gathers; ``checks`` judges."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from hami_cli import checks, live, service_checks
from hami_cli.checks import Check, Outcome
from hami_cli.exits import FOUND, CommandError, run
from hami_cli.output import Format, OutputOption, coloured, plain, show
from hami_cli.places import ContextOption, DeviceConfigOption, KubeconfigOption, NatsOption, place
from hami_protocol import subjects
from hami_protocol.envelope import open_message
from hami_protocol.errors import EventError
from hami_protocol.events import DevicesReported
from hami_protocol.inventory import Inventory
from hami_runtime.bus import api
from hami_runtime.bus.jetstream import JetStreamBus
from hami_runtime.bus.port import BusError
from hami_runtime.kube.access import ResourceAccess
from hami_runtime.kube.calls import CALLS
from hami_runtime.kube.cluster import (
    ACCESS_REVIEWS,
    LEASES,
    MUTATING_WEBHOOKS,
    NODES,
    PODS,
    VALIDATING_WEBHOOKS,
    Body,
    Cluster,
    ClusterError,
    Kind,
    NotFound,
)
from hami_runtime.kube.http import HttpCluster

CONFIG_MAPS: Final[Kind[Body]] = Kind(api_version="v1", kind="ConfigMap", plural="configmaps", namespaced=True, type=dict)
OWN_RIGHTS: Final[Kind[Body]] = Kind(
    api_version="authorization.k8s.io/v1",
    kind="SelfSubjectAccessReview",
    plural="selfsubjectaccessreviews",
    namespaced=False,
    type=dict,
)
SERVICE_ACCOUNTS: Final[Kind[Body]] = Kind(api_version="v1", kind="ServiceAccount", plural="serviceaccounts", namespaced=True, type=dict)
AUTH_CALLOUT: Final = "hami-auth-callout"
"""The account that only an installation with auth callout has."""
NODE_LEASES: Final = "kube-node-lease"
ANSWER_SECONDS = 5.0
_COLOURS = {Outcome.OK: "green", Outcome.WARNING: "yellow", Outcome.FAILED: "red", Outcome.UNKNOWN: "yellow"}


def doctor(
    scheduler_config: Annotated[
        str, typer.Option("--scheduler-config", help="kube-scheduler's configuration file; default: the ConfigMap, or the rig's file.")
    ] = "",
    scheduler_namespace: Annotated[str, typer.Option("--system-namespace", help="Where HAMI is installed.")] = "hami-system",
    output: OutputOption = Format.TABLE,
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
    nats: NatsOption = "",
    device_config: DeviceConfigOption = "",
) -> None:
    """Check an installation: API server, rights, webhooks, clocks, kube-scheduler's configuration, bus, registry, scheduler, agents, shim.

    Each failure says what to do. Exits with 3 where something failed; warnings alone do not count.

    [bold]Example[/]

    $ hami doctor
    """
    where = live.Where(kubeconfig=kubeconfig, context=context, nats=nats, device_config=device_config)
    found = run("doctor", _examine(where, scheduler_config, scheduler_namespace))
    show(found, output, lambda: text(found))
    if any(check.outcome is Outcome.FAILED for check in found):
        raise SystemExit(FOUND)


def text(found: Iterable[Check]) -> str:
    """The checks for people."""
    lines = []
    for check in found:
        lines.append(f"{coloured(f'{check.outcome.value:<8}', _COLOURS[check.outcome])} {plain(check.what)}: {plain(check.detail)}")
        if check.remedy:
            lines.append(f"         -> {plain(check.remedy)}")
    return "\n".join(lines)


async def _examine(where: live.Where, scheduler_config: str, namespace: str) -> list[Check]:
    catalog = where.catalog()
    found: list[Check] = []
    async with where.cluster() as cluster:
        live.progress("asking the API server")
        try:
            listed = (await cluster.list(NODES)).items
        except ClusterError as exc:
            remedy = "see that KUBECONFIG and --context are those of the cluster, and that you may list nodes"
            return [checks.failed("API server", f"{cluster.server}: {exc}", remedy)]
        nodes = [node.metadata.name for node in listed]
        found.append(checks.ok("API server", f"{cluster.server} answers; {len(nodes)} nodes"))
        found.extend(await _guarded("rights", lambda: _rights(cluster)))
        live.progress("asking what the services may do")
        found.extend(await _guarded("rights of services", lambda: _service_rights(cluster, namespace)))
        found.extend(await _guarded("webhooks", lambda: _webhooks(cluster)))
        found.extend(await _guarded("admission", lambda: _admission(cluster, catalog.vendors[0].count_resource)))
        found.extend(await _guarded("kube-scheduler", lambda: _scheduler(cluster, scheduler_config, namespace, catalog.managed_resources)))
    live.progress("asking the bus")
    try:
        async with where.bus() as bus:
            found.append(checks.ok("bus", f"{where.nats_url} answers"))
            found.extend(await _guarded("streams", lambda: _streams(bus)))
            found.extend(await _services(bus, nodes, [node.metadata.name for node in listed if node.metadata.labels.get("gpu") == "on"]))
            found.extend(await _guarded("shim", lambda: _shims(bus, nodes)))
    except CommandError as exc:
        remedy = "see that NATS runs, and that its address, credentials and network policy are right"
        found.append(checks.failed("bus", str(exc), remedy))
    return found


async def _guarded(what: str, look: Callable[[], Any]) -> list[Check]:
    """The checks of ``look``; that nobody could look, where it fails."""
    try:
        answer: list[Check] = await look()
    except (ClusterError, BusError, EventError, OSError) as exc:
        return [checks.unknown(what, f"could not be read: {exc}")]
    return answer


async def _rights(cluster: Cluster) -> list[Check]:
    async def may(access: ResourceAccess) -> bool:
        attributes = {"verb": access.verb, "resource": access.resource, "group": access.group}
        body = {"spec": {"resourceAttributes": attributes}}
        review = await cluster.create(OWN_RIGHTS, body)
        return bool((review.get("status") or {}).get("allowed"))

    answers = await asyncio.gather(*(may(access) for access in checks.NEEDED))
    return list(checks.rights(dict(zip(checks.NEEDED, answers, strict=True))))


async def _service_rights(cluster: Cluster, namespace: str) -> list[Check]:
    found: list[Check] = []
    for account in CALLS:
        if account == AUTH_CALLOUT and not await _is_there(cluster, account, namespace):
            continue

        async def may(access: ResourceAccess, account: str = account) -> bool:
            attributes = {key: value for key, value in msgspec.structs.asdict(access).items() if value}
            groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
            asked = {"user": f"system:serviceaccount:{namespace}:{account}", "groups": groups, "resourceAttributes": attributes}
            review = await cluster.create(ACCESS_REVIEWS, {"spec": asked})
            return bool((review.get("status") or {}).get("allowed"))

        needed = service_checks.needed(account, namespace)
        answers = await asyncio.gather(*(may(access) for access in needed))
        found.append(service_checks.service_rights(account, dict(zip(needed, answers, strict=True))))
    return found


async def _is_there(cluster: Cluster, account: str, namespace: str) -> bool:
    try:
        await cluster.get(SERVICE_ACCOUNTS, account, namespace=namespace)
    except NotFound:
        return False
    return True


async def _admission(cluster: HttpCluster, resource: str) -> list[Check]:
    """Create a pod in rehearsal: what the webhook makes of it, and what time the API server says that it is."""
    container = {"name": "main", "image": "none", "resources": {"limits": {resource: "1"}}}
    body: Body = {"metadata": {"name": "hami-doctor"}, "spec": {"containers": [container]}}
    before = datetime.now(UTC)
    try:
        pod = await cluster.rehearse(PODS, body, namespace="default")
    except ClusterError as exc:
        return [service_checks.admission(resource, exc), checks.unknown("clock", "only a pod that is created says what time it is")]
    after = datetime.now(UTC)
    found = [service_checks.admission(resource, pod)]
    if created := pod.metadata.creation_timestamp:
        leases = (await cluster.list(LEASES, namespace=NODE_LEASES)).items
        found.extend(service_checks.clocks(datetime.fromisoformat(created), before, after, leases))
    return found


async def _webhooks(cluster: Cluster) -> list[Check]:
    mutating, validating = await asyncio.gather(cluster.list(MUTATING_WEBHOOKS), cluster.list(VALIDATING_WEBHOOKS))
    return list(checks.webhooks([*mutating.items, *validating.items], datetime.now(UTC)))


async def _scheduler(cluster: Cluster, path: str, namespace: str, managed: tuple[str, ...]) -> list[Check]:
    rig = place("folder", "", "")
    path = path or (str(Path(rig) / "kube-scheduler.yaml") if rig else "")
    if path:
        text = await asyncio.to_thread(Path(path).read_text, encoding="utf-8")
        return list(checks.scheduler_configuration(text, managed, source=path))
    maps = (await cluster.list(CONFIG_MAPS, namespace=namespace)).items
    found: list[Check] = []
    for each in maps:
        for key, content in (each.get("data") or {}).items():
            if "KubeSchedulerConfiguration" in str(content):
                source = f"ConfigMap {namespace}/{each['metadata']['name']}, {key}"
                found.extend(checks.scheduler_configuration(str(content), managed, source=source))
    missing = checks.unknown(
        "kube-scheduler configuration", f"no ConfigMap in {namespace} has one", "name the file with --scheduler-config"
    )
    return found or [missing]


async def _streams(bus: JetStreamBus) -> list[Check]:
    session = await bus.session()
    there: dict[str, bool] = {}
    for spec in subjects.STREAMS:
        try:
            await api.call(session, f"STREAM.INFO.{spec.name}")
            there[spec.name] = True
        except api.NotThere:
            there[spec.name] = spec is subjects.USAGE  # made by whoever first measures
    return list(checks.streams(there))


async def _shims(bus: JetStreamBus, nodes: list[str]) -> list[Check]:
    """What each node's agent last reported of NVIDIA's cards."""
    versions: dict[str, str] = {}
    for start in range(0, len(nodes), live.AT_ONCE):
        some = nodes[start : start + live.AT_ONCE]
        messages = await asyncio.gather(*(bus.last(subjects.DEVICES, subjects.devices(node, "nvidia")) for node in some))
        for node, message in zip(some, messages, strict=True):
            event = open_message(message) if message is not None else None
            if isinstance(event, DevicesReported) and not event.third_party:
                versions[node] = event.shim_version
    return list(service_checks.shims(versions))


async def _services(bus: JetStreamBus, nodes: list[str], labelled: list[str]) -> list[Check]:
    """Whether a leader of scheduler and registry answers, and what the registry says of the agents."""
    found: list[Check] = []
    try:
        await bus.request(subjects.ASK_EXPLAIN, b'{"namespace":"default","pod":"-"}', timeout_seconds=ANSWER_SECONDS)
        found.append(checks.ok("scheduler", "its leader answers on the bus"))
    except BusError as exc:
        remedy = "see that the scheduler's pods run; its Lease says who leads: kubectl get leases -A"
        found.append(checks.failed("scheduler", f"nobody answers: {exc}", remedy))
    try:
        inventory = msgspec.json.decode(await bus.request(subjects.ASK_INVENTORY, b"", timeout_seconds=ANSWER_SECONDS), type=Inventory)
    except (BusError, msgspec.DecodeError) as exc:
        remedy = "see that the registry's pods run; its Lease says who leads: kubectl get leases -A"
        return [*found, checks.failed("registry", f"nobody answers: {exc}", remedy), checks.unknown("agents", "the registry knows")]
    found.append(checks.ok("registry", "its leader answers on the bus"))
    registering = [node.name for node in inventory.nodes]
    return [*found, *checks.agents(inventory, nodes), *service_checks.silent(labelled, registering)]
