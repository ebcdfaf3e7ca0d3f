"""Who of several replicas leads, by a Lease. Decides when a lease is ours, when it is over, and when another's may be taken.

Invariants: nobody compares two machines' clocks: a lease is over when we have seen it unchanged for its duration on our own monotonic clock.
A leader stops believing in itself ``renew_seconds`` after it last *began* a renewal that succeeded; that is less than ``lease_seconds``, so it
has stopped before anybody else starts. A write whose answer was lost is looked up, never assumed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC
from typing import Any

import structlog

from hami_protocol import kubernetes as k
from hami_runtime.clock import Clock
from hami_runtime.isolation import Isolation
from hami_runtime.kube.cluster import LEASES, AlreadyExists, Cluster, ClusterError, Conflict, NotFound
from hami_runtime.lifecycle import sleep_until
from hami_runtime.telemetry import OFF, Telemetry

log = structlog.get_logger()
_RELEASE_SECONDS = 2.0


class LeaderElector:
    """One replica's part in an election."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        *,
        name: str,
        namespace: str,
        identity: str,
        lease_seconds: int = 4,
        renew_seconds: float = 3,
        retry_seconds: float = 1,
        telemetry: Telemetry = OFF,
    ) -> None:
        """Stand for election.

        Args:
            cluster: where the Lease is.
            clock: ours.
            name: of the Lease.
            namespace: of the Lease.
            identity: ours; others read it as ``leader_identity``.
            lease_seconds: others wait so long after the last renewal that they saw.
            renew_seconds: a leader that could not renew for so long leads no more.
            retry_seconds: between two tries.
            telemetry: where leadership is shown.

        Raises:
            ValueError: the times do not fit each other, or there is no identity.
        """
        if not identity:
            raise ValueError("identity: '' is not accepted; accepted: a name that no other replica has")
        if not 0 < retry_seconds < renew_seconds < lease_seconds:
            raise ValueError(
                f"retry_seconds, renew_seconds, lease_seconds: {retry_seconds}, {renew_seconds}, {lease_seconds} are not accepted; "
                "accepted: each greater than the one before"
            )
        self._cluster = cluster
        self._clock = clock
        self._isolation = Isolation("lease", clock, telemetry)
        self._name = name
        self._namespace = namespace
        self._identity = identity
        self._lease_seconds = lease_seconds
        self._renew_seconds = renew_seconds
        self._retry_seconds = retry_seconds
        self._valid_until = float("-inf")
        self._seen: k.LeaseSpec | None = None
        self._seen_at = 0.0
        self._told = False
        self._holder = ""
        self._handlers: list[Callable[[bool], None]] = []
        self._leads = asyncio.Event()
        telemetry.gauge("hami_leader", "1 while this replica leads", lambda: [(int(self.is_leader), {"lease": name})])

    @property
    def identity(self) -> str:
        """Ours."""
        return self._identity

    @property
    def is_leader(self) -> bool:
        """Whether we lead at this very moment."""
        return self._clock.monotonic() < self._valid_until

    @property
    def leader_identity(self) -> str:
        """Who holds the lease, as far as we have seen; empty where nobody does."""
        return self._holder

    def on_change(self, handler: Callable[[bool], None]) -> None:
        """Call ``handler`` with True when we begin to lead and with False when we lead no more."""
        self._handlers.append(handler)

    async def wait_leading(self) -> None:
        """Return once we lead."""
        while not self.is_leader:
            self._leads.clear()
            await self._leads.wait()

    async def run(self, stop: asyncio.Event) -> None:
        """Stand for election until ``stop``; then give up the lease, so that another need not wait for its end."""
        try:
            while not stop.is_set():
                await self._try()
                self._tell()
                if await sleep_until(stop, self._pause_seconds()):
                    break
                self._tell()
        finally:
            held, self._valid_until = self.is_leader, float("-inf")
            self._tell()
            if held:
                await self._release()

    def _pause_seconds(self) -> float:
        """Until the next try; a leader wakes in time to notice that it leads no more.

        Who waits looks twice as often as a leader renews, and at the moment at which the lease is over: a renewal is seen within half a second, so
        that another leads less than five seconds after one has died.
        """
        now = self._clock.monotonic()
        if now < self._valid_until:
            return min(self._retry_seconds, self._valid_until - now)
        over_in_seconds = self._seen_at + self._lease_seconds - now if self._seen is not None else 0.0
        look_seconds = self._retry_seconds / 2
        return min(look_seconds, over_in_seconds) if over_in_seconds > 0 else look_seconds

    async def _try(self) -> None:
        began = self._clock.monotonic()
        patience_seconds = self._valid_until - began if self.is_leader else self._renew_seconds
        try:
            async with asyncio.timeout(patience_seconds):
                won = await self._acquire_or_renew()
        except (Conflict, AlreadyExists, NotFound):
            return  # somebody was faster; the next try looks who
        except TimeoutError:
            log.warning("the lease could not be looked at in time", lease=self._name)
            return
        except ClusterError as exc:
            log.warning("the lease cannot be looked at", lease=self._name, error=str(exc))
            return
        except Exception as exc:  # noqa: BLE001 - a lease that cannot be understood is not ours; the next try looks again
            self._isolation.failed(self._name, exc)
            return
        self._valid_until = began + self._renew_seconds if won else float("-inf")

    async def _acquire_or_renew(self) -> bool:
        try:
            lease = await self._cluster.get(LEASES, self._name, namespace=self._namespace)
        except NotFound:
            body = {"metadata": {"name": self._name, "namespace": self._namespace}, "spec": self._spec(acquired=True, transitions=0)}
            self._look(await self._cluster.create(LEASES, body, namespace=self._namespace))
            return True
        self._look(lease)
        spec = lease.spec
        ours = spec.holder_identity == self._identity
        if not ours and spec.holder_identity and not self._is_over(spec):
            return False
        changes = self._spec(acquired=not ours, transitions=(spec.lease_transitions or 0) + (0 if ours else 1))
        self._look(
            await self._cluster.patch(
                LEASES,
                self._name,
                {"spec": changes},
                namespace=self._namespace,
                uid=lease.metadata.uid,
                resource_version=lease.metadata.resource_version,
            )
        )
        return True

    def _look(self, lease: k.Lease) -> None:
        if lease.spec != self._seen:
            self._seen, self._seen_at = lease.spec, self._clock.monotonic()
        self._holder = lease.spec.holder_identity or ""

    def _is_over(self, spec: k.LeaseSpec) -> bool:
        return self._clock.monotonic() >= self._seen_at + max(spec.lease_duration_seconds or 0, self._lease_seconds)

    def _spec(self, *, acquired: bool, transitions: int) -> dict[str, Any]:
        now = self._clock.utc().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec: dict[str, Any] = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._lease_seconds,
            "renewTime": now,
            "leaseTransitions": transitions,
        }
        return {**spec, "acquireTime": now} if acquired else spec

    def _tell(self) -> None:
        leads = self.is_leader
        if leads == self._told:
            return
        self._told = leads
        log.info("this replica leads" if leads else "this replica leads no more", lease=self._name, identity=self._identity)
        if leads:
            self._leads.set()
        for number, handler in enumerate(self._handlers):
            with self._isolation.item(f"handler {number}"):
                handler(leads)

    async def _release(self) -> None:
        with suppress(ClusterError, TimeoutError):
            async with asyncio.timeout(_RELEASE_SECONDS):
                lease = await self._cluster.get(LEASES, self._name, namespace=self._namespace)
                if lease.spec.holder_identity == self._identity:
                    await self._cluster.patch(
                        LEASES,
                        self._name,
                        {"spec": {"holderIdentity": "", "leaseDurationSeconds": 1}},
                        namespace=self._namespace,
                        uid=lease.metadata.uid,
                        resource_version=lease.metadata.resource_version,
                    )
