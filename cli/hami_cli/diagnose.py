"""``hami diagnose``: what is wrong with a pod, where that was read, and the next command."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from hami_cli import live
from hami_cli.diagnosis import Diagnosis, Evidence
from hami_cli.diagnosis import diagnose as diagnosis_of
from hami_cli.exits import FAILED, FOUND, run
from hami_cli.output import Format, OutputOption, coloured, plain, show, strong
from hami_cli.places import ContextOption, DeviceConfigOption, KubeconfigOption, NamespaceOption, NatsOption, RegistryOption, TokenOption
from hami_cli.pod_names import pod_name
from hami_devices.blocking import cards_of
from hami_devices.model import PodRequest
from hami_devices.requests import RequestError
from hami_protocol.events import PodRefused
from hami_protocol.inventory import Inventory
from hami_protocol.kubernetes import Pod
from hami_runtime.kube.cluster import EVENTS, PODS, NotFound

VERDICT_SECONDS = 5.0


def diagnose(
    pod: Annotated[str, typer.Argument(help="NAME, NAMESPACE/NAME or pod/NAME; also of one that never came to be.")],
    namespace: NamespaceOption = "",
    output: OutputOption = Format.TABLE,
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
    nats: NatsOption = "",
    registry: RegistryOption = "",
    token: TokenOption = "",
    device_config: DeviceConfigOption = "",
) -> None:
    """Say what is wrong with a pod: cause, remedy, and the next command to run.

    Reads its conditions, container states, annotations and events, and the scheduler's verdict. Exits with 3 where something is wrong.

    [bold]Examples[/]

    $ hami diagnose too-big

    $ hami diagnose trainer-0 -n research -o json
    """
    where = live.Where(kubeconfig=kubeconfig, context=context, nats=nats, registry=registry, token=token, device_config=device_config)
    evidence = run("diagnose", _gather(where, *pod_name(pod, namespace, kubeconfig, context)))
    found = diagnosis_of(evidence)
    show(found, output, lambda: text(found))
    if evidence.pod is None and not found.findings:
        raise SystemExit(FAILED)
    if found.findings:
        raise SystemExit(FOUND)


def text(found: Diagnosis) -> str:
    """The diagnosis for people."""
    head = strong(f"{found.namespace}/{found.pod}") + f"  {found.phase}" + (f"  on {found.node}" if found.node else "")
    if not found.findings:
        nothing = (
            "there is no such pod, and no event says why" if found.phase == "not found" else "nothing is wrong that could be seen from here"
        )
        return f"{head}\n{nothing}"
    parts = [head]
    for each in found.findings:
        parts += [
            "",
            coloured(plain(each.cause), "red"),
            f"  object:  {plain(each.object)}",
            f"  read in: {plain(each.read_from)}: {plain(each.text)}",
            f"  remedy:  {each.remedy}",
            f"  next:    {each.next_command}",
        ]
    return "\n".join(parts)


async def _gather(where: live.Where, namespace: str, name: str) -> Evidence:
    catalog = where.catalog()
    async with where.cluster() as cluster:
        live.progress("reading the pod and its events")
        try:
            pod: Pod | None = await cluster.get(PODS, name, namespace=namespace)
        except NotFound:
            pod = None
        events = (await cluster.list(EVENTS, namespace=namespace)).items
    request_error, request = "", PodRequest(containers=())
    if pod is not None:
        try:
            request = catalog.read_pod(pod)
        except RequestError as exc:
            request_error = str(exc)
    waits = pod is not None and not pod.spec.node_name and request.asks
    refusal, inventory = await _from_bus(where, pod) if pod is not None and waits else (None, None)
    return Evidence(
        namespace=namespace,
        name=name,
        pod=pod,
        events=tuple(events),
        refusal=refusal,
        request_error=request_error,
        request=request,
        cards=None if inventory is None else cards_of(inventory, catalog),
        misspellings=() if pod is None else catalog.misspellings(pod),
    )


async def _from_bus(where: live.Where, pod: Pod) -> tuple[PodRefused | None, Inventory | None]:
    """The scheduler's verdict and the cluster's cards; None where they cannot be read, for the conditions have most of it."""
    live.progress("asking for the scheduler's verdict")
    refusal: PodRefused | None = None
    try:
        async with where.source() as source, asyncio.timeout(VERDICT_SECONDS):
            refusal = await live.refusal(source, pod)
            return refusal, await source.inventory()
    except (*live.UNHEARD, TimeoutError):
        return refusal, None
