"""The form in which the scheduler keeps a pod: what it reads of it, and what many pods have in common once. Pure.

Pods of one workload differ in their names, not in their containers; what kubelet says of a running pod's containers, as far as it matters here, is
the same for most; and the largest annotation of many is a copy of their manifest, for ``kubectl apply``. Nobody in this package can tell a kept pod
from the pod that it was made of. What is remembered is bounded: the part that has not been met for longest is forgotten, which costs memory alone.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import Final, TypeVar

import msgspec

from hami_protocol import keys
from hami_protocol.kubernetes import Condition, ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodStatus

T = TypeVar("T")

CAPACITY = 4096
_ENCODER = msgspec.json.Encoder()
_FOR_OTHERS: Final = frozenset({"kubectl.kubernetes.io/last-applied-configuration"})
_REPEATED: Final = frozenset({keys.ASSIGNED_NODE, keys.BIND_PHASE})
"""Annotations of which many pods have the same."""
_RUNNING: Final = ContainerState(running={})


class KeptPods:
    """Makes kept pods."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        """Remember ``capacity`` parts that pods may have in common."""
        self._capacity = capacity
        self._known: OrderedDict[bytes, object] = OrderedDict()

    def of(self, pod: Pod) -> Pod:
        """``pod``, as it is kept."""
        metadata, spec = pod.metadata, pod.spec
        containers, init_containers = self._once((spec.containers, spec.init_containers))
        return msgspec.structs.replace(
            pod,
            metadata=msgspec.structs.replace(
                metadata,
                namespace=sys.intern(metadata.namespace),
                annotations={
                    key: sys.intern(value) if key in _REPEATED else value
                    for key, value in metadata.annotations.items()
                    if key not in _FOR_OTHERS
                },
            ),
            spec=msgspec.structs.replace(
                spec,
                node_name=sys.intern(spec.node_name),
                containers=containers,
                init_containers=init_containers,
                affinity=spec.affinity and self._once(spec.affinity),
            ),
            status=self._once(_read_of(pod.status)),
        )

    def _once(self, part: T) -> T:
        """An equal part of an earlier pod, where there was one."""
        key = _ENCODER.encode(part)
        shared = self._known.setdefault(key, part)
        self._known.move_to_end(key)
        if len(self._known) > self._capacity:
            self._known.popitem(last=False)
        return shared  # type: ignore[return-value]  # what encodes alike is of the same type: an object and a list do not


def _read_of(status: PodStatus) -> PodStatus:
    """What is read of a status: phase and reason, the conditions that say something is as it should not be, and which containers run or ended."""
    return PodStatus(
        phase=status.phase,
        reason=status.reason,
        nominated_node_name=status.nominated_node_name,
        conditions=tuple(each for each in status.conditions or () if _tells(each)) or None,
        init_container_statuses=_states(status.init_container_statuses),
        container_statuses=_states(status.container_statuses),
    )


def _tells(condition: Condition) -> bool:
    """Every pod that is bound is scheduled, and ready sooner or later; ours are our own."""
    return condition.type.startswith("hami.io/") or (condition.type == "PodScheduled" and condition.status != "True")


def _states(statuses: tuple[ContainerStatus, ...] | None) -> tuple[ContainerStatus, ...] | None:
    return statuses and tuple(ContainerStatus(name=each.name, state=_state(each.state)) for each in statuses)


def _state(state: ContainerState | None) -> ContainerState | None:
    if state is not None and state.terminated is not None:
        return ContainerState(terminated=ContainerStateTerminated(exit_code=state.terminated.exit_code))
    return _RUNNING if state is not None and state.running is not None else None
