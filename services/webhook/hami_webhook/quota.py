"""What namespaces may have of our resources, and whether a pod still fits. Pure: objects in, verdicts out.

effective = max(sum of application containers and sidecars, peak of init containers with the sidecars started before them), per resource,
each container's amount times its devices. Each ResourceQuota is asked by itself, so the strictest of several decides; zero means none,
absent means unlimited.

What counts as used is what is placed: pods on a node that have not ended, by what they were given, or by what they ask where that is not
recorded. Two pods admitted at the same moment may each fit and not both: the scheduler's ledger is the final judge. A percentage of memory
is an amount only once there is a card, so that at admission it counts nothing, and its pod is judged in the scheduler.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from hami_devices.accounting import charges_of
from hami_devices.catalog import Catalog
from hami_devices.model import PodRequest
from hami_protocol import quantities
from hami_protocol.devices import ContainerKind
from hami_protocol.errors import ProtocolError, QuantityError
from hami_protocol.kubernetes import Pod, Quantity, ResourceQuota
from hami_protocol.pods import is_terminal

_PREFIXES: Final = ("limits.", "requests.")
Amounts = dict[str, int]
"""By resource name; memory in MiB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Limit:
    quota: str
    key: str
    resource: str
    amount: int
    problem: str = ""


class QuotaBook:
    """Limits and use of every namespace, kept up to date by ``quota_changed`` and ``pod_changed``."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._limits: dict[str, dict[str, tuple[_Limit, ...]]] = defaultdict(dict)
        self._pods: dict[tuple[str, str], Amounts | None] = {}
        self._used: dict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._unreadable: dict[str, set[str]] = defaultdict(set)
        self._memory_units = {v.memory_resource: v.memory_unit_mib for v in catalog.vendors if v.memory_resource}
        counted = {name for v in catalog.vendors for name in (v.count_resource, v.cores_resource) if name}
        self._resources = frozenset(self._memory_units) | counted
        self._managed = frozenset(catalog.managed_resources)
        self._records = frozenset(vendor.allocated_key for vendor in catalog.vendors)

    def quota_changed(self, old: ResourceQuota | None, new: ResourceQuota | None) -> None:
        """A quota came, changed or went."""
        quota = new or old
        if quota is None:
            return
        namespace, name = quota.metadata.namespace, quota.metadata.name
        limits = tuple(self._read_limits(quota)) if new is not None else ()
        if limits:
            self._limits[namespace][name] = limits
        else:
            self._limits[namespace].pop(name, None)

    @property
    def has_limits(self) -> bool:
        """Whether any quota limits a resource of ours, so that use is worth following."""
        return any(self._limits.values())

    def _read_limits(self, quota: ResourceQuota) -> Iterable[_Limit]:
        for key, value in (quota.spec.hard or {}).items():
            resource = next((key.removeprefix(prefix) for prefix in _PREFIXES if key.startswith(prefix)), "")
            if resource in self._resources:
                name = quota.metadata.name
                field = f"resourcequota {name}: spec.hard[{key}]"
                try:
                    amount = _limit(value, field, unit_mib=self._memory_units.get(resource))
                    yield _Limit(quota=name, key=key, resource=resource, amount=amount)
                except QuantityError as exc:
                    yield _Limit(quota=name, key=key, resource=resource, amount=0, problem=str(exc))

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """A pod came, changed or went."""
        pod = new or old
        if pod is None:
            return
        key = (pod.metadata.namespace, pod.metadata.name)
        self._forget(key)
        if new is not None and new.spec.node_name and not is_terminal(new) and self._concerns(new):
            self._enter(key, self._amounts_held(new))

    def _concerns(self, pod: Pod) -> bool:
        return not self._records.isdisjoint(pod.metadata.annotations) or mentions(pod, self._managed)

    def _forget(self, key: tuple[str, str]) -> None:
        namespace, name = key
        for resource, amount in (self._pods.pop(key, None) or {}).items():
            self._used[namespace][resource] -= amount
        self._unreadable[namespace].discard(name)

    def _enter(self, key: tuple[str, str], amounts: Amounts | None) -> None:
        namespace, name = key
        self._pods[key] = amounts
        if amounts is None:
            self._unreadable[namespace].add(name)
        for resource, amount in (amounts or {}).items():
            self._used[namespace][resource] += amount

    def _amounts_held(self, pod: Pod) -> Amounts | None:
        """What a placed pod holds; None where nobody can tell."""
        over = init_containers_over(pod)
        try:
            assignments = self._catalog.read_assignments(pod)
            if not assignments:
                peak, running = effective(self._catalog, self._catalog.read_pod(pod))
                return running if over else peak
        except ProtocolError:
            return None
        charges = charges_of(assignments)[1 if over else 0]
        held: defaultdict[str, int] = defaultdict(int)
        for charge in charges:
            vendor = self._catalog.vendor(charge.vendor)
            held[vendor.count_resource] += charge.shares
            held[vendor.memory_resource] += charge.memory_mib
            held[vendor.cores_resource] += charge.cores
        return {resource: amount for resource, amount in held.items() if resource and amount}

    def used(self, namespace: str) -> Mapping[str, int]:
        """What is placed in a namespace."""
        return {resource: amount for resource, amount in self._used[namespace].items() if amount} if namespace in self._used else {}

    def refusal(self, namespace: str, request: PodRequest) -> str | None:
        """Why a pod with this request exceeds a quota of its namespace; None where it does not."""
        quotas = self._limits.get(namespace)
        if not quotas:
            return None
        asked = effective(self._catalog, request)[0]
        for name in sorted(quotas):
            for limit in quotas[name]:
                if (more := asked.get(limit.resource, 0)) and (reason := self._exceeded(namespace, limit, more)):
                    return f"exceeding resource quota: {reason}"
        return None

    def _exceeded(self, namespace: str, limit: _Limit, more: int) -> str | None:
        if limit.problem:
            return f"{limit.problem} (the quota cannot be read, and so allows nothing)"
        if unreadable := self._unreadable.get(namespace):
            return f"{limit.quota}, {limit.key}: what pod {min(unreadable)} holds cannot be read, so nobody knows what is left"
        used = self._used[namespace][limit.resource] if namespace in self._used else 0
        if used + more <= limit.amount:
            return None
        unit = " MiB" if limit.resource in self._memory_units else ""
        return f"{limit.quota}, {limit.key}: asks {more}{unit}, {used}{unit} of {limit.amount}{unit} are used"


def _limit(value: Quantity, field: str, *, unit_mib: int | None) -> int:
    """The amount that a quota allows: of memory in MiB, else in the resource's own unit. As large as it likes, unlike what one pod may ask.

    Raises:
        QuantityError: fractional, negative, or no quantity.
    """
    number = quantities.exact(value, field=field)
    if unit_mib is not None and str(value).endswith("i"):  # a binary suffix names bytes
        number, unit_mib = Fraction(number // quantities.MIB), 1
    if number < 0 or number.denominator != 1:
        raise QuantityError(field, value, "a whole number, not negative")
    return int(number) * (unit_mib or 1)


def effective(catalog: Catalog, request: PodRequest) -> tuple[Amounts, Amounts]:
    """What a pod needs at its peak, and when its init containers are over."""
    running: defaultdict[str, int] = defaultdict(int)
    peak: defaultdict[str, int] = defaultdict(int)
    for container in request.containers:
        beside = defaultdict(int, running) if container.kind is ContainerKind.INIT else running
        for share in container.requests:
            vendor = catalog.vendor(share.vendor)
            beside[vendor.count_resource] += share.count
            beside[vendor.memory_resource] += share.count * share.memory_mib
            beside[vendor.cores_resource] += share.count * share.cores
        for resource, amount in beside.items():
            peak[resource] = max(peak[resource], amount)
    peak.pop("", None)  # a resource that a vendor does not have
    running.pop("", None)
    return dict(peak), dict(running)


def mentions(pod: Pod, resources: frozenset[str]) -> bool:
    """Whether any container names one of ``resources``."""
    for container in (*pod.spec.containers, *(pod.spec.init_containers or ())):
        limits, requests = container.resources.limits, container.resources.requests
        if (limits and not resources.isdisjoint(limits)) or (requests and not resources.isdisjoint(requests)):
            return True
    return False


def init_containers_over(pod: Pod) -> bool:
    """Whether every ordinary init container has ended well. A sidecar is none of them, whatever state it is in."""
    ended = {
        status.name
        for status in pod.status.init_container_statuses or ()
        if status.state and status.state.terminated and status.state.terminated.exit_code == 0
    }
    return all(each.name in ended for each in pod.spec.init_containers or () if each.restart_policy != "Always")
