"""What a pod's annotations become when its node's agent says how its grant went. Pure: events in, commands out.

    allocating --AllocationSucceeded--> success        allocating --AllocationFailed--> failed

Invariants:
- Phases only move forward: what comes after ``success`` or ``failed`` changes nothing, and an event seen twice changes nothing.
- An agent speaks for pods of its own node only.
- ``to-allocate`` only ever loses entries, whatever an agent sends: an entry that is emptied stays so, and events may come out of order.
- What a pod holds is written again after a resize, as its node's agent has carried it out, and of the same devices only.
- The pod that is meant is the one with the UID. What is not known of it is looked up, so that nothing here needs to survive a restart.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from hami_devices import records
from hami_devices.catalog import Catalog
from hami_protocol import assignment, keys, mig
from hami_protocol.devices import PodRef
from hami_protocol.errors import RecordError
from hami_protocol.events import (
    AllocationEvent,
    AllocationFailed,
    AllocationSucceeded,
    ContainerServed,
    PodAllocating,
    PodReleased,
    ShareResizeApplied,
)
from hami_protocol.kubernetes import Pod

ALLOCATING: Final = "allocating"
SUCCESS: Final = "success"
FAILED: Final = "failed"
_FINAL: Final = frozenset({SUCCESS, FAILED})
_REMEMBERED_PODS: Final = 100_000
_MOST_DIGITS: Final = 19
"""Of a generation, which is a number of 64 bits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PatchPod:
    """Merge these annotations into this very pod, then release the node's lock if it is the pod's and nobody of ours holds it."""

    pod: PodRef
    node: str
    annotations: dict[str, str]
    release_lock: bool = False
    may_wait: bool = False
    """Whether nobody waits for it: whoever goes on from here has heard it on the bus."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LookUp:
    """Read the pod, tell ``looked_up``, judge again."""

    pod: PodRef


@dataclass(frozen=True, kw_only=True, slots=True)
class Nothing:
    """There is nothing to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GiveUp:
    """The event can never be carried out."""

    reason: str


Verdict = PatchPod | LookUp | Nothing | GiveUp


@dataclass(slots=True)
class _Known:
    node: str
    phase: str = ""
    to_allocate: dict[str, str] = field(default_factory=dict)
    """By vendor's name: the annotation as it is now."""
    allocated: dict[str, str] = field(default_factory=dict)
    """By vendor's name: what the pod holds, as its annotation says it now."""
    resized: int = 0
    """Generation of the last resize that was written."""
    mig: str = ""
    """The annotation that says where its MIG instances lie."""
    granted: bool = False
    """Whether our scheduler granted it, which then releases the node's lock itself."""


