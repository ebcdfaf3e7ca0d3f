"""Seeded faults in front of the bus, the cluster and the disk: lost, doubled and late messages, writes that fail, or fail after they took effect.

One ``Faults`` decides for a whole run, from one seed, so that a run replays exactly. ``Process`` is what stands between a service and the world:
once it is killed, nothing that the service still tries in its clean-up reaches anything, as after SIGKILL. A *fuse* kills it at its n-th call,
also between the moment at which a call took effect and the answer.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from hami_node_agent.hostfiles import MemoryFiles, Stamp
from hami_node_agent.mig import MadeInstance, Spot
from hami_node_agent.mig_hardware import FakeMig, MigError
from hami_node_agent.removal import Removal
from hami_protocol.devices import PodRef
from hami_protocol.envelope import Message
from hami_protocol.subjects import StreamSpec
from hami_runtime.bus import Bus, BusUnavailable, Delivery, LiveMessage, NoReply, Overtaken, StartAt
from hami_runtime.kube.cluster import Body, Change, Cluster, Kind, Listing, Unavailable, WatchExpired

T = TypeVar("T")

LATE_CHANCE = 0.2
"""How many calls are late at all."""


class Killed(BaseException):
    """What a killed process would have done after its death: nothing. Not an Exception, so that nobody handles it."""


class Gone(Exception):  # noqa: N818 - reads as the condition it names
    """Whoever was called died before it answered."""


class Faults:
    """What goes wrong, and when: decided by one generator, never by the time of day."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(f"faults-{seed}")
        self.active = True
        self.rate = self.random.choice([0.0, 0.01, 0.03, 0.1])
        """How often a call fails, drawn per run: some runs are calm, some are storms."""
        self.latest_seconds = self.random.choice([0.0, 0.01, 0.3, 2.0])
        self.told: list[str] = []
        """What was done, for the replay's log."""
        self.evicting: Callable[[str, str], None] = lambda _process, _pod: None
        """Called with a process and the name of the pod that it is about to evict."""

    def strikes(self) -> bool:
        """Whether this call goes wrong."""
        return self.active and self.random.random() < self.rate

    def after_the_fact(self) -> bool:
        """Whether a call that goes wrong takes effect first."""
        return self.random.random() < 0.5

    async def delay(self) -> None:
        """Give others a turn, and now and then make the call late."""
        if self.active and self.latest_seconds and self.random.random() < LATE_CHANCE:
            await asyncio.sleep(self.random.random() * self.latest_seconds)
        else:
            await asyncio.sleep(0)

    def fuse(self) -> int | None:
        """After how many calls a new process dies by itself; None where it does not."""
        return self.random.randrange(2000) if self.active and self.random.random() < 0.3 else None

    def tell(self, what: str) -> None:
        """Note what was done."""
        self.told.append(f"{asyncio.get_running_loop().time():9.3f} {what}")


class Process:
    """One life of one process: alive until it is killed, and never again.

    Attributes:
        died: set at its death.
        linked: cleared while it is cut off from the bus.
    """

    def __init__(self, name: str, faults: Faults, *, fuse: int | None = None) -> None:
        self.name = name
        self.faults = faults
        self.alive = True
        self.died = asyncio.Event()
        self.linked = asyncio.Event()
        self.linked.set()
        self.linked_since = 0.0
        self._fuse = fuse
        self._guests: dict[asyncio.Task[Any], None] = {}

    def step(self) -> None:
        """The process does something that the world can see: the dead do not, and a fuse burns down."""
        if self.alive and self._fuse is not None:
            self._fuse -= 1
            if self._fuse < 0:
                self.kill()
        if not self.alive:
            raise Killed(self.name)

    def light_fuse(self, calls: int) -> None:
        """Die after so many calls."""
        self._fuse = calls

    def kill(self) -> None:
        """As SIGKILL: from now on nothing that it does is seen by anybody."""
        if self.alive:
            self.alive = False
            self.died.set()
            self.faults.tell(f"{self.name} is killed")

    async def serve(self, request: Coroutine[Any, Any, T], *, hangs_up: bool = True) -> T:
        """Do ``request`` in this process for a caller in another one.

        Args:
            request: what is asked.
            hangs_up: whether it is given up when the caller is cancelled.

        Raises:
            Gone: the process died before it answered.
        """
        if not self.alive:
            request.close()
            raise Gone(self.name)
        task = asyncio.ensure_future(request)
        self._guests[task] = None
        task.add_done_callback(self._finished)
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            if hangs_up:
                task.cancel()
            raise
        if not self.alive or task.cancelled():
            raise Gone(self.name)
        return task.result()

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._guests.pop(task, None)
        if not task.cancelled():
            task.exception()  # whoever asked has seen it, or has hung up

    async def bury(self) -> None:
        """End what is still being done for others."""
        guests = list(self._guests)
        for guest in guests:
            guest.cancel()
        await asyncio.gather(*guests, return_exceptions=True)


