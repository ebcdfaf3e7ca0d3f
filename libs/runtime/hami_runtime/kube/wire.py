"""The API server's JSON: pages of a list, lines of a watch, Statuses. Decoded once, with msgspec.

An object of a type that we cannot decode is logged and left out: it must not hide all others.
"""

from __future__ import annotations

import functools
from typing import Any, Final, Literal, TypeVar

import msgspec
import structlog
from msgspec import Struct, field

from hami_runtime.kube.cluster import Change, ChangeType, ClusterError, Kind
from hami_runtime.kube.refusals import refusal

log = structlog.get_logger()
T = TypeVar("T")
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises on bytes that are not what they should be."""


class _ListMeta(Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    next_page: str = field(default="", name="continue")


class _RawPage(Struct, frozen=True):
    metadata: _ListMeta = _ListMeta()
    items: list[msgspec.Raw] | None = None


class _ObjectMeta(Struct, frozen=True, rename="camel"):
    namespace: str = ""
    name: str = ""
    resource_version: str = ""


class _AnyObject(Struct, frozen=True):
    metadata: _ObjectMeta = _ObjectMeta()


class _RawLine(Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _Cause(Struct, frozen=True):
    field: str = ""


class _Details(Struct, frozen=True, rename="camel"):
    retry_after_seconds: float | None = None
    causes: tuple[_Cause, ...] | None = None


class _Status(Struct, frozen=True):
    reason: str = ""
    message: str = ""
    code: int = 0
    details: _Details | None = None


class Page(Struct, frozen=True):
    """A part of a list."""

    items: list[Any]
    resource_version: str
    next_page: str


@functools.lru_cache(maxsize=64)
def _decoder(wanted: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(wanted)


@functools.lru_cache(maxsize=64)
def _page_type(wanted: Any) -> Any:
    return msgspec.defstruct("Page", [("metadata", _ListMeta, _ListMeta()), ("items", list[wanted] | None, None)], frozen=True)


@functools.lru_cache(maxsize=64)
def _line_type(wanted: Any) -> Any:
    return msgspec.defstruct("Line", [("type", Literal["ADDED", "MODIFIED", "DELETED"]), ("object", wanted)], frozen=True)


def decode_object(kind: Kind[T], body: bytes | msgspec.Raw) -> T:
    """An object as its type.

    Raises:
        ClusterError: it is none.
    """
    wanted: Any = kind.type
    try:
        return _decoder(wanted).decode(body)  # type: ignore[no-any-return]
    except UNREADABLE as exc:
        raise ClusterError(f"a {kind.kind} cannot be decoded: {exc}") from exc


def decode_page(kind: Kind[Any], body: bytes) -> Page:
    """A page of a list.

    Raises:
        ClusterError: the body is no list.
    """
    wanted: Any = kind.type
    try:
        page = _decoder(_page_type(wanted)).decode(body)
        return Page(page.items or [], page.metadata.resource_version, page.metadata.next_page)
    except UNREADABLE:
        pass  # one of the objects, or all of it: look closer
    try:
        raw = _decoder(_RawPage).decode(body)
    except UNREADABLE as exc:
        raise ClusterError(f"a list of {kind.plural} cannot be decoded: {exc}") from exc
    items = [item for item in (_decoded_or_reported(kind, each) for each in raw.items or ()) if item is not None]
    return Page(items, raw.metadata.resource_version, raw.metadata.next_page)


def decode_change(kind: Kind[T], line: bytes) -> Change[T]:
    """A line of a watch.

    Raises:
        WatchExpired: the version to go on from is no longer kept.
        ClusterError: the server reports another error, or it is no line of a watch.
    """
    wanted: Any = kind.type
    try:
        seen = _decoder(_line_type(wanted)).decode(line)
        return Change(type=ChangeType(seen.type), object=seen.object, resource_version=_version(seen.object))
    except UNREADABLE:
        return _decode_odd_change(kind, line)


def _decode_odd_change(kind: Kind[T], line: bytes) -> Change[T]:
    """A line that is not about an object as it should be."""
    try:
        event = _decoder(_RawLine).decode(line)
        if event.type == "ERROR":
            raise refused(0, event.object)
        if event.type == ChangeType.BOOKMARK:
            return Change(type=ChangeType.BOOKMARK, object=None, resource_version=_meta(event.object).resource_version)
        change = ChangeType(event.type)
        item = _decoded_or_reported(kind, event.object)
        version = _meta(event.object).resource_version if item is None else _version(item)
    except (*UNREADABLE, ValueError) as exc:
        raise ClusterError(f"a change of {kind.plural} cannot be decoded: {exc}") from exc
    return Change(type=change if item is not None else ChangeType.BOOKMARK, object=item, resource_version=version)


def refused(
    http_status: int, body: bytes | msgspec.Raw, *, retry_after_seconds: float | None = None, writing: bool = False
) -> ClusterError:
    """The error for a response that is not a success; its body is a Status, or anything that a proxy says."""
    try:
        status = _decoder(_Status).decode(body)
    except UNREADABLE:
        status = _Status(message=bytes(body)[:200].decode(errors="replace").strip())
    details, code = status.details or _Details(), http_status or status.code
    return refusal(
        code,
        status.reason,
        status.message or f"HTTP {code}",
        fields=[cause.field for cause in details.causes or ()],
        retry_after_seconds=details.retry_after_seconds if retry_after_seconds is None else retry_after_seconds,
        writing=writing,
    )


def _decoded_or_reported(kind: Kind[T], body: msgspec.Raw) -> T | None:
    try:
        return decode_object(kind, body)
    except ClusterError as exc:
        try:
            meta = _meta(body)
        except UNREADABLE:
            meta = _ObjectMeta()
        log.error("object cannot be decoded", kind=kind.kind, namespace=meta.namespace, name=meta.name, error=str(exc))
        return None


def _meta(body: msgspec.Raw) -> _ObjectMeta:
    found: _AnyObject = _decoder(_AnyObject).decode(body)
    return found.metadata


def _version(item: Any) -> str:
    return str(item["metadata"].get("resourceVersion", "")) if isinstance(item, dict) else str(item.metadata.resource_version)
