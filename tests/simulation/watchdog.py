"""What must hold at every moment, judged from the API objects and from what containers are given; and what must hold when all is quiet.

Independent of the services' own accounting on purpose: annotations are taken apart here, and charges added up, by a few lines of their own.
The first violation ends a run.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hami_node_agent import grant_file
from hami_node_agent.hostfiles import MemoryFiles
from hami_node_agent.mig_hardware import FakeMig
from hami_node_agent.needs import HostPaths, folder_name
from hami_protocol import keys
from hami_protocol.devices import ContainerKind, RegisteredDevice
from hami_protocol.kubernetes import Pod
from hami_protocol.pods import containers_in_order, is_terminal
from hami_protocol.resize import ResizeRequest
from hami_runtime.kube.cluster import PODS
from hami_runtime.kube.memory import decoded
from hami_runtime.kube.store import Change
from hami_runtime.kube.store_resources import PODS as POD_RESOURCE
from tests.simulation.settings import QUOTA, Settings
from tests.simulation.shapes import BRANDS, MEMORY, NVIDIA, Brand

WHOLE_PERCENT = 100
MIG_ALLOCATIONS = "hami.io/vgpu-mig-allocations"
PHASES = {"": 0, "allocating": 1, "success": 2, "failed": 2}
GRANTS_IN_ORDER = re.compile(r"([AL]*A[AL]*G|[AL]*)R?")
"""What schedulers say of one pod, over all leaders: assigned and lapsed any number of times, then granted at most once, released last."""

Card = tuple[str, str]
"""Node and UUID."""
Amounts = tuple[int, int, int]
"""Shares, MiB and percent of compute."""


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
    brand: Brand
    """Whose cards it asks for."""
    node: str = ""
    phase: str = ""
    allocated: str | None = None
    left: str | None = None
    shrunk: bool = False
    charge: Mapping[Card, Amounts] | None = None
    totals: Amounts = (0, 0, 0)
    """What counts against a quota."""
    sizes_mib: set[int] = field(default_factory=set)
    """Memory that a share of it may have while resizes are under way; empty where none was ever asked."""
    sizes_cores: set[int] = field(default_factory=set)

    @property
    def resizable(self) -> bool:
        """Whether other sizes may be asked for."""
        return bool(self.allocated) and self.brand.shimmed and self.pod.status.phase == "Running"

    def shimmed(self, cut: Container[str]) -> bool:
        """Whether the C library holds its containers: not on a node among ``cut``, whose instances do."""
        return self.brand.shimmed and self.node not in cut

    def may_be(self, share: Share, booked: Share) -> bool:
        """Whether ``share`` is ``booked``, or what a resize makes of it or made it of."""
        resized = share.memory_mib in self.sizes_mib and share.cores in self.sizes_cores
        return share.uuid == booked.uuid and (share == booked or resized)


class Watchdog:
    """Sees every write of a pod and every start of a container."""

    def __init__(
        self,
        capacity: Mapping[Card, RegisteredDevice],
        files: Mapping[str, MemoryFiles],
        instances: Mapping[str, FakeMig],
        tell: Callable[[str], None],
        settings: Settings,
    ) -> None:
        self.violations: list[str] = []
        self.used: dict[Card, tuple[int, int, int]] = {}
        """By card: shares, MiB and percent of the pods that are bound and not over."""
        self.pods: dict[str, Seen] = {}
        """By UID, those that exist."""
        self.bound: dict[str, str] = {}
        """By UID, the node that a pod is on, or was."""
        self.started: Counter[str] = Counter()
        """By UID, how many containers with devices were started."""
        self.hopeless: set[str] = set()
        """UIDs of pods that must never be bound."""
        self._capacity = capacity
        self._files = files
        self._instances = instances
        self._tell = tell
        self._settings = settings
        self._highest_priority = 0

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
        seen = self.pods.setdefault(uid, Seen(pod, _brand(pod)))
        self._highest_priority = max(self._highest_priority, pod.spec.priority or 0)
        if change.type == "DELETED":
            self._charge(seen, None)
            self._count(seen, (0, 0, 0))
            del self.pods[uid]
            return
        self._check_record(seen, pod)
        seen.pod = pod
        self._charge(seen, self._holds(seen, pod))
        self._count(seen, self._totals(seen))

    def _check_record(self, seen: Seen, pod: Pod) -> None:
        name, annotations = pod.metadata.name, pod.metadata.annotations
        phase = annotations.get(keys.BIND_PHASE, "")
        if phase != seen.phase:
            if PHASES[phase] <= PHASES[seen.phase]:
                self.violated(f"{name}: bind phase goes from {seen.phase!r} to {phase!r}")
            seen.phase = phase
        node, allocated, left = pod.spec.node_name, annotations.get(seen.brand.allocated), annotations.get(seen.brand.to_allocate)
        if seen.node:
            if node != seen.node or not _resized(seen, allocated):
                self.violated(f"{name}: its assignment changed from {seen.node} {seen.allocated} to {node} {allocated}")
            if not _only_emptied(seen.left or "", left or ""):
                self.violated(f"{name}: what is left to allocate goes from {seen.left} to {left}")
        elif node:
            self._check_binding(seen.brand, pod, node, allocated)
        seen.node, seen.allocated, seen.left = node, allocated, left
        if node:
            self.bound[pod.metadata.uid] = node

    def _check_binding(self, brand: Brand, pod: Pod, node: str, allocated: str | None) -> None:
        """Nothing is bound without an assignment, and an assignment is exactly what was asked."""
        name = pod.metadata.name
        if pod.metadata.uid in self.hopeless:
            self.violated(f"{name}: bound to {node}, although nobody can read what it asks")
            return
        asked = [one.container.resources.limits or {} for one in containers_in_order(pod)]
        if not any(brand.count in limits for limits in asked):
            if allocated:
                self.violated(f"{name}: asks for nothing and is assigned {allocated}")
            return
        if allocated is None or pod.metadata.annotations.get(keys.ASSIGNED_NODE) != node:
            self.violated(f"{name}: bound to {node} with the assignment {allocated} on {pod.metadata.annotations.get(keys.ASSIGNED_NODE)}")
            return
        held = entries(allocated)
        for place, limits in enumerate(asked):
            self._check_shares(brand, pod, node, place, limits, held[place] if place < len(held) else ())

    def _check_shares(self, brand: Brand, pod: Pod, node: str, place: int, limits: Mapping[str, object], shares: Sequence[Share]) -> None:
        """One container has as many shares as it asks for, of cards of the node, each of the size that it asks for."""
        name, cut = pod.metadata.name, node in self._instances
        different = {share.uuid for share in shares}
        if len(shares) != int(str(limits.get(brand.count, 0))) or (len(different) != len(shares) and not cut):
            self.violated(f"{name}: container {place} asks {limits}, and is assigned {shares}")
        for share in shares:
            card = self._capacity.get((node, share.uuid))
            if card is None:
                self.violated(f"{name}: assigned {share.uuid}, which {node} does not have")
            elif cut:
                self._check_instance(pod, share, limits, card)
            elif share.memory_mib != _asked_mib(brand, limits, card.memory_mib) or share.cores != int(
                str(limits.get(brand.cores, share.cores))
            ):
                self.violated(f"{name}: container {place} asks {limits} of a card of {card.memory_mib} MiB, and is assigned {share}")

    def _check_instance(self, pod: Pod, share: Share, limits: Mapping[str, object], card: RegisteredDevice) -> None:
        """An instance is of a profile that the card offers, as large as what is asked, and on nobody else's slices."""
        offered = {(profile.memory_mib, profile.cores) for profile in card.mig_profiles}
        asked_mib = int(str(limits.get(MEMORY, "0")))
        if (share.memory_mib, share.cores) not in offered or share.memory_mib < asked_mib:
            self.violated(f"{pod.metadata.name}: asks {limits}, and is assigned the instance {share}")
        mine = _slices(pod, share.uuid)
        if not mine:
            self.violated(f"{pod.metadata.name}: no place on {share.uuid} is written for its instance")
        for other in self.pods.values():
            if other.charge is not None and other.pod.metadata.uid != pod.metadata.uid and mine & _slices(other.pod, share.uuid):
                self.violated(f"{pod.metadata.name}: its instances on {share.uuid} overlap those of {other.pod.metadata.name}")

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
            if has is not None and has.mode == "mig":
                continue  # slices count there
            if has is not None and (after[0] > has.shares or after[1] > has.memory_mib or after[2] > has.cores):
                shrunk = self._shrunk_already(card)
                after = (after[0], after[1] - shrunk[0], after[2] - shrunk[1])
            if has is not None and (after[0] > has.shares or after[1] > has.memory_mib or after[2] > has.cores):
                self.violated(
                    f"{card} is oversold by {seen.pod.metadata.name}: {after} shares, MiB, cores of {has.shares}, {has.memory_mib}, {has.cores}"
                )
        seen.charge = charge

    def _shrunk_already(self, card: Card | None) -> tuple[int, int]:
        """MiB and percent that resizes have taken from containers of a card, or of all, before the annotations have it."""
        mib = cores = 0
        for seen in self.pods.values():
            if not seen.sizes_mib or seen.charge is None:
                continue
            for one, shares in zip(containers_in_order(seen.pod), entries(seen.allocated or ""), strict=False):
                for share, held in zip(shares, self._granted(seen, one.container.name) or (), strict=False):
                    if card in (None, (seen.node, share.uuid)):
                        mib += max(0, share.memory_mib - held.memory_mib)
                        cores += max(0, share.cores - held.cores)
        return mib, cores

    # Quota

    def _totals(self, seen: Seen) -> Amounts:
        """What the pod counts against its namespace's quota for NVIDIA's cards: the peak of the sums over all of them."""
        if seen.charge is None or seen.brand is not NVIDIA:
            return (0, 0, 0)
        running = peak = (0, 0, 0)
        for one, shares in zip(containers_in_order(seen.pod), entries(seen.allocated or ""), strict=False):
            beside = running
            for share in shares:
                beside = (beside[0] + 1, beside[1] + share.memory_mib, beside[2] + share.cores)
            if one.kind is ContainerKind.INIT:
                peak = _larger(peak, beside)
            else:
                running = beside
        return running if seen.shrunk else _larger(peak, running)

    def _count(self, seen: Seen, totals: Amounts) -> None:
        grows = any(now > before for now, before in zip(totals, seen.totals, strict=True))
        seen.totals = totals
        for place, key in enumerate(QUOTA):
            used = sum(each.totals[place] for each in self.pods.values()) - (0, *self._shrunk_already(None))[place]
            if grows and totals[place] and used > self._settings.quota.get(key, used):
                self.violated(f"{seen.pod.metadata.name}: {used} of {self._settings.quota[key]} {key} are used")

    # Priority

    def evicting(self, process: str, name: str) -> None:
        """A process is about to evict the pod of this name."""
        victim = next((seen.pod for seen in self.pods.values() if seen.pod.metadata.name == name), None)
        if victim is None or process.startswith("kubelet"):  # a kubelet deletes the object of a pod that has ended
            return
        if not process.startswith(("scheduler-", "kube-scheduler")):
            self.violated(f"{process} evicts {name}")
        if (victim.spec.priority or 0) >= self._highest_priority:
            self.violated(f"{process} evicts {name}, and no pod has a higher priority")
        if process.startswith("scheduler-") and not self._settings.preemption:
            self.violated(f"{process} evicts {name}, and preemption is off")

    # Resizes

    def wished(self, uid: str, wish: ResizeRequest) -> None:
        """Other sizes are asked for; whether the answer arrives or not, they may come into effect."""
        seen = self.pods[uid]
        before = [share for shares in entries(seen.allocated or "") for share in shares]
        seen.sizes_mib |= {share.memory_mib for share in before} | ({wish.memory_mib} if wish.memory_mib else set())
        seen.sizes_cores |= {share.cores for share in before} | ({wish.cores} if wish.cores is not None else set())

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
        if seen.node in self._instances:
            self._given_instances(seen, container, shares, environment)
            return
        if not seen.brand.shimmed:  # its own runtime holds it
            self.started[uid] += bool(shares)
            return
        limits = {key: value for key, value in environment.items() if key.startswith(("CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT"))}
        if not _held_to(seen, shares, limits):
            self.violated(f"{name}: started with {limits}, booked is {shares}")
        if not shares:
            return
        self.started[uid] += 1
        visible = environment.get("NVIDIA_VISIBLE_DEVICES")
        if visible not in ("void", ",".join(dict.fromkeys(share.uuid for share in shares))):
            self.violated(f"{name}: sees {visible}, booked is {shares}")
        self.check_grant_file(seen, container, shares, exactly=False)

    def _given_instances(self, seen: Seen, container: str, shares: Sequence[Share], environment: Mapping[str, str]) -> None:
        """The container sees as many instances as it was assigned, each of which the driver has where it was to lie."""
        self.started[seen.pod.metadata.uid] += bool(shares)
        held = [(spot.gpu, spot.instance.profile, spot.instance.placement.start) for spot in self._instances[seen.node]._made]
        place = [one.container.name for one in containers_in_order(seen.pod)].index(container)
        mine = [(row["gpuUUID"], row["profile"], row["placement"]["start"]) for row in _rows(seen.pod) if row["containerIndex"] == place]
        if sorted(uuid for uuid, _, _ in mine) != sorted(share.uuid for share in shares) or not set(mine) <= set(held):
            self.violated(f"{seen.pod.metadata.name}/{container}: starts with {shares} at {mine}, the driver has {held}")
        visible = environment.get("NVIDIA_VISIBLE_DEVICES", "")
        if shares and visible != "void" and len(visible.split(",")) != len(shares):
            self.violated(f"{seen.pod.metadata.name}/{container}: sees {visible}, booked is {shares}")

    def check_grant_file(self, seen: Seen, container: str, shares: Sequence[Share], *, exactly: bool) -> None:
        """The grant file that the container maps holds it to what was booked; ``exactly``, or to what a resize makes of that."""
        pod = seen.pod
        held = self._granted(seen, container)
        if held is None:
            self.violated(f"{pod.metadata.name}/{container}: has no grant file")
            return
        fits = len(held) == len(shares) and all(
            mine == booked if exactly else seen.may_be(mine, booked) for mine, booked in zip(held, shares, strict=True)
        )
        if not fits:
            self.violated(f"{pod.metadata.name}/{container}: its grant file has {held}, booked is {shares}")

    def _granted(self, seen: Seen, container: str) -> list[Share] | None:
        """What the container's grant file holds it to; None where there is none. Only a whole card has no limit of memory."""
        data = self._files[seen.node].contents.get(f"{HostPaths().grants}/{folder_name(seen.pod.metadata.uid, container)}")
        if data is None:
            return None
        shares = []
        for one in grant_file.decode(data).devices:
            whole = one.whole and one.sm_percent == WHOLE_PERCENT
            limit_mib = self._capacity[seen.node, one.uuid].memory_mib if whole else 0 if one.whole else one.memory_limit_mib
            shares.append(Share(one.uuid, limit_mib, one.sm_percent))
        return shares

    def check_running(self) -> None:
        """The grant files of everything that runs are there and unchanged."""
        for uid, seen in self.pods.items():
            if self.started[uid] and seen.pod.status.phase == "Running" and seen.charge and seen.shimmed(self._instances):
                running = {status.name for status in seen.pod.status.container_statuses or () if status.state and status.state.running}
                for one, shares in zip(containers_in_order(seen.pod), entries(seen.allocated or ""), strict=False):
                    if shares and one.container.name in running:
                        self.check_grant_file(seen, one.container.name, shares, exactly=True)


