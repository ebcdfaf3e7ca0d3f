"""What a refusal of the API server means to a caller: from its HTTP status and ``reason`` to one of the cluster port's errors. Pure."""

from __future__ import annotations

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
_SERVER_FAULT = 500


def refusal(code: int, reason: str, message: str, *, retry_after_seconds: float | None = None, writing: bool = False) -> ClusterError:
    """The error for a Status.

    Args:
        code: the HTTP status.
        reason: the Status's own word, empty where there is none.
        message: for a person.
        retry_after_seconds: what the server asks for, if anything.
        writing: whether the request was a write, which a 5xx leaves in doubt.
    """
    text = f"{message} ({code}{f' {reason}' if reason else ''})"
    match code:
        case 404:
            return NotFound(text, code=code, reason=reason)
        case 409 if reason == "AlreadyExists":
            return AlreadyExists(text, code=code, reason=reason)
        case 409:
            return Conflict(text, code=code, reason=reason)
        case 401 | 403:
            return Forbidden(text, code=code, reason=reason)
        case 400 | 405 | 406 | 413 | 415 | 422:
            return Invalid(text, code=code, reason=reason)
        case 410:
            return WatchExpired(text)
        case 429:
            return TooManyRequests(text, retry_after_seconds=1.0 if retry_after_seconds is None else retry_after_seconds)
        case 504 if _TOO_LARGE_VERSION in message:  # the server's history was set back: what we know is no version of it
            return WatchExpired(text)
        case _ if code >= _SERVER_FAULT:
            return Unavailable(text, code=code, maybe_applied=writing)
        case _:
            return ClusterError(text, code=code, reason=reason)
