"""Which stored kinds there are on the wire, what can be done with them, and which reviews are answered. Pure.

Discovery, OpenAPI and routing are all made from this one table.
"""

from msgspec import Struct

from hami_rig.apiserver.schema import Type, root_type
from hami_runtime.kube.store_resources import PODS, RESOURCES, Resource

__all__ = ["REVIEWS", "SERVED", "VERBS", "Review", "Served", "served_groups"]

VERBS = ("create", "delete", "get", "list", "patch", "update", "watch")
"""What can be done with every resource."""


class Served(Struct, frozen=True, kw_only=True):
    """One stored kind, with what its fields are."""

    resource: Resource
    type: Type

    @property
    def subresources(self) -> dict[str, tuple[str, tuple[str, ...]]]:
        """The kind and the verbs of each subresource."""
        found: dict[str, tuple[str, tuple[str, ...]]] = {}
        if self.resource == PODS:
            found |= {"binding": ("Binding", ("create",)), "eviction": ("Eviction", ("create",)), "log": ("Pod", ("get",))}
        if self.resource.has_status:
            found["status"] = (self.resource.kind, ("patch",))
        return found


class Review(Struct, frozen=True, kw_only=True):
    """A kind that is only ever posted, and answered at once."""

    group: str
    plural: str
    kind: str


REVIEWS: dict[tuple[str, str], Review] = {
    (each.group, each.plural): each
    for each in (
        Review(group="authentication.k8s.io", plural="tokenreviews", kind="TokenReview"),
        Review(group="authorization.k8s.io", plural="subjectaccessreviews", kind="SubjectAccessReview"),
        Review(group="authorization.k8s.io", plural="selfsubjectaccessreviews", kind="SelfSubjectAccessReview"),
    )
}
"""All of version v1."""

SERVED: dict[tuple[str, str], Served] = {
    (resource.group, resource.plural): Served(resource=resource, type=root_type(resource)) for resource in RESOURCES
}
"""By group and plural: there is one version of each."""


def served_groups() -> dict[str, list[Served]]:
    """The resources by group; groups of reviews have none."""
    groups: dict[str, list[Served]] = {}
    for served in SERVED.values():
        groups.setdefault(served.resource.group, []).append(served)
    for review in REVIEWS.values():
        groups.setdefault(review.group, [])
    return groups
