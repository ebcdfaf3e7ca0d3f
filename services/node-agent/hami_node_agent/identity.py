"""``cdi`` mode: who starts? From the ids of PreStartContainer to a pod, and to the CDI name that each of its containers was given. Pure.

Kubelet's checkpoint decides. Ids alone name a pod, never a container: kubelet gives an init container's ids to later containers of the same
pod. So the CDI name, which is new at every Allocate call, is what ties a container to its answer. PodResources, kubelet's public API, is the
cross-check; where the two disagree nothing starts. Without a checkpoint that we can read, PodResources and our own log of Allocate calls decide.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hami_node_agent.checkpoint import HeldDevices
from hami_node_agent.refusals import Refusal, RefusalKind
from hami_protocol.devices import ContainerKind, ContainerShares, PodRef


@dataclass(frozen=True, kw_only=True, slots=True)
class Identified:
    """The pod that starts, with all its containers that hold our resource."""

    pod_uid: str
    containers: Mapping[str, HeldDevices]


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedPod:
    """One pod as PodResources lists it: device ids of our resource by container, the union of all its entries."""

    namespace: str
    name: str
    containers: Mapping[str, frozenset[str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocateCall:
    """One Allocate call that we answered."""

    name: str
    """The CDI name that we answered with."""
    device_ids: frozenset[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class GrantedPod:
    """A live pod of this node with its grant."""

    pod: PodRef
    containers: tuple[ContainerShares, ...]
    """In the pod's order, those without shares too."""


def by_checkpoint(held: Iterable[HeldDevices], resource: str, device_ids: Collection[str], live: Collection[str]) -> Identified | Refusal:
    """Find the pod that holds exactly ``device_ids`` of ``resource``.

    Args:
        held: kubelet's checkpoint.
        resource: ours.
        device_ids: of the container that starts, in any order.
        live: UIDs of the pods of this node. Entries of others are left over from pods that are gone.
    """
    wanted = frozenset(device_ids)
    if not wanted:
        return Refusal(kind=RefusalKind.EMPTY_REQUEST, reason="kubelet named no device id")
    ours = [entry for entry in held if entry.resource == resource]
    owners = sorted({entry.pod_uid for entry in ours if entry.device_ids == wanted})
    alive = [uid for uid in owners if uid in live]
    if len(alive) == 1:
        return Identified(pod_uid=alive[0], containers={entry.container: entry for entry in ours if entry.pod_uid == alive[0]})
    ids = ", ".join(sorted(wanted))
    if alive:
        return Refusal(kind=RefusalKind.AMBIGUOUS, reason=f"kubelet's checkpoint gives {ids} to pods {', '.join(alive)}")
    known = f" (only to {', '.join(owners)}, not known on this node)" if owners else ""
    return Refusal(kind=RefusalKind.UNKNOWN_POD, reason=f"kubelet's checkpoint gives {ids} to no pod of this node{known}")


def cross_check(identified: Identified, granted: GrantedPod, listed: Iterable[ListedPod]) -> Refusal | None:
    """Compare with PodResources: None where it agrees. It lists neither ordinary init containers nor a pod that has nothing else."""
    ref = granted.pod
    found = next((pod for pod in listed if pod.namespace == ref.namespace and pod.name == ref.name), None)
    theirs = {} if found is None else {name: ids for name, ids in found.containers.items() if ids}
    kinds = {container.container: container.kind for container in granted.containers}
    ours = {name: held.device_ids for name, held in identified.containers.items() if kinds.get(name) is not ContainerKind.INIT}
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name) and kinds.get(name) is not ContainerKind.INIT:
            return Refusal(
                kind=RefusalKind.KUBELET_DISAGREES,
                reason=f"container {name} of {ref} holds {_shown(ours.get(name))} by kubelet's checkpoint, "
                f"{_shown(theirs.get(name))} by PodResources",
                pod=ref,
            )
    return None


def by_calls(
    listed: Sequence[ListedPod], calls: Sequence[AllocateCall], granted: Iterable[GrantedPod], resource: str, device_ids: Collection[str]
) -> Identified | Refusal:
    """Find the pod without a checkpoint: the last run of our own calls that gives each listed container exactly its ids.

    Kubelet allocates pod by pod, container by container in the pod's order, so a pod's calls stand one after the other in ``calls``.
    """
    wanted = frozenset(device_ids)
    found: list[Identified] = []
    for pod in granted:
        theirs = next((one for one in listed if one.namespace == pod.pod.namespace and one.name == pod.pod.name), None)
        run = _last_run(calls, pod, {} if theirs is None else theirs.containers, resource)
        if run is not None and any(held.device_ids == wanted for held in run.values()):
            found.append(Identified(pod_uid=pod.pod.uid, containers=run))
    if len(found) == 1:
        return found[0]
    ids = ", ".join(sorted(wanted))
    if found:
        uids = ", ".join(sorted(one.pod_uid for one in found))
        return Refusal(kind=RefusalKind.AMBIGUOUS, reason=f"without kubelet's checkpoint, {ids} could be for pods {uids}")
    return Refusal(kind=RefusalKind.UNKNOWN_POD, reason=f"without kubelet's checkpoint, no pod of this node is known to hold {ids}")


def _last_run(
    calls: Sequence[AllocateCall], pod: GrantedPod, listed: Mapping[str, frozenset[str]], resource: str
) -> dict[str, HeldDevices] | None:
    asking = [container for container in pod.containers if container.shares]
    if not asking or not any(listed.values()):
        return None  # nothing that PodResources lists ties the calls to this pod
    for start in range(len(calls) - len(asking), -1, -1):
        run = list(zip(calls[start : start + len(asking)], asking, strict=True))
        if all(_may_be(call, container, listed) for call, container in run):
            return {
                container.container: HeldDevices(
                    pod_uid=pod.pod.uid,
                    container=container.container,
                    resource=resource,
                    device_ids=call.device_ids,
                    cdi_names=(call.name,),
                )
                for call, container in run
            }
    return None


def _may_be(call: AllocateCall, container: ContainerShares, listed: Mapping[str, frozenset[str]]) -> bool:
    if len(call.device_ids) != len(container.shares):
        return False
    return container.kind is ContainerKind.INIT or listed.get(container.container) == call.device_ids


def _shown(ids: frozenset[str] | None) -> str:
    return ", ".join(sorted(ids)) if ids else "nothing"
