"""``hami top``: what is booked and what is used, per node, card or pod."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from hami_cli import live
from hami_cli.exits import run
from hami_cli.output import Format as Encoding
from hami_cli.output import encoded, terminal_width, warn
from hami_cli.places import ContextOption, DeviceConfigOption, KubeconfigOption, NatsOption, RegistryOption, TokenOption
from hami_cli.snapshot import Snapshot
from hami_cli.top_rows import Listing, TopError, What, as_csv, as_names, as_table, listing, read_what
from hami_runtime.kube.cluster import NODES, PODS


class TopFormat(StrEnum):
    """How the answer is written."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"
    NAME = "name"


def top(
    what: Annotated[str, typer.Argument(help="Also in the singular, as node or pod.", metavar="[nodes|cards|pods]")] = "nodes",
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Pods of this namespace alone; default: all.", show_default=False)
    ] = "",
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Pods of all namespaces; the default.")] = False,
    selector: Annotated[
        str,
        typer.Option("--selector", "-l", help="Nodes (of nodes and cards) or pods with these labels, as pool=a100.", show_default=False),
    ] = "",
    node: Annotated[str, typer.Option("--node", help="This node alone.", show_default=False)] = "",
    sort_by: Annotated[
        str, typer.Option("--sort-by", help="A column, as memory, cores or used; the largest figure first.", show_default=False)
    ] = "",
    output: Annotated[
        TopFormat, typer.Option("--output", "-o", help="For people (table, wide: no name is cut) or for programs.")
    ] = TopFormat.TABLE,
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
    nats: NatsOption = "",
    registry: RegistryOption = "",
    token: TokenOption = "",
    device_config: DeviceConfigOption = "",
) -> None:
    """Show what is booked of nodes and cards, who holds it, and what was measured.

    A dash stands for what was not measured. Names are cut in the middle where the terminal is too narrow.

    [bold]Examples[/]

    $ hami top

    $ hami top cards --node node-1

    $ hami top pods -n default --sort-by memory

    $ hami top pods -o csv > pods.csv
    """
    if all_namespaces and namespace:
        raise typer.BadParameter("not together with --namespace; accepted: one of them", param_hint="--all-namespaces")
    where = live.Where(kubeconfig=kubeconfig, context=context, nats=nats, registry=registry, token=token, device_config=device_config)
    try:
        kind = read_what(what)
        snapshot, names = run("top", _read(where, kind, selector))
        shown = listing(snapshot, kind, namespace=namespace, node=node, names=names, sort_by=sort_by)
    except TopError as exc:
        raise typer.BadParameter(str(exc)) from exc
    warn("top", snapshot.caveats)
    print(written(shown, output, namespace))


def written(shown: Listing, form: TopFormat, namespace: str = "") -> str:
    """The listing in its form."""
    match form:
        case TopFormat.JSON | TopFormat.YAML:
            return encoded(shown.facts, Encoding(form.value))
        case TopFormat.CSV:
            return as_csv(shown)
        case TopFormat.NAME:
            return as_names(shown)
        case _:
            return as_table(shown, width=terminal_width() if form is TopFormat.TABLE else None, namespace=namespace)


async def _read(where: live.Where, what: What, selector: str) -> tuple[Snapshot, set[str] | None]:
    """The cluster, and the names that ``selector`` matches: of nodes, or of pods as ``namespace/name``."""
    if not selector:
        return await live.read(where), None
    async with where.cluster() as cluster:
        if what is What.PODS:
            names = {f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in (await cluster.list(PODS, labels=selector)).items}
        else:
            names = {node.metadata.name for node in (await cluster.list(NODES, labels=selector)).items}
    return await live.read(where), names
