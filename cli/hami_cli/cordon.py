"""``hami cordon`` and ``hami uncordon``: keep new pods off one card, and let them on it again. Pods that run there stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer
from msgspec import Struct

from hami_cli import live
from hami_cli.exits import CommandError, run
from hami_cli.output import Format, OutputOption, show
from hami_cli.places import ContextOption, DeviceConfigOption, KubeconfigOption
from hami_cli.snapshot import Heard, take
from hami_devices.catalog import Catalog
from hami_protocol import keys
from hami_protocol.cordon import cordoned, problem
from hami_protocol.kubernetes import Node
from hami_runtime.kube.cluster import NODES, Cluster, Conflict

TRIES = 5
CardArgument = Annotated[str, typer.Argument(help="UUID of the card, as hami top cards shows it.")]
NodeOption = Annotated[str, typer.Option("--node", help="Its node, where two nodes have a card of this name.", show_default=False)]
Change = Callable[[tuple[str, ...], str], tuple[str, ...]]


class Cordoned(Struct, frozen=True, kw_only=True, rename="camel"):
    """What came of it."""

    card: str
    node: str
    cordoned: bool
    changed: bool
    """False where it was so already."""


def cordon(
    card: CardArgument,
    node: NodeOption = "",
    output: OutputOption = Format.TABLE,
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
    device_config: DeviceConfigOption = "",
) -> None:
    """Keep new pods off a card. Pods that run on it stay.

    [bold]Example[/]

    $ hami cordon GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448
    """
    where = live.Where(kubeconfig=kubeconfig, context=context, device_config=device_config)
    _say(run("cordon", _change(where, card, node, with_card, cordoned_after=True)), output)


def uncordon(
    card: CardArgument,
    node: NodeOption = "",
    output: OutputOption = Format.TABLE,
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
    device_config: DeviceConfigOption = "",
) -> None:
    """Let new pods on a card again.

    [bold]Example[/]

    $ hami uncordon GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448
    """
    where = live.Where(kubeconfig=kubeconfig, context=context, device_config=device_config)
    _say(run("uncordon", _change(where, card, node, without_card, cordoned_after=False)), output)


def with_card(listed: tuple[str, ...], card: str) -> tuple[str, ...]:
    """The cordoned cards, with this one."""
    return listed if card in listed else (*listed, card)


def without_card(listed: tuple[str, ...], card: str) -> tuple[str, ...]:
    """The cordoned cards, without this one."""
    return tuple(each for each in listed if each != card)


def node_of(nodes: list[Node], card: str, wanted: str, catalog: Catalog) -> str:
    """The node that has ``card``, or still names it among its cordoned ones.

    Raises:
        CommandError: there is none, or more than one.
    """
    known = {(each.node, each.uuid) for each in take(nodes, (), Heard(), catalog, time="").cards}
    known |= {(node.metadata.name, uuid) for node in nodes for uuid in cordoned(node.metadata.annotations.get(keys.DEVICE_CORDON, ""))}
    found = sorted(node for node, uuid in known if uuid == card and wanted in ("", node))
    if not found:
        raise CommandError(f"no node{f' {wanted}' if wanted else ''} has a card {card!r}; accepted: a UUID that `hami top cards` shows")
    if len(found) > 1:
        raise CommandError(f"{card!r} is on {', '.join(found)}; say which with --node")
    return found[0]


async def _change(where: live.Where, card: str, node: str, change: Change, *, cordoned_after: bool) -> Cordoned:
    async with where.cluster() as cluster:
        name = node_of((await cluster.list(NODES)).items, card, node, where.catalog())
        for _ in range(TRIES):
            try:
                changed = await _write(cluster, name, card, change)
            except Conflict:
                continue
            return Cordoned(card=card, node=name, cordoned=cordoned_after, changed=changed)
    raise CommandError(f"node {name} was changed by others {TRIES} times meanwhile; try again")


async def _write(cluster: Cluster, name: str, card: str, change: Change) -> bool:
    node = await cluster.get(NODES, name)
    text = node.metadata.annotations.get(keys.DEVICE_CORDON, "")
    if unreadable := problem(text):
        raise CommandError(f"node {name}, annotation {keys.DEVICE_CORDON}: {unreadable}")
    earlier = cordoned(text)
    wanted = change(earlier, card)
    if wanted == earlier:
        return False
    body = {"metadata": {"annotations": {keys.DEVICE_CORDON: ",".join(wanted) or None}}}
    await cluster.patch(NODES, name, body, resource_version=node.metadata.resource_version)
    return True


def _say(done: Cordoned, output: Format) -> None:
    word = "cordoned" if done.cordoned else "takes new pods"
    show(done, output, lambda: f"{done.card} on {done.node} {word}{'' if done.changed else ' already'}")
