"""``hami doctor``: whether an installation is as it must be. Gathers; ``checks`` judges."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from hami_cli import api_server_ports, ask, checks, component_checks, installation, live, service_checks
from hami_cli.checks import Check, Outcome
from hami_cli.exits import FOUND, CommandError, run
from hami_cli.output import Format, OutputOption, coloured, plain, show
from hami_cli.places import (
    ContextOption,
    DeviceConfigOption,
    KubeconfigOption,
    NatsOption,
    RegistryOption,
    SchedulerOption,
    TokenOption,
    place,
)
from hami_cli.snapshot import Heard, take
from hami_cli.sources import BusSource, RegistrySource, Source
from hami_devices.catalog import Catalog
from hami_protocol import subjects
from hami_protocol.envelope import open_message
from hami_protocol.errors import EventError
from hami_protocol.events import DevicesReported
from hami_protocol.kubernetes import Node
from hami_runtime.bus.port import BusError
from hami_runtime.kube import accounts
from hami_runtime.kube.access import ResourceAccess
from hami_runtime.kube.calls import CALLS
from hami_runtime.kube.cluster import (
    ACCESS_REVIEWS,
    EVENTS,
    LEASES,
    MUTATING_WEBHOOKS,
    NODES,
    PODS,
    VALIDATING_WEBHOOKS,
    Body,
    Cluster,
    ClusterError,
    Forbidden,
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
RAW_PODS: Final[Kind[Body]] = Kind(api_version="v1", kind="Pod", plural="pods", namespaced=True, type=dict)
"""Pods with all that their containers' states say."""
WORKLOADS: Final[tuple[Kind[Body], ...]] = tuple(
    Kind(api_version="apps/v1", kind=kind, plural=f"{kind.lower()}s", namespaced=True, type=dict) for kind in installation.WAITED_FOR
)
NETWORK_POLICIES: Final[Kind[Body]] = Kind(
    api_version="networking.k8s.io/v1", kind="NetworkPolicy", plural="networkpolicies", namespaced=True, type=dict
)
ENDPOINT_SLICES: Final[Kind[Body]] = Kind(
    api_version="discovery.k8s.io/v1", kind="EndpointSlice", plural="endpointslices", namespaced=True, type=dict
)
AUTH_CALLOUT: Final = "hami-auth-callout"
"""The account that only an installation with auth callout has."""
NODE_LEASES: Final = "kube-node-lease"
NVIDIA: Final = "nvidia"
ANSWER_SECONDS = 5.0
_COLOURS = {Outcome.OK: "green", Outcome.WARNING: "yellow", Outcome.FAILED: "red", Outcome.UNKNOWN: "yellow"}


def doctor(
    scheduler_config: Annotated[
        str, typer.Option("--scheduler-config", help="kube-scheduler's configuration file; default: the ConfigMap, or the rig's file.")
    ] = "",
    scheduler_namespace: Annotated[str, typer.Option("--system-namespace", help="Where HAMI is installed.")] = accounts.SYSTEM_NAMESPACE,
    output: OutputOption = Format.TABLE,
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
    nats: NatsOption = "",
    registry: RegistryOption = "",
    url: SchedulerOption = "",
    token: TokenOption = "",
    device_config: DeviceConfigOption = "",
) -> None:
    """Check an installation: API server, rights, webhooks, clocks, kube-scheduler's configuration, bus, registry, scheduler, agents, shim.

    Each failure says what to do. Exits with 3 where something failed; warnings alone do not count.

    [bold]Example[/]

    $ hami doctor
    """
    where = live.Where(kubeconfig=kubeconfig, context=context, nats=nats, registry=registry, token=token, device_config=device_config)
    scheduler = ask.scheduler(url, token, kubeconfig, context)
    found = run("doctor", _examine(where, scheduler, scheduler_config or _of_rig(kubeconfig), scheduler_namespace))
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


