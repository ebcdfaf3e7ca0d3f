"""Who asks our own API, and whether they may: TokenReview and SubjectAccessReview, as the API server itself decides. Answers are kept briefly."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from hami_runtime.clock import Clock
from hami_runtime.kube.cluster import ACCESS_REVIEWS, TOKEN_REVIEWS, Cluster

_KEPT = 1024
MOST_REVIEWS = 16
"""Reviews under way at once: more would only queue at the API server."""


class User(Struct, frozen=True, kw_only=True):
    """Who a token belongs to."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    node: str = ""
    """The node that a projected service-account token names, empty where it names none."""
    pod: str = ""
    """The pod that it is bound to, likewise."""
    pod_uid: str = ""


class ResourceAccess(Struct, frozen=True, kw_only=True):
    """What somebody wants to do, as RBAC words it."""

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""
    group: str = ""
    subresource: str = ""


class AccessReviewer:
    """Asks the API server about tokens and rights.

    Attributes:
        clock: by which answers are kept.
    """

    def __init__(self, cluster: Cluster, clock: Clock, *, audiences: Sequence[str] = (), keep_seconds: float = 10.0) -> None:
        """Accept tokens for ``audiences`` (none: the API server's own) and keep answers ``keep_seconds``."""
        self._cluster = cluster
        self.clock = clock
        self._audiences = tuple(audiences)
        self._keep_seconds = keep_seconds
        self._users: OrderedDict[str, tuple[float, User]] = OrderedDict()
        self._strangers: OrderedDict[str, float] = OrderedDict()
        """Tokens that are nobody's, apart from the others: any number of them can be made up."""
        self._reviewing = asyncio.Semaphore(MOST_REVIEWS)
        self._rights: OrderedDict[tuple[User, ResourceAccess], tuple[float, bool]] = OrderedDict()

    async def user_of(self, token: str) -> User | None:
        """Whose token it is, None if it is nobody's.

        Raises:
            ClusterError: the API server could not be asked.
        """
        if not token:
            return None
        digest = hashlib.sha256(token.encode()).hexdigest()
        now = self.clock.monotonic()
        if (kept := self._users.get(digest)) and now < kept[0]:
            return kept[1]
        if now < self._strangers.get(digest, 0.0):
            return None
        spec: dict[str, Any] = {"token": token}
        if self._audiences:
            spec["audiences"] = list(self._audiences)
        review = {"apiVersion": TOKEN_REVIEWS.api_version, "kind": TOKEN_REVIEWS.kind, "spec": spec}
        async with self._reviewing:
            user = _reviewed_user((await self._cluster.create(TOKEN_REVIEWS, review)).get("status") or {}, self._audiences)
        if user is None:
            self._users.pop(digest, None)
            _keep(self._strangers, digest, now + self._keep_seconds)
        else:
            _keep(self._users, digest, (now + self._keep_seconds, user))
        return user

    def knows(self, token: str) -> bool:
        """Whether the token was somebody's at its last review, or has just been refused: asking about it costs little or nothing."""
        digest = hashlib.sha256(token.encode()).hexdigest()
        return digest in self._users or self.clock.monotonic() < self._strangers.get(digest, 0.0)

    async def may(self, user: User, access: ResourceAccess) -> bool:
        """Whether ``user`` may do that.

        Raises:
            ClusterError: the API server could not be asked.
        """
        now = self.clock.monotonic()
        if (kept := self._rights.get((user, access))) and now < kept[0]:
            return kept[1]
        attributes = {
            "verb": access.verb,
            "resource": access.resource,
            "namespace": access.namespace,
            "name": access.name,
            "group": access.group,
            "subresource": access.subresource,
        }
        spec = {
            "user": user.name,
            "uid": user.uid,
            "groups": list(user.groups),
            "resourceAttributes": {key: value for key, value in attributes.items() if value},
        }
        review = {"apiVersion": ACCESS_REVIEWS.api_version, "kind": ACCESS_REVIEWS.kind, "spec": spec}
        status = (await self._cluster.create(ACCESS_REVIEWS, review)).get("status") or {}
        allowed = status.get("allowed") is True and status.get("denied") is not True
        _keep(self._rights, (user, access), (now + self._keep_seconds, allowed))
        return allowed


def _reviewed_user(status: dict[str, Any], audiences: tuple[str, ...]) -> User | None:
    if status.get("authenticated") is not True:
        return None
    if audiences and not set(audiences) & set(status.get("audiences") or ()):
        return None  # a server that knows no audiences has not checked ours
    found = status.get("user") or {}
    extra = found.get("extra") or {}

    def bound_to(what: str) -> str:
        return str((extra.get(f"authentication.kubernetes.io/{what}") or [""])[0])

    return User(
        name=found.get("username", ""),
        uid=found.get("uid", ""),
        groups=tuple(found.get("groups") or ()),
        node=bound_to("node-name"),
        pod=bound_to("pod-name"),
        pod_uid=bound_to("pod-uid"),
    )


def _keep(kept: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > _KEPT:
        kept.popitem(last=False)
