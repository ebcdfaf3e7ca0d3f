"""Finds a place for a pod that asks for devices, and keeps it: its group first, then what was kept for it, then the best node. No ``await`` in here.

Reading, fitting and reserving are one step, so that two pods are never given the same room. In ``ranked`` mode the nodes' scores are remembered
for ``prioritize`` and nothing is reserved, but for pods of a group, which go where room was found for all of them.
"""

from __future__ import annotations

from hami_devices.catalog import Catalog
from hami_devices.model import PodRequest, Reason
from hami_devices.requests import RequestError
from hami_protocol.devices import PodRef
from hami_protocol.events import PodAssigned
from hami_protocol.kubernetes import Pod
from hami_protocol.pods import pod_ref
from hami_runtime.clock import Clock
from hami_scheduler.gangs import Gangs, group_of
from hami_scheduler.gathering import Gathering
from hami_scheduler.metrics import Metrics
from hami_scheduler.picture import Picture
from hami_scheduler.placement import Phase, Placement, Refusal
from hami_scheduler.placement.filter import priorities
from hami_scheduler.preempting import Preempting
from hami_scheduler.reservations import Reservation
from hami_scheduler.settings import PlacementMode
from hami_scheduler.verdicts import Publish
from hami_scheduler.wire import FilterAnswer

REMEMBERED_RANKINGS = 256


class Placing:
    """Places pods."""

    def __init__(
        self,
        picture: Picture,
        clock: Clock,
        *,
        mode: PlacementMode,
        gangs: Gangs,
        gathering: Gathering,
        preempting: Preempting,
        publish: Publish,
        metrics: Metrics,
    ) -> None:
        self._picture = picture
        self._catalog: Catalog = picture.catalog
        self._clock = clock
        self._mode = mode
        self._gangs = gangs
        self._gathering = gathering
        self._preempting = preempting
        self._publish = publish
        self._metrics = metrics
        self._rankings: dict[str, dict[str, int]] = {}
        self._last_attempt = 0

    def forget(self, uid: str) -> None:
        """The pod is placed."""
        self._rankings.pop(uid, None)

    def place(self, pod: Pod, ref: PodRef, request: PodRequest, names: list[str], size: int | None) -> FilterAnswer:
        """The verdict on a pod that asks for devices; with those of its group, where it has one."""
        if self._picture.has_ended(ref.uid):  # kube-scheduler's own copy of the pod is older than ours
            return FilterAnswer(error=f"pod {ref} has ended")
        group = group_of(pod)
        if group is not None and size != 1:
            if size is None:
                return FilterAnswer(error=f"pod group {group} has not been read yet")
            kept = self._gangs.keep_room(pod, request, names, group=group, size=size, now=self._clock.monotonic())
            if isinstance(kept, Refusal):
                return self._refuse(ref, request, kept, len(names))
            self._call(kept)
        found = self._find(ref, request, names)
        if isinstance(found, Refusal):
            if group is None:
                self._preempting.refused(pod, request, found.failed)
            return self._refuse(ref, request, found, len(names))
        return self._place(ref, request, found, len(names), pinned=group is not None and size != 1)

    def _call(self, members: tuple[PodRef, ...]) -> None:
        """Room is kept for these members of a group: those that were refused before are to come again."""
        entries = [self._picture.state.entry(ref.uid) for ref in members]
        self._picture.improved(frozenset(entry.node for entry in entries if entry is not None))

    def group_size(self, pod: Pod) -> int | None:
        """How many pods must be placed together with this one, itself counted; None while that is not known.

        Raises:
            RequestError: it says so itself, and cannot be read.
        """
        group = group_of(pod)
        return 1 if group is None else self._gathering.size(group, pod)

    def _find(self, ref: PodRef, request: PodRequest, names: list[str]) -> Placement | Refusal:
        """The best of ``names``; before all others the node where others went for the pod."""
        ranked = self._mode is PlacementMode.RANKED
        kept = self._picture.state.entry(ref.uid)
        if kept is not None and kept.phase is Phase.NOMINATED and kept.node in names:
            found = self._picture.judge(ref, request, [kept.node], ranked=ranked)
            if isinstance(found, Placement):
                return found
        return self._picture.judge(ref, request, names, ranked=ranked, reasons=ranked)

    def _refuse(self, ref: PodRef, request: PodRequest, refusal: Refusal, node_count: int) -> FilterAnswer:
        picture = self._picture
        picture.give_up(ref, "the pod fits nowhere any more")
        picture.waking.refused(ref, request, by_quota=Reason.QUOTA in refusal.reasons, now=self._clock.monotonic())
        picture.verdicts.refused(ref, refusal, node_count=node_count)
        self._metrics.verdicts.add(1, {"verdict": "refused"})
        return FilterAnswer(failed=refusal.failed, unresolvable=refusal.unresolvable)

    def _place(self, ref: PodRef, request: PodRequest, placement: Placement, node_count: int, *, pinned: bool) -> FilterAnswer:
        picture = self._picture
        picture.waking.forget(ref.uid)
        picture.verdicts.placed(ref, placement, node_count=node_count)
        self._metrics.verdicts.add(1, {"verdict": "placed"})
        if self._mode is PlacementMode.RANKED and not pinned:
            self._rankings.pop(ref.uid, None)
            self._rankings[ref.uid] = priorities(placement.fitting, request.node_policy)
            if len(self._rankings) > REMEMBERED_RANKINGS:
                del self._rankings[next(iter(self._rankings))]
            names = [name for name, _ in placement.fitting]
            return FilterAnswer(node_names=names, failed=placement.failed, unresolvable=placement.unresolvable)
        self.reserve(ref, placement)
        return FilterAnswer(node_names=[placement.node])

    def reserve(self, ref: PodRef, placement: Placement) -> None:
        """Charge the pod, in place of what was reserved for it before, and say so."""
        picture = self._picture
        now = self._clock.monotonic()
        earlier = picture.state.entry(ref.uid)
        if earlier is not None and earlier.node != placement.node:
            picture.give_up(ref, f"the pod goes to {placement.node} instead")
            picture.unkeep(ref.uid)
        picture.state.reserve(ref, placement, now=now)
        attempt = self._last_attempt = max(self._last_attempt + 1, int(self._clock.utc().timestamp() * 1000))
        picture.reservations.put(Reservation(pod=ref, node=placement.node, attempt=attempt, since_seconds=now))
        event = PodAssigned(pod=ref, node=placement.node, assignments=tuple(placement.assignments))
        picture.release_namesakes(ref)
        self._publish(event, f"{ref.uid}/assigned/{attempt}")

    def scores(self, pod: Pod, names: list[str]) -> dict[str, int]:
        """How much each of ``names`` on which the pod fits is preferred, 0 to 10: as filter judged it, else judged now."""
        remembered = self._rankings.get(pod.metadata.uid)
        if remembered is not None:
            return remembered
        try:
            request = self._catalog.read_pod(pod)
        except RequestError:
            return {}
        if not request.asks:
            return {}
        found = self._picture.judge(pod_ref(pod), request, names, ranked=True)
        return priorities(found.fitting, request.node_policy) if isinstance(found, Placement) else {}
