"""The webhook's core, built from ports: what it follows, and the reviewer that goes by it. No HTTP here."""

from __future__ import annotations

import asyncio

from hami_devices.catalog import Catalog
from hami_protocol.kubernetes import ResourceQuota
from hami_runtime.clock import Clock
from hami_runtime.kube.cluster import PODS, QUOTAS, Cluster
from hami_runtime.kube.informer import Informer
from hami_runtime.lifecycle import run_until
from hami_runtime.telemetry import OFF, Telemetry
from hami_webhook.quota import QuotaBook
from hami_webhook.review import Policy, Reviewer


class Webhook:
    """One replica. Pods are followed from the first quota on that limits a resource of ours: most clusters have none.

    Attributes:
        reviewer: judges; may be asked at any time, and knows quotas once ``lacking`` is None.
    """

    def __init__(self, cluster: Cluster, clock: Clock, catalog: Catalog, policy: Policy, *, telemetry: Telemetry = OFF) -> None:
        self._book = QuotaBook(catalog)
        self.reviewer = Reviewer(catalog, policy, self._book)
        self._limited = asyncio.Event()
        self._quotas = Informer(cluster, QUOTAS, clock=clock, telemetry=telemetry)
        self._quotas.subscribe(self._quota_changed)
        # Only bound pods hold anything; that they are not over is for ``quota`` to say.
        self._pods = Informer(cluster, PODS, fields="spec.nodeName!=", clock=clock, telemetry=telemetry)
        self._pods.subscribe(self._book.pod_changed)

    def _quota_changed(self, old: ResourceQuota | None, new: ResourceQuota | None) -> None:
        self._book.quota_changed(old, new)
        if self._book.has_limits:
            self._limited.set()

    @property
    def lacking(self) -> str | None:
        """What keeps it from judging well; None where nothing does."""
        if not self._quotas.synced.is_set():
            return "quotas not seen yet"
        return "pods not seen yet" if self._limited.is_set() and not self._pods.synced.is_set() else None

    async def run(self, stop: asyncio.Event) -> None:
        """Follow quotas, and pods where they matter, until ``stop``."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._quotas.run(stop))
            group.create_task(run_until(stop, self._follow_pods(stop)))

    async def _follow_pods(self, stop: asyncio.Event) -> None:
        await self._limited.wait()
        await self._pods.run(stop)
