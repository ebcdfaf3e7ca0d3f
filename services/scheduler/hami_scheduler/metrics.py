"""What the scheduler measures: its own latencies and counts, and the reference's gauges of quotas and MIG instances under both of their names.

The gauges are read from the ledger when somebody scrapes; those of cards and shares, of which there are many, are in ``series``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from hami_protocol import keys, mig
from hami_protocol.errors import RecordError
from hami_protocol.kubernetes import Pod
from hami_protocol.mig import MigAllocation
from hami_runtime.telemetry import Telemetry
from hami_scheduler.series import ZONE

if TYPE_CHECKING:
    from hami_scheduler.picture import Picture
    from hami_scheduler.placement.ledger import Entry


class Metrics:
    """The scheduler's instruments."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.filter_seconds = telemetry.histogram(
            "hami_scheduler_filter_seconds", "time of one filter call, decoding and encoding included"
        )
        self.bind_seconds = telemetry.histogram(
            "hami_scheduler_bind_seconds", "time of one bind call, waiting for the node's lock included"
        )
        self.verdicts = telemetry.counter("hami_scheduler_verdicts", "filter calls by their verdict")
        self.binds = telemetry.counter("hami_scheduler_binds", "bind calls by their outcome")
        self.wakings = telemetry.counter("hami_scheduler_wakings", "refused pods that were woken for another try")
        self.evictions = telemetry.counter("hami_scheduler_evictions", "pods evicted for one of higher priority")
        self.unreadable_records = telemetry.counter("hami_scheduler_unreadable_records", "records that fenced a node")
        self.unreadable_messages = telemetry.counter("hami_scheduler_unreadable_messages", "messages of the bus that could not be read")
        self.forwarded = telemetry.counter("hami_scheduler_forwarded", "requests that a follower handed to the leader")


class QuotaCollector(Collector):
    """What namespaces hold of our resources, and what their ResourceQuotas let them: ``quota_name`` is the resource's, memory is in MiB.

    Of several quotas that limit the same resource the strictest is shown. One that cannot be read allows nothing, and shows 0. A quota
    with scopes has series of its own, which count the pods in its scopes.
    """

    def __init__(self, picture: Picture) -> None:
        self._picture = picture

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """All families, with what the ledger holds now."""
        quotas, state = self._picture.quotas, self._picture.state
        used = _pair(
            "hami_resource_quota_used",
            ("namespace", "quota_name", "limit"),
            "QuotaUsed",
            ("quotanamespace", "quotaName", "limit"),
            "what a namespace holds of a resource, memory in MiB; limit is none where no quota limits it",
        )
        limits = GaugeMetricFamily(
            "hami_resource_quota_limit",
            "what a namespace may hold of a resource, memory in MiB, where a quota limits it",
            labels=("zone", "namespace", "quota_name"),
        )
        scoped_labels = ("zone", "namespace", "quota", "scopes", "quota_name")
        scoped_used = GaugeMetricFamily(
            "hami_resource_quota_scoped_used", "what pods in the scopes of a quota hold of a resource, memory in MiB", labels=scoped_labels
        )
        scoped_limits = GaugeMetricFamily(
            "hami_resource_quota_scoped_limit",
            "what pods in the scopes of a quota may hold of a resource, memory in MiB",
            labels=scoped_labels,
        )
        for namespace in sorted({*quotas.namespaces(), *state.namespaces()}):
            amounts = quotas.amounts(state.used_in(namespace))
            strictest: dict[str, int] = {}
            for limit in quotas.of(namespace):
                if limit.scopes:
                    labels = [ZONE, namespace, limit.quota, ", ".join(map(str, limit.scopes)), limit.resource]
                    scoped_used.add_metric(labels, quotas.used(limit.scopes, state.usage(namespace))[limit.resource])
                    scoped_limits.add_metric(labels, limit.amount)
                    continue
                strictest[limit.resource] = min(limit.amount, strictest.get(limit.resource, limit.amount))
            for resource in sorted(amounts | strictest.keys()):
                _add(used, [namespace, resource, str(strictest.get(resource, "none"))], amounts[resource])
            for resource, amount in sorted(strictest.items()):
                limits.add_metric([ZONE, namespace, resource], amount)
        yield from used
        yield limits
        yield scoped_used
        yield scoped_limits


class MigCollector(Collector):
    """MIG instances as they are on their cards, once an agent has made them and said so on the pod.

    Args:
        picture: the ledger.
        find_pod: the pod as the watch has shown it last, by name and namespace.
    """

    def __init__(self, picture: Picture, find_pod: Callable[[str, str], Pod | None]) -> None:
        self._picture = picture
        self._find_pod = find_pod

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """All families, with what pods hold now; an instance that two records claim is shown once."""
        new, old = _pair(
            "hami_node_gpu_mig_instance_info",
            (
                "node",
                "device_uuid",
                "device_index",
                "mig_uuid",
                "profile",
                "gpu_instance_id",
                "compute_instance_id",
                "placement_start",
                "placement_size",
            ),
            "nodeGPUMigInstance",
            ("nodeid", "deviceuuid", "deviceidx", "migname"),
            "1 for each MIG instance that a pod holds",
        )
        news: dict[tuple[str, ...], None] = {}
        olds: dict[tuple[str, ...], None] = {}
        for entry in self._picture.state.entries():
            if not any(share.instance for given in entry.assignments for each in given.containers for share in each.shares):
                continue
            indexes = {held.device.uuid: str(held.device.index) for held in self._picture.state.devices(entry.node)}
            for made in self._made(entry):
                instance, identity = made.instance, made.identity
                if identity is None or made.gpu not in indexes:
                    continue
                card = (entry.node, made.gpu, indexes[made.gpu])
                ids = (str(identity.gpu_instance), str(identity.compute_instance))
                news[*card, identity.uuid, instance.profile, *ids, str(instance.placement.start), str(instance.placement.size)] = None
                olds[*card, f"{instance.profile}-{identity.gpu_instance}"] = None
        for family, series in ((new, news), (old, olds)):
            for labels in series:
                family.add_metric([ZONE, *labels], 1)
            yield family

    def _made(self, entry: Entry) -> tuple[MigAllocation, ...]:
        pod = self._find_pod(entry.pod.name, entry.pod.namespace)
        if pod is None or pod.metadata.uid != entry.pod.uid:
            return ()
        try:
            return mig.decode(pod.metadata.annotations.get(keys.MIG_ALLOCATIONS, ""))
        except RecordError:  # its node is fenced for it
            return ()


Pair = tuple[GaugeMetricFamily, GaugeMetricFamily]


def _pair(name: str, labels: tuple[str, ...], old_name: str, old_labels: tuple[str, ...], meaning: str) -> Pair:
    return (
        GaugeMetricFamily(name, meaning, labels=("zone", *labels)),
        GaugeMetricFamily(old_name, f"{meaning} (earlier name of {name})", labels=("zone", *old_labels)),
    )


def _add(pair: Pair, key: list[str], value: float) -> None:
    for family in pair:
        family.add_metric([ZONE, *key], value)