async def _examine(where: live.Where, scheduler: ask.Service, scheduler_config: str, namespace: str) -> list[Check]:
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
        needed = checks.NEEDED | ({} if where.nats_url else checks.proxied(namespace))
        found.append(checks.ok("API server", f"{cluster.server} answers; {len(nodes)} nodes"))
        found.extend(await _guarded("rights", lambda: _rights(cluster, needed)))
        found.extend(await _guarded("cards of pods", lambda: _orphans(cluster, listed, catalog)))
        live.progress("asking what the services may do")
        found.extend(await _guarded("rights of services", lambda: _service_rights(cluster, namespace)))
        found.extend(await _guarded("pods", lambda: _components(cluster)))
        found.extend(await _guarded("webhooks", lambda: _webhooks(cluster)))
        found.extend(await _guarded("admission", lambda: _admission(cluster, catalog.vendors[0].count_resource)))
        found.extend(
            await _guarded(
                "kube-scheduler",
                lambda: _scheduler(cluster, scheduler_config, namespace, catalog.managed_resources),
            )
        )
    live.progress("asking the bus")
    try:
        async with where.source() as source:
            found.append(await _bus(source))
            found.extend(await _guarded("streams", lambda: _streams(source)))
            found.append(await _leader(source, scheduler))
            found.extend(await _agents(source, nodes, [node.metadata.name for node in listed if node.metadata.labels.get("gpu") == "on"]))
            found.extend(await _guarded("shim", lambda: _shims(source, set(nodes))))
            found.extend(await _guarded("limits of pods", lambda: _unenforced(source, where, listed)))
    except (CommandError, ClusterError) as exc:
        remedy = "see that NATS and the registry run, and that addresses, credentials and network policies are right"
        found.append(checks.failed("bus", str(exc), remedy))
    return found


async def _guarded(what: str, look: Callable[[], Any]) -> list[Check]:
    """The checks of ``look``; that nobody could look, where it fails."""
    try:
        answer: list[Check] = await look()
    except (CommandError, ClusterError, BusError, EventError, OSError) as exc:
        return [checks.unknown(what, f"could not be read: {exc}")]
    return answer


async def _orphans(cluster: Cluster, nodes: list[Node], catalog: Catalog) -> list[Check]:
    """Whether a pod holds a card that its node no longer registers."""
    pods = (await cluster.list(PODS)).items
    return list(checks.orphans(take(nodes, pods, Heard(), catalog, time="")))


async def _rights(cluster: Cluster, needed: Mapping[ResourceAccess, str]) -> list[Check]:
    async def may(access: ResourceAccess) -> bool:
        attributes = {key: value for key, value in msgspec.structs.asdict(access).items() if value}
        body = {"spec": {"resourceAttributes": attributes}}
        review = await cluster.create(OWN_RIGHTS, body)
        return bool((review.get("status") or {}).get("allowed"))

    answers = await asyncio.gather(*(may(access) for access in needed))
    return list(checks.rights(dict(zip(needed, answers, strict=True)), needed))


async def _components(cluster: HttpCluster) -> list[Check]:
    """Workloads and pods of an installation; a rig has none, and does not serve all of their kinds."""
    workloads = [each for kind in WORKLOADS for each in await _labelled(cluster, kind)]
    pods = await _labelled(cluster, RAW_PODS)
    namespaces = {each["metadata"]["namespace"] for each in (*workloads, *pods)}
    events = [each for namespace in sorted(namespaces) for each in (await cluster.list(EVENTS, namespace=namespace)).items]
    found = list(component_checks.pods(workloads, pods, events))
    found += component_checks.kube_scheduler(workloads, await cluster.version() if workloads else "")
    slices = await _labelled(cluster, ENDPOINT_SLICES, api_server_ports.SLICES)
    return [*found, *api_server_ports.checks(await _labelled(cluster, NETWORK_POLICIES), slices)]


async def _labelled(cluster: Cluster, kind: Kind[Body], labels: str = installation.SELECTOR) -> list[Body]:
    """Objects of a kind, by default an installation's; none where the kind is not served, or may not be listed."""
    try:
        items = (await cluster.list(kind, labels=labels)).items
    except (NotFound, Forbidden):
        return []
    return [{**each, "apiVersion": kind.api_version, "kind": kind.kind} for each in items]


