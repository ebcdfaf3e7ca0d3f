"""A ledger in a file, fed from a bus in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hami_billing.core.bill import Window, divide
from hami_billing.follower import MICROSECONDS, Follower
from hami_billing.store import Store
from hami_protocol import events, subjects
from hami_protocol.devices import ContainerKind, ContainerShares, DeviceShare, PodRef, RegisteredDevice, VendorAssignment
from hami_protocol.envelope import Message, seal
from hami_runtime.bus.memory import MemoryBus
from hami_runtime.clock import SystemClock

MIB = 16_384
START = 1_800_000_000


def at(second: float) -> str:
    """A moment as events have it, so many seconds after the beginning of a test's history."""
    return datetime.fromtimestamp(START + second, UTC).isoformat().replace("+00:00", "Z")


def a_pod(name: str, namespace: str = "team") -> PodRef:
    return PodRef(namespace=namespace, name=name, uid=f"uid-{name}")


def shares(card: str = "GPU-0", memory_mib: int = MIB // 4, cores: int = 25) -> tuple[VendorAssignment, ...]:
    share = DeviceShare(uuid=card, type="NVIDIA", memory_mib=memory_mib, cores=cores)
    return (VendorAssignment(vendor="NVIDIA", containers=(ContainerShares(container="main", kind=ContainerKind.APP, shares=(share,)),)),)


def granted(pod: PodRef, assignments: Sequence[VendorAssignment] | None = None, node: str = "n1") -> events.PodAllocating:
    return events.PodAllocating(pod=pod, node=node, assignments=tuple(assignments or shares()), bind_time_seconds=1)


def resized(pod: PodRef, assignments: Sequence[VendorAssignment], generation: int, node: str = "n1") -> events.ShareResizeApplied:
    return events.ShareResizeApplied(pod=pod, node=node, assignments=tuple(assignments), generation=generation)


def reported(*cards: str, node: str = "n1", healthy: bool = True) -> events.DevicesReported:
    devices = (RegisteredDevice(uuid=card, shares=10, memory_mib=MIB, cores=100, type="NVIDIA A100", healthy=healthy) for card in cards)
    return events.DevicesReported(node=node, device_type="nvidia", generation=1, devices=tuple(devices))


def sealed(event: events.Event, second: float, source: str = "/hami/scheduler/s") -> Message:
    pod = getattr(event, "pod", None)
    return seal(event, event_id=f"{pod}/{type(event).__name__}/{second}", source=source, time=at(second))


class Ledger:
    """What a test does to a ledger."""

    def __init__(self, path: Path) -> None:
        self.bus = MemoryBus()
        self.url = f"sqlite:///{path}"

    async def publish(self, event: events.Event, second: float) -> None:
        await self.bus.publish(sealed(event, second))

    @asynccontextmanager
    async def following(self) -> AsyncIterator[Follower]:
        """The service's loops run, and have taken all that there was."""
        stop = asyncio.Event()
        with Store(self.url) as store:
            follower = Follower(self.bus, store, SystemClock(), kept_days=400)
            async with asyncio.TaskGroup() as group:
                loops = [group.create_task(loop(stop)) for loop in (follower.allocations, follower.devices)]
                try:
                    yield follower
                finally:
                    stop.set()
                    await asyncio.wait(loops)

    async def take_all(self) -> None:
        """Run until everything that is on the bus is in the ledger."""
        streams = (subjects.ALLOCATIONS.name, subjects.DEVICES.name)
        async with asyncio.timeout(60), self.following():
            with Store(self.url) as store:
                while any(store.position(name) != self.bus._streams[name].last_sequence for name in streams):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

    def seconds(self, begin: float, end: float) -> dict[str, float]:
        """Card-seconds between two moments, by pod, ``idle`` and ``unallocatable``."""
        window = Window(round((START + begin) * MICROSECONDS), round((START + end) * MICROSECONDS))
        with Store(self.url) as store:
            division = divide(*store.read(window), window)
        found: dict[str, float] = {}
        for piece in division.pieces:
            name = piece.hold.pod if piece.hold else str(piece.remainder)
            found[name] = found.get(name, 0) + piece.units / MICROSECONDS
        return found


@pytest.fixture
async def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path / "billing.db")
    await made.bus.ensure_streams((subjects.ALLOCATIONS, subjects.DEVICES))
    return made
