"""Which pods a ResourceQuota is about: its scopes and scope selector, as Kubernetes' own quota admission reads them. Pure.

A quota without scopes is about every pod of its namespace. With scopes it binds, and counts, only pods that match all of them.
A scope that no pod can match (``VolumeAttributesClass``, or one that is not known here) makes the quota one of no pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from hami_protocol import quantities
from hami_protocol.errors import QuantityError
from hami_protocol.kubernetes import Affinity, Pod, Quantity, ResourceQuotaSpec, ResourceRequirements

_COMPUTE: Final = ("cpu", "memory")


class PodTraits(NamedTuple):
    """All of a pod that a scope may depend on."""

    terminating: bool = False
    """It has a deadline (``activeDeadlineSeconds``)."""
    best_effort: bool = True
    priority_class: str = ""
    cross_namespace: bool = False
    """An affinity term of it names other namespaces."""


ORDINARY: Final = PodTraits()


class Scope(NamedTuple):
    """One scope of a quota, or one expression of its scope selector."""

    name: str
    operator: str = "Exists"
    values: tuple[str, ...] = ()

    def matches(self, pod: PodTraits) -> bool:
        """Whether the pod is in this scope. Only a priority class is compared with values, as in Kubernetes."""
        match self.name:
            case "Terminating":
                return pod.terminating
            case "NotTerminating":
                return not pod.terminating
            case "BestEffort":
                return pod.best_effort
            case "NotBestEffort":
                return not pod.best_effort
            case "CrossNamespacePodAffinity":
                return pod.cross_namespace
            case "PriorityClass":
                return self._matches_class(pod.priority_class)
            case _:
                return False

    def _matches_class(self, name: str) -> bool:
        match self.operator:
            case "In":
                return bool(name) and name in self.values
            case "NotIn":
                return not name or name not in self.values
            case "Exists":
                return bool(name)
            case "DoesNotExist":
                return not name
            case _:
                return False

    def __str__(self) -> str:
        return self.name if self.operator == "Exists" else f"{self.name} {self.operator} {','.join(self.values)}".rstrip()


Scopes = tuple[Scope, ...]


def scopes_of(spec: ResourceQuotaSpec) -> Scopes:
    """The scopes of a quota; empty for one of all pods."""
    named = tuple(Scope(name) for name in spec.scopes or ())
    selector = spec.scope_selector
    expressions = () if selector is None else selector.match_expressions or ()
    return (*named, *(Scope(each.scope_name, each.operator, each.values or ()) for each in expressions))


def in_scope(scopes: Iterable[Scope], pod: PodTraits) -> bool:
    """Whether a quota with these scopes is about the pod."""
    return all(scope.matches(pod) for scope in scopes)


def traits_of(pod: Pod) -> PodTraits:
    """What scopes may depend on."""
    spec = pod.spec
    return PodTraits(
        terminating=spec.active_deadline_seconds is not None and spec.active_deadline_seconds >= 0,
        best_effort=_is_best_effort(pod),
        priority_class=spec.priority_class_name,
        cross_namespace=spec.affinity is not None and _crosses_namespaces(spec.affinity),
    )


def _is_best_effort(pod: Pod) -> bool:
    if pod.status.qos_class:
        return pod.status.qos_class == "BestEffort"
    if pod.spec.resources is not None:
        return not _asks_for_compute(pod.spec.resources)
    return not any(_asks_for_compute(each.resources) for each in (*pod.spec.containers, *(pod.spec.init_containers or ())))


def _asks_for_compute(resources: ResourceRequirements) -> bool:
    amounts: tuple[Mapping[str, Quantity], ...] = (resources.requests or {}, resources.limits or {})
    return any(name in amount and _is_positive(amount[name]) for amount in amounts for name in _COMPUTE)


def _is_positive(quantity: Quantity) -> bool:
    try:
        return quantities.exact(quantity) > 0
    except QuantityError:
        return True


def _crosses_namespaces(affinity: Affinity) -> bool:
    for side in (affinity.pod_affinity, affinity.pod_anti_affinity):
        if side is None:
            continue
        preferred = (each.pod_affinity_term for each in side.preferred_during_scheduling_ignored_during_execution or ())
        for term in (*(side.required_during_scheduling_ignored_during_execution or ()), *preferred):
            if term.namespaces or term.namespace_selector is not None:
                return True
    return False