class FaultyDelivery:
    """A delivery whose acknowledgement may get lost."""

    def __init__(self, inner: Delivery, process: Process) -> None:
        self._inner = inner
        self._process = process

    @property
    def message(self) -> Message:
        return self._inner.message

    @property
    def sequence(self) -> int:
        return self._inner.sequence

    @property
    def attempt(self) -> int:
        return self._inner.attempt

    @property
    def pending(self) -> int:
        return self._inner.pending

    async def ack(self) -> None:
        self._process.step()
        if not self._process.linked.is_set() or self._process.faults.strikes():
            self._process.faults.tell(f"{self._process.name}: an acknowledgement of {self.message.subject} is lost")
            return
        await self._inner.ack()

    async def nak(self, *, delay_seconds: float = 0.0) -> None:
        self._process.step()
        if self._process.linked.is_set():
            await self._inner.nak(delay_seconds=delay_seconds)

    async def term(self, reason: str) -> None:
        self._process.step()
        self._process.faults.tell(f"{self._process.name}: terminated {self.message.subject}: {reason}")
        await self._inner.term(reason)


class FaultyBus:
    """The bus as one process sees it."""

    def __init__(self, inner: Bus, process: Process) -> None:
        self._inner = inner
        self._process = process
        self._faults = process.faults

    @property
    def connected(self) -> bool:
        return self._inner.connected and self._process.linked.is_set()

    @property
    def connected_since(self) -> float | None:
        since = self._inner.connected_since
        return max(since, self._process.linked_since) if since is not None and self._process.linked.is_set() else None

    async def wait_connected(self) -> None:
        self._process.step()
        while not self.connected:
            await self._process.linked.wait()
            await self._inner.wait_connected()

    async def ensure_streams(self, specs: Iterable[StreamSpec]) -> None:
        await self._begin()
        await self._inner.ensure_streams(specs)

    async def publish(self, message: Message, *, expected_last: int | None = None, timeout_seconds: float = 5.0) -> int:
        await self._begin()
        if self._faults.strikes():
            kept = self._faults.after_the_fact()
            if kept:
                with suppress(Overtaken):
                    await self._inner.publish(message, expected_last=expected_last, timeout_seconds=timeout_seconds)
            self._faults.tell(f"{self._process.name}: publishing on {message.subject} fails{' after it was kept' if kept else ''}")
            self._inner.publish_unkept(message)
            raise BusUnavailable("no acknowledgement in time")
        sequence = await self._inner.publish(message, expected_last=expected_last, timeout_seconds=timeout_seconds)
        self._process.step()
        return sequence

    async def _begin(self) -> None:
        self._process.step()
        await self._faults.delay()
        self._process.step()
        if not self._process.linked.is_set():
            raise BusUnavailable("cut off from the bus")

    @asynccontextmanager
    async def consume(
        self,
        stream: StreamSpec,
        *,
        subjects: Sequence[str],
        durable: str | None = None,
        start: StartAt | int = StartAt.ALL,
        ack_wait_seconds: float = 30.0,
        on_loss: Callable[[], None] | None = None,
    ) -> AsyncIterator[AsyncIterator[Delivery]]:
        self._process.step()
        async with self._inner.consume(
            stream, subjects=subjects, durable=durable, start=start, ack_wait_seconds=ack_wait_seconds, on_loss=on_loss
        ) as deliveries:
            yield self._deliver(deliveries, durable is not None)

    async def _deliver(self, deliveries: AsyncIterator[Delivery], durable: bool) -> AsyncIterator[Delivery]:
        async for delivery in deliveries:
            await self._faults.delay()
            await self._process.linked.wait()
            self._process.step()
            if durable and self._faults.strikes():
                self._faults.tell(f"{self._process.name}: {delivery.message.subject} is lost on its way, and comes again later")
                continue
            yield FaultyDelivery(delivery, self._process)
            if self._faults.strikes():
                self._faults.tell(f"{self._process.name}: {delivery.message.subject} is delivered twice")
                yield FaultyDelivery(delivery, self._process)

    @asynccontextmanager
    async def live(self, stream: StreamSpec, subject: str) -> AsyncIterator[AsyncIterator[LiveMessage | None]]:
        self._process.step()
        async with self._inner.live(stream, subject) as messages:
            yield self._received(messages)

    async def _received(self, messages: AsyncIterator[LiveMessage | None]) -> AsyncIterator[LiveMessage | None]:
        async for message in messages:
            await self._faults.delay()
            cut_off = not self._process.linked.is_set()
            await self._process.linked.wait()
            self._process.step()
            yield None if cut_off else message

    async def forget(self, stream: StreamSpec, durable: str) -> None:
        await self._begin()
        await self._inner.forget(stream, durable)

    async def last(self, stream: StreamSpec, subject: str) -> Message | None:
        await self._begin()
        if self._faults.strikes():
            raise BusUnavailable("no answer in time")
        return await self._inner.last(stream, subject)

    async def has(self, stream: StreamSpec) -> bool:
        await self._begin()
        return await self._inner.has(stream)

    async def purge(self, stream: StreamSpec, subject: str) -> None:
        await self._begin()
        await self._inner.purge(stream, subject)

    async def request(self, subject: str, data: bytes, *, timeout_seconds: float) -> bytes:
        await self._begin()
        if self._faults.strikes():
            raise NoReply(f"{subject}: no answer within {timeout_seconds} s")
        return await self._inner.request(subject, data, timeout_seconds=timeout_seconds)

    @asynccontextmanager
    async def answer(self, subject: str, handler: Callable[[bytes], Awaitable[bytes]]) -> AsyncIterator[None]:
        self._process.step()
        async with self._inner.answer(subject, handler):
            yield


