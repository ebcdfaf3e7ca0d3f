"""The API server as services see it: typed reads, guarded merge patches, bindings. Nothing here decides.

Bodies that are written are plain dicts; what is read is decoded once into ``hami_protocol.kubernetes``. Errors are told apart by what a caller
does about them: ``Unavailable.maybe_applied`` says that a write may have taken effect all the same and must be looked up before it is undone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from hami_protocol import kubernetes as k
from hami_protocol.devices import PodRef

T = TypeVar("T")
Body = dict[str, Any]


class ClusterError(Exception):
    """The API server refused, or could not be asked.

    Attributes:
        code: HTTP status, 0 where there was no answer.
        reason: the ``reason`` of its Status, as ``Conflict``.
    """

    def __init__(self, message: str, *, code: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason


class NotFound(ClusterError):  # noqa: N818 - the API's own word
    """No such object (404)."""


class AlreadyExists(ClusterError):  # noqa: N818 - the API's own word
    """The name is taken (409 AlreadyExists)."""


class Conflict(ClusterError):  # noqa: N818 - the API's own word
    """The object is not in the state that the write was made for: UID, resourceVersion, or already bound (409)."""


class Forbidden(ClusterError):  # noqa: N818 - the API's own word
    """Not allowed (401, 403): by RBAC, a quota or an admission policy."""


class Invalid(ClusterError):  # noqa: N818 - the API's own word
    """The API server will never take this body (400, 422)."""


class TooManyRequests(ClusterError):  # noqa: N818 - the API's own word
    """Try later (429); an eviction that a PodDisruptionBudget forbids now is one of these.

    Attributes:
        retry_after_seconds: what the server asks for.
    """

    def __init__(self, message: str, *, retry_after_seconds: float = 1.0) -> None:
        super().__init__(message, code=429, reason="TooManyRequests")
        self.retry_after_seconds = retry_after_seconds


class Unavailable(ClusterError):  # noqa: N818 - the API's own word
    """No answer, or a 5xx.

    Attributes:
        maybe_applied: a write may have taken effect.
    """

    def __init__(self, message: str, *, code: int = 0, maybe_applied: bool = False) -> None:
        super().__init__(message, code=code)
        self.maybe_applied = maybe_applied


class WatchExpired(ClusterError):  # noqa: N818 - the API's own word
    """The version to watch from is no longer kept (410): list again."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=410, reason="Expired")


class Kind(Struct, Generic[T], frozen=True, kw_only=True):
    """Where objects of one kind are and what they are decoded to."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool
    type: type[T]

    @property
    def root(self) -> str:
        """Path of the group and version, as ``/api/v1``."""
        return f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"


PODS: Kind[k.Pod] = Kind(api_version="v1", kind="Pod", plural="pods", namespaced=True, type=k.Pod)
NODES: Kind[k.Node] = Kind(api_version="v1", kind="Node", plural="nodes", namespaced=False, type=k.Node)
NAMESPACES: Kind[k.Namespace] = Kind(api_version="v1", kind="Namespace", plural="namespaces", namespaced=False, type=k.Namespace)
QUOTAS: Kind[k.ResourceQuota] = Kind(api_version="v1", kind="ResourceQuota", plural="resourcequotas", namespaced=True, type=k.ResourceQuota)
BUDGETS: Kind[k.PodDisruptionBudget] = Kind(
    api_version="policy/v1", kind="PodDisruptionBudget", plural="poddisruptionbudgets", namespaced=True, type=k.PodDisruptionBudget
)
POD_GROUPS: Kind[k.PodGroup] = Kind(
    api_version="scheduling.x-k8s.io/v1alpha1", kind="PodGroup", plural="podgroups", namespaced=True, type=k.PodGroup
)
VOLCANO_POD_GROUPS: Kind[k.PodGroup] = Kind(
    api_version="scheduling.volcano.sh/v1beta1", kind="PodGroup", plural="podgroups", namespaced=True, type=k.PodGroup
)
LEASES: Kind[k.Lease] = Kind(api_version="coordination.k8s.io/v1", kind="Lease", plural="leases", namespaced=True, type=k.Lease)
EVENTS: Kind[Body] = Kind(api_version="v1", kind="Event", plural="events", namespaced=True, type=dict)
SECRETS: Kind[Body] = Kind(api_version="v1", kind="Secret", plural="secrets", namespaced=True, type=dict)
MUTATING_WEBHOOKS: Kind[Body] = Kind(
    api_version="admissionregistration.k8s.io/v1",
    kind="MutatingWebhookConfiguration",
    plural="mutatingwebhookconfigurations",
    namespaced=False,
    type=dict,
)
VALIDATING_WEBHOOKS: Kind[Body] = Kind(
    api_version="admissionregistration.k8s.io/v1",
    kind="ValidatingWebhookConfiguration",
    plural="validatingwebhookconfigurations",
    namespaced=False,
    type=dict,
)
TOKEN_REVIEWS: Kind[Body] = Kind(
    api_version="authentication.k8s.io/v1", kind="TokenReview", plural="tokenreviews", namespaced=False, type=dict
)
ACCESS_REVIEWS: Kind[Body] = Kind(
    api_version="authorization.k8s.io/v1", kind="SubjectAccessReview", plural="subjectaccessreviews", namespaced=False, type=dict
)


class ChangeType(StrEnum):
    """The ``type`` of a watch event."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


