"""What is where, as the scheduler believes: bound pods, pods assumed there, and pods that wait for a nominated node. No I/O.

Invariant: a pod counts on at most one node, and a node's load is the sum of its pods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hami_rig.scheduler import fit
from hami_rig.scheduler.objects import SchedulingPod
from hami_rig.scheduler.preemption import priority


class Inventory:
    """Pods by node, with each node's load kept up to date."""

    def __init__(self) -> None:
        self._node_of: dict[str, str] = {}
        self._pods: dict[str, dict[str, SchedulingPod]] = {}
        self._loads: dict[str, fit.NodeLoad] = {}
        self._assumed: set[str] = set()
        self._nominated: dict[str, tuple[str, SchedulingPod]] = {}

    def place(self, pod: SchedulingPod, node: str) -> bool:
        """A pod is bound to ``node``; whether that is news."""
        uid = pod.metadata.uid
        known = self._node_of.get(uid) == node and uid not in self._assumed
        self._put(pod, node)
        self._assumed.discard(uid)
        self._nominated.pop(uid, None)
        return not known

    def assume(self, pod: SchedulingPod, node: str) -> None:
        """A pod is being bound to ``node``: from here on it counts there."""
        self._put(pod, node)
        self._assumed.add(pod.metadata.uid)

    def is_assumed(self, uid: str) -> bool:
        """Whether the pod is being bound."""
        return uid in self._assumed

    def forget(self, uid: str) -> bool:
        """The bind failed; whether the pod was still only assumed."""
        if uid not in self._assumed:
            return False
        self._take(uid)
        return True

    def remove_pod(self, uid: str) -> bool:
        """The pod is gone or has ended; whether it had counted anywhere."""
        self._nominated.pop(uid, None)
        return self._take(uid)

    def load(self, node: str, *, besides: SchedulingPod) -> fit.NodeLoad:
        """The load of ``node`` as ``besides`` must reckon with it: pods nominated there count unless theirs is the lower priority."""
        load = self._loads.get(node) or fit.NodeLoad()
        waiting = [
            pod
            for uid, (nominated, pod) in self._nominated.items()
            if nominated == node and uid != besides.metadata.uid and priority(pod) >= priority(besides)
        ]
        if not waiting:
            return load
        with_waiting = fit.NodeLoad(requested=dict(load.requested), pods=load.pods)
        for pod in waiting:
            with_waiting.add(fit.pod_requests(pod))
        return with_waiting

    def pods_by_node(self) -> Mapping[str, Sequence[SchedulingPod]]:
        """Every node's pods."""
        return {node: tuple(pods.values()) for node, pods in self._pods.items()}

    def nominate(self, pod: SchedulingPod, node: str) -> None:
        """Room is being made for the pod on ``node``."""
        self._nominated[pod.metadata.uid] = (node, pod)

    def unnominate(self, uid: str) -> None:
        """The pod waits for no node any more."""
        self._nominated.pop(uid, None)

    def nominated_node(self, uid: str) -> str:
        """The node that the pod waits for, or an empty text."""
        return self._nominated[uid][0] if uid in self._nominated else ""

    def has_terminating_victim(self, node: str, below: int) -> bool:
        """Whether a pod of a priority under ``below`` is just going from ``node``."""
        return any(pod.metadata.deletion_timestamp and priority(pod) < below for pod in self._pods.get(node, {}).values())

    def _put(self, pod: SchedulingPod, node: str) -> None:
        self._take(pod.metadata.uid)
        self._node_of[pod.metadata.uid] = node
        self._pods.setdefault(node, {})[pod.metadata.uid] = pod
        self._loads.setdefault(node, fit.NodeLoad()).add(fit.pod_requests(pod))

    def _take(self, uid: str) -> bool:
        node = self._node_of.pop(uid, None)
        self._assumed.discard(uid)
        if node is None:
            return False
        pod = self._pods[node].pop(uid)
        self._loads[node].add(fit.pod_requests(pod), -1)
        return True
