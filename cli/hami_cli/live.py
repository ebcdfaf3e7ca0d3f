"""Reads what there is from the API server, and what the bus says besides. Decides nothing; ``snapshot`` does.

The API server has the canonical record and must answer. The bus adds what was measured, who is alive and why pods wait; without it the answer says
so and is still one. It is read where it is, if that is known, else the registry is asked.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer
from msgspec import Struct

from hami_cli import ask
from hami_cli.exits import CommandError, reason_of
from hami_cli.output import faint
from hami_cli.places import kubeconfig_path, place
from hami_cli.snapshot import Heard, Snapshot, take
from hami_cli.sources import BusSource, RegistrySource, Source
from hami_devices import config
from hami_devices.catalog import Catalog
from hami_protocol.envelope import Message, open_message
from hami_protocol.errors import EventError
from hami_protocol.events import Event, NodeUsage, PodRefused
from hami_protocol.inventory import Inventory
from hami_protocol.kubernetes import Pod
from hami_runtime.bus.port import BusError
from hami_runtime.kube.cluster import NODES, PODS, ClusterError

if TYPE_CHECKING:
    from hami_runtime.bus.jetstream import JetStreamBus
    from hami_runtime.kube.http import HttpCluster

CONNECT_SECONDS = 3.0
UNHEARD = (BusError, CommandError, ClusterError, EventError)
"""What keeps the bus' words from us; what the API server says is an answer without them."""
AT_ONCE = 64
T = TypeVar("T")
A = TypeVar("A")


class Where(Struct, frozen=True, kw_only=True):
    """What to ask, as the user said; empty means the usual place."""

    kubeconfig: str = ""
    context: str = ""
    nats: str = ""
    registry: str = ""
    token: str = ""
    device_config: str = ""

    @property
    def nats_url(self) -> str:
        """The bus, where it is to be read itself; empty where the registry is to be asked."""
        return self.nats or ("" if self.registry else place("nats_url", "", "", kubeconfig=self.kubeconfig))

    @asynccontextmanager
    async def cluster(self) -> AsyncIterator[HttpCluster]:
        """The API server."""
        from hami_runtime.kube import http

        async with http.connect(kubeconfig_path(self.kubeconfig), self.context or None) as cluster:
            yield cluster

    @asynccontextmanager
    async def source(self) -> AsyncIterator[Source]:
        """Where what the bus says is read.

        Raises:
            CommandError: nobody is there.
            ClusterError: it is to be asked through the API server, and there is no kubeconfig to go by.
        """
        if self.nats_url:
            async with self._bus() as bus:
                yield BusSource(bus, self.nats_url)
        else:
            asked = ask.registry(self.registry, self.token, self.kubeconfig, self.context)
            async with ask.connect(asked) as line:
                yield RegistrySource(line, asked.url)

    @asynccontextmanager
    async def _bus(self) -> AsyncIterator[JetStreamBus]:
        from hami_runtime.bus import jetstream

        async with jetstream.connect(self.nats_url, name="hami") as bus:
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await bus.wait_connected()
            except TimeoutError as exc:
                raise CommandError(
                    f"{self.nats_url}: no connection to the bus within {CONNECT_SECONDS:g} s; without --nats and NATS_URL the registry is asked"
                ) from exc
            yield bus

    def catalog(self) -> Catalog:
        """The vendors, under the cluster's device configuration.

        Raises:
            CommandError: that cannot be read.
        """
        path = place("device_config", self.device_config, "", kubeconfig=self.kubeconfig)
        if not path:
            return Catalog()
        try:
            devices, _ = config.load(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, config.ConfigError) as exc:
            raise CommandError(f"--device-config {path}: {exc}") from exc
        return Catalog(devices)


async def read(where: Where) -> Snapshot:
    """The cluster as it is now."""
    catalog = where.catalog()
    async with where.cluster() as cluster:
        progress("reading nodes and pods")
        nodes, pods = await asyncio.gather(cluster.list(NODES), cluster.list(PODS))
    names = {node.metadata.name for node in nodes.items}
    waiting = [pod for pod in pods.items if not pod.spec.node_name]
    progress("asking what was measured, who is alive and why pods wait")
    heard = await _hear(where, names, waiting)
    return take(nodes.items, pods.items, heard, catalog, time=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"))


def progress(text: str) -> None:
    """Show what takes time, on a terminal."""
    if sys.stderr.isatty():
        typer.echo(faint(f"{text} ..."), err=True)


async def refusal(source: Source, pod: Pod) -> PodRefused | None:
    """The scheduler's last word on a pod, where it is a refusal."""
    for event in _opened(await source.verdicts(pod.metadata.namespace, pod.metadata.name)):
        if isinstance(event, PodRefused) and event.pod.uid == pod.metadata.uid:
            return event
    return None


async def _hear(where: Where, nodes: Container[str], waiting: Sequence[Pod]) -> Heard:
    try:
        async with where.source() as source:
            inventory, caveats = await _inventory(source)
            measured = usage(await source.usage(), nodes)
            refusals = await _all(waiting, lambda pod: refusal(source, pod))
    except UNHEARD as exc:
        return Heard(
            caveats=(f"the bus was not reached ({reason_of(exc)}): no measured use, no verdicts, and whether nodes are alive is not known",)
        )
    return Heard(
        inventory=inventory,
        usage=measured,
        refusals={each.pod.uid: each for each in refusals if each is not None},
        caveats=caveats,
    )


def usage(messages: Iterable[Message], nodes: Container[str]) -> tuple[NodeUsage, ...]:
    """What agents of ``nodes`` last measured; messages that cannot be read, and those of nodes that are gone, are left out."""
    return tuple(each for each in _opened(messages) if isinstance(each, NodeUsage) and each.node in nodes)


async def _inventory(source: Source) -> tuple[Inventory | None, tuple[str, ...]]:
    try:
        return await source.inventory(), ()
    except BusError as exc:
        return None, (f"the registry did not say which nodes are alive: {exc}",)


def _opened(messages: Iterable[Message]) -> Iterator[Event]:
    """The events of messages; what cannot be read is passed over."""
    for message in messages:
        with suppress(EventError):
            yield open_message(message)


async def _all(items: Sequence[A], ask: Callable[[A], Awaitable[T]]) -> list[T]:
    """Ask for every item, ``AT_ONCE`` at a time."""
    answers: list[T] = []
    for start in range(0, len(items), AT_ONCE):
        answers.extend(await asyncio.gather(*(ask(item) for item in items[start : start + AT_ONCE])))
    return answers
