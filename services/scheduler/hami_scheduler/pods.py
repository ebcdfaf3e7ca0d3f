"""What each pod holds, as its own record says: decides what a change of a pod does to the ledger. No I/O.

A bound pod is charged from its allocated annotations until it is terminal or gone, terminating or not; release goes by UID alone.
While it is unbound, its annotations count only if another HAMi scheduler wrote them (phase ``allocating``) and this scheduler was
never asked about it: what we reserve is kept in the ledger, and a stale annotation is not a second charge. A record that cannot be read
fences the node of the pod until it is repaired or the pod is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec import Struct

from hami_devices import requests
from hami_devices.catalog import Catalog
from hami_devices.quota_scopes import traits_of
from hami_protocol import keys
from hami_protocol.devices import ContainerKind, PodRef, VendorAssignment
from hami_protocol.errors import RecordError
from hami_protocol.kubernetes import Pod
from hami_protocol.pods import containers_in_order, is_terminal, pod_ref
from hami_scheduler.inventory import Fence
from hami_scheduler.placement import ClusterState, Phase
from hami_scheduler.resizing import Resizes

ALLOCATING = "allocating"
_BEING_BOUND = frozenset({Phase.ASSUMED, Phase.BOUND})


class Ended(Struct, frozen=True, kw_only=True):
    """A pod that was on a node and holds nothing any more."""

    pod: PodRef
    node: str
    reason: str


class PodChange(Struct, frozen=True, kw_only=True):
    """What a change of a pod came to."""

    improved: frozenset[str] = frozenset()
    """Nodes with more room than before."""
    fenced: Fence | None = None
    recalled: Fence | None = None
    """The record of the pod is unreadable or gone; it is charged by the log, and its node is not fenced."""
    ended: Ended | None = None
    withdrawn: Ended | None = None
    """A reservation of ours that came to nothing: the pod is gone, over, or bound elsewhere."""


@dataclass(slots=True)
class _Charged:
    """What the ledger holds because of a pod's record."""

    node: str
    record: tuple[str, ...]
    """The texts that were read, so that they are read once."""
    shrunk: bool
    assignments: tuple[VendorAssignment, ...]


