"""AdmissionReview as the API server sends it and wants it back (admission.k8s.io/v1; v1beta1 is read and answered in kind).

The object under review stays raw: it is decoded once into what we read, and patched by operations, never written out again.
"""

from __future__ import annotations

import base64
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct, field

from hami_protocol.kubernetes import ObjectMeta, Pod

API_VERSIONS: Final = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")
KIND: Final = "AdmissionReview"
T = TypeVar("T")
_MAX_WARNING_CHARACTERS: Final = 250
_MAX_MESSAGE_CHARACTERS: Final = 2000


class ReviewError(ValueError):
    """The body is no review that can be answered. The text is for whoever sent it."""


class UnreadableObject(ValueError):  # noqa: N818 - reads as the condition it names
    """The object under review is not what its kind says. The text names the field."""


class GroupKind(Struct, frozen=True, kw_only=True, rename="camel"):
    """Which kind the object is of."""

    group: str = ""
    version: str = ""
    kind: str = ""


class GroupResource(Struct, frozen=True, kw_only=True, rename="camel"):
    """Which resource is written."""

    group: str = ""
    version: str = ""
    resource: str = ""


class UserInfo(Struct, frozen=True, kw_only=True, rename="camel"):
    """Who writes."""

    username: str = ""


class AdmissionRequest(Struct, frozen=True, kw_only=True, rename="camel"):
    """One write that is to be judged."""

    uid: str
    kind: GroupKind = GroupKind()
    resource: GroupResource = GroupResource()
    sub_resource: str = ""
    name: str = ""
    """Empty where the name is still to be generated."""
    namespace: str = ""
    operation: str = ""
    user_info: UserInfo = UserInfo()
    object: msgspec.Raw = field(default_factory=msgspec.Raw)
    old_object: msgspec.Raw = field(default_factory=msgspec.Raw)
    dry_run: bool | None = None


class AdmissionReview(Struct, frozen=True, kw_only=True, rename="camel"):
    """The request's envelope."""

    api_version: str = ""
    kind: str = ""
    request: AdmissionRequest | None = None


class Operation(Struct, frozen=True, kw_only=True):
    """One JSON Patch operation (RFC 6902)."""

    op: str
    path: str
    value: Any


class Decision(Struct, frozen=True, kw_only=True):
    """What is answered."""

    allowed: bool
    code: int = 200
    reason: str = ""
    message: str = ""
    patch: tuple[Operation, ...] = ()
    warnings: tuple[str, ...] = ()


class _Status(Struct, frozen=True, kw_only=True, omit_defaults=True):
    code: int
    reason: str = ""
    message: str = ""


class _Response(Struct, frozen=True, kw_only=True, rename="camel"):
    uid: str
    allowed: bool
    status: _Status
    patch_type: str | msgspec.UnsetType = msgspec.UNSET
    patch: str | msgspec.UnsetType = msgspec.UNSET
    warnings: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


class _Answer(Struct, frozen=True, kw_only=True, rename="camel"):
    kind: str
    api_version: str
    response: _Response


class BindingObject(Struct, frozen=True, kw_only=True):
    """A Binding, as far as it is judged."""

    metadata: ObjectMeta = ObjectMeta()


_REVIEW: Final = msgspec.json.Decoder(AdmissionReview)
_POD: Final = msgspec.json.Decoder(Pod)
_BINDING: Final = msgspec.json.Decoder(BindingObject)


def decode(body: bytes) -> tuple[str, AdmissionRequest]:
    """The version of the review in ``body``, in which it is answered, and its request.

    Raises:
        ReviewError: no JSON, not an AdmissionReview of a version that is known, or one without a request.
    """
    try:
        review = _REVIEW.decode(body)
    except (ValueError, RecursionError) as exc:
        raise ReviewError(f"the body is no AdmissionReview: {exc}") from exc
    if review.kind != KIND or review.api_version not in API_VERSIONS:
        given = f"{review.kind[:64]!r} of {review.api_version[:64]!r}"
        raise ReviewError(f"the body is a {given}; accepted: {KIND} of {' or '.join(API_VERSIONS)}")
    if review.request is None or not review.request.uid:
        raise ReviewError("request: missing, or without a uid; accepted: an AdmissionRequest")
    return review.api_version, review.request


def encode(api_version: str, uid: str, decision: Decision) -> bytes:
    """The answer to the request with this ``uid``, in the review's own version."""
    response = _Response(
        uid=uid,
        allowed=decision.allowed,
        status=_Status(code=decision.code, reason=decision.reason, message=decision.message[:_MAX_MESSAGE_CHARACTERS]),
        patch_type="JSONPatch" if decision.patch else msgspec.UNSET,
        patch=base64.b64encode(msgspec.json.encode(decision.patch)).decode() if decision.patch else msgspec.UNSET,
        warnings=tuple(text[:_MAX_WARNING_CHARACTERS] for text in decision.warnings) or msgspec.UNSET,
    )
    return msgspec.json.encode(_Answer(kind=KIND, api_version=api_version, response=response))


def read_pod(raw: msgspec.Raw, *, field_path: str = "request.object") -> Pod:
    """The pod in ``raw``.

    Raises:
        UnreadableObject: there is none, or a field is not of its type.
    """
    return _read(raw, _POD, field_path)


def read_binding(raw: msgspec.Raw) -> BindingObject:
    """The Binding in ``raw``.

    Raises:
        UnreadableObject: there is none, or a field is not of its type.
    """
    return _read(raw, _BINDING, "request.object")


def as_dict(raw: msgspec.Raw) -> dict[str, Any]:
    """The whole object in ``raw``, with what we do not know of it.

    Raises:
        UnreadableObject: a field that we do not read is no JSON.
    """
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except (ValueError, RecursionError) as exc:
        raise UnreadableObject(f"request.object: {exc}") from exc


def _read(raw: msgspec.Raw, decoder: msgspec.json.Decoder[T], field_path: str) -> T:
    body = bytes(raw)
    if body in (b"", b"null"):
        raise UnreadableObject(f"{field_path}: missing; accepted: the object under review")
    try:
        try:
            return decoder.decode(body)
        except msgspec.ValidationError:
            found: T = msgspec.convert(_without_nulls(msgspec.json.decode(body)), decoder.type)
            return found
    except (ValueError, RecursionError) as exc:
        raise UnreadableObject(f"{field_path}: {str(exc).replace('`$', '`' + field_path)}") from exc


def _without_nulls(value: Any) -> Any:
    """An explicit null means the same as leaving the field out."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
