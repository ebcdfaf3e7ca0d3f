"""The cluster as the scheduler sees it: devices in columns, entries in the ledger, and the one writer that keeps the two in step.

Invariants, checked by ``validate``: what is charged on a device is what the entries on its node add up to there; a node's sums are the sums
over its devices. An event changes the columns of the node that it is about; nothing is rebuilt or copied per request.
Not thread-safe: one event loop owns it.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Final

import numpy as np

from hami_devices.accounting import charges_of
from hami_devices.catalog import Catalog
from hami_devices.fit import NodeFit, fit_node
from hami_devices.model import Charge, DeviceState, PodRequest, Reason
from hami_devices.quota import NOTHING, Allowance, Amount, Totals, Usage, core_units, totals_of
from hami_devices.quota_scopes import ORDINARY, PodTraits
from hami_devices.reasons import Misfit
from hami_devices.topology import PairScores
from hami_protocol.devices import PodRef, RegisteredDevice, VendorAssignment
from hami_scheduler.placement import explain, filter  # noqa: A004  # the verb of the extender protocol
from hami_scheduler.placement.columns import Situations
from hami_scheduler.placement.copying import copied
from hami_scheduler.placement.ledger import RESERVATION_SECONDS, Entry, Ledger, Phase, hold
from hami_scheduler.placement.outcomes import Placement, PlacementExplanation, Refusal
from hami_scheduler.placement.remembered import Changes, Remembered
from hami_scheduler.placement.table import NO_LIMIT, Flags, Ints, Sums, Table

MAX_DEVICES: Final = 64
"""Per node and vendor: each place costs a row over all nodes, so that one node's record could make the columns large."""
_FIRST_ROOM: Final = 64


