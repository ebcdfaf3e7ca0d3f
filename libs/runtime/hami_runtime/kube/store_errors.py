"""The API server's refusals: one exception that carries a complete ``Status``, made by a function per reason, in the server's words.

Clients compare ``code`` and ``reason``, people read ``message``; both are part of the interface, so they are written here and nowhere else.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from hami_runtime.kube.store_resources import Resource

__all__ = ["ApiError", "Cause"]


class Cause(Struct, frozen=True):
    """What is wrong with one field of an object."""

    field: str
    """Its path, as ``spec.containers[0].name``."""
    reason: str
    """``FieldValueRequired``, ``FieldValueInvalid``, ``FieldValueForbidden``, ``FieldValueNotSupported`` or ``FieldValueDuplicate``."""
    message: str
    """Without the path, as ``Required value``."""


class ApiError(Exception):
    """A request that the API server refuses.

    Attributes:
        code: the HTTP status.
        reason: the machine-readable word of ``Status.reason``.
        message: what a person reads.
        details: ``Status.details``; None where the server has none.
    """

    def __init__(self, code: int, reason: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = dict(details) if details is not None else None

    @property
    def status(self) -> dict[str, Any]:
        """The body of the response."""
        body: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": self.message}
        if self.reason:
            body["reason"] = self.reason
        if self.details is not None:
            body["details"] = self.details
        return {**body, "code": self.code}

    @classmethod
    def not_found(cls, resource: Resource, name: str) -> "ApiError":
        """404: there is no such object."""
        return cls(404, "NotFound", f'{resource.qualified} "{name}" not found', _details(resource, name))

    @classmethod
    def already_exists(cls, resource: Resource, name: str) -> "ApiError":
        """409: the name is taken."""
        return cls(409, "AlreadyExists", f'{resource.qualified} "{name}" already exists', _details(resource, name))

    @classmethod
    def conflict(cls, resource: Resource, name: str, why: str, subresource: str = "") -> "ApiError":
        """409: the object is not in the state that the request takes for granted."""
        suffix = f"/{subresource}" if subresource else ""
        return cls(
            409,
            "Conflict",
            f'Operation cannot be fulfilled on {resource.qualified}{suffix} "{name}": {why}',
            {**_details(resource, name), "kind": resource.plural + suffix},
        )

    @classmethod
    def kind_conflict(cls, resource: Resource, name: str, why: str) -> "ApiError":
        """409 to a deletion; there the server names the kind where it names the resource elsewhere."""
        message = f'Operation cannot be fulfilled on {resource.qualified_kind} "{name}": {why}'
        return cls(409, "Conflict", message, {**_details(resource, name), "kind": resource.kind})

    @classmethod
    def precondition_failed(cls, resource: Resource, name: str, namespace: str, why: str) -> "ApiError":
        """409: the uid or the resource version is not the one that the request names."""
        prefix = "minions" if resource.plural == "nodes" else resource.plural
        key = "/".join(part for part in ("/registry", prefix, namespace, name) if part)
        storage = f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed"
        return cls.conflict(resource, name, f"{storage}: {why}")

    @classmethod
    def must_name_version(cls, resource: Resource, name: str) -> "ApiError":
        """422: objects of this kind are only replaced with a resource version."""
        why = "Invalid value: 0: must be specified for an update"
        causes = [{"reason": "FieldValueInvalid", "message": why, "field": "metadata.resourceVersion"}]
        message = f'{resource.qualified} "{name}" is invalid: metadata.resourceVersion: {why}'
        return cls(422, "Invalid", message, {**_details(resource, name), "causes": causes})

    @classmethod
    def modified(cls, resource: Resource, name: str) -> "ApiError":
        """409: somebody else wrote the object in between."""
        return cls.conflict(resource, name, "the object has been modified; please apply your changes to the latest version and try again")

    @classmethod
    def invalid(cls, resource: Resource, name: str, causes: Sequence[Cause]) -> "ApiError":
        """422: fields of the object are wrong; all of them are named."""
        listed = [f"{cause.field}: {cause.message}" for cause in causes]
        text = listed[0] if len(listed) == 1 else f"[{', '.join(listed)}]"
        return cls(
            422,
            "Invalid",
            f'{resource.qualified_kind} "{name}" is invalid: {text}',
            {
                **_details(resource, name),
                "kind": resource.kind,
                "causes": [{"reason": cause.reason, "message": cause.message, "field": cause.field} for cause in causes],
            },
        )

    @classmethod
    def forbidden(cls, resource: Resource, name: str, why: str) -> "ApiError":
        """403: not allowed, whatever the object looks like."""
        subject = f'{resource.qualified} "{name}"' if name else resource.qualified
        return cls(403, "Forbidden", f"{subject} is forbidden: {why}", _details(resource, name))

    @classmethod
    def bad_request(cls, message: str) -> "ApiError":
        """400: the request itself makes no sense."""
        return cls(400, "BadRequest", message)

    @classmethod
    def gone(cls, revision: int, oldest: int) -> "ApiError":
        """410: the history no longer reaches back to ``revision``; list again."""
        return cls(410, "Expired", f"too old resource version: {revision} ({oldest})")

    @classmethod
    def too_many_requests(cls, message: str, cause: str, retry_after_seconds: int = 0) -> "ApiError":
        """429: a PodDisruptionBudget is in the way of an eviction."""
        details: dict[str, Any] = {"causes": [{"reason": "DisruptionBudget", "message": cause}]}
        if retry_after_seconds:
            details["retryAfterSeconds"] = retry_after_seconds
        return cls(429, "TooManyRequests", message, details)


def _details(resource: Resource, name: str) -> dict[str, Any]:
    details: dict[str, Any] = {"name": name} if name else {}
    if resource.group:
        details["group"] = resource.group
    return {**details, "kind": resource.plural}
