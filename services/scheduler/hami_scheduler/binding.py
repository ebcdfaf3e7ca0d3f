"""Writing a pod's assignment: one Binding that carries it, sent until its outcome is known. Decides nothing about room.

A Binding is atomic and can succeed once. So where an answer was lost, the same Binding is sent again: it either succeeds, or finds the pod bound,
and then the pod itself says whether by us. Invariant: ``UNKNOWN`` is answered only while it may still take effect; nothing may be undone then.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Final

import structlog
from msgspec import Struct

from hami_devices.catalog import Catalog
from hami_protocol import keys
from hami_protocol.devices import PodRef, RegisteredDevice, VendorAssignment
from hami_protocol.kubernetes import Pod
from hami_runtime.clock import Clock
from hami_runtime.kube import cluster as api

log = structlog.get_logger()

FIRST_DELAY_SECONDS = 0.1
LONGEST_DELAY_SECONDS = 2.0
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)


class Binding(Struct, frozen=True, kw_only=True):
    """What is written on a pod when it is bound."""

    pod: PodRef
    node: str
    assignments: tuple[VendorAssignment, ...]
    time_seconds: int
    annotations: dict[str, str]
    labels: dict[str, str]
    proof: tuple[str, ...]
    """Annotation keys by which this Binding is told from any other, and which nobody changes afterwards."""


class Fate(Enum):
    """What became of a Binding."""

    BOUND = "bound"
    REFUSED = "refused"
    """It did not take effect and will not."""
    UNKNOWN = "unknown"
    """It may have taken effect, or may still."""


class Outcome(Struct, frozen=True, kw_only=True):
    """What became of a Binding, and why."""

    fate: Fate
    error: str = ""
    retry_after_seconds: float | None = None
    """Of one attempt that is worth another: after at least so long."""


def compose(
    pod: Pod,
    ref: PodRef,
    node: str,
    assignments: Sequence[VendorAssignment],
    *,
    catalog: Catalog,
    time_seconds: int,
    devices: Mapping[str, RegisteredDevice] = MappingProxyType({}),
) -> Binding:
    """The Binding of ``pod`` to ``node``, whose ``devices`` are given by UUID.

    System annotations that somebody else put on the pod are overwritten, with nothing where we have nothing to say. The node is also a label,
    for selecting pods by it, where its name can be a label's value.
    """
    annotations = dict.fromkeys((key for key in pod.metadata.annotations if key in catalog.system_pod_keys), "")
    if assignments:
        annotations |= {
            keys.ASSIGNED_NODE: node,
            keys.ASSIGNED_TIME: str(time_seconds),
            keys.BIND_TIME: str(time_seconds),
            keys.BIND_PHASE: "allocating",
            **catalog.assignment_annotations(assignments),
            **catalog.plugin_annotations(pod, node, assignments, devices, time_ns=time_seconds * 10**9),
        }
    return Binding(
        pod=ref,
        node=node,
        assignments=tuple(assignments),
        time_seconds=time_seconds,
        annotations=annotations,
        labels={keys.ASSIGNED_NODE: node} if assignments and _LABEL_VALUE.fullmatch(node) else {},
        proof=(keys.BIND_TIME, *(catalog.vendor(given.vendor).allocated_key for given in assignments)),
    )


def is_written(binding: Binding, pod: Pod) -> bool:
    """Whether ``pod`` is bound as ``binding`` says, with its assignment and not another's."""
    written = pod.metadata.annotations
    return pod.spec.node_name == binding.node and all(written.get(key, "") == binding.annotations.get(key, "") for key in binding.proof)


async def write(
    cluster: api.Cluster, clock: Clock, binding: Binding, *, deadline: float, may: Callable[[], bool], uncertain: bool = False
) -> Outcome:
    """Send ``binding`` until its fate is known, or ``deadline`` (monotonic) has passed.

    Args:
        cluster: where to.
        clock: where durations are measured.
        binding: what to write.
        deadline: when to give up.
        may: whether another attempt may be made: not by who leads no more, whose room is another's to give.
        uncertain: an earlier attempt may have taken effect, or may still.
    """
    delay = FIRST_DELAY_SECONDS
    while True:
        outcome = await _send(cluster, binding, uncertain=uncertain)
        if outcome.retry_after_seconds is None:
            return outcome
        uncertain |= outcome.fate is Fate.UNKNOWN
        wait_seconds = max(delay, outcome.retry_after_seconds)
        if clock.monotonic() + wait_seconds >= deadline:
            return Outcome(fate=Fate.UNKNOWN if uncertain else Fate.REFUSED, error=outcome.error)
        log.warning("binding not written yet", pod=str(binding.pod), node=binding.node, error=outcome.error, retry_seconds=wait_seconds)
        await asyncio.sleep(wait_seconds)
        if not may():
            return Outcome(fate=Fate.UNKNOWN if uncertain else Fate.REFUSED, error="this replica leads no longer")
        delay = min(LONGEST_DELAY_SECONDS, delay * 2)


async def _send(cluster: api.Cluster, binding: Binding, *, uncertain: bool) -> Outcome:
    """One attempt, and what it did by itself; worth another one where it has ``retry_after_seconds``."""
    try:
        await cluster.bind(binding.pod, binding.node, annotations=binding.annotations, labels=binding.labels)
    except api.NotFound as exc:
        return Outcome(fate=Fate.REFUSED, error=str(exc))
    except api.TooManyRequests as exc:
        return Outcome(fate=Fate.REFUSED, error=str(exc), retry_after_seconds=exc.retry_after_seconds)
    except api.Unavailable as exc:
        return Outcome(fate=Fate.UNKNOWN if exc.maybe_applied else Fate.REFUSED, error=str(exc), retry_after_seconds=0.0)
    except api.ClusterError as exc:
        if not uncertain and not isinstance(exc, api.Conflict):
            return Outcome(fate=Fate.REFUSED, error=str(exc))  # forbidden, or a body that will never be taken
        found = await look_up(cluster, binding)
        if found.fate is not Fate.UNKNOWN:
            return found
        fate = Fate.UNKNOWN if found.error else Fate.REFUSED
        return Outcome(fate=fate, error=found.error or str(exc), retry_after_seconds=0.0)
    return Outcome(fate=Fate.BOUND)


async def look_up(cluster: api.Cluster, binding: Binding) -> Outcome:
    """Ask the API server what became of ``binding``. ``UNKNOWN`` where it cannot say, or where the pod is not bound (yet)."""
    try:
        pod = await cluster.get(api.PODS, binding.pod.name, namespace=binding.pod.namespace)
    except api.NotFound as exc:
        return Outcome(fate=Fate.REFUSED, error=str(exc))
    except api.ClusterError as exc:
        return Outcome(fate=Fate.UNKNOWN, error=str(exc))
    if pod.metadata.uid != binding.pod.uid:
        return Outcome(fate=Fate.REFUSED, error=f"pod {binding.pod} was deleted; there is another of its name")
    if is_written(binding, pod):
        return Outcome(fate=Fate.BOUND)
    if pod.spec.node_name:
        return Outcome(fate=Fate.REFUSED, error=f"pod {binding.pod} was bound to {pod.spec.node_name} by another hand")
    if pod.metadata.deletion_timestamp is not None:
        return Outcome(fate=Fate.REFUSED, error=f"pod {binding.pod} is being deleted")
    return Outcome(fate=Fate.UNKNOWN)
