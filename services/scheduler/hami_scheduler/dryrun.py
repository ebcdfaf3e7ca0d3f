"""Filter's dry-run form: the request brings whole Node objects, and nothing is reserved (an autoscaler asks "would it fit on such a node?").

An autoscaler asks pod by pod, and packs several pods onto one template node. So what was answered a moment ago counts: a pod that was told to go to a
node of that name holds its share there for ``REMEMBERED_SECONDS``, or until it is asked about again. Pods of the cluster count on nodes of the
cluster. A node that registers nothing, as a template made from labels alone, is taken to have the devices of a node with the same
``node.kubernetes.io/instance-type``. The cluster's own state is never changed.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from msgspec import Raw

from hami_devices.catalog import Catalog
from hami_devices.requests import RequestError
from hami_protocol.devices import PodRef, VendorAssignment
from hami_protocol.kubernetes import Node, Pod
from hami_protocol.pods import pod_ref
from hami_scheduler.inventory import Inventory
from hami_scheduler.placement import ClusterState, Phase, Refusal
from hami_scheduler.verdicts import INVALID_REQUEST
from hami_scheduler.wire import FilterAnswer, NodeItems, WireError, decode_node

REMEMBERED_SECONDS: Final = 60.0
MOST_REMEMBERED: Final = 5000
INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"


@dataclass(frozen=True, slots=True)
class _Answered:
    pod: PodRef
    node: str
    assignments: tuple[VendorAssignment, ...]
    at_seconds: float


class DryRuns:
    """Answers, and what was answered lately."""

    def __init__(self, catalog: Catalog, inventory: Inventory, cluster: ClusterState) -> None:
        """Take the cluster's nodes from ``inventory`` and its pods from ``cluster``."""
        self._catalog = catalog
        self._inventory = inventory
        self._cluster = cluster
        self._answered: OrderedDict[str, _Answered] = OrderedDict()
        """By UID, the oldest first."""

    def filter_nodes(self, pod: Pod, nodes: NodeItems, *, pinned: bool, now: float) -> FilterAnswer:
        """Which of ``nodes`` would take ``pod``; only the best of them where ``pinned``. ``now`` is monotonic seconds."""
        items: dict[str, Raw] = {}
        state = ClusterState(self._catalog)
        inventory = Inventory(state, self._catalog)
        try:
            for item in nodes.items or ():
                node = decode_node(item)
                items[node.metadata.name] = item
                self._add(node, state, inventory)
            request = self._catalog.read_pod(pod)
        except WireError as exc:
            return FilterAnswer(error=str(exc))
        except RequestError:
            return FilterAnswer(nodes=(), unresolvable=dict.fromkeys(items, INVALID_REQUEST))
        if not request.asks:
            return FilterAnswer(nodes=tuple(items.values()))
        ref = pod_ref(pod)
        self._charge(state, without=ref.uid, now=now)
        found = state.judge(request, list(items), uid=ref.uid, ranked=not pinned)
        if isinstance(found, Refusal):
            return FilterAnswer(nodes=(), failed=found.failed, unresolvable=found.unresolvable)
        if pinned:
            self._remember(_Answered(ref, found.node, tuple(found.assignments), now))
        fitting = [found.node] if pinned else [name for name, _ in found.fitting]
        return FilterAnswer(nodes=tuple(items[name] for name in fitting), failed=found.failed, unresolvable=found.unresolvable)

    def _add(self, node: Node, state: ClusterState, inventory: Inventory) -> None:
        name = node.metadata.name
        inventory.node_changed(name, node)
        kind = node.metadata.labels.get(INSTANCE_TYPE, "")
        if kind and state.number(name) is None and not state.fences(name):
            state.upsert_node(name, self._inventory.devices_of_kind(INSTANCE_TYPE, kind))

    def _charge(self, state: ClusterState, *, without: str, now: float) -> None:
        """Charge what pods of the cluster hold on the nodes of ``state``, and what was answered lately."""
        while self._answered and next(iter(self._answered.values())).at_seconds + REMEMBERED_SECONDS <= now:
            self._answered.popitem(last=False)
        for name in state.nodes():
            for entry in self._cluster.entries_on(name):
                if entry.phase is not Phase.NOMINATED and entry.pod.uid != without:
                    state.charge(entry.pod, name, entry.assignments, shrunk=entry.phase is Phase.SHRUNK)
        for uid, each in self._answered.items():
            if uid != without and state.number(each.node) is not None and state.entry(uid) is None:
                state.charge(each.pod, each.node, each.assignments, shrunk=False)

    def _remember(self, answered: _Answered) -> None:
        self._answered.pop(answered.pod.uid, None)
        self._answered[answered.pod.uid] = answered
        if len(self._answered) > MOST_REMEMBERED:
            self._answered.popitem(last=False)
