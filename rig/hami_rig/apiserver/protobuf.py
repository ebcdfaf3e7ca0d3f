"""Kubernetes' protobuf form of the few bodies that kubectl sends in no other: ``kubectl create namespace | configmap | secret | quota``. Pure.

The wire format is read with one small table of field numbers; nothing is ever written in it, since every client reads JSON too.
"""

import base64
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from hami_runtime.kube.store_objects import Object

__all__ = ["CONTENT_TYPE", "from_protobuf"]

CONTENT_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_LONGEST_VARINT = 10


class _Member(Struct, frozen=True):
    name: str
    read: Callable[[bytes], Any]
    is_map: bool = False
    """Whether it is one with string keys."""


_Message = Mapping[int, _Member]


def _text(value: bytes) -> str:
    return value.decode()


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _quantity(value: bytes) -> str:
    return str(_read({1: _Member("string", _text)}, value).get("string", "0"))


def _message(message: _Message) -> Callable[[bytes], Object]:
    return lambda value: _read(message, value)


_METADATA: _Message = {
    1: _Member("name", _text),
    3: _Member("namespace", _text),
    11: _Member("labels", _text, is_map=True),
    12: _Member("annotations", _text, is_map=True),
}
_HEAD = _Member("metadata", _message(_METADATA))
_QUOTA: _Message = {1: _Member("hard", _quantity, is_map=True)}
_KINDS: Mapping[str, _Message] = {
    "Namespace": {1: _HEAD},
    "ConfigMap": {1: _HEAD, 2: _Member("data", _text, is_map=True), 3: _Member("binaryData", _base64, is_map=True)},
    "Secret": {1: _HEAD, 2: _Member("data", _base64, is_map=True), 3: _Member("type", _text)},
    "ResourceQuota": {1: _HEAD, 2: _Member("spec", _message(_QUOTA))},
}


def from_protobuf(body: bytes) -> Object:
    """Return the object in a protobuf body.

    Raises:
        ValueError: it is none, or of a kind that is not read here.
    """
    if not body.startswith(_MAGIC):
        raise ValueError("a protobuf body starts with k8s")
    type_meta: _Message = {1: _Member("apiVersion", _text), 2: _Member("kind", _text)}
    envelope = _read({1: _Member("type", _message(type_meta)), 2: _Member("raw", bytes)}, body[len(_MAGIC) :])
    head = envelope.get("type", {})
    known = _KINDS.get(head.get("kind", ""))
    if known is None:
        raise ValueError(f"a {head.get('kind')} is not read from protobuf here; send JSON")
    return {**head, **_read(known, envelope.get("raw", b""))}


def _read(message: _Message, data: bytes) -> Object:
    result: Object = {}
    for number, value in _members(data):
        member = message.get(number)
        if member is None:
            continue
        if member.is_map:
            entry = _read({1: _Member("key", _text), 2: _Member("value", member.read)}, value)
            result.setdefault(member.name, {})[entry.get("key", "")] = entry.get("value", member.read(b""))
        else:
            result[member.name] = member.read(value)
    return result


def _members(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The members that are texts, bytes or messages. Numbers are passed over: none of the kinds that are read here has one."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        match tag & 7:
            case 0:
                _, at = _varint(data, at)
            case 2:
                length, at = _varint(data, at)
                if at + length > len(data):
                    raise ValueError("a protobuf member is longer than its message")
                yield tag >> 3, data[at : at + length]
                at += length
            case other:
                raise ValueError(f"protobuf wire type {other} occurs in none of the kinds that are read here")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at a position, never negative, and where the next one starts."""
    value = 0
    for index, byte in enumerate(data[at : at + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise ValueError("a protobuf number does not end")
