"""Pods and nodes with the fields that only a scheduler reads, over the project's own types. No rules."""

from __future__ import annotations

from msgspec import Struct

from hami_protocol import kubernetes as k
from hami_protocol.selectors import LabelRequirement
from hami_runtime.kube.cluster import Kind


class _Part(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A part of an object: read-only, camelCase on the wire, defaults left out when written."""


class NodeSelectorTerm(_Part, frozen=True, kw_only=True):
    """Expressions that must all hold. A term without any matches nothing."""

    match_expressions: tuple[LabelRequirement, ...] | None = None
    match_fields: tuple[LabelRequirement, ...] | None = None


class NodeSelector(_Part, frozen=True, kw_only=True):
    """Terms of which one must hold."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class NodeAffinity(_Part, frozen=True, kw_only=True):
    """spec.affinity.nodeAffinity."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None


class Affinity(k.Affinity, frozen=True, kw_only=True):
    """spec.affinity."""

    node_affinity: NodeAffinity | None = None


class SchedulingSpec(k.PodSpec, frozen=True, kw_only=True):
    """spec of a pod, with what only a scheduler reads."""

    affinity: Affinity | None = None


class SchedulingPod(k.Pod, frozen=True, kw_only=True):
    """A pod as the scheduler sees it."""

    spec: SchedulingSpec = SchedulingSpec()


PODS: Kind[SchedulingPod] = Kind(api_version="v1", kind="Pod", plural="pods", namespaced=True, type=SchedulingPod)
