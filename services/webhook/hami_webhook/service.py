"""The webhook's core, built from ports: what it follows, and the reviewer that goes by it. No HTTP here."""

from __future__ import annotations

import asyncio

from hami_devices.catalog import Catalog
from hami_runtime.clock import Clock
from hami_runtime.kube.cluster import PODS, QUOTAS, Cluster
from hami_runtime.kube.informer import Informer
from hami_runtime.telemetry import OFF, Telemetry
from hami_webhook.quota import QuotaBook
from hami_webhook.review import Policy, Reviewer


class Webhook:
    """One replica.

    Attributes:
        reviewer: judges; may be asked at any time, and knows quotas once ``lacking`` is None.
    """

    def __init__(self, cluster: Cluster, clock: Clock, catalog: Catalog, policy: Policy, *, telemetry: Telemetry = OFF) -> None:
        quotas = QuotaBook(catalog)
        self.reviewer = Reviewer(catalog, policy, quotas)
        self._quotas = Informer(cluster, QUOTAS, clock=clock, telemetry=telemetry)
        self._quotas.subscribe(quotas.quota_changed)
        # Only bound pods hold anything; that they are not over is for ``quota`` to say.
        self._pods = Informer(cluster, PODS, fields="spec.nodeName!=", clock=clock, telemetry=telemetry)
        self._pods.subscribe(quotas.pod_changed)

    @property
    def lacking(self) -> str | None:
        """What keeps it from judging well; None where nothing does."""
        missing = [name for name, informer in (("quotas", self._quotas), ("pods", self._pods)) if not informer.synced.is_set()]
        return f"{' and '.join(missing)} not seen yet" if missing else None

    async def run(self, stop: asyncio.Event) -> None:
        """Follow quotas and pods until ``stop``."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._quotas.run(stop))
            group.create_task(self._pods.run(stop))
