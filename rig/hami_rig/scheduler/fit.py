"""Which nodes kube-scheduler's own plugins leave for a pod, and why the others go. Pure: no I/O, no clock, no logging.

Reasons are kube-scheduler's own texts: they reach conditions and events. An *unresolvable* reason is one that no eviction changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from hami_protocol import kubernetes as k
from hami_protocol import quantities
from hami_protocol.errors import QuantityError
from hami_rig.scheduler.objects import NodeSelectorTerm, SchedulingPod

UNSCHEDULABLE = "node(s) were unschedulable"
TAINTED = "node(s) had untolerated taint(s)"
NOT_SELECTED = "node(s) didn't match Pod's node affinity/selector"
TOO_MANY_PODS = "Too many pods"

Amounts = dict[str, Fraction]
MAX_SCORE = 100
"""Highest own score of a node, and what an extender's 10 points are worth before its weight."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Misfit:
    """Why a node is left out."""

    reasons: tuple[str, ...]
    unresolvable: bool


@dataclass(kw_only=True, slots=True)
class NodeLoad:
    """What is requested on one node by the pods that are bound to it or assumed there."""

    requested: Amounts = field(default_factory=dict)
    pods: int = 0

    def add(self, requests: Mapping[str, Fraction], sign: int = 1) -> None:
        """Count one pod in (``sign`` 1) or out (-1)."""
        self.pods += sign
        for resource, amount in requests.items():
            self.requested[resource] = self.requested.get(resource, Fraction(0)) + sign * amount


def load_of(pods: Iterable[SchedulingPod]) -> NodeLoad:
    """The load that ``pods`` are."""
    load = NodeLoad()
    for pod in pods:
        load.add(pod_requests(pod))
    return load


def pod_requests(pod: SchedulingPod) -> Amounts:
    """What the pod asks of its node: the larger of its app containers with its sidecars, and of each init container with those before it."""
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in pod.spec.init_containers or ():
        own = container_requests(container)
        if container.restart_policy == "Always":
            sidecars = _sum(sidecars, own)
            own = {}
        peak = _maximum(peak, _sum(sidecars, own))
    running = sidecars
    for container in pod.spec.containers:
        running = _sum(running, container_requests(container))
    return _maximum(peak, running)


def container_requests(container: k.Container) -> Amounts:
    """What one container asks: its requests, and its limits where it makes no request."""
    return {**_amounts(container.resources.limits), **_amounts(container.resources.requests)}


def misfit(
    pod: SchedulingPod, requests: Mapping[str, Fraction], node: k.Node, load: NodeLoad, *, ignored: frozenset[str] = frozenset()
) -> Misfit | None:
    """Why ``node``, already carrying ``load``, does not take ``pod``; None if it does.

    Args:
        pod: the pod.
        requests: what ``pod_requests`` says of it.
        node: the node.
        load: what others request there.
        ignored: resources that only the extender judges (``ignoredByScheduler``).
    """
    tolerations = pod.spec.tolerations or ()
    if node.spec.unschedulable and not tolerated(k.Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule"), tolerations):
        return Misfit(reasons=(UNSCHEDULABLE,), unresolvable=True)
    hard = (taint for taint in node.spec.taints or () if taint.effect in ("NoSchedule", "NoExecute"))
    if any(not tolerated(taint, tolerations) for taint in hard):
        return Misfit(reasons=(TAINTED,), unresolvable=True)
    if not selected(pod, node):
        return Misfit(reasons=(NOT_SELECTED,), unresolvable=True)
    allocatable = _amounts(node.status.allocatable)
    reasons = [TOO_MANY_PODS] if load.pods + 1 > allocatable.get("pods", 0) else []
    never = False
    for resource, asked in requests.items():
        if not asked or resource in ignored or resource == "pods":
            continue
        has = allocatable.get(resource, Fraction(0))
        if asked + load.requested.get(resource, 0) > has:
            reasons.append(f"Insufficient {resource}")
            never = never or asked > has
    return Misfit(reasons=tuple(sorted(reasons)), unresolvable=never) if reasons else None


def tolerated(taint: k.Taint, tolerations: Iterable[k.Toleration]) -> bool:
    """Whether one of ``tolerations`` puts up with ``taint``."""
    for each in tolerations:
        if each.effect and each.effect != taint.effect:
            continue
        if each.key and each.key != taint.key:
            continue
        if each.operator == "Exists" or (each.key and each.value == taint.value):
            return True
    return False


def selected(pod: SchedulingPod, node: k.Node) -> bool:
    """Whether the node has what the pod's selector and its required node affinity want."""
    labels = node.metadata.labels
    if any(labels.get(key) != value for key, value in (pod.spec.node_selector or {}).items()):
        return False
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    return required is None or any(term_matches(term, node) for term in required.node_selector_terms)


def term_matches(term: NodeSelectorTerm, node: k.Node) -> bool:
    """Whether all expressions of ``term`` hold for ``node``; an empty term matches nothing."""
    expressions, fields = term.match_expressions or (), term.match_fields or ()
    if not expressions and not fields:
        return False
    by_label = all(each.admits(node.metadata.labels) for each in expressions)
    return by_label and all(each.admits({"metadata.name": node.metadata.name}) for each in fields)


def own_scores(requests: Mapping[str, Fraction], nodes: Mapping[str, k.Node], loads: Mapping[str, NodeLoad]) -> dict[str, int]:
    """kube-scheduler's own opinion, 0 to 100, of free cpu and memory: enough to tell equal nodes apart."""
    scores = {}
    for name, node in nodes.items():
        allocatable = _amounts(node.status.allocatable)
        free = [_free_share(allocatable, loads[name], requests, resource) for resource in ("cpu", "memory")]
        scores[name] = int(sum(free) / len(free) * MAX_SCORE)
    return scores


def feasible_to_find(node_count: int, percentage: int) -> int:
    """How many feasible nodes are enough: all below 100 nodes; else ``percentage``, or by the cluster's size where that is 0."""
    if node_count < 100 or percentage >= 100:
        return node_count
    share = percentage or max(50 - node_count // 125, 5)
    return max(node_count * share // 100, 100)


def _free_share(allocatable: Amounts, load: NodeLoad, requests: Mapping[str, Fraction], resource: str) -> Fraction:
    has = allocatable.get(resource, Fraction(0))
    used = load.requested.get(resource, Fraction(0)) + requests.get(resource, Fraction(0))
    return max(Fraction(0), 1 - used / has) if has else Fraction(0)


def _amounts(resources: Mapping[str, k.Quantity] | None) -> Amounts:
    amounts = {}
    for resource, quantity in (resources or {}).items():
        try:
            amounts[resource] = quantities.exact(quantity, field=resource)
        except QuantityError:  # the API server refuses these; one that came by another way asks for more than any node has
            amounts[resource] = Fraction(2**63)
    return amounts


def _sum(left: Mapping[str, Fraction], right: Mapping[str, Fraction]) -> Amounts:
    return {key: left.get(key, Fraction(0)) + right.get(key, Fraction(0)) for key in {**left, **right}}


def _maximum(left: Mapping[str, Fraction], right: Mapping[str, Fraction]) -> Amounts:
    return {key: max(left.get(key, Fraction(0)), right.get(key, Fraction(0))) for key in {**left, **right}}
