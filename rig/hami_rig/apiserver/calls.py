"""An HTTP request as Kubernetes means it: which verb, on which resource, for which object. Pure.

What cannot be such a request is None here and a 404 on the wire.
"""

from collections.abc import Mapping

from msgspec import Struct

from hami_rig.apiserver.identity import User
from hami_rig.apiserver.served import REVIEWS, SERVED, VERBS, Review, Served
from hami_runtime.kube.store_selectors import Selection

__all__ = ["Call", "Target", "target_of", "verb_of"]


class Target(Struct, frozen=True, kw_only=True):
    """What a path names."""

    served: Served
    namespace: str = ""
    name: str = ""
    subresource: str = ""


class Call(Struct, frozen=True, kw_only=True):
    """One request on a resource, its body still unread."""

    verb: str
    """As RBAC names them: get, list, watch, create, update, patch, delete."""
    target: Target
    query: Mapping[str, str]
    user: User
    user_agent: str
    content_type: str
    body: bytes

    @property
    def dry_run(self) -> bool:
        """Whether nothing is to be kept."""
        return self.query.get("dryRun") == "All"

    @property
    def manager(self) -> str:
        """Who owns the fields that this request writes."""
        return self.query.get("fieldManager") or self.user_agent.split("/", 1)[0] or "unknown"

    def selection(self) -> Selection:
        """Return what a list or watch is about.

        Raises:
            ApiError: 400 if a selector cannot be read.
        """
        labels, fields = self.query.get("labelSelector", ""), self.query.get("fieldSelector", "")
        return Selection.parse(self.target.served.resource, self.target.namespace, labels, fields)


def target_of(path: str) -> Target | Review | None:
    """Return what a path names, or None if there is no such thing."""
    parts = [part for part in path.split("/") if part]
    if parts[:2] == ["api", "v1"]:
        group, rest = "", parts[2:]
    elif len(parts) > 3 and parts[0] == "apis" and parts[2] == "v1":
        group, rest = parts[1], parts[3:]
    else:
        return None
    if len(rest) == 1 and (review := REVIEWS.get((group, rest[0]))):
        return review
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces" and (group, rest[2]) in SERVED:
        namespace, rest = rest[1], rest[2:]
    served = SERVED.get((group, rest[0])) if rest else None
    if served is None or len(rest) > 3 or (namespace and not served.resource.namespaced):
        return None
    subresource = rest[2] if len(rest) == 3 else ""
    if subresource and subresource not in served.subresources:
        return None
    name = rest[1] if len(rest) > 1 else ""
    if name and served.resource.namespaced and not namespace:
        return None
    return Target(served=served, namespace=namespace, name=name, subresource=subresource)


def verb_of(method: str, target: Target, *, watch: bool) -> str | None:
    """Return the verb of a request, or None if the resource does not have it."""
    if method == "GET":
        verb = "watch" if watch else "get" if target.name else "list"
    else:
        verb = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}.get(method, "")
    if target.subresource:
        return verb if verb in target.served.subresources[target.subresource][1] else None
    named = verb in {"get", "update", "patch", "delete"}
    if verb not in VERBS or named != bool(target.name):
        return None
    return None if verb == "create" and target.served.resource.namespaced and not target.namespace else verb