async def _service_rights(cluster: Cluster, namespace: str) -> list[Check]:
    found: list[Check] = []
    mutating, validating = await asyncio.gather(cluster.list(MUTATING_WEBHOOKS), cluster.list(VALIDATING_WEBHOOKS))
    own_certificate = service_checks.own_certificate([*mutating.items, *validating.items])
    for account in CALLS:
        if account == AUTH_CALLOUT and not await _is_there(cluster, account, namespace):
            continue

        home = accounts.namespace_of(account, system=namespace)

        async def may(access: ResourceAccess, account: str = account, home: str = home) -> bool:
            attributes = {key: value for key, value in msgspec.structs.asdict(access).items() if value}
            asked = {"user": accounts.user(account, home), "groups": accounts.groups(home), "resourceAttributes": attributes}
            review = await cluster.create(ACCESS_REVIEWS, {"spec": asked})
            return bool((review.get("status") or {}).get("allowed"))

        needed = service_checks.needed(account, home, own_certificate=own_certificate)
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


def _of_rig(kubeconfig: str) -> str:
    """kube-scheduler's configuration file in a rig; empty where this is none."""
    rig = place("folder", "", "", kubeconfig=kubeconfig)
    return str(Path(rig) / "kube-scheduler.yaml") if rig else ""


async def _scheduler(cluster: Cluster, path: str, namespace: str, managed: tuple[str, ...]) -> list[Check]:
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


async def _bus(source: Source) -> Check:
    """That the bus is reached: by us, or by the registry.

    Raises:
        CommandError: the registry does not answer, or does not reach it.
    """
    if isinstance(source, RegistrySource):
        await source.streams()
    return checks.ok("bus", f"{source.name} answers")


async def _streams(source: Source) -> list[Check]:
    there = await source.streams()
    there[subjects.USAGE.name] = True  # made by whoever first measures
    return list(checks.streams(there))


async def _unenforced(source: Source, where: live.Where, nodes: list[Node]) -> list[Check]:
    """What agents last published of the containers of their own nodes."""
    usage = live.usage(await source.usage(), {node.metadata.name for node in nodes})
    async with where.cluster() as cluster:
        pods = (await cluster.list(PODS)).items
    return list(checks.unenforced(take(nodes, pods, Heard(usage=usage), where.catalog(), time="")))


async def _shims(source: Source, nodes: Container[str]) -> list[Check]:
    """What each node's agent last reported of NVIDIA's cards."""
    versions: dict[str, str] = {}
    for message in await source.devices():
        event = open_message(message)
        if isinstance(event, DevicesReported) and event.device_type == NVIDIA and event.node in nodes and not event.third_party:
            versions[event.node] = event.shim_version
    return list(service_checks.shims(versions))


async def _leader(source: Source, scheduler: ask.Service) -> Check:
    """Whether the scheduler's leader answers: on the bus, or where that is not reached from here at its ``/v1``."""
    try:
        if isinstance(source, BusSource):
            question = b'{"namespace":"default","pod":"-"}'
            await source.bus.request(subjects.ASK_EXPLAIN, question, timeout_seconds=ANSWER_SECONDS)
            return checks.ok("scheduler", "its leader answers on the bus")
        await ask.get(scheduler, "/v1/explain/default/-")
    except ask.Refused as exc:
        if exc.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return _silent("scheduler", exc)
    except (BusError, CommandError) as exc:
        return _silent("scheduler", exc)
    return checks.ok("scheduler", f"it answers at {scheduler.url}")


async def _agents(source: Source, nodes: list[str], labelled: list[str]) -> list[Check]:
    """Whether the registry answers, and what it says of the agents."""
    try:
        inventory = await source.inventory()
    except (BusError, CommandError) as exc:
        return [_silent("registry", exc), checks.unknown("agents", "the registry knows")]
    registering = [node.name for node in inventory.nodes]
    answers = "its leader answers on the bus" if isinstance(source, BusSource) else "it answers"
    return [checks.ok("registry", answers), *checks.agents(inventory, nodes), *service_checks.silent(labelled, registering)]


def _silent(service: str, why: Exception) -> Check:
    remedy = f"see that the {service}'s pods run; its Lease says who leads: kubectl get leases -A"
    return checks.failed(service, f"nobody answers: {why}", remedy)
