"""Judges a pod on all nodes at once: the same answers as ``hami_devices.fit`` gives node by node, from the columns, texts included.

Containers are walked in the specification's order. For each, every device of every node gets the code of the first reason against it, so
that a node fits where enough devices have none. What a sidecar or an application container takes is charged on copies of the used columns
before the next container is judged; for the last one that is not needed, and a pod with one container copies nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from hami_devices import mig
from hami_devices.fit import WHOLE_CORES, NodeFit
from hami_devices.model import UNRESOLVABLE, DeviceRequest, PodRequest, Reason, Selectors, Weights
from hami_devices.order import Key, Order, read_order
from hami_devices.reasons import Misfit, render
from hami_devices.scores import SCALE, part
from hami_devices.selectors import mode_accepted, type_accepted
from hami_protocol.devices import ContainerKind
from hami_scheduler.placement.table import Flags, Ints, Table

if TYPE_CHECKING:
    from hami_scheduler.placement.state import ClusterState

Codes: TypeAlias = npt.NDArray[np.uint8]
Scores: TypeAlias = npt.NDArray[np.float64]
View: TypeAlias = slice | Ints
"""Which nodes: all below the state's width, or these."""

_FITS: Final = 0
_ABSENT: Final = 255
_ANY: Final = Selectors()
_SITUATION: Final = (
    "total_memory",
    "total_cores",
    "total_shares",
    "used_memory",
    "used_cores",
    "used_shares",
    "numa",
    "model",
    "mode",
    "kind",
    "marked",
    "healthy",
    "cordoned",
)
"""Of a device, all that a decision may depend on."""
_DIGEST_BYTES: Final = 16
_MOST_SITUATIONS: Final = 200_000
_MAX_KEY: Final = 2**62
FITS: Final = 0
"""Text id of a node on which the pod fits."""


class Judgement(NamedTuple):
    """What the specification says of one situation."""

    text: str = ""
    """Why the pod does not fit; empty where it does."""
    unresolvable: bool = False
    able: int = 0
    """Where it does not, how many devices would have done for the container that failed."""
    bonus: float = 0.0

    @classmethod
    def of(cls, fit: NodeFit | Misfit) -> Judgement:
        """What ``fit`` comes to."""
        if isinstance(fit, Misfit):
            return cls(text=str(fit.text), unresolvable=fit.unresolvable, able=fit.counts.get(Reason.PARTIAL, 0))
        return cls(bonus=fit.bonus)


@dataclass(slots=True)
class Verdicts:
    """For each node of the view: whether the pod fits, or which text says why not."""

    view: View
    ids: Ints
    """Per node, a place in ``texts``."""
    able: Ints
    """Per node that does not fit, how many devices would have done for the container that failed."""
    bonus: Scores
    """Per node that fits, how much better it is than others by the vendors' own rules, in points of the node score."""
    texts: list[str] = field(default_factory=lambda: [""])
    unresolvable: list[bool] = field(default_factory=lambda: [False])
    _known: dict[tuple[str, bool], int] = field(default_factory=dict)

    @property
    def fits(self) -> Flags:
        """Whether the pod fits."""
        fits: Flags = self.ids == FITS
        return fits

    def text_id(self, text: str, unresolvable: bool) -> int:
        """The place of this text."""
        found = self._known.get((text, unresolvable))
        if found is None:
            found = self._known[text, unresolvable] = len(self.texts)
            self.texts.append(str(text))
            self.unresolvable.append(unresolvable)
        return found

    def settle(self, place: int, judged: Judgement) -> None:
        """Let ``judged`` stand for the node at ``place`` of the view."""
        self.ids[place] = self.text_id(judged.text, judged.unresolvable) if judged.text else FITS
        self.able[place] = judged.able
        self.bonus[place] = judged.bonus

    def widen(self, width: int) -> None:
        """Make room for what is to be said of nodes that came since."""
        if (more := width - self.ids.size) > 0:
            self.view = slice(0, width)
            self.ids, self.able = np.pad(self.ids, (0, more)), np.pad(self.able, (0, more))
            self.bonus = np.pad(self.bonus, (0, more))

    def take(self, newer: Verdicts) -> None:
        """Let what ``newer`` says of the nodes of its view stand here, in verdicts on all nodes."""
        ids = [FITS, *map(self.text_id, newer.texts[1:], newer.unresolvable[1:])]
        self.ids[newer.view] = np.array(ids)[newer.ids]
        self.able[newer.view] = newer.able
        self.bonus[newer.view] = newer.bonus


