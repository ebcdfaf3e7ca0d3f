"""Whether a pod still fits what its namespace may have: ``hami_devices.quota`` beside what is placed. Pure: objects in, verdicts out.

What counts as used is what is placed: pods on a node that have not ended, by what they were given, or by what they ask where that is not
recorded. Two pods admitted at the same moment may each fit and not both: the scheduler's ledger is the final judge. A percentage of memory
is an amount only once there is a card, so that at admission it counts nothing, and its pod is judged in the scheduler.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from hami_devices.accounting import charges_of
from hami_devices.catalog import Catalog
from hami_devices.model import PodRequest
from hami_devices.quota import Amounts, QuotaLimits, totals_of
from hami_devices.quota_scopes import ORDINARY, PodTraits, Scopes, in_scope, traits_of
from hami_protocol.errors import ProtocolError
from hami_protocol.kubernetes import Pod, ResourceQuota
from hami_protocol.pods import is_terminal


class QuotaBook:
    """Limits and use of every namespace, kept up to date by ``quota_changed`` and ``pod_changed``."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._limits = QuotaLimits(catalog.vendors)
        self._pods: dict[tuple[str, str], tuple[PodTraits, Amounts | None]] = {}
        self._used: dict[str, dict[PodTraits, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
        self._unreadable: dict[str, dict[str, PodTraits]] = defaultdict(dict)
        self._managed = frozenset(catalog.managed_resources)
        self._records = frozenset(vendor.allocated_key for vendor in catalog.vendors)

    def quota_changed(self, old: ResourceQuota | None, new: ResourceQuota | None) -> None:
        """A quota came, changed or went."""
        self._limits.changed(old, new)

    @property
    def has_limits(self) -> bool:
        """Whether any quota limits a resource of ours, so that use is worth following."""
        return bool(self._limits)

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """A pod came, changed or went."""
        pod = new or old
        if pod is None:
            return
        key = (pod.metadata.namespace, pod.metadata.name)
        self._forget(key)
        if new is not None and new.spec.node_name and not is_terminal(new) and self._concerns(new):
            self._enter(key, traits_of(new), self._amounts_held(new))

    def _concerns(self, pod: Pod) -> bool:
        return not self._records.isdisjoint(pod.metadata.annotations) or mentions(pod, self._managed)

    def _forget(self, key: tuple[str, str]) -> None:
        namespace, name = key
        traits, amounts = self._pods.pop(key, (ORDINARY, None))
        for resource, amount in (amounts or {}).items():
            self._used[namespace][traits][resource] -= amount
        self._unreadable[namespace].pop(name, None)

    def _enter(self, key: tuple[str, str], traits: PodTraits, amounts: Amounts | None) -> None:
        namespace, name = key
        self._pods[key] = traits, amounts
        if amounts is None:
            self._unreadable[namespace][name] = traits
        for resource, amount in (amounts or {}).items():
            self._used[namespace][traits][resource] += amount

    def _amounts_held(self, pod: Pod) -> Amounts | None:
        """What a placed pod holds; None where nobody can tell."""
        over = init_containers_over(pod)
        try:
            assignments = self._catalog.read_assignments(pod)
            if not assignments:
                peak, running = self._limits.asked(self._catalog.read_pod(pod))
                return running if over else peak
        except ProtocolError:
            return None
        return self._limits.amounts(totals_of(assignments, *charges_of(assignments), units=self._limits.core_units)[over])

    def used(self, namespace: str, scopes: Scopes = ()) -> Mapping[str, int]:
        """What is placed in a namespace by pods in ``scopes``."""
        used: Counter[str] = Counter()
        for traits, amounts in self._used.get(namespace, {}).items():
            if in_scope(scopes, traits):
                used += amounts
        return used

    def refusal(self, namespace: str, request: PodRequest) -> str | None:
        """Why a pod with this request exceeds a quota of its namespace; None where it does not."""
        asked = self._limits.asked(request)[0]
        for limit in self._limits.of(namespace):
            if (more := asked.get(limit.resource, 0)) == 0 or not in_scope(limit.scopes, request.traits):
                continue
            unreadable = [name for name, traits in self._unreadable.get(namespace, {}).items() if in_scope(limit.scopes, traits)]
            if unreadable and not limit.problem:
                held = f"what pod {min(unreadable)} holds cannot be read, so nobody knows what is left"
                return f"exceeding resource quota: {limit.quota}, {limit.key}: {held}"
            if (reason := limit.exceeded(more, self.used(namespace, limit.scopes).get(limit.resource, 0))) is not None:
                return f"exceeding resource quota: {reason}"
        return None


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
