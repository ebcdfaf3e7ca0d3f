"""Reads what there is from the API server and the bus. Decides nothing; ``snapshot`` does.

The API server has the canonical record and must answer. The bus adds what was measured, who is alive and why pods wait; without it the answer says
so and is still one.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec
import typer
from msgspec import Struct

from hami_cli.exits import CommandError
from hami_cli.places import NATS_URL, kubeconfig_path, place
from hami_cli.snapshot import Heard, Snapshot, take
from hami_devices import config
from hami_devices.catalog import Catalog
from hami_protocol import subjects
from hami_protocol.envelope import open_message
from hami_protocol.errors import EventError
from hami_protocol.events import NodeUsage, PodRefused
from hami_protocol.inventory import Inventory
from hami_protocol.kubernetes import Pod
from hami_runtime.bus import jetstream
from hami_runtime.bus.jetstream import JetStreamBus
from hami_runtime.bus.port import Bus, BusError, Delivery
from hami_runtime.kube import http
from hami_runtime.kube.cluster import NODES, PODS

CONNECT_SECONDS = 3.0
QUIET_SECONDS = 1.5
"""A log that says nothing for so long has nothing."""
AT_ONCE = 64
T = TypeVar("T")
A = TypeVar("A")


class Where(Struct, frozen=True, kw_only=True):
    """What to ask, as the user said; empty means the usual place."""

    kubeconfig: str = ""
    context: str = ""
    nats: str = ""
    device_config: str = ""

    @property
    def nats_url(self) -> str:
        """The bus."""
        return place("nats_url", self.nats, NATS_URL)

    @asynccontextmanager
    async def cluster(self) -> AsyncIterator[http.HttpCluster]:
        """The API server."""
        async with http.connect(kubeconfig_path(self.kubeconfig), self.context or None) as cluster:
            yield cluster

    @asynccontextmanager
    async def bus(self) -> AsyncIterator[JetStreamBus]:
        """The bus, once there is a connection.

        Raises:
            CommandError: there is none in time.
        """
        async with jetstream.connect(self.nats_url, name="hami") as bus:
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await bus.wait_connected()
            except TimeoutError as exc:
                raise CommandError(
                    f"{self.nats_url}: no connection to the bus within {CONNECT_SECONDS:g} s; say where it is with --nats"
                ) from exc
            yield bus

    def catalog(self) -> Catalog:
        """The vendors, under the cluster's device configuration.

        Raises:
            CommandError: that cannot be read.
        """
        path = place("device_config", self.device_config, "")
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
    names = [node.metadata.name for node in nodes.items]
    waiting = [pod for pod in pods.items if not pod.spec.node_name]
    progress("asking the bus")
    heard = await _hear(where, names, waiting)
    return take(nodes.items, pods.items, heard, catalog, time=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"))


def progress(text: str) -> None:
    """Say what takes time, to whoever sits before a terminal."""
    if sys.stderr.isatty():
        typer.echo(f"\x1b[2m{text} ...\x1b[0m", err=True)


async def log(bus: Bus, subject: str, *, follow: bool = False) -> AsyncGenerator[Delivery, None]:
    """The kept allocation messages on ``subject`` from the first on; with ``follow``, those that come, too."""
    async with bus.consume(subjects.ALLOCATIONS, subjects=[subject]) as deliveries:
        while True:
            try:
                async with asyncio.timeout(None if follow else QUIET_SECONDS):
                    delivery = await anext(deliveries)
            except TimeoutError:
                return
            yield delivery
            if not follow and delivery.pending == 0:
                return


async def refusal(bus: Bus, pod: Pod) -> PodRefused | None:
    """The scheduler's last word on a pod, where it is a refusal."""
    message = await bus.last(subjects.VERDICTS, subjects.verdict(pod.metadata.namespace, pod.metadata.name))
    if message is None:
        return None
    try:
        event = open_message(message)
    except EventError:
        return None
    return event if isinstance(event, PodRefused) and event.pod.uid == pod.metadata.uid else None


async def _hear(where: Where, nodes: Sequence[str], waiting: Sequence[Pod]) -> Heard:
    try:
        async with where.bus() as bus:
            inventory, caveats = await _inventory(bus)
            usage = await _all(nodes, lambda node: _usage(bus, node))
            refusals = await _all(waiting, lambda pod: refusal(bus, pod))
    except (BusError, CommandError) as exc:
        return Heard(caveats=(f"the bus was not reached ({exc}): no measured use, no verdicts, and whether nodes are alive is not known",))
    return Heard(
        inventory=inventory,
        usage=tuple(each for each in usage if each is not None),
        refusals={each.pod.uid: each for each in refusals if each is not None},
        caveats=caveats,
    )


async def _inventory(bus: Bus) -> tuple[Inventory | None, tuple[str, ...]]:
    try:
        return msgspec.json.decode(await bus.request(subjects.ASK_INVENTORY, b"", timeout_seconds=5.0), type=Inventory), ()
    except (BusError, msgspec.DecodeError) as exc:
        return None, (f"the registry did not say which nodes are alive: {exc}",)


async def _usage(bus: Bus, node: str) -> NodeUsage | None:
    message = await bus.last(subjects.USAGE, subjects.usage(node))
    if message is None:
        return None
    try:
        event = open_message(message)
    except EventError:
        return None
    return event if isinstance(event, NodeUsage) else None


async def _all(items: Sequence[A], ask: Callable[[A], Awaitable[T]]) -> list[T]:
    """Ask for every item, ``AT_ONCE`` at a time."""
    answers: list[T] = []
    for start in range(0, len(items), AT_ONCE):
        answers.extend(await asyncio.gather(*(ask(item) for item in items[start : start + AT_ONCE])))
    return answers