class FaultyCluster:
    """The API server as one process sees it."""

    def __init__(self, inner: Cluster, process: Process) -> None:
        self._inner = inner
        self._process = process
        self._faults = process.faults

    async def _read(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        self._process.step()
        await self._faults.delay()
        self._process.step()
        if self._faults.strikes():
            self._faults.tell(f"{self._process.name}: {what} fails")
            raise Unavailable(f"{what}: no answer", code=self._faults.random.choice([0, 500, 503]))
        answer = await call()
        self._process.step()
        return answer

    async def _write(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        self._process.step()
        await self._faults.delay()
        self._process.step()
        if self._faults.strikes():
            effect = self._faults.after_the_fact()
            self._faults.tell(f"{self._process.name}: {what} fails{' after it took effect' if effect else ''}")
            if effect:
                await call()
            raise Unavailable(f"{what}: no answer", code=self._faults.random.choice([0, 500, 504]), maybe_applied=True)
        answer = await call()
        self._process.step()
        await self._faults.delay()
        self._process.step()
        return answer

    async def list(
        self,
        kind: Kind[T],
        *,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        keep_as: Callable[[T], T] | None = None,
    ) -> Listing[T]:
        return await self._read(
            f"list {kind.plural}", lambda: self._inner.list(kind, namespace=namespace, labels=labels, fields=fields, keep_as=keep_as)
        )

    @asynccontextmanager
    async def watch(
        self, kind: Kind[T], *, since: str, namespace: str | None = None, labels: str = "", fields: str = ""
    ) -> AsyncIterator[AsyncIterator[Change[T]]]:
        self._process.step()
        await self._faults.delay()
        if self._faults.strikes():
            raise WatchExpired("too old resource version") if self._faults.after_the_fact() else Unavailable("watch: no answer")
        async with self._inner.watch(kind, since=since, namespace=namespace, labels=labels, fields=fields) as changes:
            yield self._follow(kind.plural, changes)

    async def _follow(self, plural: str, changes: AsyncIterator[Change[T]]) -> AsyncIterator[Change[T]]:
        async for change in changes:
            await self._faults.delay()
            self._process.step()
            if self._faults.strikes():
                self._faults.tell(f"{self._process.name}: the watch on {plural} is closed, a change unseen")
                return
            yield change

    async def get(self, kind: Kind[T], name: str, *, namespace: str | None = None) -> T:
        return await self._read(f"get {kind.plural}/{name}", lambda: self._inner.get(kind, name, namespace=namespace))

    async def create(self, kind: Kind[T], body: Body, *, namespace: str | None = None) -> T:
        return await self._write(f"create {kind.plural}", lambda: self._inner.create(kind, body, namespace=namespace))

    async def patch(
        self,
        kind: Kind[T],
        name: str,
        body: Body,
        *,
        namespace: str | None = None,
        subresource: str = "",
        uid: str = "",
        resource_version: str = "",
    ) -> T:
        return await self._write(
            f"patch {kind.plural}/{name}",
            lambda: self._inner.patch(
                kind, name, body, namespace=namespace, subresource=subresource, uid=uid, resource_version=resource_version
            ),
        )

    async def patch_conditions(self, pod: PodRef, conditions: Sequence[Body]) -> None:
        await self._write(f"patch conditions of {pod}", lambda: self._inner.patch_conditions(pod, conditions))

    async def replace(self, kind: Kind[T], name: str, body: Body, *, namespace: str | None = None) -> T:
        return await self._write(f"replace {kind.plural}/{name}", lambda: self._inner.replace(kind, name, body, namespace=namespace))

    async def delete(
        self, kind: Kind[T], name: str, *, namespace: str | None = None, uid: str = "", grace_seconds: int | None = None
    ) -> None:
        if kind.plural == "pods":
            self._faults.evicting(self._process.name, name)
        await self._write(
            f"delete {kind.plural}/{name}",
            lambda: self._inner.delete(kind, name, namespace=namespace, uid=uid, grace_seconds=grace_seconds),
        )

    async def bind(
        self,
        pod: PodRef,
        node: str,
        *,
        annotations: Mapping[str, str],
        labels: Mapping[str, str],
        resource_version: str = "",
    ) -> None:
        await self._write(
            f"bind {pod} to {node}",
            lambda: self._inner.bind(pod, node, annotations=annotations, labels=labels, resource_version=resource_version),
        )

    async def evict(self, pod: PodRef) -> None:
        self._faults.evicting(self._process.name, pod.name)
        await self._write(f"evict {pod}", lambda: self._inner.evict(pod))


class FaultyFiles:
    """The disk as one process sees it: it outlives the process, which may be killed between any two writes."""

    def __init__(self, inner: MemoryFiles, process: Process) -> None:
        self._inner = inner
        self._process = process

    def read(self, path: str) -> bytes | None:
        return self._inner.read(path)

    def stamp(self, path: str) -> Stamp | None:
        return self._inner.stamp(path)

    def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        self._process.step()
        self._inner.write(path, data, mode=mode)
        self._process.step()

    def peek(self, path: str, *, limit_bytes: int) -> bytes | None:
        return self._inner.peek(path, limit_bytes=limit_bytes)

    def store(self, path: str, words: Sequence[tuple[int, bytes]]) -> None:
        self._process.step()
        self._inner.store(path, words)

    async def shorten(self, folder: str, *, limit_bytes: int) -> dict[str, int]:
        self._process.step()
        return await self._inner.shorten(folder, limit_bytes=limit_bytes)

    def make_folder(self, path: str, *, mode: int = 0o755) -> None:
        self._process.step()
        self._inner.make_folder(path, mode=mode)

    def make_plain(self, path: str) -> None:
        self._process.step()
        self._inner.make_plain(path)

    def names(self, path: str) -> list[str]:
        return self._inner.names(path)

    async def remove(self, path: str) -> Removal:
        self._process.step()
        return await self._inner.remove(path)


class FaultyMig:
    """The driver's MIG side as one process sees it: instances outlive the process, which may be killed between any two calls."""

    def __init__(self, inner: FakeMig, process: Process) -> None:
        self._inner = inner
        self._process = process

    async def instances(self) -> tuple[MadeInstance, ...]:
        self._process.step()
        return await self._inner.instances()

    async def make(self, spot: Spot) -> MadeInstance:
        self._process.step()
        if self._process.faults.strikes():
            raise MigError("the driver is busy")
        made = await self._inner.make(spot)
        self._process.step()
        return made

    async def unmake(self, made: MadeInstance) -> None:
        self._process.step()
        await self._inner.unmake(made)
        self._process.step()