def judge_all(state: ClusterState, request: PodRequest, view: View) -> Verdicts:
    """Judge ``request`` on the nodes of ``view``."""
    return _Walk(state, request, view).verdicts()


def free_in_all(state: ClusterState, request: PodRequest, nodes: Ints) -> tuple[int, int]:
    """How many MiB are free on ``nodes`` on cards that the pod accepts and that take new shares, and on how many cards."""
    vendor = next(asked.vendor for container in request.containers for asked in container.requests)
    table = state.tables.get(vendor)
    if table is None or not table.places:
        return 0, 0
    devices = _Devices(table, nodes)
    usable = devices.column("healthy") & ~devices.column("cordoned") & (devices.total_shares > devices.used_shares)
    usable &= (np.arange(table.places)[:, None] < devices.count) & table.available[nodes] & ~table.fenced[nodes] & ~state.fenced[nodes]
    for _, against in devices.unaccepted(request.selectors.get(vendor, _ANY)):
        usable &= ~against
    free = np.where(usable, (devices.total_memory - devices.used_memory).clip(0), 0)
    return int(free.sum()), int((free > 0).sum())


def node_scores(state: ClusterState, view: View) -> Scores:
    """How full each node of the view is (``scores.node_score``)."""
    sums = state.sums
    slots = _part(sums.used_shares[view], sums.total_shares[view])
    cores = _part(sums.used_cores[view], sums.total_cores[view])
    return SCALE * (slots + cores + _part(sums.used_memory[view], sums.total_memory[view]))


def node_score(state: ClusterState, node: int) -> float:
    """The same of one node."""
    sums = state.sums
    slots = part(int(sums.used_shares[node]), int(sums.total_shares[node]))
    cores = part(int(sums.used_cores[node]), int(sums.total_cores[node]))
    return SCALE * (slots + cores + part(int(sums.used_memory[node]), int(sums.total_memory[node])))


def _part(used: Ints, total: Ints) -> Scores:
    return np.divide(used, total, out=np.zeros(total.shape, np.float64), where=total != 0)


def likeness(request: PodRequest) -> Hashable:
    """All of ``request`` that a judgement depends on: what is equal for two pods is judged alike on every node."""
    asked = tuple((container.kind, container.requests) for container in request.containers)
    selectors = tuple(sorted(request.selectors.items()))
    return asked, selectors, request.node_policy, request.device_policy, request.weights


class Situations:
    """What the specification has said so far. Between two pods that ask the same, few nodes come into a new situation. Bounded."""

    def __init__(self) -> None:
        self._by_request: dict[Hashable, dict[bytes, Judgement]] = {}

    def of(self, request: PodRequest, layout: Hashable) -> dict[bytes, Judgement]:
        """What was said of such a request, by the digest of the situation; the caller adds to it.

        Args:
            request: whose; only what a judgement depends on counts.
            layout: how a situation is laid out.
        """
        if sum(map(len, self._by_request.values())) > _MOST_SITUATIONS:
            self._by_request.clear()
        return self._by_request.setdefault((likeness(request), layout), {})