def entries(text: str) -> list[tuple[Share, ...]]:
    """The shares of each container, by its place."""
    found = []
    for entry in text.split(";")[:-1]:
        fields = [device.split(",") for device in entry.split(":") if device]
        found.append(tuple(Share(uuid, int(memory), int(cores)) for uuid, _, memory, cores in fields))
    return found


def _held_to(seen: Seen, shares: Sequence[Share], limits: Mapping[str, str]) -> bool:
    """Whether the limits of an environment are those of ``shares``, or what a resize made of them."""
    if not shares:
        return not limits
    names = {*(f"CUDA_DEVICE_MEMORY_LIMIT_{ordinal}" for ordinal in range(len(shares))), "CUDA_DEVICE_SM_LIMIT"}
    if limits.keys() != names:
        return False
    cores = int(limits["CUDA_DEVICE_SM_LIMIT"])
    given = [
        Share(share.uuid, int(limits[f"CUDA_DEVICE_MEMORY_LIMIT_{ordinal}"].removesuffix("m")), cores if ordinal == 0 else share.cores)
        for ordinal, share in enumerate(shares)
    ]
    return all(seen.may_be(mine, booked) for mine, booked in zip(given, shares, strict=True))


def _resized(seen: Seen, allocated: str | None) -> bool:
    """Whether an assignment is the one before, or that with sizes that were asked for."""
    if allocated == seen.allocated:
        return True
    before, after = entries(seen.allocated or ""), entries(allocated or "")
    return [len(shares) for shares in before] == [len(shares) for shares in after] and all(
        seen.may_be(new, old) for ours, theirs in zip(before, after, strict=True) for old, new in zip(ours, theirs, strict=True)
    )


