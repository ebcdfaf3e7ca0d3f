"""What a refusal of the API server means to a caller: from its HTTP status and ``reason`` to one of the cluster port's errors. Pure."""

from __future__ import annotations

from collections.abc import Collection

from hami_runtime.kube.cluster import (
    AlreadyExists,
    ClusterError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    TooManyRequests,
    Unavailable,
    WatchExpired,
)

_TOO_LARGE_VERSION = "Too large resource version"
"""Of a server whose history was set back: what we know is no version of it."""
_UID = "metadata.uid"
_GONE, _TOO_MANY, _SERVER_FAULT, _TIMED_OUT = 410, 429, 500, 504
_BY_REASON: dict[str, type[ClusterError]] = {"AlreadyExists": AlreadyExists}
_BY_CODE: dict[int, type[ClusterError]] = {
    400: Invalid,
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    405: Invalid,
    409: Conflict,
    413: Invalid,
    415: Invalid,
    422: Invalid,
}


def refusal(
    code: int,
    reason: str,
    message: str,
    *,
    fields: Collection[str] = (),
    retry_after_seconds: float | None = None,
    writing: bool = False,
) -> ClusterError:
    """The error for a Status.

    Args:
        code: the HTTP status.
        reason: the Status's own word, empty where there is none.
        message: for a person.
        fields: paths of the fields that its causes name. A patch for another UID is refused as one that would change an immutable field.
        retry_after_seconds: what the server asks for, if anything.
        writing: whether the request was a write, which a 5xx leaves in doubt.
    """
    text = f"{message} ({code}{f' {reason}' if reason else ''})"
    if code == _TOO_MANY:
        return TooManyRequests(text, retry_after_seconds=1.0 if retry_after_seconds is None else retry_after_seconds)
    if code == _GONE or (code == _TIMED_OUT and _TOO_LARGE_VERSION in message):
        return WatchExpired(text)
    if code >= _SERVER_FAULT:
        return Unavailable(text, code=code, maybe_applied=writing)
    kind = Conflict if _UID in fields else _BY_REASON.get(reason) or _BY_CODE.get(code, ClusterError)
    return kind(text, code=code, reason=reason)