class _Devices:
    """One vendor's columns over the view, with what earlier containers of the pod took."""

    def __init__(self, table: Table, view: View) -> None:
        self.table = table
        self._view = view
        self._copied = False
        self.count = table.count[view]
        self.used_shares = self.column("used_shares")
        self.used_memory = self.column("used_memory")
        self.used_cores = self.column("used_cores")
        self.total_shares = self.column("total_shares")
        self.total_memory = self.column("total_memory")
        self.total_cores = self.column("total_cores")

    def column(self, name: str) -> Any:
        """One attribute: ``[place, node]``."""
        return getattr(self.table, name)[:, self._view]

    def need(self, request: DeviceRequest) -> Ints | int:
        """MiB that the request books on each device (``DeviceRequest.memory_on``)."""
        if request.memory_mib:
            return request.memory_mib
        share: Ints = self.total_memory if request.whole else self.total_memory * request.memory_percent // 100
        return share if share.all() else np.maximum(share, 1)

    def codes(self, request: DeviceRequest, selectors: Selectors, exclusive: bool) -> tuple[Codes, list[Reason]]:
        """The first reason against each device (``fit.fit_device``), as a place in the list, which starts at 1.

        Checks are numbered from the last to the first, so that of all that hold the largest number is the first.
        """
        codes: Codes = np.zeros(self.used_shares.shape, np.uint8)
        reasons: list[Reason] = []
        for reason, against in self._checks(request, selectors, exclusive):
            reasons.append(reason)
            np.maximum(codes, against.view(np.uint8) * np.uint8(len(reasons)), out=codes)
        if self.table.device_count != self.count.size * self.table.places or not isinstance(self._view, slice):
            np.copyto(codes, _ABSENT, where=np.arange(self.table.places)[:, None] >= self.count)
        return codes, reasons

    def _checks(self, request: DeviceRequest, selectors: Selectors, exclusive: bool) -> Iterator[tuple[Reason, Flags]]:
        table = self.table
        if request.cores:
            if request.cores == WHOLE_CORES:
                yield Reason.EXCLUSIVE, (self.total_cores == WHOLE_CORES) & (self.used_shares > 0)
            yield Reason.CORES, self.total_cores - self.used_cores < request.cores
        else:
            yield Reason.CORES_EXHAUSTED, (self.used_cores >= self.total_cores) & (self.total_cores != 0)
        yield Reason.MEMORY, self.total_memory - self.used_memory < self.need(request)
        if exclusive:
            yield Reason.EXCLUSIVE, self.used_shares > 0
        yield Reason.SLOTS, self.used_shares >= self.total_shares
        if request.device_mode:
            yield Reason.MODE, np.array([mode != request.device_mode for mode in table.modes])[self.column("mode")]
        yield from self.unaccepted(selectors)
        if table.cordoned_count:
            yield Reason.CORDON, self.column("cordoned")
        if table.unhealthy_count:
            yield Reason.HEALTH, ~self.column("healthy")

    def unaccepted(self, selectors: Selectors) -> Iterator[tuple[Reason, Flags]]:
        """The devices that the pod's own selectors exclude, by reason."""
        table = self.table
        if selectors.use_uuids or selectors.avoid_uuids:
            against = np.full(table.used_shares.shape, bool(selectors.use_uuids))
            for place, node in table.at(selectors.use_uuids):
                against[place, node] = False
            for place, node in table.at(selectors.avoid_uuids):
                against[place, node] = True
            yield Reason.UUID, against[:, self._view]
        if selectors.modes:
            yield Reason.TYPE, np.array([not mode_accepted(selectors, mode) for mode in table.modes])[self.column("mode")]
        if selectors.use_types or selectors.avoid_types:
            yield Reason.TYPE, np.array([not type_accepted(selectors, model) for model in table.models])[self.column("model")]

    def situation(self, selectors: Selectors, nodes: Ints) -> Ints:
        """Everything about the devices of ``nodes`` (places in the view) that a decision may depend on, but for their names: a column per node."""
        known = [self.column(name)[:, nodes] for name in _SITUATION]
        accepted = [against[:, nodes] for reason, against in self.unaccepted(selectors) if reason is Reason.UUID]
        return np.concatenate([self.count[None, nodes], *known, *accepted], dtype=np.int64)

    def scores(self, request: DeviceRequest, weights: Weights) -> Scores:
        """How full each device would be with one share more (``scores.device_score``)."""
        slots = weights.slots * _part(self.used_shares + 1, self.total_shares)
        cores = weights.cores * _part(self.used_cores + request.cores, self.total_cores)
        return SCALE * (slots + cores + weights.memory * _part(self.used_memory + self.need(request), self.total_memory))

    def take(self, chosen: Flags, request: DeviceRequest) -> None:
        """Charge one share on each chosen device."""
        if not self._copied:
            self.used_shares, self.used_memory, self.used_cores = (
                np.array(used) for used in (self.used_shares, self.used_memory, self.used_cores)
            )
            self._copied = True
        self.used_memory += chosen * self.need(request)
        self.used_cores += chosen * request.cores
        self.used_shares += chosen