class Change(Struct, Generic[T], frozen=True, kw_only=True):
    """One event of a watch. A bookmark's object is None: it only carries a version to go on from."""

    type: ChangeType
    object: T | None
    resource_version: str


class Listing(Struct, Generic[T], frozen=True, kw_only=True):
    """A list as of one version."""

    items: list[T]
    resource_version: str


class Cluster(Protocol):
    """The API server."""

    async def list(
        self,
        kind: Kind[T],
        *,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        keep_as: Callable[[T], T] | None = None,
    ) -> Listing[T]:
        """All objects of a kind, by label and field selector. An object that cannot be decoded is left out and reported to the log.

        ``keep_as`` gives the form in which one is kept: as soon as it is read, so that a long list is never there in any other.

        Raises:
            ClusterError: it could not be listed.
        """
        ...

    def watch(
        self, kind: Kind[T], *, since: str, namespace: str | None = None, labels: str = "", fields: str = ""
    ) -> AbstractAsyncContextManager[AsyncIterator[Change[T]]]:
        """Changes after version ``since``. The iterator ends when the server closes the stream; the caller goes on from the last version it saw.

        Raises:
            WatchExpired: list again.
            ClusterError: it could not be watched.
        """
        ...

    async def get(self, kind: Kind[T], name: str, *, namespace: str | None = None) -> T:
        """One object, from the API server itself.

        Raises:
            NotFound: there is none.
        """
        ...

    async def create(self, kind: Kind[T], body: Body, *, namespace: str | None = None) -> T:
        """Create ``body`` and return what the API server made of it.

        Raises:
            AlreadyExists: the name is taken.
        """
        ...

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
        """Merge-patch one object (RFC 7396: null removes). ``uid`` and ``resource_version`` are preconditions.

        Raises:
            NotFound: there is none.
            Conflict: a precondition does not hold.
            Unavailable: look at ``maybe_applied``.
        """
        ...

    async def patch_conditions(self, pod: PodRef, conditions: Sequence[Body]) -> None:
        """Set conditions of a pod's status, each by its type (a strategic merge patch of the status subresource), guarded by UID."""
        ...

    async def replace(self, kind: Kind[T], name: str, body: Body, *, namespace: str | None = None) -> T:
        """Replace one object; ``metadata.resourceVersion`` in the body is a precondition.

        Raises:
            Conflict: somebody else wrote it meanwhile.
        """
        ...

    async def delete(
        self, kind: Kind[T], name: str, *, namespace: str | None = None, uid: str = "", grace_seconds: int | None = None
    ) -> None:
        """Delete one object; ``uid`` is a precondition.

        Raises:
            NotFound: there is none.
            Conflict: another object has the name.
        """
        ...

    async def bind(
        self,
        pod: PodRef,
        node: str,
        *,
        annotations: Mapping[str, str],
        labels: Mapping[str, str],
        resource_version: str = "",
    ) -> None:
        """Bind the pod, its annotations and labels merged into it in the same atomic write.

        Raises:
            NotFound: the pod is gone.
            Conflict: it is bound already, or is not the one that was meant.
            Unavailable: look at ``maybe_applied``.
        """
        ...

    async def evict(self, pod: PodRef) -> None:
        """Evict the pod through the Eviction API, PodDisruptionBudgets respected.

        Raises:
            TooManyRequests: a budget forbids it now.
        """
        ...
