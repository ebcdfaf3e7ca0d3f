"""``hami trace``: the way of one pod, step by step, with the time that each took."""

from __future__ import annotations

from contextlib import aclosing
from datetime import datetime
from typing import Annotated

import typer

from hami_cli import live
from hami_cli.exits import CommandError, run
from hami_cli.output import Format, OutputOption, columns, show
from hami_cli.places import ContextOption, KubeconfigOption, NamespaceOption, NatsOption, RegistryOption, TokenOption
from hami_cli.pod_names import pod_name
from hami_cli.timeline import Timeline, moment, timeline, whole_second
from hami_runtime.kube.cluster import EVENTS, PODS, NotFound


def trace(
    pod: Annotated[str, typer.Argument(help="NAME, NAMESPACE/NAME or pod/NAME; also of one that is gone, as long as the log has it.")],
    namespace: NamespaceOption = "",
    output: OutputOption = Format.TABLE,
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
    nats: NatsOption = "",
    registry: RegistryOption = "",
    token: TokenOption = "",
) -> None:
    """Show a pod's way: created, refused or placed, bound, given its devices, started, released, and the id of its trace.

    [bold]Example[/]

    $ hami trace first-share
    """
    where = live.Where(kubeconfig=kubeconfig, context=context, nats=nats, registry=registry, token=token)
    found = run("trace", _gather(where, *pod_name(pod, namespace, kubeconfig, context)))
    show(found, output, lambda: text(found))


def text(found: Timeline) -> str:
    """The timeline for people: seconds from the first step, without thousandths where nobody has measured them."""
    first = moment(found.steps[0].time)
    seconds = [_seconds(step.time, first) for step in found.steps]
    width = max(map(len, seconds))
    rows = [(each.rjust(width), step.source, step.text) for each, step in zip(seconds, found.steps, strict=True)]
    head = f"{found.namespace}/{found.pod}  uid {found.uid}" + (f"  trace {found.trace_id}" if found.trace_id else "")
    return f"{head}\nfrom {found.steps[0].time}\n\n" + columns(("SECONDS", "SOURCE", "WHAT"), rows)


def _seconds(time: str, first: datetime) -> str:
    passed = (moment(time) - first).total_seconds()
    return f"{passed:.0f}    " if whole_second(time) else f"{passed:.3f}"


async def _gather(where: live.Where, namespace: str, name: str) -> Timeline:
    async with where.cluster() as cluster:
        live.progress("reading the pod and its events")
        try:
            pod = await cluster.get(PODS, name, namespace=namespace)
        except NotFound:
            pod = None
        happened = (await cluster.list(EVENTS, namespace=namespace)).items
    live.progress("reading the log of allocations")
    async with where.source() as source, aclosing(source.log(namespace, name)) as logged:
        messages = [each.message async for each in logged]
    found = timeline(namespace, name, pod, happened, messages)
    if not found.steps:
        raise CommandError(f"there is no pod {namespace}/{name}, and the log of the last 7 days has none")
    return found