class _Walk:
    """One pod's containers, judged one after the other on all nodes."""

    def __init__(self, state: ClusterState, request: PodRequest, view: View) -> None:
        self._state = state
        self._request = request
        self._alive: Flags = np.array(state.known[view])
        size = self._alive.size
        self._verdicts = Verdicts(view, np.zeros(size, np.int64), np.zeros(size, np.int64), np.zeros(size))
        self._devices: dict[str, _Devices] = {}

    def verdicts(self) -> Verdicts:
        """Judge all containers."""
        self._whole_nodes()
        steps = [(container, asked) for container in self._request.containers for asked in container.requests]
        self._exactly(len(steps))
        for number, (container, asked) in enumerate(steps, start=1):
            if not self._alive.any():
                break
            keeps = container.kind is not ContainerKind.INIT and number < len(steps)
            self._step(asked, keeps)
        return self._verdicts

    def _refuse(self, against: Flags, text: str, unresolvable: bool) -> None:
        refused = self._alive & against
        if refused.any():
            self._verdicts.ids[refused] = self._verdicts.text_id(text, unresolvable)
            self._alive &= ~refused

    def _whole_nodes(self) -> None:
        """Reasons of whole nodes, for all vendors asked, before any device is looked at."""
        state, view = self._state, self._verdicts.view
        for vendor in dict.fromkeys(asked.vendor for container in self._request.containers for asked in container.requests):
            self._refuse(state.fenced[view], Reason.FENCED, False)
            table = state.tables.get(vendor)
            if table is None:
                self._refuse(np.ones_like(self._alive), Reason.UNREGISTERED, True)
                break
            self._refuse(table.fenced[view], Reason.FENCED, False)
            self._refuse(table.count[view] == 0, Reason.UNREGISTERED, True)
            self._refuse(~table.available[view], Reason.UNAVAILABLE, False)
            self._refuse(table.held[view], Reason.AGENT, False)
            if table.short[view].any():
                beyond = table.ids_in_use(view) + self._request.device_ids(vendor) > table.allocatable[view]
                self._refuse(table.short[view] & beyond, Reason.ALLOCATABLE, False)
            self._devices[vendor] = _Devices(table, view)

    def _exactly(self, steps: int) -> None:
        """Where links, or a vendor's own rules, choose the devices, or cards are cut into instances, ask the specification."""
        several = steps > 1 or any(each.count > 1 for container in self._request.containers for each in container.requests)
        if several and read_order(self._request.device_policy, False).linked:
            self._by_situation(self._alive & (self._state.links[self._verdicts.view] != 0))
        asked: dict[str, list[DeviceRequest]] = {}
        for container in self._request.containers:
            for each in container.requests:
                asked.setdefault(each.vendor, []).append(each)
        if any(requests[0].rules.matter([each.count for each in requests]) for requests in asked.values()):
            self._by_situation(self._alive)
        elif (cut := self._cut()) is not None:
            self._by_situation(self._alive & cut)

    def _by_situation(self, which: Flags) -> None:
        """Ask the specification once for all nodes that are in the same situation, now or at an earlier time."""
        places = np.flatnonzero(which)
        if not places.size:
            return
        rows = [self._state.links[self._verdicts.view][None, places]]
        rows += [devices.situation(self._request.selectors.get(name, _ANY), places) for name, devices in self._devices.items()]
        situations = np.ascontiguousarray(np.concatenate(rows).T)
        numbers = np.arange(self._state.width)[self._verdicts.view]
        layout = tuple((name, devices.table.places) for name, devices in self._devices.items())
        known = self._state.situations.of(self._request, layout)
        for place, situation in zip(places.tolist(), situations, strict=True):
            key = blake2b(situation.data, digest_size=_DIGEST_BYTES).digest()
            judged = known.get(key)
            if judged is None:
                judged = known[key] = Judgement.of(self._state.fit(int(numbers[place]), self._request))
            self._settle(place, judged)

    def _settle(self, place: int, judged: Judgement) -> None:
        self._verdicts.settle(place, judged)
        self._alive[place] = False

    def _cut(self) -> Flags | None:
        """Nodes with cards that are cut into MIG instances; None where there are none."""
        cut: Flags | None = None
        for devices in self._devices.values():
            if devices.table.mig_count:
                there = np.array([mode == mig.MODE for mode in devices.table.modes])[devices.column("mode")]
                there = (there & (np.arange(devices.table.places)[:, None] < devices.count)).any(axis=0)
                cut = there if cut is None else cut | there
        return cut

    def _step(self, asked: DeviceRequest, keeps: bool) -> None:
        devices = self._devices[asked.vendor]
        selectors = self._request.selectors.get(asked.vendor, _ANY)
        order = read_order(self._request.device_policy, selectors.numa_bind)
        self._refuse(devices.count < asked.count, Reason.DEVICE_COUNT, True)
        codes, reasons = devices.codes(asked, selectors, order.exclusive)
        fits = codes == _FITS
        fitting = _sum(fits)
        able = _largest_group(fits, devices.column("numa")) if selectors.numa_bind else fitting
        failed = self._alive & (able < asked.count)
        if failed.any():
            self._say_why(failed, (codes, reasons), able, fitting - able, devices.count, asked)
            self._alive &= ~failed
        if keeps:
            self._take(devices, fits, asked, order, selectors)

    def _say_why(
        self, failed: Flags, against: tuple[Codes, list[Reason]], able: Ints, apart: Ints, total: Ints, asked: DeviceRequest
    ) -> None:
        """Give each failed node the text that counts its devices per reason, each text made once."""
        codes, reasons = against[0].compress(failed, axis=1), against[1]
        counted = [(reason, _sum(codes == number)) for number, reason in enumerate(reasons, start=1)]
        counted += [(Reason.NUMA, apart[failed]), (Reason.PARTIAL, able[failed])]
        counted = [(reason, counts) for reason, counts in counted if counts.any()]
        rows, members = _distinct([total[failed], *(counts for _, counts in counted)])
        ids = np.empty(len(rows), np.int64)
        for number, (devices, *counts) in enumerate(rows):
            said: dict[Reason, int] = {}
            for (reason, _), count in zip(counted, counts, strict=True):
                said[reason] = said.get(reason, 0) + count
            never = sum(count for reason, count in said.items() if reason in UNRESOLVABLE)
            ids[number] = self._verdicts.text_id(render(said, devices), devices - never < asked.count)
        self._verdicts.ids[failed] = ids[members]
        self._verdicts.able[failed] = able[failed]

    def _take(self, devices: _Devices, fits: Flags, asked: DeviceRequest, order: Order, selectors: Selectors) -> None:
        """Charge what the container takes on each node that is still in question (``fit.fit_container``)."""
        numa = devices.column("numa")
        tried = _tried_order(devices, asked, order, self._request.weights, numa)
        fits = np.take_along_axis(fits & self._alive, tried, 0)
        if selectors.numa_bind:
            numa = np.take_along_axis(numa, tried, 0)
            enough = fits & (_group_sizes(fits, numa) >= asked.count)
            first = np.take_along_axis(numa, enough.argmax(axis=0)[None, :], 0)
            fits = enough & (numa == first)
        taken = fits & (np.cumsum(fits, axis=0) <= asked.count)
        chosen = np.zeros_like(taken)
        np.put_along_axis(chosen, tried, taken, 0)
        devices.take(chosen, asked)


