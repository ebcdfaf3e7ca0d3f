"""The cluster as the scheduler sees it: takes every change of a node, a pod or the bus, and lets each part know. One way in; it logs.

The parts decide (``inventory``, ``pods``, ``reservations``, ``waking``, ``allocations``); this module only carries what one finds out to the others,
and says aloud, while this replica leads, what others must hear: fences, lapsed reservations, releases. Followers keep the same picture in silence.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

import structlog

from hami_devices.catalog import Catalog
from hami_devices.model import PodRequest
from hami_devices.quota import Allowance, QuotaLimits
from hami_devices.quota_scopes import PodTraits
from hami_protocol.devices import PodRef
from hami_protocol.events import (
    AllocationEvent,
    AllocationFailed,
    AllocationSucceeded,
    AssignmentLapsed,
    DeviceEvent,
    DevicesReported,
    LivenessChanged,
    PodAllocating,
    PodAssigned,
    PodReleased,
    ShareResizeApplied,
    ShareResized,
)
from hami_protocol.kubernetes import Node, Pod, ResourceQuota
from hami_protocol.pods import is_terminal, pod_ref
from hami_protocol.provenance import Provenance
from hami_runtime.clock import Clock
from hami_runtime.telemetry import OFF, Telemetry
from hami_scheduler import allocations, resizing
from hami_scheduler.allocations import GrantLog, Missing
from hami_scheduler.inventory import Fence, Inventory, InventoryChange
from hami_scheduler.locks import Locks
from hami_scheduler.metrics import Metrics
from hami_scheduler.orphans import Orphan, Orphans
from hami_scheduler.overbooking import Overbooking
from hami_scheduler.placement import ClusterState, Phase, Placement, Refusal
from hami_scheduler.pods import Ended, PodChange, PodLedger
from hami_scheduler.presence import UNEXPECTED_ADMISSION_ERROR, Change, Presence
from hami_scheduler.releasing import Releases
from hami_scheduler.reservations import Reservations
from hami_scheduler.resizing import Resizes
from hami_scheduler.verdicts import NORMAL, WARNING, Publish, Record, Verdicts
from hami_scheduler.waking import Waking

log = structlog.get_logger()

RELEASE_GRACE_SECONDS = 10.0
"""How long the agent has to say itself that a pod was released."""
REMEMBERED_RELEASES = 10_000


class Picture:
    """All that is known, and what follows from a change of it.

    Attributes:
        state: the columns and the ledger.
    """

    def __init__(
        self,
        catalog: Catalog,
        clock: Clock,
        *,
        publish: Publish,
        record: Record,
        leading: Callable[[], bool],
        metrics: Metrics,
        hold_seconds: float,
        telemetry: Telemetry = OFF,
    ) -> None:
        self.catalog = catalog
        self.state = ClusterState(catalog)
        self.inventory = Inventory(self.state, catalog)
        self.presence = Presence(self.state, catalog)
        self.overbooking = Overbooking(self.state)
        self.resizes = Resizes()
        self.grants = GrantLog(catalog)
        self.pods = PodLedger(self.state, catalog, self.resizes, logged=self.grants.assignments)
        self.orphans = Orphans(self.state)
        self.quotas = QuotaLimits(catalog.vendors)
        self.reservations = Reservations(longest_seconds=hold_seconds)
        self.waking = Waking(self.state, self.judge)
        self.verdicts = Verdicts(publish, record, clock, telemetry=telemetry)
        self.locks: Locks | None = None
        self._clock = clock
        self._publish = publish
        self._record = record
        self._leading = leading
        self._metrics = metrics
        self._releases = Releases()
        self._provenance = Provenance()
        self.log_losses = 0
        """How often the log has lost messages; after each the leader compares it with the cluster anew."""
        self._log_is_ours = False
        """This replica leads and has said what the log lacked: what comes there from now on and is not known is somebody else's late word."""
        self._told_fences: set[Fence] = set()
        self._released: OrderedDict[str, None] = OrderedDict()
        """By the log."""
        self._over: OrderedDict[str, None] = OrderedDict()
        """By the watch; in an API server that was restored from a backup a pod may be there again."""

    def judge(
        self, pod: PodRef, request: PodRequest, names: Sequence[str], *, ranked: bool = False, reasons: bool = False
    ) -> Placement | Refusal:
        """The best of ``names`` for ``pod``, within what its namespace may have. Changes nothing; see ``ClusterState.judge``."""
        return self.state.judge(request, names, uid=pod.uid, ranked=ranked, reasons=reasons, allowance=self.allowance(pod, request.traits))

    def allowance(self, pod: PodRef, traits: PodTraits) -> Allowance | None:
        """What the namespace of ``pod`` may still have, but for what the pod holds itself; None where no quota is about it."""
        if not self.quotas:
            return None
        return self.quotas.allowance(pod.namespace, self.state.usage(pod.namespace, without=pod.uid), traits)

    def quota_changed(self, old: ResourceQuota | None, new: ResourceQuota | None) -> None:
        """Take one change of a quota."""
        namespace = self.quotas.changed(old, new)
        if namespace is not None:
            self.improved(frozenset(), namespace)

    def node_changed(self, old: Node | None, new: Node | None) -> None:
        """Take one change of a node."""
        node = new or old
        if node is not None:
            name = node.metadata.name
            if new is None:
                self.presence.forget(name)
            self._take(name, self.inventory.node_changed(name, new))
            self._look_for_orphans(name)
            if self.locks is not None:
                self.locks.node_changed(name, new)

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Take one change of a pod."""
        pod = new or old
        if pod is None:
            return
        uid = pod.metadata.uid
        if new is not None and not is_terminal(new):
            self._over.pop(uid, None)
        if new is not None:
            self._look_whether_rejected(new)
        self.reservations.pod_changed(old, new)
        change = self.pods.changed(old, new)
        self._take_record(pod_ref(pod), change)
        if new is None or new.spec.node_name or is_terminal(new):
            self.waking.forget(uid)
        if new is None:
            self.verdicts.forget(uid)
            self.resizes.forget(uid)
        if change.withdrawn is not None:
            self.lapsed(change.withdrawn)
        if change.ended is not None:
            self.reservations.pop(uid)
            self._ended(change.ended)
        self.improved(change.improved, pod.metadata.namespace)
        for node in {each.spec.node_name for each in (old, new) if each is not None and each.spec.node_name}:
            self._look_for_orphans(node)
        if self.locks is not None:
            self.locks.pod_changed(old, new)

    def _look_for_orphans(self, node: str) -> None:
        for orphan in self.orphans.look(node):
            log.warning("card of a pod is gone", pod=str(orphan.pod), node=node, cards=orphan.uuids, memory_mib=orphan.memory_mib)
            self._tell_of_orphan(orphan)

    def _tell_of_orphan(self, orphan: Orphan) -> None:
        if self._leading():
            self._record(orphan.pod, WARNING, "CardGone", str(orphan))

    def _take_record(self, pod: PodRef, change: PodChange) -> None:
        """Report what is wrong with the record of ``pod``."""
        if change.fenced is not None:
            self._fenced(change.fenced)
        if change.recalled is not None:
            self._metrics.unreadable_records.add(1, {"source": "pod"})
            log.warning("pod charged by the log of grants", pod=str(pod), node=change.recalled.node, reason=change.recalled.reason)
            if self._leading():
                message = f"charged by its grant in the log, not by its record: {change.recalled.reason}"
                self._record(pod, WARNING, "RecordUnreadable", message)

    def _look_whether_rejected(self, pod: Pod) -> None:
        """Hold the node of a pod that kubelet could not give what it was bound with, before what it held is given to another."""
        if pod.status.phase != "Failed" or pod.status.reason != UNEXPECTED_ADMISSION_ERROR:
            return
        entry = self.state.entry(pod.metadata.uid)
        if entry is None or entry.node != pod.spec.node_name:
            return  # it has been seen before, or holds nothing
        vendors = [each.vendor for each in entry.assignments]
        for change in self.presence.rejected(entry.node, vendors, str(entry.pod), self._clock.monotonic()):
            self.agent_changed(change)

    def agent_changed(self, change: Change | None) -> None:
        """A node is held since its agent does not serve it, or is held no more."""
        if change is None:
            return
        node, reason = change.key.node, change.reason
        log.info("node held" if reason else "node held no more", node=node, device_type=change.key.device_type, reason=reason)
        if not reason:
            self.improved(frozenset({node}))
        elif self._leading():
            self._record(node, NORMAL if change.announced else WARNING, "NodeHeld", f"takes no new pods now: {reason}")

    def device_event(self, event: DeviceEvent) -> None:
        """Take what the bus says of a node."""
        match event:
            case DevicesReported():
                self._take(event.node, self.inventory.reported(event))
                self._look_for_orphans(event.node)
                self.agent_changed(self.presence.reported(event))
            case LivenessChanged():
                self._take(event.node, self.inventory.liveness_changed(event))

    def allocation_event(self, event: AllocationEvent, event_id: str) -> None:
        """Take one event of the log of grants."""
        if not self._provenance.counts(event):
            log.warning("outcome of another node's agent", pod=str(event.pod), node=event.node, type=type(event).__name__)
            return
        self.grants.observe(event, event_id)
        self.resize_event(event)
        if isinstance(event, ShareResized):
            self.resizes.mark_logged(event)
        if isinstance(event, PodAllocating | ShareResizeApplied):
            change = self.pods.granted(event.pod.uid)
            self._take_record(event.pod, change)
            if change.improved:
                self.improved(change.improved, event.pod.namespace)
        match event:
            case PodReleased():
                self._releases.heard(event.pod.uid)
                _remember(self._released, event.pod.uid)
                self._unlock(event.node, event.pod)
            case PodAssigned() | PodAllocating() if event.pod.uid in self._released:
                missing = allocations.released(event.pod, event.node, "the pod had ended before its grant was said")
                self._releases.expect(missing, due=self._clock.monotonic())  # or the log would end with a pod that holds something
            case PodAllocating() if (
                self._log_is_ours and self.state.entry(event.pod.uid) is None and not self._releases.expects(event.pod.uid)
            ):
                missing = allocations.released(event.pod, event.node, "the pod had ended before its grant was said")
                self._releases.expect(missing, due=self._clock.monotonic() + RELEASE_GRACE_SECONDS)
            case AllocationSucceeded() | AllocationFailed():
                self._unlock(event.node, event.pod)

    def log_lost(self) -> None:
        """The log has lost messages, and is read anew: what was in it counts no more, what the cluster's own record says does."""
        self.grants.forget_all()
        self._log_is_ours = False
        self.log_losses += 1

    def publish_again(self, *, lost: bool) -> None:
        """Publish what no record of the cluster has: resizes under way that were withdrawn with the lease; after a loss all of them, and verdicts."""
        for resize in self.resizes.unanswered(logged=lost):
            self._publish(resize, resizing.event_id(resize))
        if lost:
            self.verdicts.publish_again()

    def resize_event(self, event: AllocationEvent) -> None:
        """Charge what a pod holds now, where ``event`` is about a resize of it."""
        if self.resizes.observe(event) and (freed := self.pods.resized(event.pod)):
            self.improved(freed, event.pod.namespace)

    def improved(self, nodes: frozenset[str], namespace: str = "") -> None:
        """There is more room on ``nodes``; what was released there, or a changed quota, leaves more to the pods of ``namespace`` anywhere."""
        limited = frozenset({namespace}) if namespace and (not nodes or self.quotas.of(namespace)) else frozenset()
        self.waking.improved(nodes, namespaces=limited, now=self._clock.monotonic())

    def lapsed(self, ended: Ended) -> None:
        """A reservation of ours came to nothing; its room is free already. Of a pod that another replica has bound meanwhile nothing is said."""
        reservation = self.reservations.pop(ended.pod.uid)
        if reservation is not None and self._leading() and not self.grants.granted(ended.pod.uid):
            event = AssignmentLapsed(pod=ended.pod, node=ended.node, reason=ended.reason)
            self._publish(event, f"{ended.pod.uid}/lapsed/{reservation.attempt}")
            log.info("reservation lapsed", pod=str(ended.pod), node=ended.node, reason=ended.reason)

    def has_ended(self, uid: str) -> bool:
        """Whether the watch has shown the end of a pod that held something, so that nothing is to be given to it any more."""
        return uid in self._over

    def give_up(self, pod: PodRef, reason: str) -> None:
        """Undo what is reserved or assumed for ``pod``, exactly. What it holds by its own record, bound by whomever, stays."""
        entry = self.state.entry(pod.uid)
        if entry is not None and entry.phase in {Phase.RESERVED, Phase.ASSUMED}:
            self.state.release(pod.uid)
            self.lapsed(Ended(pod=pod, node=entry.node, reason=reason))
            self.improved(frozenset({entry.node}), pod.namespace)
            self._unlock(entry.node, pod)

    def vanished(self, pod: PodRef) -> None:
        """A pod that we have bound is gone, and the watch has shown neither."""
        entry = self.state.release(pod.uid)
        if entry is not None:
            self._ended(Ended(pod=pod, node=entry.node, reason="the pod was deleted"))
            self.improved(frozenset({entry.node}), pod.namespace)

    def unkeep(self, uid: str) -> None:
        """Keep nothing any more of what was to become free for a pod."""
        entry = self.state.entry(uid)
        if entry is not None and entry.phase is Phase.NOMINATED:
            self.state.release(uid)
            self.improved(frozenset({entry.node}), entry.pod.namespace)

    def tend(self, find_pod: Callable[[PodRef], Pod | None]) -> None:
        """What time alone brings: reservations that lapse, releases that nobody has said, cards that turn out to be overbooked."""
        now = self._clock.monotonic()
        for card in self.overbooking.look():
            log.warning("card overbooked", node=card.node, device=card.uuid, detail=card.detail)
            if self._leading():
                message = f"pods hold more of card {card.uuid} than it has: {card.detail}; it takes no new ones until some of them end"
                self._record(card.node, WARNING, "CardOverbooked", message)
        for uid in self.state.expired(now):
            entry = self.state.entry(uid)
            if entry is None:
                continue
            if entry.phase is Phase.NOMINATED:
                self.unkeep(uid)
            elif self.reservations.held(uid, pod=find_pod(entry.pod), now=now):
                self.state.renew(uid, now)
            else:
                self.give_up(entry.pod, "not bound in time")

        def is_seen(ref: PodRef) -> bool:
            """Granted by the leader before, and seen since."""
            pod = find_pod(ref)
            return pod is not None and pod.metadata.uid == ref.uid and bool(pod.spec.node_name) and not is_terminal(pod)

        self._release(self._releases.due(now, unless=is_seen))

    def release_namesakes(self, pod: PodRef) -> None:
        """Do not wait for the agent any longer: ``pod`` gets a word of its own, which would hide the last one on an earlier pod of its name."""
        self._release(self._releases.of_name(pod))

    def _release(self, due: Iterable[Missing]) -> None:
        for missing in due:
            if self._leading():
                self._publish(missing.event, missing.event_id)

    def lead(self, pods: Iterable[Pod]) -> tuple[Missing, ...]:
        """This replica begins to lead: say what the log lacks, and which nodes are fenced. Returns what was said."""
        missing = self.grants.missing(
            pods, reserved=[entry.pod.uid for entry in self.state.entries()], utc_seconds=self._clock.utc().timestamp()
        )
        for each in missing:
            self._publish(each.event, each.event_id)
        for node in self.state.nodes():
            for source, (reason, vendor) in self.state.all_fences(node).items():
                self._tell_of(Fence(node=node, source=source, reason=reason, vendor=vendor))
        for orphan in self.orphans.all():
            self._tell_of_orphan(orphan)
        self._log_is_ours = True
        return missing

    def follow(self) -> None:
        """This replica leads no more."""
        self._log_is_ours = False
        self._told_fences.clear()

    def fenced_nodes(self) -> int:
        """How many nodes take no pods until a record can be read."""
        return sum(1 for node in self.state.nodes() if self.state.fences(node))

    def _take(self, name: str, change: InventoryChange) -> None:
        for fence in change.fenced:
            self._fenced(fence)
        if change.improved:
            self.improved(frozenset({name}))

    def _fenced(self, fence: Fence) -> None:
        self._metrics.unreadable_records.add(1, {"source": "pod" if fence.source.startswith("pod ") else "node"})
        log.warning("node fenced", node=fence.node, source=fence.source, reason=fence.reason)
        self._told_fences.discard(fence)  # a record that broke, was repaired and broke again
        self._tell_of(fence)

    def _tell_of(self, fence: Fence) -> None:
        """An Event for each fence, by whoever leads, once per time of leading."""
        if self._leading() and fence not in self._told_fences:
            self._told_fences.add(fence)
            pods = f"pods for {fence.vendor} devices" if fence.vendor else "pods"
            self._record(fence.node, WARNING, "NodeFenced", f"takes no {pods} until a record can be read: {fence.reason}")

    def _ended(self, ended: Ended) -> None:
        _remember(self._over, ended.pod.uid)
        if ended.pod.uid not in self._released:
            missing = allocations.released(ended.pod, ended.node, ended.reason)
            self._releases.expect(missing, due=self._clock.monotonic() + RELEASE_GRACE_SECONDS)
        self._unlock(ended.node, ended.pod)

    def _unlock(self, node: str, pod: PodRef) -> None:
        if self.locks is not None:
            self.locks.release(node, pod)


def _remember(uids: OrderedDict[str, None], uid: str) -> None:
    uids[uid] = None
    if len(uids) > REMEMBERED_RELEASES:
        uids.popitem(last=False)