class Phases:
    """What is known of the pods whose grants are being served. Forgetting one only costs a look-up."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._released: OrderedDict[str, None] = OrderedDict()
        """UIDs of pods whose grant is old news, should it be delivered again: what their records say now is looked up."""

    def judge(self, event: AllocationEvent, *, again: bool = False) -> Verdict:
        """What ``event`` asks for.

        Args:
            event: of the log, in its order.
            again: it was delivered before, and may have been carried out together with what came behind it: what it says of its pod may be
                over, and what is remembered may be from before that.
        """
        if again:
            self.forget(event.pod.uid)
        match event:
            case PodAllocating() if again:
                return Nothing()
            case PodAllocating():
                return self._write(event) if event.unwritten else self._granted(event)
            case PodReleased() if (known := self._known.get(event.pod.uid)) is not None and known.node != event.node:
                return GiveUp(reason=f"node {event.node} speaks for a pod of node {known.node or 'none'}")
            case PodReleased():
                self._known.pop(event.pod.uid, None)
                self._released[event.pod.uid] = None
                if len(self._released) > _REMEMBERED_PODS:
                    self._released.popitem(last=False)
                return Nothing()
            case ContainerServed() | AllocationSucceeded() | AllocationFailed():
                return self._judge_outcome(event)
            case ShareResizeApplied():
                return self._judge_resize(event)
            case _:
                return Nothing()

    def _write(self, event: PodAllocating) -> Verdict:
        """The assignment of a pod that another scheduler has bound. Written once: what follows is the agent's word."""
        known = self._known.get(event.pod.uid)
        if known is None:
            return LookUp(pod=event.pod)
        known.granted = True
        if known.phase or known.node != event.node:
            return Nothing()
        known.to_allocate = {given.vendor: assignment.encode(given) for given in event.assignments}
        known.allocated, known.mig = dict(known.to_allocate), records.instances_text(event.assignments)
        annotations = {
            keys.ASSIGNED_NODE: event.node,
            keys.ASSIGNED_TIME: str(event.bind_time_seconds),
            keys.BIND_TIME: str(event.bind_time_seconds),
            keys.BIND_PHASE: ALLOCATING,
            **self._catalog.assignment_annotations(event.assignments),
        }
        return PatchPod(pod=event.pod, node=event.node, annotations=annotations)

    def _granted(self, event: PodAllocating) -> Nothing:
        if known := self._known.get(event.pod.uid):
            known.granted = True
            return Nothing()
        if event.pod.uid in self._released:
            return Nothing()
        texts = {given.vendor: assignment.encode(given) for given in event.assignments}
        mig = records.instances_text(event.assignments)
        self._remember(event.pod.uid, _Known(node=event.node, to_allocate=texts, allocated=dict(texts), mig=mig, granted=True))
        return Nothing()

    def looked_up(self, pod: Pod) -> None:
        """The pod as the API server has it."""
        annotations = pod.metadata.annotations
        texts = {v.name: annotations[v.to_allocate_key] for v in self._catalog.vendors if v.to_allocate_key in annotations}
        allocated = {v.name: annotations[v.allocated_key] for v in self._catalog.vendors if v.allocated_key in annotations}
        node = pod.spec.node_name or annotations.get(keys.ASSIGNED_NODE, "")
        granted = (before := self._known.get(pod.metadata.uid)) is not None and before.granted
        known = _Known(
            node=node,
            phase=annotations.get(keys.BIND_PHASE, ""),
            to_allocate=texts,
            allocated=allocated,
            resized=_generation(annotations.get(keys.RESIZE_GENERATION, "")),
            mig=annotations.get(keys.MIG_ALLOCATIONS, ""),
            granted=granted,
        )
        self._remember(pod.metadata.uid, known)

    def _remember(self, uid: str, known: _Known) -> None:
        self._known[uid] = known
        self._known.move_to_end(uid)
        while len(self._known) > _REMEMBERED_PODS:
            self._known.popitem(last=False)

    def _judge_outcome(self, event: ContainerServed | AllocationSucceeded | AllocationFailed) -> Verdict:
        known = self._known.get(event.pod.uid)
        if known is None:
            return LookUp(pod=event.pod)
        if known.node != event.node:
            return GiveUp(reason=f"node {event.node} speaks for a pod of node {known.node or 'none'}")
        if known.phase in _FINAL:
            return Nothing()
        match event:
            case ContainerServed():
                return self._serve(event, known)
            case AllocationSucceeded():
                annotations = {keys.BIND_PHASE: SUCCESS}
                for vendor, text in known.to_allocate.items():
                    if (key := self._catalog.vendor(vendor).to_allocate_key) and (emptied := all_emptied(text)) not in {None, text}:
                        annotations[key] = emptied or ""
                if event.mig_allocations and same_instances(known.mig, event.mig_allocations):
                    annotations[keys.MIG_ALLOCATIONS] = event.mig_allocations
            case AllocationFailed():
                annotations = {keys.BIND_PHASE: FAILED}
        may_wait = known.granted and isinstance(event, AllocationSucceeded)
        return PatchPod(pod=event.pod, node=event.node, annotations=annotations, release_lock=not known.granted, may_wait=may_wait)

    def _judge_resize(self, event: ShareResizeApplied) -> Verdict:
        """The sizes that hold now, on the same cards. The record has the generation too: one that is delivered again, late, changes nothing."""
        known = self._known.get(event.pod.uid)
        if known is None:
            return LookUp(pod=event.pod)
        if known.node != event.node:
            return GiveUp(reason=f"node {event.node} speaks for a pod of node {known.node or 'none'}")
        if event.generation <= known.resized:
            return Nothing()
        annotations = {keys.RESIZE_GENERATION: str(event.generation)}
        for given in event.assignments:
            text = assignment.encode(given)
            current = known.allocated.get(given.vendor, "")
            if not same_cards(current, text):
                return GiveUp(reason=f"node {event.node} resizes other devices of {given.vendor[:64]} than the pod holds")
            if text != current:
                annotations[self._catalog.vendor(given.vendor).allocated_key] = text
        return PatchPod(pod=event.pod, node=event.node, annotations=annotations)

    def _serve(self, event: ContainerServed, known: _Known) -> Verdict:
        text = known.to_allocate.get(event.vendor)
        if text is None:
            return GiveUp(reason=f"container {event.container} was served devices of {event.vendor[:64]}, of which the pod holds none")
        try:
            merged = without_served(text, event.to_allocate)
        except RecordError as exc:
            return GiveUp(reason=str(exc))
        if merged == text:
            return Nothing()
        key = self._catalog.vendor(event.vendor).to_allocate_key
        return PatchPod(pod=event.pod, node=event.node, annotations={key: merged}) if key else Nothing()

    def patched(self, command: PatchPod) -> None:
        """``command`` was carried out."""
        if known := self._known.get(command.pod.uid):
            known.phase = command.annotations.get(keys.BIND_PHASE, known.phase)
            known.resized = _generation(command.annotations.get(keys.RESIZE_GENERATION, "")) or known.resized
            for vendor in self._catalog.vendors:
                if (text := command.annotations.get(vendor.to_allocate_key)) is not None:
                    known.to_allocate[vendor.name] = text
                if (text := command.annotations.get(vendor.allocated_key)) is not None:
                    known.allocated[vendor.name] = text

    def forget_all(self) -> None:
        """Another replica has led meanwhile."""
        self._known.clear()

    def forget(self, uid: str) -> None:
        """Whatever is known of a pod is in doubt: look it up the next time."""
        self._known.pop(uid, None)