def _sum(flags: Flags) -> Ints:
    """How many places of each node."""
    counts: Ints = np.add.reduce(flags.view(np.uint8), axis=0, dtype=np.uint8).astype(np.int64)
    return counts


def _group_sizes(fits: Flags, numa: Ints) -> Ints:
    """For each place, how many fitting devices its NUMA node has."""
    return np.stack([_sum(fits & (numa == numa[place])) for place in range(len(numa))])


def _largest_group(fits: Flags, numa: Ints) -> Ints:
    """The most fitting devices that are on one NUMA node."""
    largest: Ints = (_group_sizes(fits, numa) * fits).max(axis=0)
    return largest


def _tried_order(devices: _Devices, asked: DeviceRequest, order: Order, weights: Weights, numa: Ints) -> Ints:
    """The places of each node in the order in which they are tried (``order.in_order``): stable sorts, the least important key first."""
    scores = devices.scores(asked, weights)
    values: dict[Key, npt.NDArray[Any]] = {
        Key.FULLEST: -scores,
        Key.EMPTIEST: scores,
        Key.LEAST_SHARED: devices.used_shares,
        Key.HIGH_NUMA: -numa,
        Key.LOW_NUMA: numa,
    }
    tried = np.broadcast_to(np.arange(len(numa))[:, None], numa.shape)
    for key in reversed(order.keys):
        ranked = np.take_along_axis(values[key], tried, 0)
        tried = np.take_along_axis(tried, np.argsort(ranked, axis=0, kind="stable"), 0)
    return tried


def _distinct(digits: Sequence[Ints]) -> tuple[list[list[int]], Ints]:
    """The distinct columns of ``digits``, and for each column which of them it is."""
    key = np.zeros_like(digits[0])
    space = 1
    for values in digits:
        base = int(values.max()) + 1
        space *= base
        if space > _MAX_KEY:
            rows, members = np.unique(np.stack(digits), axis=1, return_inverse=True)
            return rows.T.tolist(), members.reshape(-1)
        key = key * base + values
    _, firsts, members = np.unique(key, return_index=True, return_inverse=True)
    return np.stack([values[firsts] for values in digits], axis=1).tolist(), members
