"""The cluster in memory, over an object store: the same promises as the API server's, deterministic under a virtual loop.

Every call gives other tasks a turn before it is looked at and, for writes, once more before it is answered, as a network does. Several may
share one store: each is one client's connection, and ``down`` cuts off that client alone.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec
import structlog

from hami_protocol.devices import PodRef
from hami_runtime.kube.bodies import binding, delete_options, eviction, with_preconditions
from hami_runtime.kube.cluster import (
    ACCESS_REVIEWS,
    PODS,
    TOKEN_REVIEWS,
    Body,
    Change,
    ChangeType,
    ClusterError,
    Kind,
    Listing,
    Unavailable,
)
from hami_runtime.kube.refusals import refusal
from hami_runtime.kube.store import Change as StoreChange
from hami_runtime.kube.store import ObjectStore, Stored, WatchEvent, selected
from hami_runtime.kube.store_errors import ApiError
from hami_runtime.kube.store_resources import PODS as POD_RESOURCE
from hami_runtime.kube.store_resources import RESOURCES, Resource
from hami_runtime.kube.store_selectors import Selection

log = structlog.get_logger()
T = TypeVar("T")
R = TypeVar("R")

_RESOURCES = {(resource.group_version, resource.plural): resource for resource in RESOURCES}


class MemoryCluster:
    """One client of an object store.

    Attributes:
        calls: how often each verb was called for each kind, as ``calls["patch", "pods"]``.
    """

    def __init__(self, store: ObjectStore) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self._store = store
        self._up = True
        self._watches: dict[_Watch[Any], None] = {}

    # What tests and simulations do to it

    def down(self) -> None:
        """Cut this client off: its watches end, its calls fail."""
        self._up = False
        self.close_watches()

    def up(self) -> None:
        """Let it in again."""
        self._up = True

    def close_watches(self) -> None:
        """End this client's watches, as a server does now and then."""
        for watch in tuple(self._watches):
            watch.close()

    # The port

    async def list(
        self,
        kind: Kind[T],
        *,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        keep_as: Callable[[T], T] | None = None,
    ) -> Listing[T]:
        """All objects of a kind."""

        def select() -> Listing[T]:
            resource = _resource(kind)
            found = self._store.select(resource, Selection.parse(resource, namespace or "", labels, fields))
            items = [item for item in (decoded(kind, stored) for stored in found) if item is not None]
            kept = items if keep_as is None else [keep_as(item) for item in items]
            return Listing(items=kept, resource_version=str(self._store.revision))

        return await self._read("list", kind, select)

    @asynccontextmanager
    async def watch(
        self, kind: Kind[T], *, since: str, namespace: str | None = None, labels: str = "", fields: str = ""
    ) -> AsyncIterator[AsyncIterator[Change[T]]]:
        """Changes after a version."""

        def begin() -> _Watch[T]:
            resource = _resource(kind)
            selection = Selection.parse(resource, namespace or "", labels, fields)
            return _Watch(kind, selection, self._store.events_since(resource, int(since or 0), selection))

        watch = await self._read("watch", kind, begin)
        self._watches[watch] = None
        unsubscribe = self._store.subscribe(watch.see)
        try:
            yield watch
        finally:
            unsubscribe()
            del self._watches[watch]

    async def get(self, kind: Kind[T], name: str, *, namespace: str | None = None) -> T:
        """One object."""
        return await self._read("get", kind, lambda: _required(kind, self._store.get(_resource(kind), name, namespace or "")))

    async def create(self, kind: Kind[T], body: Body, *, namespace: str | None = None) -> T:
        """Create an object; reviews are answered: every token is a user's name, and everybody may do everything."""
        if kind in (TOKEN_REVIEWS, ACCESS_REVIEWS):
            return await self._write("create", kind, lambda: msgspec.convert(_reviewed(kind, body), kind.type))
        return await self._write("create", kind, lambda: _required(kind, self._store.create(_resource(kind), body, namespace or "")))

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
        """Merge-patch an object."""
        guarded = with_preconditions(body, uid=uid, resource_version=resource_version)

        def apply() -> T:
            if subresource not in ("", "status"):
                raise ApiError(404, "NotFound", "the server could not find the requested resource")
            part = "status" if subresource else ""
            return _required(
                kind,
                self._store.merge_patch(_resource(kind), name, guarded, namespace or "", subresource=part),  # type: ignore[arg-type]
            )

        return await self._write("patch", kind, apply)

    async def patch_conditions(self, pod: PodRef, conditions: Sequence[Body]) -> None:
        """Set conditions of a pod, each by its type."""

        def apply() -> None:
            current = self._store.get(POD_RESOURCE, pod.name, pod.namespace).body
            by_type = {each["type"]: each for each in (current.get("status") or {}).get("conditions") or ()}
            for condition in conditions:
                by_type[condition["type"]] = {**by_type.get(condition["type"], {}), **condition}
            patch = with_preconditions({"status": {"conditions": list(by_type.values())}}, uid=pod.uid)
            self._store.merge_patch(POD_RESOURCE, pod.name, patch, pod.namespace, subresource="status")

        await self._write("patch", PODS, apply)

    async def replace(self, kind: Kind[T], name: str, body: Body, *, namespace: str | None = None) -> T:
        """Replace an object."""
        return await self._write("update", kind, lambda: _required(kind, self._store.replace(_resource(kind), name, body, namespace or "")))

    async def delete(
        self, kind: Kind[T], name: str, *, namespace: str | None = None, uid: str = "", grace_seconds: int | None = None
    ) -> None:
        """Delete an object."""
        options = delete_options(uid=uid, grace_seconds=grace_seconds)
        await self._write("delete", kind, lambda: self._store.delete(_resource(kind), name, namespace or "", options))

    async def bind(
        self, pod: PodRef, node: str, *, annotations: Mapping[str, str], labels: Mapping[str, str], resource_version: str = ""
    ) -> None:
        """Bind a pod."""
        body = binding(pod, node, annotations=annotations, labels=labels, resource_version=resource_version)
        await self._write("bind", PODS, lambda: self._store.bind(pod.name, body, pod.namespace))

    async def evict(self, pod: PodRef) -> None:
        """Evict a pod."""
        await self._write("evict", PODS, lambda: self._store.evict(pod.name, eviction(pod), pod.namespace))

    # How

    async def _read(self, verb: str, kind: Kind[Any], act: Callable[[], R]) -> R:
        await asyncio.sleep(0)
        return self._call(verb, kind, act, writing=False)

    async def _write(self, verb: str, kind: Kind[Any], act: Callable[[], R]) -> R:
        await asyncio.sleep(0)
        answer = self._call(verb, kind, act, writing=True)
        await asyncio.sleep(0)
        if not self._up:
            raise Unavailable("the connection ended before the answer came", maybe_applied=True)
        return answer

    def _call(self, verb: str, kind: Kind[Any], act: Callable[[], R], *, writing: bool) -> R:
        if not self._up:
            raise Unavailable("the API server cannot be reached")
        self.calls[verb, kind.plural] += 1
        try:
            return act()
        except ApiError as exc:
            details = exc.details or {}
            raise refusal(
                exc.code,
                exc.reason,
                exc.message,
                fields=[cause.get("field", "") for cause in details.get("causes") or ()],
                retry_after_seconds=details.get("retryAfterSeconds"),
                writing=writing,
            ) from exc


