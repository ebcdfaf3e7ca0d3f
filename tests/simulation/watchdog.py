"""What must hold at every moment, judged from the API objects and from what containers are given; and what must hold when all is quiet.

Independent of the services' own accounting on purpose: annotations are taken apart here, and charges added up, by a few lines of their own.
The first violation ends a run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from hami_node_agent import grant_file
from hami_node_agent.hostfiles import MemoryFiles
from hami_node_agent.needs import HostPaths, folder_name
from hami_protocol import keys
from hami_protocol.devices import ContainerKind, RegisteredDevice
from hami_protocol.kubernetes import Pod
from hami_protocol.pods import containers_in_order, is_terminal
from hami_runtime.kube.cluster import PODS
from hami_runtime.kube.memory import decoded
from hami_runtime.kube.store import Change
from hami_runtime.kube.store_resources import PODS as POD_RESOURCE
from tests.simulation.shapes import CORES, GPU, MEMORY, PERCENT

ALLOCATED = "hami.io/vgpu-devices-allocated"
TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"
PHASES = {"": 0, "allocating": 1, "success": 2, "failed": 2}
GRANTS_IN_ORDER = re.compile(r"([AL]*A[AL]*G|[AL]*)R?")
"""What schedulers say of one pod, over all leaders: assigned and lapsed any number of times, then granted at most once, released last."""

Card = tuple[str, str]
"""Node and UUID."""


@dataclass(frozen=True, slots=True)
class Share:
    """One share as an annotation has it."""

    uuid: str
    memory_mib: int
    cores: int


@dataclass(slots=True)
class Seen:
    """What the API server last had of one pod."""

    pod: Pod
    node: str = ""
    phase: str = ""
    allocated: str | None = None
    left: str | None = None
    shrunk: bool = False
    charge: Mapping[Card, tuple[int, int, int]] | None = None


class Watchdog:
    """Sees every write of a pod and every start of a container."""

    def __init__(self, capacity: Mapping[Card, RegisteredDevice], files: Mapping[str, MemoryFiles], tell: Callable[[str], None]) -> None:
        self.violations: list[str] = []
        self.used: dict[Card, tuple[int, int, int]] = {}
        """By card: shares, MiB and percent of the pods that are bound and not over."""
        self.pods: dict[str, Seen] = {}
        """By UID, those that exist."""
        self.started: Counter[str] = Counter()
        """By UID, how many containers with devices were started."""
        self.hopeless: set[str] = set()
        """UIDs of pods that must never be bound."""
        self._capacity = capacity
        self._files = files
        self._tell = tell

    def violated(self, what: str) -> None:
        """Note it."""
        self._tell(f"VIOLATED {what}")
        self.violations.append(what)

    # Writes

    def saw(self, change: Change) -> None:
        """One write to the store."""
        if change.resource != POD_RESOURCE:
            return
        pod = decoded(PODS, change.now)
        if pod is None:
            self.violated(f"pod {change.now.body['metadata']['name']} cannot be decoded")
            return
        uid = pod.metadata.uid
        seen = self.pods.setdefault(uid, Seen(pod))
        if change.type == "DELETED":
            self._charge(seen, None)
            del self.pods[uid]
            return
        self._check_record(seen, pod)
        seen.pod = pod
        self._charge(seen, self._holds(seen, pod))

    def _check_record(self, seen: Seen, pod: Pod) -> None:
        name, annotations = pod.metadata.name, pod.metadata.annotations
        phase = annotations.get(keys.BIND_PHASE, "")
        if phase != seen.phase:
            if PHASES[phase] <= PHASES[seen.phase]:
                self.violated(f"{name}: bind phase goes from {seen.phase!r} to {phase!r}")
            seen.phase = phase
        node, allocated, left = pod.spec.node_name, annotations.get(ALLOCATED), annotations.get(TO_ALLOCATE)
        if seen.node:
            if (node, allocated) != (seen.node, seen.allocated):
                self.violated(f"{name}: its assignment changed from {seen.node} {seen.allocated} to {node} {allocated}")
            if not _only_emptied(seen.left or "", left or ""):
                self.violated(f"{name}: what is left to allocate goes from {seen.left} to {left}")
        elif node:
            self._check_binding(pod, node, allocated)
        seen.node, seen.allocated, seen.left = node, allocated, left

    def _check_binding(self, pod: Pod, node: str, allocated: str | None) -> None:
        """Nothing is bound without an assignment, and an assignment is exactly what was asked."""
        name = pod.metadata.name
        if pod.metadata.uid in self.hopeless:
            self.violated(f"{name}: bound to {node}, although nobody can read what it asks")
            return
        asked = [one.container.resources.limits or {} for one in containers_in_order(pod)]
        if not any(GPU in limits for limits in asked):
            if allocated:
                self.violated(f"{name}: asks for nothing and is assigned {allocated}")
            return
        if allocated is None or pod.metadata.annotations.get(keys.ASSIGNED_NODE) != node:
            self.violated(f"{name}: bound to {node} with the assignment {allocated} on {pod.metadata.annotations.get(keys.ASSIGNED_NODE)}")
            return
        held = entries(allocated)
        for place, limits in enumerate(asked):
            shares = held[place] if place < len(held) else ()
            if len(shares) != int(limits.get(GPU, 0)) or len({share.uuid for share in shares}) != len(shares):
                self.violated(f"{name}: container {place} asks {limits}, and is assigned {shares}")
            for share in shares:
                card = self._capacity.get((node, share.uuid))
                if card is None:
                    self.violated(f"{name}: assigned {share.uuid}, which {node} does not have")
                elif share.memory_mib != _asked_mib(limits, card.memory_mib) or share.cores != int(limits.get(CORES, share.cores)):
                    self.violated(f"{name}: container {place} asks {limits} of a card of {card.memory_mib} MiB, and is assigned {share}")

    def _holds(self, seen: Seen, pod: Pod) -> Mapping[Card, tuple[int, int, int]] | None:
        """What the pod is to be charged, as the sum of what runs at once at its worst moment to come."""
        if not seen.node or not seen.allocated or is_terminal(pod):
            return None
        containers = containers_in_order(pod)
        ordinary = {one.container.name for one in containers if one.kind is ContainerKind.INIT}
        ended = {
            status.name
            for status in pod.status.init_container_statuses or ()
            if status.state and status.state.terminated and status.state.terminated.exit_code == 0
        }
        seen.shrunk = seen.shrunk or (bool(ordinary) and ordinary <= ended)
        running: Counter[tuple[Card, int]] = Counter()
        peak: Counter[tuple[Card, int]] = Counter()
        for one, shares in zip(containers, entries(seen.allocated), strict=False):
            own: Counter[tuple[Card, int]] = Counter()
            for share in shares:
                for dimension, amount in enumerate((1, share.memory_mib, share.cores)):
                    own[(seen.node, share.uuid), dimension] += amount
            if one.kind is ContainerKind.INIT:
                peak |= running + own
            else:
                running += own
        held = running if seen.shrunk else peak | running
        cards = {card for card, _ in held}
        return {card: (held[card, 0], held[card, 1], held[card, 2]) for card in sorted(cards)}

    def _charge(self, seen: Seen, charge: Mapping[Card, tuple[int, int, int]] | None) -> None:
        if charge == seen.charge:
            return
        for card, amounts in (seen.charge or {}).items():
            before = self.used[card]
            self.used[card] = (before[0] - amounts[0], before[1] - amounts[1], before[2] - amounts[2])
        for card, amounts in (charge or {}).items():
            before = self.used.get(card, (0, 0, 0))
            after = self.used[card] = (before[0] + amounts[0], before[1] + amounts[1], before[2] + amounts[2])
            has = self._capacity.get(card)
            if has is not None and (after[0] > has.shares or after[1] > has.memory_mib or after[2] > has.cores):
                self.violated(
                    f"{card} is oversold by {seen.pod.metadata.name}: {after} shares, MiB, cores of {has.shares}, {has.memory_mib}, {has.cores}"
                )
        seen.charge = charge

    # Starts

    def given(self, pod: Pod, container: str, environment: Mapping[str, str]) -> None:
        """A container is about to start with this environment: it must be held to what was booked for it, and to nothing else."""
        uid, name = pod.metadata.uid, f"{pod.metadata.name}/{container}"
        seen = self.pods.get(uid)
        if seen is None:
            return  # force-deleted: kubelet has not heard of it yet
        places = {one.container.name: place for place, one in enumerate(containers_in_order(pod))}
        held = entries(seen.allocated or "")
        shares = held[places[container]] if places[container] < len(held) else ()
        limits = {key: value for key, value in environment.items() if key.startswith(("CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT"))}
        booked = {f"CUDA_DEVICE_MEMORY_LIMIT_{ordinal}": f"{share.memory_mib}m" for ordinal, share in enumerate(shares)}
        if shares:
            booked["CUDA_DEVICE_SM_LIMIT"] = str(shares[0].cores)
        if limits != booked:
            self.violated(f"{name}: started with {limits}, booked is {booked}")
        if not shares:
            return
        self.started[uid] += 1
        visible = environment.get("NVIDIA_VISIBLE_DEVICES")
        if visible not in ("void", ",".join(dict.fromkeys(share.uuid for share in shares))):
            self.violated(f"{name}: sees {visible}, booked is {shares}")
        self.check_grant_file(pod, container, shares, seen.node)

    def check_grant_file(self, pod: Pod, container: str, shares: Iterable[Share], node: str) -> None:
        """The grant file that the container maps says what was booked."""
        data = self._files[node].contents.get(f"{HostPaths().grants}/{folder_name(pod.metadata.uid, container)}")
        if data is None:
            self.violated(f"{pod.metadata.name}/{container}: has no grant file")
            return
        granted = [(one.uuid, one.sm_percent, one.whole or one.memory_limit_mib) for one in grant_file.decode(data).devices]
        booked = [(share.uuid, share.cores, share.memory_mib) for share in shares]
        for (uuid, percent, limit), share in zip(granted, booked, strict=False):
            whole = self._capacity[node, uuid].memory_mib == share[2] and share[1] == 100
            if (uuid, percent) != share[:2] or (limit is True and not whole) or (limit is not True and limit != share[2]):
                self.violated(f"{pod.metadata.name}/{container}: its grant file says {granted}, booked is {booked}")
        if len(granted) != len(booked):
            self.violated(f"{pod.metadata.name}/{container}: its grant file says {granted}, booked is {booked}")

    def check_running(self) -> None:
        """The grant files of everything that runs are there and unchanged."""
        for uid, seen in self.pods.items():
            if self.started[uid] and seen.pod.status.phase == "Running" and seen.charge:
                running = {status.name for status in seen.pod.status.container_statuses or () if status.state and status.state.running}
                for one, shares in zip(containers_in_order(seen.pod), entries(seen.allocated or ""), strict=False):
                    if shares and one.container.name in running:
                        self.check_grant_file(seen.pod, one.container.name, shares, seen.node)


def entries(text: str) -> list[tuple[Share, ...]]:
    """The shares of each container, by its place."""
    found = []
    for entry in text.split(";")[:-1]:
        fields = [device.split(",") for device in entry.split(":") if device]
        found.append(tuple(Share(uuid, int(memory), int(cores)) for uuid, _, memory, cores in fields))
    return found


def _only_emptied(before: str, after: str) -> bool:
    ours, theirs = before.split(";"), after.split(";")
    return len(ours) == len(theirs) and all(new in ("", old) for old, new in zip(ours, theirs, strict=True))


def _asked_mib(limits: Mapping[str, object], card_mib: int) -> int:
    if limits.get(MEMORY, "0") != "0":
        return int(str(limits[MEMORY]))
    percent = int(str(limits.get(PERCENT, "0"))) or 100
    return max(1, card_mib * percent // 100)
