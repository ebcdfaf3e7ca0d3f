"""What must be true of a cluster in which nothing is left to be done. Judged from the API objects, the log and the disks; changes nothing."""

from __future__ import annotations

from typing import Any

from hami_protocol import keys, registration, subjects
from hami_protocol.envelope import EVENT_ID, Message, open_message
from hami_protocol.events import (
    AllocationSucceeded,
    AssignmentLapsed,
    ContainerServed,
    LivenessChanged,
    PodAllocating,
    PodAssigned,
    PodReleased,
)
from hami_protocol.pods import is_terminal, pod_ref
from hami_runtime.kube.store_resources import NODES
from hami_scheduler.placement import Phase, Placement
from hami_scheduler.service import Scheduler
from tests.simulation import shapes
from tests.simulation.town import CATALOG, Town
from tests.simulation.watchdog import GRANTS_IN_ORDER, Seen


def unsettled(town: Town) -> str | None:
    """What is not yet as it must come to be; None where all is well."""
    scheduler = town.leader
    if scheduler is None:
        return "no scheduler leads"
    for seen in town.watchdog.pods.values():
        if (why := _pod_unsettled(town, scheduler, seen)) is not None:
            return f"{seen.pod.metadata.name} {why}"
    if (why := _ledger_differs(town, scheduler)) is not None:
        return why
    for node in town.nodes:
        if (why := _node_unsettled(town, node)) is not None:
            return f"{node.name} {why}"
    if (why := _untold(town)) is not None:
        return why
    pending = {name: agent.outbox.pending for name, agent in town.agents.items() if agent.outbox.pending}
    if pending or scheduler._outbox.pending:
        return f"not said yet: {pending}, by the scheduler {scheduler._outbox.pending}"
    return None


def _pod_unsettled(town: Town, scheduler: Scheduler, seen: Seen) -> str | None:
    pod = seen.pod
    if is_terminal(pod):
        return None
    if pod.metadata.deletion_timestamp is not None:
        return "is still being deleted"
    if seen.node:
        if pod.metadata.uid in town.kubelets[seen.node].swapped:  # it must never start, and its node must not wait for it
            return None if seen.phase in {"success", "failed"} else f"was answered for another pod, and its phase is {seen.phase!r}"
        if seen.allocated and seen.phase != "success":
            return f"is on {seen.node} and its phase is {seen.phase!r}"
        return None if pod.status.phase == "Running" else f"is on {seen.node} and is {pod.status.phase}: {pod.status.container_statuses}"
    if pod.metadata.uid in town.watchdog.hopeless:
        return None
    request = CATALOG.read_pod(pod)
    if not request.asks:
        return "asks for nothing and is not bound"
    names = [node.name for node in town.nodes]
    found = scheduler.picture.judge(pod_ref(pod), request, names)
    return f"fits on {found.node} and is not bound" if isinstance(found, Placement) else None


def _ledger_differs(town: Town, scheduler: Scheduler) -> str | None:
    """The ledger is exactly what the API objects add up to."""
    state = scheduler.picture.state
    state.validate()
    entered = {entry.pod.uid: entry for entry in state.entries()}
    if loose := [entry for entry in entered.values() if entry.phase not in {Phase.BOUND, Phase.SHRUNK}]:
        return f"{loose[0].pod} is only {loose[0].phase} in the ledger"
    charged = {uid for uid, seen in town.watchdog.pods.items() if seen.charge is not None}
    if charged != entered.keys():
        return f"the ledger has {sorted(entered)}, the API server {sorted(charged)}"
    for node in town.nodes:
        for held in state.devices(node.name):
            used = (held.used_shares, held.used_memory_mib, held.used_cores)
            truth = town.watchdog.used.get((node.name, held.device.uuid), (0, 0, 0))
            if used != truth:
                return f"{held.device.uuid}: the ledger has {used} in use, the API server {truth}"
    return None


def _node_unsettled(town: Town, node: shapes.NodeShape) -> str | None:
    name = node.name
    annotations = town.store.get(NODES, name).body["metadata"].get("annotations") or {}
    if keys.NODE_LOCK in annotations:
        return f"is locked: {annotations[keys.NODE_LOCK]}"
    devices = town.agents[name].devices.registered
    registered = annotations.get(keys.register(node.brand.device_type))
    if registered is None or registration.decode(registered) != devices:
        return f"registers {registered}"
    known = town.kubelets[name].ledger.resources.get(node.brand.count)
    if known is None or not known.healthy or known.unhealthy or not all(device.healthy for device in devices):
        return f"has sick cards, or kubelet thinks so: {known}"
    kept = [open_message(message) for message in town.bus.kept(subjects.DEVICES)]
    alive = [event.alive for event in kept if isinstance(event, LivenessChanged) and event.node == name]
    return None if alive == [True] else f"is alive: {alive}"


def _untold(town: Town) -> str | None:
    """What the log of allocations still says wrongly of a pod, taken as a whole: whether it holds something."""
    last: dict[str, str] = {}
    granted: set[str] = set()
    for _, event in _allocations(town):
        if (letter := _LETTERS.get(type(event))) is not None:
            last[event.pod.uid] = letter
            if letter == "G":
                granted.add(event.pod.uid)
    for uid, letter in last.items():
        seen = town.watchdog.pods.get(uid)
        if letter not in ("LR" if seen is None or seen.charge is None else "G"):
            return f"the log's last word on {uid} ({seen and seen.pod.metadata.name}) is {letter}"
    for uid, seen in town.watchdog.pods.items():
        if seen.charge is not None and uid not in granted:
            return f"{seen.pod.metadata.name} ({uid}) holds {seen.allocated}, and its grant was never said"
    return None


def check_log(town: Town) -> None:
    """Everything was published once, and the events of a pod in order; of a log that has lost its tail only ``unsettled`` can judge."""
    if town.lost_tail:
        return
    ids = [message.headers[EVENT_ID] for message in town.bus.kept(subjects.ALLOCATIONS)]
    if len(set(ids)) != len(ids):
        town.watchdog.violated(f"published twice: {sorted(each for each in set(ids) if ids.count(each) > 1)}")
    grants: dict[str, str] = {}
    answered: set[str] = set()
    for message, event in _allocations(town):
        uid = event.pod.uid
        if message.subject.endswith(".grant"):
            grants[uid] = grants.get(uid, "") + _LETTERS.get(type(event), "")
            if isinstance(event, PodAllocating) and uid in answered and _lives(town, uid):
                town.watchdog.violated(f"{event.pod}: granted behind the outcome")
        elif isinstance(event, ContainerServed | AllocationSucceeded):
            answered.add(uid)
    for uid, letters in grants.items():
        if not GRANTS_IN_ORDER.fullmatch(letters):
            town.watchdog.violated(f"{uid}: assigned, lapsed, granted, released in the order {letters}")


def _lives(town: Town, uid: str) -> bool:
    """Whether the pod is there and has not ended: only then does its outcome wait for the grant as long as it takes."""
    seen = town.watchdog.pods.get(uid)
    return seen is not None and not is_terminal(seen.pod)


def _allocations(town: Town) -> list[tuple[Message, Any]]:
    """The log, without what an agent publishes of a pod that is not on its node: readers pass that over."""
    opened = [(message, open_message(message)) for message in town.bus.kept(subjects.ALLOCATIONS)]
    bound = town.watchdog.bound
    return [(message, event) for message, event in opened if subjects.is_grant(message.subject) or bound.get(event.pod.uid) == event.node]


_LETTERS: dict[type, str] = {PodAssigned: "A", AssignmentLapsed: "L", PodAllocating: "G", PodReleased: "R"}
