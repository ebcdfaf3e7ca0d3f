"""What a namespace may have of our resources: the limits as its ResourceQuotas say them, and what counts against them. Pure.

Keys are ``limits.<resource>`` and ``requests.<resource>`` of every ResourceQuota in the namespace. Each is asked by itself, so the strictest
decides; zero means none, absent means unlimited, and a limit that cannot be read allows nothing. A quota with scopes binds and counts
only the pods in them. What counts is

    max(applications and sidecars, the peak of init containers with the sidecars started before them)

per resource, each container's amount times its devices: the same at admission, from what a pod asks, and in the scheduler's ledger, from
what pods hold. Cores count in the unit of their resource, in whatever unit a vendor books them. A share of memory in percent is an amount only
once there is a card: at admission it counts nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, NamedTuple

from hami_devices.model import Charge, PodRequest
from hami_devices.quota_scopes import ORDINARY, PodTraits, Scopes, in_scope, scopes_of
from hami_devices.vendor import Vendor
from hami_protocol import quantities
from hami_protocol.devices import ContainerKind, VendorAssignment
from hami_protocol.errors import QuantityError
from hami_protocol.kubernetes import Quantity, ResourceQuota

_PREFIXES: Final = ("limits.", "requests.")
Amounts = Mapping[str, int]
"""By resource name; memory in MiB."""
Amount = tuple[int, int, int]
"""Shares, MiB and cores."""
Totals = Mapping[str, Amount]
"""By vendor, over all its devices."""
Usage = Mapping[PodTraits, Totals]
"""What pods hold, by what scopes may depend on."""
NOTHING: Final[Amount] = (0, 0, 0)


class CoreUnits(NamedTuple):
    """Vendors whose cores are counted otherwise than they are booked."""

    in_bits: frozenset[str] = frozenset()
    """Booked as bits, of which each counts 1."""
    in_percent: frozenset[str] = frozenset()
    """Booked in the card's own units, and counted in percent as they were asked."""


AS_BOOKED: Final = CoreUnits()


