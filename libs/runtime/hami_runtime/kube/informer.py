"""A copy of all objects of one kind, kept current: one list, then changes, and a list again when changes were missed. Decides what a change is.

Handlers are synchronous and see every object's life in order: ``(None, new)`` appears, ``(old, new)`` changes, ``(old, None)`` goes. An
object that went unseen, found missing at a new list, goes with its last known version; a namesake with another UID goes and appears. While
the API server is away the copy stays as it was, ``connected`` says so, and it is asked again for ever.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import structlog
from msgspec import Struct

from hami_runtime.clock import Clock
from hami_runtime.isolation import Isolation
from hami_runtime.kube.cluster import ChangeType, Cluster, ClusterError, Kind, WatchExpired
from hami_runtime.lifecycle import run_until, sleep_until
from hami_runtime.telemetry import OFF, Telemetry

log = structlog.get_logger()
T = TypeVar("T")
Key = tuple[str, str]
"""Namespace, empty for kinds that have none, and name."""

Handler = Callable[[T | None, T | None], None]

_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 10.0
_SHORT_WATCH_SECONDS = 1.0


class Informer(Generic[T]):
    """The objects of one kind as of the newest version that is known.

    Attributes:
        objects: by namespace and name; only to be read.
        synced: set once everything was listed for the first time.
    """

    def __init__(
        self,
        cluster: Cluster,
        kind: Kind[T],
        *,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        clock: Clock,
        telemetry: Telemetry = OFF,
        keep_as: Callable[[T], T] | None = None,
    ) -> None:
        """Follow the objects of ``kind`` in ``namespace`` (None: all) that match the selectors; ``keep_as`` gives the form in which one is kept."""
        self.objects: dict[Key, T] = {}
        self.synced = asyncio.Event()
        self._cluster = cluster
        self._kind = kind
        self._namespace = namespace
        self._labels = labels
        self._fields = fields
        self._clock = clock
        self._keep_as = keep_as
        self._subscribers: list[_Subscriber[T]] = []
        self._version: str | None = None
        self._connected = False
        self._relist = asyncio.Event()
        self._retries: dict[str, asyncio.TimerHandle] = {}
        self._refreshes_asked = 0
        self._refreshes_done = 0
        self._refreshed = asyncio.Event()
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        self._spread = random.Random(f"{kind.plural}/{namespace}/{labels}/{fields}")  # noqa: S311 - spreads clients, keeps no secret
        self._labelled = {"kind": kind.plural}
        self._lists = telemetry.counter("hami_informer_lists", "how often all objects of a kind were listed")
        self._faults = telemetry.counter("hami_informer_faults", "lists and watches that failed")
        self._isolation = Isolation(f"informer of {kind.plural}", clock, telemetry)

    @property
    def connected(self) -> bool:
        """Whether changes are being received now."""
        return self._connected

    def get(self, name: str, namespace: str = "") -> T | None:
        """The object, as far as we know."""
        return self.objects.get((namespace, name))

    def subscribe(self, handler: Handler[T]) -> None:
        """Call ``handler`` for what is there already and for every change to come."""
        subscriber: _Subscriber[T] = _Subscriber(handler, f"handler {len(self._subscribers)}")
        self._subscribers.append(subscriber)
        for item in tuple(self.objects.values()):
            self._call(subscriber, None, item, key=_identity(item).key)

    async def run(self, stop: asyncio.Event) -> None:
        """Follow until ``stop``."""
        try:
            await run_until(stop, self._follow_for_ever())
        finally:
            while self._retries:
                self._retries.popitem()[1].cancel()

    def look_again(self) -> None:
        """List everything anew as soon as the API server answers, and do not wait any longer before asking it."""
        self._refreshes_asked += 1
        self._relist.set()

    async def refresh(self) -> None:
        """List everything anew, and return once that is taken in: whatever was written before this call is known then."""
        self.look_again()
        wanted = self._refreshes_asked
        while self._refreshes_done < wanted:
            self._refreshed.clear()
            await self._refreshed.wait()

    async def _follow_for_ever(self) -> None:
        while True:
            try:
                await run_until(self._relist, self._follow())
            except WatchExpired as exc:
                log.info("changes were missed, listing again", kind=self._kind.plural, reason=str(exc))
                if self._version is None:  # it was the list that was refused
                    await self._pause()
                self._version = None
            except ClusterError as exc:
                self._faults.add(1, {**self._labelled, "what": "request"})
                log.warning("the API server does not answer", kind=self._kind.plural, error=str(exc), again_in_seconds=self._pause_seconds)
                await self._pause()
            finally:
                self._connected = False
            if self._relist.is_set():
                self._relist.clear()
                self._version = None

    async def _follow(self) -> None:
        if self._version is None:
            refreshes = self._refreshes_asked
            listing = await self._cluster.list(
                self._kind, namespace=self._namespace, labels=self._labels, fields=self._fields, keep_as=self._keep_as
            )
            self._lists.add(1, self._labelled)
            self._replace_all(listing.items)
            self._version = listing.resource_version
            self._refreshes_done = refreshes
            self._refreshed.set()
            self.synced.set()
        began, seen = self._clock.monotonic(), 0
        async with self._cluster.watch(
            self._kind, since=self._version, namespace=self._namespace, labels=self._labels, fields=self._fields
        ) as changes:
            self._connected = True
            async for change in changes:
                if change.object is not None:
                    self._apply(change.type, change.object)
                if change.resource_version:
                    self._version = change.resource_version
                seen += 1
                self._pause_seconds = _FIRST_PAUSE_SECONDS
        if not seen and self._clock.monotonic() - began < _SHORT_WATCH_SECONDS:
            await self._pause()

    async def _pause(self) -> None:
        self._connected = False
        await sleep_until(self._relist, self._pause_seconds * self._spread.uniform(0.5, 1.0))
        self._pause_seconds = min(2 * self._pause_seconds, _LONGEST_PAUSE_SECONDS)

    def _replace_all(self, items: list[T]) -> None:
        listed = {_identity(item).key for item in items}
        for key in [each for each in self.objects if each not in listed]:
            self._tell(self.objects.pop(key), None)
        for item in items:
            self._put(item)

    def _apply(self, change: ChangeType, item: T) -> None:
        if change != ChangeType.DELETED:
            self._put(item if self._keep_as is None else self._keep_as(item))
            return
        identity = _identity(item)
        known = self.objects.pop(identity.key, None)
        if known is None:
            return
        if _identity(known).uid != identity.uid:  # the one that went is an earlier namesake
            self.objects[identity.key] = known
            return
        self._tell(item, None)

    def _put(self, item: T) -> None:
        identity = _identity(item)
        known = self.objects.get(identity.key)
        if known is not None:
            before = _identity(known)
            if before == identity:
                return
            if before.uid != identity.uid:
                del self.objects[identity.key]
                self._tell(known, None)
                known = None
        self.objects[identity.key] = item
        self._tell(known, item)

    def _tell(self, old: T | None, new: T | None) -> None:
        key = _identity(new if new is not None else old).key
        for subscriber in self._subscribers:
            self._call(subscriber, old, new, key=key)

    def _call(self, subscriber: _Subscriber[T], old: T | None, new: T | None, *, key: Key) -> None:
        """Call one handler. One that fails is called again with the same ``old`` and what is newest then, so it misses no object's life."""
        if key in subscriber.behind:
            known = subscriber.behind.pop(key)
            if known is not None and (new is None or _identity(known).uid != _identity(new).uid):
                self._call_once(subscriber, known, None, key=key)
                if new is None or key in subscriber.behind:
                    return
                known = None
            old = known if new is not None else old
        self._call_once(subscriber, old, new, key=key)

    def _call_once(self, subscriber: _Subscriber[T], old: T | None, new: T | None, *, key: Key) -> None:
        name = subscriber.item(key)
        with self._isolation.item(name):
            subscriber.handler(old, new)
        if self._isolation.times(name):
            subscriber.behind[key] = old
            if name not in self._retries:
                seconds = self._isolation.pause_seconds(name)
                self._retries[name] = asyncio.get_running_loop().call_later(seconds, self._retry, subscriber, key)

    def _retry(self, subscriber: _Subscriber[T], key: Key) -> None:
        """Call a handler again that has failed over an object, with what is newest now."""
        self._retries.pop(subscriber.item(key), None)
        if key in subscriber.behind:
            self._call(subscriber, None, self.objects.get(key), key=key)


@dataclass(slots=True)
class _Subscriber(Generic[T]):
    """A handler, and the objects over which it has failed."""

    handler: Handler[T]
    name: str
    behind: dict[Key, T | None] = field(default_factory=dict)
    """By object: the version that the handler knows; None where it knows none."""

    def item(self, key: Key) -> str:
        return f"{'/'.join(part for part in key if part)} ({self.name})"


class _Identity(Struct, frozen=True):
    key: Key
    uid: str
    version: str


def _identity(item: Any) -> _Identity:
    if isinstance(item, Mapping):
        metadata = item.get("metadata") or {}
        key = (metadata.get("namespace", ""), metadata.get("name", ""))
        return _Identity(key, metadata.get("uid", ""), metadata.get("resourceVersion", ""))
    metadata = item.metadata
    return _Identity((metadata.namespace, metadata.name), metadata.uid, metadata.resource_version)