class ClusterState:
    """Nodes with their devices, and which pods hold what on them."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._ledger = Ledger()
        self._numbers: dict[str, int] = {}
        self._free: list[int] = []
        self._next = 0
        self._room = _FIRST_ROOM
        self.sums = Sums(self._room)
        self.names = np.full(self._room, "", dtype=object)
        """Node number to name; empty where there is none."""
        self.known: Flags = np.zeros(self._room, np.bool_)
        self.fenced: Flags = np.zeros(self._room, np.bool_)
        self.tables: dict[str, Table] = {}
        self.situations = Situations()
        self.remembered = Remembered()
        self.changes = Changes(self._room)
        self._pair_scores: dict[int, PairScores] = {}
        self.links: Ints = np.zeros(self._room, np.int64)
        """Nodes whose devices, place by place, are linked alike have the same number; 0 where nothing is known of links."""
        self._fences: dict[str, dict[str, tuple[str, str]]] = {}
        """By node and source: the reason, and whose devices it concerns."""
        self._unavailable: dict[str, set[str]] = {}
        self._holds: dict[str, dict[str, str]] = {}
        self._allocatable: dict[str, dict[str, int]] = {}
        self._core_units = core_units(catalog.vendors)
        self._used_in: dict[str, dict[PodTraits, dict[str, Amount]]] = {}
        self._ranks: Ints | None = None
        self._last_names: tuple[tuple[int, int], Ints] = ((0, 0), np.empty(0, np.int64))

    # Nodes

    def upsert_node(
        self,
        name: str,
        devices: Mapping[str, Sequence[RegisteredDevice]],
        *,
        cordoned: frozenset[str] = frozenset(),
        pair_scores: PairScores | None = None,
    ) -> None:
        """Make ``devices`` (by vendor) what the node has; what its pods hold stays charged. More than ``MAX_DEVICES`` fence it.

        Args:
            name: of the node.
            devices: by the vendor's common word, each UUID once; a vendor left out has none there.
            cordoned: UUIDs that take no new shares.
            pair_scores: how well pairs of its devices are linked, where it says so.
        """
        node = self._number(name)
        self.changes.touch(node)
        for vendor in devices:
            self._table(vendor)
        for vendor, table in self.tables.items():
            listed = devices.get(vendor, ())
            if len(listed) > MAX_DEVICES:
                reason = f"registers {len(listed)} {vendor} devices; accepted: at most {MAX_DEVICES}"
                self.fence(name, f"devices of {vendor}", reason, vendor=vendor)
                listed = ()
            else:
                self.unfence(name, f"devices of {vendor}")
            table.set_node(node, listed, cordoned, self._charges_on(name, vendor))
        if pair_scores:
            self._pair_scores[node] = pair_scores
            self.links[node] = _likeness([device.uuid for table in self.tables.values() for device in table.devices[node]], pair_scores)
        else:
            self._pair_scores.pop(node, None)
            self.links[node] = 0

    def _table(self, vendor: str) -> Table:
        """The devices of ``vendor``, of whom there may have been none so far."""
        table = self.tables.get(vendor)
        if table is None:
            own_rules = not self._catalog.vendor(vendor).rules.plain
            self.tables[vendor] = table = Table(vendor, self.sums, self._room, own_rules=own_rules)
            noted = {*self._unavailable.get(vendor, ()), *self._holds.get(vendor, ()), *self._allocatable.get(vendor, ()), *self._fences}
            for other in noted & self._numbers.keys():
                self._mark(table, other, self._numbers[other])
        return table

    def remove_node(self, name: str) -> None:
        """Forget the node's devices. Entries of its pods stay until the pods are gone."""
        node = self._numbers.pop(name, None)
        if node is None:
            return
        for table in self.tables.values():
            table.set_allocatable(node, NO_LIMIT)
            table.set_node(node, (), frozenset(), ())
            table.available[node] = True
            table.held[node] = False
            table.fenced[node] = False
        self._pair_scores.pop(node, None)
        self.links[node] = 0
        for nodes in self._unavailable.values():
            nodes.discard(name)
        for held in self._holds.values():
            held.pop(name, None)
        for counts in self._allocatable.values():
            counts.pop(name, None)
        self.names[node] = ""
        self.known[node] = self.fenced[node] = False
        self.changes.touch(node)
        self._free.append(node)
        self._names_changed()

    def set_available(self, name: str, vendor: str, available: bool) -> None:
        """Say whether the node still registers its devices of ``vendor``; while not, they take no new pods."""
        nodes = self._unavailable.setdefault(vendor, set())
        (nodes.discard if available else nodes.add)(name)
        self._remark(name, vendor)

    def hold(self, name: str, vendor: str, reason: str) -> None:
        """Give the node no new pods that ask for devices of ``vendor``, and say why; an empty ``reason`` ends that."""
        by_node = self._holds.setdefault(vendor, {})
        if reason:
            by_node[name] = reason
        else:
            by_node.pop(name, None)
        self._remark(name, vendor)

    def held(self, name: str, vendor: str) -> str:
        """Why the node takes no new pods that ask for devices of ``vendor``; empty where it does."""
        return self._holds.get(vendor, {}).get(name, "")

    def set_allocatable(self, name: str, vendor: str, count: int | None) -> None:
        """Limit what pods hold of ``vendor`` on the node to the ``count`` device ids that kubelet has allocatable; None is no limit."""
        by_node = self._allocatable.setdefault(vendor, {})
        if count is None:
            by_node.pop(name, None)
        else:
            by_node[name] = count
        self._remark(name, vendor)

    def allocatable(self, name: str, vendor: str) -> tuple[int, int] | None:
        """How many device ids of ``vendor`` kubelet has allocatable on the node, and how many of them are taken; None without a limit."""
        node, table = self._numbers.get(name), self.tables.get(vendor)
        if node is None or table is None or table.allocatable[node] == NO_LIMIT:
            return None
        return int(table.allocatable[node]), int(table.ids_in_use(node))

    def _remark(self, name: str, vendor: str) -> None:
        if vendor in self.tables and name in self._numbers:
            self._mark(self.tables[vendor], name, self._numbers[name])
            self.changes.touch(self._numbers[name])

    def _mark(self, table: Table, name: str, node: int) -> None:
        """Bring the node's own columns to what was noted of it and of the table's vendor."""
        table.available[node] = name not in self._unavailable.get(table.vendor, ())
        table.held[node] = name in self._holds.get(table.vendor, ())
        table.fenced[node] = any(vendor == table.vendor for _, vendor in self._fences.get(name, {}).values())
        table.set_allocatable(node, self._allocatable.get(table.vendor, {}).get(name, NO_LIMIT))

    def fence(self, name: str, source: str, reason: str, *, vendor: str = "") -> None:
        """Give the node, or its devices of ``vendor`` alone, no new pods while ``source`` (a record that cannot be read) stands."""
        self._fences.setdefault(name, {})[source] = (reason, vendor)
        self._fences_changed(name, vendor)

    def unfence(self, name: str, source: str) -> None:
        """``source`` is repaired, or gone."""
        sources = self._fences.get(name, {})
        if (fence := sources.pop(source, None)) is None:
            return
        if not sources:
            del self._fences[name]
        self._fences_changed(name, fence[1])

    def _fences_changed(self, name: str, vendor: str) -> None:
        if vendor:
            self._table(vendor)
            self._remark(name, vendor)
        elif name in self._numbers:
            self.fenced[self._numbers[name]] = any(not scope for _, scope in self._fences.get(name, {}).values())
            self.changes.touch(self._numbers[name])

    def fences(self, name: str, *vendors: str) -> Mapping[str, str]:
        """What fences the node: source to reason; with ``vendors``, only what concerns them."""
        fences = self.all_fences(name)
        return {source: reason for source, (reason, vendor) in fences.items() if not vendors or vendor in ("", *vendors)}

    def all_fences(self, name: str) -> Mapping[str, tuple[str, str]]:
        """What fences the node: source to reason and vendor, empty for the whole node."""
        return self._fences.get(name, {})

    def nodes(self) -> tuple[str, ...]:
        """The names of all nodes, sorted."""
        return tuple(sorted(self._numbers))

    def devices(self, name: str) -> tuple[DeviceState, ...]:
        """The node's devices, of all vendors, with what is charged on them; by vendor, index and UUID. Empty for a node that is not known."""
        node = self._numbers.get(name)
        if node is None:
            return ()
        return tuple(state for vendor in sorted(self.tables) for state in reversed(self.tables[vendor].states(node)))

    def _number(self, name: str) -> int:
        node = self._numbers.get(name)
        if node is not None:
            return node
        if self._free:
            node = self._free.pop()
        else:
            node = self._next
            self._next += 1
            if node >= self._room:
                self._grow()
        self._numbers[name] = node
        self.names[node] = name
        self.known[node] = True
        self.fenced[node] = any(not vendor for _, vendor in self._fences.get(name, {}).values())
        for table in self.tables.values():
            self._mark(table, name, node)
        self._names_changed()
        return node

    def _names_changed(self) -> None:
        self._ranks = None
        self._last_names = ((0, 0), np.empty(0, np.int64))

    def _grow(self) -> None:
        more = self._room
        self._room += more
        self.sums.grow(self._room)
        self.changes.grow(self._room)
        self.names = np.concatenate([self.names, np.full(more, "", dtype=object)])
        self.links = np.pad(self.links, (0, more))
        self.known = np.concatenate([self.known, np.zeros(more, np.bool_)])
        self.fenced = np.concatenate([self.fenced, np.zeros(more, np.bool_)])
        for table in self.tables.values():
            table.grow(self._room)

    def copy(self) -> ClusterState:
        """The same, to be changed without anybody noticing."""
        sums = copied(self.sums)
        tables = {vendor: table.copy(sums) for vendor, table in self.tables.items()}
        return copied(self, sums=sums, tables=tables, _ledger=copied(self._ledger), changes=copied(self.changes), remembered=Remembered())

    # What the deciding modules read

    @property
    def width(self) -> int:
        """Node numbers are below this."""
        return self._next

    def number(self, name: str) -> int | None:
        """The node's number."""
        return self._numbers.get(name)

    def numbers(self, names: Sequence[str]) -> tuple[Ints, list[str]]:
        """The numbers of those nodes, rising, each once, and the names that are not known.

        kube-scheduler sends the same names in another order each time. Whether they are the names of last time is told by the sum of their
        (keyed, 64-bit) hashes, at a third of the cost of looking each one up.
        """
        hashes: Ints = np.fromiter(map(hash, names), np.int64, len(names))
        likeness = (len(names), int(hashes.sum()))
        if likeness != self._last_names[0]:
            found: Ints = np.fromiter(map(self._numbers.get, names, itertools.repeat(-1)), np.int64, len(names))
            unknown = np.flatnonzero(found < 0).tolist()
            if unknown:
                return np.unique(found[found >= 0]), [names[place] for place in unknown]
            self._last_names = (likeness, np.unique(found))
        return self._last_names[1], []

    def name_ranks(self) -> Ints:
        """Where each node's name stands among all names."""
        if self._ranks is None:
            self._ranks = np.empty(self._next, np.int64)
            self._ranks[np.argsort(self.names[: self._next], kind="stable")] = np.arange(self._next)
        return self._ranks

    def pair_scores(self, node: int) -> PairScores | None:
        """How well pairs of the node's devices are linked."""
        return self._pair_scores.get(node)

    def fit(self, node: int, request: PodRequest, *, most_memory_mib: int | None = None) -> NodeFit | Misfit:
        """The one-node judgement: what the whole node allows, then its devices; only those with at most ``most_memory_mib`` in all."""
        for container in request.containers:
            for asked in container.requests:
                if (reason := self._whole_node(node, asked.vendor, request)) is not None:
                    return Misfit.bare(reason, asked, container.name)
        states = [state for table in self.tables.values() for state in table.states(node)]
        if most_memory_mib is not None:
            states = [state for state in states if state.device.memory_mib <= most_memory_mib]
        return fit_node(states, request, pair_scores=self._pair_scores.get(node))

    def _whole_node(self, node: int, vendor: str, request: PodRequest) -> Reason | None:
        table = self.tables.get(vendor)
        if self.fenced[node] or (table is not None and table.fenced[node]):
            return Reason.FENCED
        if table is None or not table.count[node]:
            return Reason.UNREGISTERED
        if not table.available[node]:
            return Reason.UNAVAILABLE
        if table.held[node]:
            return Reason.AGENT
        beyond = table.short[node] and int(table.ids_in_use(node)) + request.device_ids(vendor) > table.allocatable[node]
        return Reason.ALLOCATABLE if beyond else None

    # Deciding

    def judge(
        self,
        request: PodRequest,
        candidates: Sequence[str],
        *,
        uid: str,
        ranked: bool = False,
        reasons: bool = True,
        allowance: Allowance | None = None,
    ) -> Placement | Refusal:
        """Find the best of ``candidates`` for ``request``. Changes nothing.

        Args:
            request: what the pod asks; it asks for something.
            candidates: names of nodes, in any order.
            uid: of the pod; what it holds itself, from an earlier try, counts as free.
            ranked: whether to list all nodes that fit, best first.
            reasons: whether a placement also says why the other nodes do not fit; a refusal always does.
            allowance: what the pod's namespace may still have, without what the pod holds itself (``usage``); None is unlimited.
        """
        with self.without(uid):
            return filter.judge(self, request, candidates, ranked=ranked, reasons=reasons, allowance=allowance)

    def explain(self, request: PodRequest, nodes: Sequence[str] | None = None, *, uid: str = "", limit: int = 20) -> PlacementExplanation:
        """Say why, with figures, node by node. Changes nothing.

        Args:
            request: what the pod asks.
            nodes: about which nodes; None judges all and tells of the ``limit`` best or nearest.
            uid: of the pod; what it holds itself counts as free.
            limit: how many nodes to tell of where none are named.
        """
        with self.without(uid):
            return explain.explain(self, request, nodes, limit=limit)

    @contextmanager
    def without(self, *uids: str) -> Iterator[None]:
        """For as long as the context lasts, what the pods with these UIDs hold is free. Nobody else may look meanwhile: no ``await`` in it."""
        entries = [entry for uid in dict.fromkeys(uids) if (entry := self._ledger.get(uid)) is not None]
        for entry in entries:
            self._apply(entry.node, entry.held, -1)
        try:
            yield
        finally:
            for entry in entries:
                self._apply(entry.node, entry.held, 1)

    # Who holds what

    def reserve(self, pod: PodRef, placement: Placement, *, now: float) -> Entry:
        """Give the pod what ``placement`` says, for 30 s; what it held before is released. ``now`` is monotonic seconds."""
        return self._enter(
            Entry(
                pod=pod,
                node=placement.node,
                phase=Phase.RESERVED,
                assignments=placement.assignments,
                charges=placement.charges,
                running_charges=placement.running_charges,
                traits=placement.traits,
                lapses_at=now + RESERVATION_SECONDS,
            )
        )

    def nominate(self, pod: PodRef, placement: Placement, *, lapses_at: float) -> Entry:
        """Keep what ``placement`` says for the pod until its victims have left it and filter reserves it; ``lapses_at`` is monotonic seconds."""
        return self._enter(
            Entry(
                pod=pod,
                node=placement.node,
                phase=Phase.NOMINATED,
                assignments=placement.assignments,
                charges=placement.charges,
                running_charges=placement.running_charges,
                traits=placement.traits,
                lapses_at=lapses_at,
            )
        )

    def charge(
        self, pod: PodRef, node: str, assignments: Sequence[VendorAssignment], *, shrunk: bool, traits: PodTraits | None = None
    ) -> Entry:
        """Enter a pod that is bound, from its annotations. Repeating it changes nothing.

        Args:
            pod: which one.
            node: where it is.
            assignments: what it holds.
            shrunk: its init containers are over.
            traits: which quotas count it; None as before.
        """
        before = self._ledger.get(pod.uid)
        shrunk = shrunk or (before is not None and before.node == node and before.phase is Phase.SHRUNK)
        charges, running_charges = charges_of(assignments)
        if traits is None:
            traits = ORDINARY if before is None else before.traits
        return self._enter(
            Entry(
                pod=pod,
                node=node,
                phase=Phase.SHRUNK if shrunk else Phase.BOUND,
                assignments=tuple(assignments),
                charges=charges,
                running_charges=running_charges,
                traits=traits,
            )
        )

    def renew(self, uid: str, now: float) -> Entry | None:
        """Let the pod's reservation last another 30 s. None where it has no entry."""
        return self._ledger.renew(uid, now)

    def assume(self, uid: str) -> Entry | None:
        """The pod is being bound: its reservation does not lapse any more. None where it has no entry."""
        return self._ledger.advance(uid, Phase.ASSUMED)

    def confirm(self, uid: str) -> Entry | None:
        """The pod is bound. None where it has no entry."""
        return self._ledger.advance(uid, Phase.BOUND)

    def shrink(self, uid: str) -> Entry | None:
        """The pod's init containers are over: it is charged for what still runs. None where it has no entry."""
        before = self._ledger.get(uid)
        after = self._ledger.advance(uid, Phase.SHRUNK)
        if before is not None and after is not None and after is not before:
            self._apply(before.node, before.held, -1)
            self._apply(after.node, after.held, 1)
            self._count(before, -1)
            self._count(after, 1)
        return after

    def release(self, uid: str) -> Entry | None:
        """The pod holds nothing any more; its entry, or None where it had none."""
        entry = self._ledger.pop(uid)
        if entry is not None:
            self._apply(entry.node, entry.held, -1)
            self._count(entry, -1)
        return entry

    def expired(self, now: float) -> list[str]:
        """UIDs of pods whose reservation has lapsed; the caller releases them."""
        return self._ledger.expired(now)

    def entry(self, uid: str) -> Entry | None:
        """What the pod holds."""
        return self._ledger.get(uid)

    def entries(self) -> Iterable[Entry]:
        """What all pods hold."""
        return self._ledger

    def entries_on(self, node: str) -> Iterable[Entry]:
        """What the pods on ``node`` hold."""
        return self._ledger.on_node(node)

    def entries_in(self, namespace: str) -> Iterable[Entry]:
        """What the pods of ``namespace`` hold."""
        return self._ledger.in_namespace(namespace)

    def namespaces(self) -> Collection[str]:
        """Namespaces whose pods hold anything."""
        return self._used_in.keys()

    def used_in(self, namespace: str) -> Totals:
        """What the pods of ``namespace`` hold in all."""
        used: dict[str, Amount] = {}
        for totals in self._used_in.get(namespace, {}).values():
            used = _added(used, totals, 1)
        return used

    def usage(self, namespace: str, *, without: str = "") -> Usage:
        """What the pods of ``namespace`` hold, by what quotas' scopes depend on, leaving out the one with the UID ``without``."""
        used = self._used_in.get(namespace, {})
        entry = self._ledger.get(without)
        if entry is None or entry.pod.namespace != namespace:
            return used
        return {**used, entry.traits: _added(used.get(entry.traits, {}), self._totals(entry), -1)}

    def _totals(self, entry: Entry) -> Totals:
        """What the entry's pod holds now, over all devices."""
        peak, running = totals_of(entry.assignments, entry.charges, entry.running_charges, units=self._core_units)
        return running if entry.phase is Phase.SHRUNK else peak

    def _count(self, entry: Entry, sign: int) -> None:
        """Count the entry in its namespace's use, or with ``sign`` -1 take it out."""
        by_traits = self._used_in.setdefault(entry.pod.namespace, {})
        used = _added(by_traits.get(entry.traits, {}), self._totals(entry), sign)
        if used:
            by_traits[entry.traits] = used
        else:
            by_traits.pop(entry.traits, None)  # also where nothing was counted: what is left of an init-only pod
        if not by_traits:
            del self._used_in[entry.pod.namespace]

    def _enter(self, entry: Entry) -> Entry:
        self.release(entry.pod.uid)
        self._ledger.put(entry)
        self._apply(entry.node, entry.held, 1)
        self._count(entry, 1)
        return entry

    def _apply(self, name: str, charges: Iterable[Charge], sign: int) -> None:
        node = self._numbers.get(name)
        if node is None:
            return
        self.changes.touch(node)
        for charge in charges:
            table = self.tables.get(charge.vendor)
            if table is not None:
                table.charge(node, charge, sign)

    def _charges_on(self, name: str, vendor: str) -> Iterator[Charge]:
        return (charge for entry in self._ledger.on_node(name) for charge in entry.held if charge.vendor == vendor)

    def validate(self) -> None:
        """Compute all charges and sums again and compare.

        Raises:
            InvariantError: they differ.
        """
        self._ledger.validate()
        used_in: dict[tuple[str, PodTraits], dict[str, Amount]] = {}
        for entry in self._ledger:
            key = entry.pod.namespace, entry.traits
            used_in[key] = _added(used_in.get(key, {}), self._totals(entry), 1)
        counted = {(name, traits): used for name, by_traits in self._used_in.items() for traits, used in by_traits.items()}
        hold({key: used for key, used in used_in.items() if used} == counted, "what namespaces use")
        hold({name for name in self.names[: self._next] if name} == set(self._numbers), "names of nodes")
        for name, node in self._numbers.items():
            hold(self.names[node] == name and bool(self.known[node]), f"{name}: its number")
            fenced = {vendor for _, vendor in self._fences.get(name, {}).values()}
            hold(bool(self.fenced[node]) == ("" in fenced), f"{name}: its fence")
            marked = {vendor for vendor, table in self.tables.items() if table.fenced[node]}
            hold(marked == fenced - {""}, f"{name}: fences of single vendors")
            states = []
            for vendor, table in self.tables.items():
                expected = {device.uuid: [0, 0, 0] for device in table.devices[node]}
                for charge in self._charges_on(name, vendor):
                    if charge.uuid in expected:
                        for place, amount in enumerate((charge.shares, charge.memory_mib, charge.cores)):
                            expected[charge.uuid][place] += amount
                hold({uuid: tuple(used) for uuid, used in expected.items()} == table.used(node), f"{name}: charges of {vendor}")
                states.extend(table.states(node))
            sums = self.sums
            hold(int(sums.used_memory[node]) == sum(s.used_memory_mib for s in states), f"{name}: sum of used memory")
            hold(int(sums.used_cores[node]) == sum(s.used_cores for s in states), f"{name}: sum of used cores")
            hold(int(sums.used_shares[node]) == sum(s.used_shares for s in states), f"{name}: sum of used shares")
            hold(int(sums.total_memory[node]) == sum(s.device.memory_mib for s in states), f"{name}: sum of memory")
            hold(int(sums.total_cores[node]) == sum(s.device.cores for s in states), f"{name}: sum of cores")
            hold(int(sums.total_shares[node]) == sum(s.device.shares for s in states), f"{name}: sum of shares")
        self.remembered.validate(self)


def _likeness(uuids: Sequence[str], scores: PairScores) -> int:
    """A number for how these devices are linked with each other, whatever their names; never 0."""
    table = [scores.get(one, {}).get(other, 0) for one in uuids for other in uuids]
    return int.from_bytes(blake2b(repr(table).encode(), digest_size=8).digest(), signed=True) or 1


def _added(used: Totals, more: Totals, sign: int) -> dict[str, Amount]:
    """``used`` with ``more`` added, or with ``sign`` -1 taken off; what is nothing is left out."""
    added = dict(used)
    for vendor, (shares, memory_mib, cores) in more.items():
        before = added.get(vendor, NOTHING)
        after = (before[0] + sign * shares, before[1] + sign * memory_mib, before[2] + sign * cores)
        if after == NOTHING:
            added.pop(vendor, None)
        else:
            added[vendor] = after
    return added