class _Watch(AsyncIterator[Change[T]]):
    """Changes as they come; what was missed first."""

    def __init__(self, kind: Kind[T], selection: Selection, missed: Sequence[WatchEvent]) -> None:
        self._kind = kind
        self._resource = _resource(kind)
        self._selection = selection
        self._waiting = deque(missed)
        self._arrived = asyncio.Event()
        self._closed = False

    def see(self, change: StoreChange) -> None:
        if change.resource == self._resource and (event := selected(change, self._selection)):
            self._waiting.append(event)
            self._arrived.set()

    def close(self) -> None:
        self._closed = True
        self._arrived.set()

    async def __anext__(self) -> Change[T]:
        while not self._closed:
            if self._waiting:
                event = self._waiting.popleft()
                version = str(event.stored.revision)
                item = decoded(self._kind, event.stored)
                return Change(
                    type=ChangeType(event.type) if item is not None else ChangeType.BOOKMARK, object=item, resource_version=version
                )
            self._arrived.clear()
            await self._arrived.wait()
        raise StopAsyncIteration


def decoded(kind: Kind[T], stored: Stored) -> T | None:
    """The object as its type, or None, reported to the log, where it is none."""
    try:
        return _required(kind, stored)
    except msgspec.DecodeError as exc:
        metadata = stored.body["metadata"]
        log.error(
            "object cannot be decoded", kind=kind.kind, namespace=metadata.get("namespace", ""), name=metadata["name"], error=str(exc)
        )
        return None


def _required(kind: Kind[T], stored: Stored) -> T:
    if kind.type is dict:  # a dict could be changed by whoever gets it, so each gets its own
        return msgspec.json.decode(stored.json, type=kind.type)
    wanted: Any = kind.type
    return _shared(wanted, stored.json)  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=8192)
def _shared(wanted: type[Any], json: bytes) -> Any:
    return msgspec.json.decode(json, type=wanted)


def _resource(kind: Kind[Any]) -> Resource:
    try:
        return _RESOURCES[kind.api_version, kind.plural]
    except KeyError:
        raise ClusterError(f"the store has no {kind.plural} of {kind.api_version}", code=404, reason="NotFound") from None


def _reviewed(kind: Kind[Any], body: Body) -> Body:
    if kind == ACCESS_REVIEWS:
        return {**body, "status": {"allowed": True}}
    spec = body.get("spec") or {}
    token = spec.get("token", "")
    if not token:
        return {**body, "status": {"authenticated": False}}
    return {**body, "status": {"authenticated": True, "user": {"username": token}, "audiences": spec.get("audiences", [])}}