def without_served(current: str, served: str) -> str:
    """``current`` with the entries emptied that are empty in ``served``. Nothing else of ``served`` is used.

    Raises:
        RecordError: the two are not about equally many containers.
    """
    ours, theirs = current.split(";"), served.split(";")
    if len(ours) != len(theirs):
        raise RecordError("pod assignment", 0, f"entries for {len(theirs) - 1} containers; accepted: {len(ours) - 1}")
    return ";".join(mine if other else "" for mine, other in zip(ours, theirs, strict=True))


def same_instances(granted: str, identified: str) -> bool:
    """Whether an agent says what the granted MIG instances are, and of no others."""
    try:
        ours, theirs = mig.decode(granted), mig.decode(identified)
    except RecordError:
        return False
    return {(e.container, e.device, e.gpu, e.instance) for e in ours} == {(e.container, e.device, e.gpu, e.instance) for e in theirs}


def same_cards(one: str, other: str) -> bool:
    """Whether two assignments, as annotations have them, are of the same devices in the same containers."""
    try:
        ours, theirs = assignment.decode_entries(one), assignment.decode_entries(other)
    except RecordError:
        return False
    return [[share.uuid for share in entry] for entry in ours] == [[share.uuid for share in entry] for entry in theirs]


def all_emptied(text: str) -> str | None:
    """``text`` with every entry emptied; None where it cannot be read, and so must be left as it is."""
    try:
        return ";" * len(assignment.decode_entries(text))
    except RecordError:
        return None


def _generation(text: str) -> int:
    """The generation that a record has; 0 for none, and for what is no number."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else 0
