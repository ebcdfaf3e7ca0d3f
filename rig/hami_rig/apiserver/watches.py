"""Watches: a stream of lines per client, fed by the store's changes.

A watch is subscribed and reads its past in one step without an await, so that it neither misses a change nor sees one twice. A client that does
not keep up is cut off, and starts again from the version it has seen.
"""

import asyncio
import random
from collections import deque
from collections.abc import Mapping

import msgspec
from aiohttp import web

from hami_rig.apiserver.calls import Call
from hami_rig.apiserver.rendering import Rendering
from hami_runtime.kube.store import Change, ObjectStore, WatchEvent, selected
from hami_runtime.kube.store_errors import ApiError, Cause
from hami_runtime.kube.store_resources import Resource
from hami_runtime.kube.store_selectors import Selection

__all__ = ["Watches"]

_LIST_OPTIONS = Resource(group="meta.k8s.io", plural="", kind="ListOptions")
_LONGEST_QUEUE = 50_000
_DEFAULT_SECONDS = (1800.0, 3600.0)


class _Watch:
    """One client's queue."""

    def __init__(self, rendering: Rendering, selection: Selection, after: int) -> None:
        self._rendering = rendering
        self._selection = selection
        self._after = after
        self._lines: deque[bytes] = deque()
        self.wake = asyncio.Event()
        self.over = False

    def offer(self, change: Change) -> None:
        """Queue the change if this client is to see it."""
        if change.now.revision <= self._after or self.over:
            return
        if event := selected(change, self._selection):
            self.push(self._rendering.event(event))

    def push(self, line: bytes) -> None:
        """Queue a line, or give the client up if it is too far behind."""
        self._lines.append(line)
        if len(self._lines) > _LONGEST_QUEUE:
            self.end()
        self.wake.set()

    def end(self) -> None:
        """Let the stream end after what is queued."""
        self.over = True
        self.wake.set()

    def take(self) -> bytes:
        """Everything that is queued."""
        lines = b"".join(self._lines)
        self._lines.clear()
        self.wake.clear()
        return lines


class Watches:
    """All watches of one server."""

    def __init__(self, store: ObjectStore, *, bookmark_seconds: float) -> None:
        self._store = store
        self._bookmark_seconds = bookmark_seconds
        self._open: dict[Resource, set[_Watch]] = {}
        self._closing = False
        store.subscribe(self._spread)

    def end_all(self) -> None:
        """End every stream that is open now."""
        for watches in self._open.values():
            for watch in watches:
                watch.end()

    def close(self) -> None:
        """End every stream, those that are only about to start too."""
        self._closing = True
        self.end_all()

    def _spread(self, change: Change) -> None:
        for watch in self._open.get(change.resource, ()):
            watch.offer(change)

    async def serve(self, request: web.Request, call: Call, rendering: Rendering) -> web.StreamResponse:
        """Stream until the client goes, its time is over, or the server closes.

        Raises:
            ApiError: the watch cannot start.
        """
        watch = self._started(call, rendering)
        opened = self._open.setdefault(call.target.served.resource, set())
        opened.add(watch)
        try:
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            response.enable_chunked_encoding()
            await response.prepare(request)
            await self._pump(response, watch, call, rendering)
            await response.write_eof()
            return response
        finally:
            opened.discard(watch)

    async def _pump(self, response: web.StreamResponse, watch: _Watch, call: Call, rendering: Rendering) -> None:
        now = asyncio.get_running_loop().time
        until = now() + _seconds(call.query)
        bookmarks = call.query.get("allowWatchBookmarks") in ("true", "1")
        while not self._closing:
            if lines := watch.take():
                await response.write(lines)
                continue
            left = until - now()
            if watch.over or left <= 0:
                return
            try:
                async with asyncio.timeout(min(left, self._bookmark_seconds)):
                    await watch.wake.wait()
            except TimeoutError:
                if bookmarks:
                    watch.push(rendering.bookmark(self._store.revision))

    def _started(self, call: Call, rendering: Rendering) -> _Watch:
        """A watch with its past already queued."""
        selection, resource = call.selection(), call.target.served.resource
        initial = call.query.get("sendInitialEvents") in ("true", "1")
        if initial and call.query.get("resourceVersionMatch") != "NotOlderThan":
            why = "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
            raise ApiError.invalid(_LIST_OPTIONS, "", [Cause("resourceVersionMatch", "FieldValueForbidden", why)])
        since = _revision(call.query.get("resourceVersion", ""))
        if initial or not since:
            watch = _Watch(rendering, selection, self._store.revision)
            for stored in self._store.select(resource, selection):
                watch.push(rendering.event(WatchEvent("ADDED", stored)))
            if initial and call.query.get("allowWatchBookmarks") in ("true", "1"):
                watch.push(rendering.bookmark(self._store.revision, initial_events_end=True))
            return watch
        watch = _Watch(rendering, selection, max(since, self._store.revision))
        if since > self._store.revision:
            return watch
        try:
            for event in self._store.events_since(resource, since, selection):
                watch.push(rendering.event(event))
        except ApiError as gone:
            watch.push(b'{"type":"ERROR","object":' + msgspec.json.encode(gone.status) + b"}\n")
            watch.end()
        return watch


def _revision(text: str) -> int:
    if not text:
        return 0
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise ApiError(500, "", f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax')
    return int(text)


def _seconds(query: Mapping[str, str]) -> float:
    """How long the stream may last: as asked, else half an hour to an hour, so that not all clients come back at once."""
    asked = query.get("timeoutSeconds", "")
    return float(asked) if asked.isdigit() and len(asked) < 7 and int(asked) else random.uniform(*_DEFAULT_SECONDS)  # noqa: S311 - no secret
