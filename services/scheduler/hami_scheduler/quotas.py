"""What namespaces may have of our resources: the final word, for what the ledger charges is what is counted. Pure.

Keys are ``limits.<resource>`` and ``requests.<resource>`` of every ResourceQuota in the namespace. Each is asked by itself, so the strictest
decides; zero means none, absent means unlimited, and a limit that cannot be read allows nothing. A share of memory in percent is an amount here:
that of the node which the pod would get. Checking and reserving are one step of the caller's: two pods can never use up the same rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Final

from msgspec import Struct

from hami_devices.catalog import Catalog
from hami_devices.model import Charge
from hami_protocol import quantities
from hami_protocol.errors import QuantityError
from hami_protocol.kubernetes import Quantity, ResourceQuota
from hami_scheduler.placement import Entry

_PREFIXES: Final = ("limits.", "requests.")


class Limit(Struct, frozen=True, kw_only=True):
    """How much one quota allows of one resource; memory in MiB."""

    quota: str
    key: str
    resource: str
    amount: int
    problem: str = ""
    """Why it cannot be read."""


class Quotas:
    """The limits of all namespaces."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._limits: dict[str, dict[str, tuple[Limit, ...]]] = {}
        self._memory_units = {vendor.memory_resource: vendor.memory_unit_mib for vendor in catalog.vendors if vendor.memory_resource}
        counted = {name for vendor in catalog.vendors for name in (vendor.count_resource, vendor.cores_resource) if name}
        self._resources = counted | self._memory_units.keys()

    def changed(self, old: ResourceQuota | None, new: ResourceQuota | None) -> None:
        """Take one change of a quota."""
        quota = new or old
        if quota is None:
            return
        namespace, name = quota.metadata.namespace, quota.metadata.name
        limits = () if new is None else tuple(self._read(new))
        if limits:
            self._limits.setdefault(namespace, {})[name] = limits
        elif namespace in self._limits:
            self._limits[namespace].pop(name, None)
            if not self._limits[namespace]:
                del self._limits[namespace]

    def exceeded(self, namespace: str, charges: Iterable[Charge], held: Iterable[Entry]) -> str | None:
        """Which quota a pod would exceed, with figures; None where it exceeds none.

        Args:
            namespace: of the pod.
            charges: what it would be charged at its peak.
            held: what the namespace's other pods hold; looked at only where there is a quota.
        """
        quotas = self._limits.get(namespace)
        if quotas is None:
            return None
        asked = self._amounts(charges)
        used: Counter[str] | None = None
        for name in sorted(quotas):
            for limit in quotas[name]:
                more = asked[limit.resource]
                if not more:
                    continue
                if limit.problem:
                    return f"{limit.problem} (the quota cannot be read, and so allows nothing)"
                if used is None:
                    used = self._amounts(charge for entry in held for charge in entry.held)
                if used[limit.resource] + more > limit.amount:
                    unit = " MiB" if limit.resource in self._memory_units else ""
                    taken = f"{used[limit.resource]}{unit} of {limit.amount}{unit} are used"
                    return f"exceeding resource quota {limit.quota}, {limit.key}: asks {more}{unit}, {taken}"
        return None

    def _amounts(self, charges: Iterable[Charge]) -> Counter[str]:
        amounts: Counter[str] = Counter()
        for charge in charges:
            vendor = self._catalog.vendor(charge.vendor)
            amounts[vendor.count_resource] += charge.shares
            amounts[vendor.memory_resource] += charge.memory_mib
            amounts[vendor.cores_resource] += charge.cores
        return amounts

    def _read(self, quota: ResourceQuota) -> Iterator[Limit]:
        name = quota.metadata.name
        for key, value in (quota.spec.hard or {}).items():
            resource = next((key.removeprefix(prefix) for prefix in _PREFIXES if key.startswith(prefix)), "")
            if resource in self._resources:
                field = f"resourcequota {name}: spec.hard[{key}]"
                try:
                    amount = _amount(value, field, unit_mib=self._memory_units.get(resource))
                    yield Limit(quota=name, key=key, resource=resource, amount=amount)
                except QuantityError as exc:
                    yield Limit(quota=name, key=key, resource=resource, amount=0, problem=str(exc))


def _amount(value: Quantity, field: str, *, unit_mib: int | None) -> int:
    """What a quota allows: memory in MiB, anything else in the resource's own unit.

    Raises:
        QuantityError: fractional, negative, or no quantity.
    """
    number = quantities.exact(value, field=field)
    if unit_mib is not None and str(value).endswith("i"):  # a binary suffix names bytes
        number, unit_mib = Fraction(number // quantities.MIB), 1
    if number < 0 or number.denominator != 1:
        raise QuantityError(field, value, "a whole number, not negative")
    return int(number) * (unit_mib or 1)