def core_units(vendors: Sequence[Vendor]) -> CoreUnits:
    """How the cores of these vendors are counted."""
    return CoreUnits(
        frozenset(vendor.name for vendor in vendors if vendor.cores_are_bits),
        frozenset(vendor.name for vendor in vendors if vendor.books_own_units),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """How much one quota allows of one resource; memory in MiB."""

    quota: str
    key: str
    resource: str
    amount: int
    unit: str = ""
    """As it is shown after an amount."""
    problem: str = ""
    """Why it cannot be read."""
    scopes: Scopes = ()
    """Which pods it is about; empty for all."""

    def exceeded(self, asked: int, used: int) -> str | None:
        """Why ``asked`` more beside ``used`` is too much, with figures; None where it is not."""
        if not asked:
            return None
        if self.problem:
            return f"{self.problem} (the quota cannot be read, and so allows nothing)"
        if used + asked <= self.amount:
            return None
        return f"{self.quota}, {self.key}: asks {asked}{self.unit}, {used}{self.unit} of {self.amount}{self.unit} are used"


class QuotaLimits:
    """The limits of all namespaces, kept up to date by ``changed``."""

    def __init__(self, vendors: Sequence[Vendor]) -> None:
        self._vendors = {vendor.name: vendor for vendor in vendors}
        self._memory_units = {vendor.memory_resource: vendor.memory_unit_mib for vendor in vendors if vendor.memory_resource}
        counted = {name for vendor in vendors for name in (vendor.count_resource, vendor.cores_resource) if name}
        self._resources = counted | self._memory_units.keys()
        self.core_units = core_units(vendors)
        self._limits: dict[str, dict[str, tuple[Limit, ...]]] = {}

    def __bool__(self) -> bool:
        """Whether any quota limits a resource of ours."""
        return bool(self._limits)

    def changed(self, old: ResourceQuota | None, new: ResourceQuota | None) -> str | None:
        """Take one change of a quota. The namespace whose limits are others now, None where they are not."""
        quota = new or old
        if quota is None:
            return None
        namespace, name = quota.metadata.namespace, quota.metadata.name
        before = self._limits.get(namespace, {}).get(name, ())
        limits = () if new is None else tuple(self._read(new))
        if limits == before:
            return None
        if limits:
            self._limits.setdefault(namespace, {})[name] = limits
        else:
            self._limits[namespace].pop(name)
            if not self._limits[namespace]:
                del self._limits[namespace]
        return namespace

    def namespaces(self) -> Collection[str]:
        """Namespaces where a quota limits a resource of ours."""
        return self._limits.keys()

    def of(self, namespace: str) -> tuple[Limit, ...]:
        """The limits in a namespace, by the quotas' names."""
        quotas = self._limits.get(namespace)
        return () if quotas is None else tuple(limit for name in sorted(quotas) for limit in quotas[name])

    def allowance(self, namespace: str, used: Usage, traits: PodTraits = ORDINARY) -> Allowance | None:
        """What is left for a pod with ``traits`` in a namespace whose pods hold ``used``; None where no quota is about it."""
        limits = [limit for limit in self.of(namespace) if in_scope(limit.scopes, traits)]
        return Allowance(self, limits, used) if limits else None

    def used(self, scopes: Scopes, usage: Usage) -> Counter[str]:
        """What pods in ``scopes`` hold, by resource."""
        amounts: Counter[str] = Counter()
        for traits, totals in usage.items():
            if in_scope(scopes, traits):
                amounts += self.amounts(totals)
        return amounts

    def amounts(self, totals: Totals) -> Counter[str]:
        """What pods hold, by resource."""
        amounts: Counter[str] = Counter()
        for name, (shares, memory_mib, cores) in totals.items():
            vendor = self._vendors[name]
            _add(amounts, vendor, shares, memory_mib, cores)
        return amounts

    def asked(self, request: PodRequest) -> tuple[Amounts, Amounts]:
        """What a pod asks at its peak, and when its init containers are over, by resource."""
        running: Counter[str] = Counter()
        peak: Counter[str] = Counter()
        for container in request.containers:
            beside = Counter(running) if container.kind is ContainerKind.INIT else running
            for share in container.requests:
                vendor = self._vendors[share.vendor]
                cores = share.parts if vendor.cores_are_bits else share.cores
                _add(beside, vendor, share.count, share.count * share.memory_mib, share.count * cores)
            peak |= beside
        return peak, running

    def _read(self, quota: ResourceQuota) -> Iterator[Limit]:
        for key, value in (quota.spec.hard or {}).items():
            resource = next((key.removeprefix(prefix) for prefix in _PREFIXES if key.startswith(prefix)), "")
            if resource in self._resources:
                yield self._limit(quota.metadata.name, key, resource, value, scopes_of(quota.spec))

    def _limit(self, quota: str, key: str, resource: str, value: Quantity, scopes: Scopes) -> Limit:
        unit_mib = self._memory_units.get(resource)
        amount, problem = 0, ""
        try:
            amount = _amount(value, f"resourcequota {quota}: spec.hard[{key}]", unit_mib=unit_mib)
        except QuantityError as exc:
            problem = str(exc)
        unit = "" if unit_mib is None else " MiB"
        return Limit(quota=quota, key=key, resource=resource, amount=amount, unit=unit, problem=problem, scopes=scopes)


def _add(amounts: Counter[str], vendor: Vendor, shares: int, memory_mib: int, cores: int) -> None:
    """Add what a vendor's resources are asked, leaving out those it does not have."""
    for resource, amount in ((vendor.count_resource, shares), (vendor.memory_resource, memory_mib), (vendor.cores_resource, cores)):
        if resource and amount:
            amounts[resource] += amount


def _amount(value: Quantity, field: str, *, unit_mib: int | None) -> int:
    """What a quota allows: memory in MiB, anything else in the resource's own unit. As large as it likes, unlike what one pod may ask.

    Raises:
        QuantityError: fractional, negative, or no quantity.
    """
    number = quantities.exact(value, field=field)
    if unit_mib is not None and str(value).endswith("i"):  # a binary suffix names bytes
        number, unit_mib = Fraction(number // quantities.MIB), 1
    if number < 0 or number.denominator != 1:
        raise QuantityError(field, value, "a whole number, not negative")
    return int(number) * (unit_mib or 1)


def totals_of(
    assignments: Sequence[VendorAssignment],
    charges: Sequence[Charge],
    running_charges: Sequence[Charge],
    *,
    units: CoreUnits = AS_BOOKED,
) -> tuple[Totals, Totals]:
    """What a pod holds of each vendor in all: at its peak, and when its init containers are over.

    The peak is that of the sums, not the sum of each device's peak: an init container on one card and an application on another are never
    there at once. ``units``: how cores are counted.
    """
    running: dict[str, Amount] = {}
    for charge in running_charges:
        cores = charge.cores.bit_count() if charge.vendor in units.in_bits else charge.cores
        running[charge.vendor] = _sum(running.get(charge.vendor, NOTHING), (charge.shares, charge.memory_mib, cores))
    for assignment in assignments if units.in_percent else ():
        if assignment.vendor in units.in_percent and assignment.vendor in running:
            stay = [share for each in assignment.containers if each.kind is not ContainerKind.INIT for share in each.shares]
            running[assignment.vendor] = (*running[assignment.vendor][:2], sum(share.cores_percent for share in stay))
    if charges == running_charges:  # no init container needs more of anything
        return running, running
    peak = dict(running)
    for assignment in assignments:
        held = NOTHING
        for container in assignment.containers:
            beside = held
            for share in container.shares:
                cores = share.cores.bit_count() if assignment.vendor in units.in_bits else share.cores
                cores = share.cores_percent if assignment.vendor in units.in_percent else cores
                beside = _sum(beside, (share.slots, share.memory_mib, cores))
            if container.kind is ContainerKind.INIT:
                peak[assignment.vendor] = _larger(peak.get(assignment.vendor, NOTHING), beside)
            else:
                held = beside
    return peak, running


def _sum(one: Amount, other: Amount) -> Amount:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def _larger(one: Amount, other: Amount) -> Amount:
    return max(one[0], other[0]), max(one[1], other[1]), max(one[2], other[2])


class Allowance:
    """What one namespace may still have, for one decision."""

    def __init__(self, book: QuotaLimits, limits: Sequence[Limit], used: Usage) -> None:
        self._book = book
        self._limits = limits
        self.core_units = book.core_units
        self._used = {limit.scopes: book.used(limit.scopes, used) for limit in limits}

    def exceeded(self, asked: Totals) -> str | None:
        """Which quota a pod that holds ``asked`` would exceed, with figures; None where it exceeds none."""
        amounts = self._book.amounts(asked)
        for limit in self._limits:
            if (reason := limit.exceeded(amounts[limit.resource], self._used[limit.scopes][limit.resource])) is not None:
                return f"exceeding resource quota {reason}"
        return None