class PodLedger:
    """Feeds ``ClusterState`` with what pods hold according to their own records."""

    def __init__(
        self,
        state: ClusterState,
        catalog: Catalog,
        resizes: Resizes | None = None,
        *,
        logged: Callable[[str, str], tuple[VendorAssignment, ...]] = lambda _uid, _node: (),
    ) -> None:
        """Feed ``state``; ``logged`` returns what the log of grants has of a UID on a node, empty for nothing."""
        self._state = state
        self._logged = logged
        self._resizes = resizes or Resizes()
        self._catalog = catalog
        self._record_keys = tuple(sorted({vendor.allocated_key for vendor in catalog.vendors}))
        self._charged: dict[str, _Charged] = {}
        self._fences: dict[str, Fence] = {}
        self._unread: dict[str, Pod] = {}
        """By UID, bound pods that ask for devices and have no record that can be read."""
        self._foreign: set[str] = set()
        """Charged by another scheduler's word, and not bound."""
        self._asked: set[str] = set()
        self._adopted: set[str] = set()
        """Bound by others without a record, and charged by us; theirs is on its way."""

    def asked(self, uid: str) -> None:
        """Filter was asked about this pod: kube-scheduler's cycle here decides from now on, not what is written on an unbound pod."""
        self._asked.add(uid)
        if uid in self._foreign:
            self._foreign.discard(uid)
            self._charged.pop(uid, None)
            self._state.release(uid)

    def has_record(self, pod: Pod) -> bool:
        """Whether anybody has written on ``pod`` what it holds."""
        return bool(self._record(pod))

    def adopted(self, uid: str) -> None:
        """The pod, which another scheduler has bound without a record, is charged by us; its record is being written."""
        self._adopted.add(uid)

    def charged(self, uid: str) -> bool:
        """Whether the watch has shown the pod with what it holds."""
        return uid in self._charged

    def changed(self, old: Pod | None, new: Pod | None) -> PodChange:
        """Take one change of a pod; ``new`` None where it is gone. A namesake with another UID comes as a deletion, then an addition."""
        if new is None:
            return PodChange() if old is None else self._forget(old, "the pod was deleted")
        if is_terminal(new):
            return self._release(new, f"the pod is {new.status.phase}")
        if new.spec.node_name:
            return self._bound(new)
        return self._unbound(new)

    def granted(self, uid: str) -> PodChange:
        """The log has a grant of the pod: where its record is missing or unreadable, that is charged instead."""
        pod = self._unread.get(uid)
        return PodChange() if pod is None else self._bound(pod)

    def resized(self, pod: PodRef) -> frozenset[str]:
        """A resize of the pod has begun or ended: charge what it holds now. Nodes with more room than before."""
        charged, entry = self._charged.get(pod.uid), self._state.entry(pod.uid)
        if charged is None or entry is None:
            return frozenset()  # charged when the pod is seen
        self._state.charge(pod, charged.node, self._resizes.charged(pod.uid, charged.assignments), shrunk=charged.shrunk)
        return frozenset({charged.node})

    @property
    def fences(self) -> dict[str, str]:
        """By UID, the node that the pod's unreadable record fences."""
        return {uid: fence.node for uid, fence in self._fences.items()}

    def _bound(self, pod: Pod) -> PodChange:
        uid, node = pod.metadata.uid, pod.spec.node_name
        record = self._record(pod)
        if not record and uid in self._adopted:
            return PodChange()
        self._adopted.discard(uid)
        shrunk = init_is_over(pod)
        earlier = self._charged.get(uid)
        if earlier is not None and earlier.record == record and earlier.node == node:
            self._recount(pod, earlier)
            return self._maybe_shrink(uid, earlier, shrunk=shrunk)
        try:
            assignments = self._catalog.read_assignments(pod)
        except RecordError as exc:
            return self._from_log(pod, record, shrunk=shrunk, reason=str(exc)) or self._fence(pod, node, str(exc))
        if not record:  # bound without an assignment: what it uses of a device, nobody has granted
            removed = "its record was removed"
            return self._from_log(pod, record, shrunk=shrunk, reason=removed) or self._withdraw_elsewhere(pod)
        change = self._withdraw_elsewhere(pod)
        unfenced = self._unfence(uid)
        self._charge(pod, node, assignments, record, shrunk=shrunk)
        return PodChange(improved=change.improved | unfenced, withdrawn=change.withdrawn)

    def _from_log(self, pod: Pod, record: tuple[str, ...], *, shrunk: bool, reason: str) -> PodChange | None:
        """Charge the pod by its grant in the log, in place of its record; None where the log has none on this node."""
        uid, node = pod.metadata.uid, pod.spec.node_name
        assignments = self._logged(uid, node)
        if not assignments:
            if record or any(requests.asked_vendors(self._catalog.vendors, each.container) for each in containers_in_order(pod)):
                self._unread[uid] = pod
            return None
        change = self._withdraw_elsewhere(pod)
        unfenced = self._unfence(uid)
        self._charge(pod, node, assignments, record, shrunk=shrunk)
        recalled = Fence(node=node, source=f"pod {uid}", reason=f"pod {pod_ref(pod)}: {reason}")
        return PodChange(improved=change.improved | unfenced, withdrawn=change.withdrawn, recalled=recalled)

    def _unbound(self, pod: Pod) -> PodChange:
        uid = pod.metadata.uid
        annotations = pod.metadata.annotations
        node = annotations.get(keys.ASSIGNED_NODE, "")
        record = self._record(pod)
        if uid in self._asked or not node or not record or annotations.get(keys.BIND_PHASE) != ALLOCATING:
            return self._withdraw_foreign(uid)
        earlier = self._charged.get(uid)
        if earlier is not None and earlier.record == record and earlier.node == node:
            return PodChange()
        try:
            assignments = self._catalog.read_assignments(pod)
        except RecordError:
            return PodChange()  # nothing runs by it; whoever binds the pod writes its record anew
        self._charge(pod, node, assignments, record, shrunk=False)
        self._foreign.add(uid)
        return PodChange()

    def _record(self, pod: Pod) -> tuple[str, ...]:
        """The pod's record, key and text in turn; nothing where it has none. The texts are the annotations' own, not copies."""
        annotations = pod.metadata.annotations
        return tuple(part for key in self._record_keys if (text := annotations.get(key)) for part in (key, text))

    def _charge(self, pod: Pod, node: str, assignments: tuple[VendorAssignment, ...], record: tuple[str, ...], *, shrunk: bool) -> None:
        self._foreign.discard(pod.metadata.uid)
        uid = pod.metadata.uid
        held = self._resizes.charged(uid, assignments)
        entry = self._state.entry(uid)
        if not shrunk and entry is not None and entry.phase in _BEING_BOUND and (entry.node, entry.assignments) == (node, held):
            self._state.confirm(uid)  # by our own Binding: it is charged already, and what was judged of its node stays true
        else:
            self._state.charge(pod_ref(pod), node, held, shrunk=shrunk, traits=traits_of(pod))
        self._charged[uid] = _Charged(node, record, shrunk, assignments)

    def _recount(self, pod: Pod, charged: _Charged) -> None:
        """Count the pod against other quotas where it has got a deadline since."""
        entry, traits = self._state.entry(pod.metadata.uid), traits_of(pod)
        if entry is not None and entry.traits != traits:
            self._state.charge(entry.pod, charged.node, entry.assignments, shrunk=charged.shrunk, traits=traits)

    def _maybe_shrink(self, uid: str, charged: _Charged, *, shrunk: bool) -> PodChange:
        if not shrunk or charged.shrunk:
            return PodChange()
        self._state.shrink(uid)
        charged.shrunk = True
        return PodChange(improved=frozenset({charged.node}))

    def _fence(self, pod: Pod, node: str, reason: str) -> PodChange:
        uid = pod.metadata.uid
        fence = Fence(node=node, source=f"pod {uid}", reason=f"pod {pod_ref(pod)}: {reason}")
        if self._fences.get(uid) == fence:
            return PodChange()
        self._fences[uid] = fence
        self._state.fence(node, fence.source, fence.reason)  # what was charged before stays charged
        return PodChange(fenced=fence)

    def _unfence(self, uid: str) -> frozenset[str]:
        self._unread.pop(uid, None)
        fence = self._fences.pop(uid, None)
        if fence is None:
            return frozenset()
        self._state.unfence(fence.node, fence.source)
        return frozenset({fence.node})

    def _withdraw_elsewhere(self, pod: Pod) -> PodChange:
        """Drop our own reservation where the pod was bound to another node, or without it. What ran by a record stays, also without it."""
        uid = pod.metadata.uid
        entry = self._state.entry(uid)
        if entry is None or uid in self._charged or (entry.node == pod.spec.node_name and self._record(pod)):
            return PodChange()
        self._state.release(uid)
        withdrawn = Ended(pod=pod_ref(pod), node=entry.node, reason=f"the pod was bound to {pod.spec.node_name} by another hand")
        return PodChange(improved=frozenset({entry.node}), withdrawn=withdrawn)

    def _release(self, pod: Pod, reason: str) -> PodChange:
        uid = pod.metadata.uid
        unfenced = self._unfence(uid)
        self._foreign.discard(uid)
        self._adopted.discard(uid)
        bound = self._charged.pop(uid, None) is not None or bool(pod.spec.node_name)
        entry = self._state.release(uid)
        if entry is None:
            return PodChange(improved=unfenced)
        ended = Ended(pod=pod_ref(pod), node=entry.node, reason=reason)
        improved = unfenced | {entry.node}
        bound = bound or entry.phase in {Phase.BOUND, Phase.SHRUNK}  # by us, and gone before the watch has shown it
        return PodChange(improved=improved, ended=ended) if bound else PodChange(improved=improved, withdrawn=ended)

    def _withdraw_foreign(self, uid: str) -> PodChange:
        """The other scheduler has taken its word back."""
        if uid not in self._foreign:
            return PodChange()
        self._foreign.discard(uid)
        self._charged.pop(uid, None)
        entry = self._state.release(uid)
        return PodChange() if entry is None else PodChange(improved=frozenset({entry.node}))

    def _forget(self, pod: Pod, reason: str) -> PodChange:
        change = self._release(pod, reason)
        self._asked.discard(pod.metadata.uid)
        return change


def init_is_over(pod: Pod) -> bool:
    """Whether every ordinary init container has ended well, so that only sidecars and app containers hold devices from now on.

    False for a pod without any: nothing is over, and what it holds does not change.

    A sidecar says nothing here: one that crashes in a loop is terminated now and then, also with exit code 0 (HAMi#2723).
    """
    ordinary = {placed.container.name for placed in containers_in_order(pod) if placed.kind is ContainerKind.INIT}
    ended = {
        status.name
        for status in pod.status.init_container_statuses or ()
        if status.state is not None and status.state.terminated is not None and status.state.terminated.exit_code == 0
    }
    return bool(ordinary) and ordinary <= ended