def _larger(one: Amounts, other: Amounts) -> Amounts:
    return max(one[0], other[0]), max(one[1], other[1]), max(one[2], other[2])


def _only_emptied(before: str, after: str) -> bool:
    ours, theirs = before.split(";"), after.split(";")
    return len(ours) == len(theirs) and all(new in ("", old) for old, new in zip(ours, theirs, strict=True))


def _rows(pod: Pod) -> list[dict[str, Any]]:
    """The pod's MIG instances, as its annotation has them."""
    rows: list[dict[str, Any]] = json.loads(pod.metadata.annotations.get(MIG_ALLOCATIONS) or "[]")
    return rows


def _slices(pod: Pod, uuid: str) -> set[int]:
    """Which eighths of a card's memory the pod's instances lie on."""
    places = [row["placement"] for row in _rows(pod) if row["gpuUUID"] == uuid]
    return {place["start"] + step for place in places for step in range(place["size"])}


def _brand(pod: Pod) -> Brand:
    """Whose cards a pod asks for; NVIDIA's where it asks for none."""
    asked = {resource for one in containers_in_order(pod) for resource in one.container.resources.limits or {}}
    return next((brand for brand in BRANDS if brand.count in asked), NVIDIA)


def _asked_mib(brand: Brand, limits: Mapping[str, object], card_mib: int) -> int:
    if limits.get(brand.memory, "0") != "0":
        return int(str(limits[brand.memory]))
    percent = int(str(limits.get(brand.percent, "0"))) or 100
    return max(1, card_mib * percent // 100)
