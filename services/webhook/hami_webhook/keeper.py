"""Keeps the API server's trust and our certificate in step: read or issued, trusted first, then served; looked after for ever.

Order, on every replica: what is stored is what all serve; before a certificate is loaded, the configuration objects trust its authority. A
replica that finds somebody else's newer bundle takes it over in the same order, so it does not matter which of them renewed it. An authority that
is trusted and no longer stored (the Secret was replaced or deleted by hand) stays trusted until every replica has had time to look.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import structlog

from hami_runtime import pem_file
from hami_runtime.clock import Clock
from hami_runtime.isolation import Isolation
from hami_runtime.kube.cluster import AlreadyExists, Body, Cluster, Conflict, Kind, NotFound
from hami_runtime.lifecycle import sleep_until
from hami_runtime.telemetry import OFF, Telemetry
from hami_webhook import certificates
from hami_webhook.certificates import Bundle, CertificateError
from hami_webhook.registration import trust_patch, trusted_by, trusting
from hami_webhook.stores import Store

log = structlog.get_logger()
CHECK_SECONDS = 60.0
OLD_TRUST_SECONDS = 3 * CHECK_SECONDS
"""How long an authority that is no longer stored stays trusted: another replica may serve its certificate until its next look."""
_MOST_OLD = 4
_FIRST_PAUSE_SECONDS = 0.5
_TRIES = 5

Configurations = Callable[[bytes], Sequence[tuple[Kind[Body], dict[str, Any]]]]
"""The configuration objects for a caBundle."""


class Keeper(Protocol):
    """Whoever keeps the TLS context current."""

    @property
    def lacking(self) -> str | None:
        """Why the API server cannot call us now; None where it can."""
        ...

    async def run(self, stop: asyncio.Event) -> None:
        """Keep it so until ``stop``."""
        ...


class CertificateKeeper:
    """Our own authority: issues, renews, registers and loads."""

    def __init__(
        self,
        context: ssl.SSLContext,
        store: Store,
        cluster: Cluster,
        clock: Clock,
        *,
        names: Sequence[str],
        configurations: Configurations,
        telemetry: Telemetry = OFF,
    ) -> None:
        """Serve with ``context``, for ``names``; ``configurations`` says which objects must trust us (none: somebody else registers)."""
        self._context = context
        self._store = store
        self._cluster = cluster
        self._clock = clock
        self._isolation = Isolation("certificate", clock, telemetry)
        self._names = tuple(names)
        self._configurations = configurations
        self._loaded: Bundle | None = None
        self._lacking: str | None = "no certificate yet"
        self._old_since: dict[bytes, float] = {}
        """Authorities that were trusted and no longer stored, and when that was first seen: monotonic seconds."""
        self._renewals = telemetry.counter("hami_webhook_certificates_issued", "certificates that this replica issued")
        telemetry.gauge("hami_webhook_certificate_renewal_seconds", "until the certificate is renewed", self._seconds_left)

    @property
    def lacking(self) -> str | None:
        """Why the API server cannot call us now; None where it can."""
        return self._lacking

    def _seconds_left(self) -> float:
        if self._loaded is None:
            return 0.0
        return (certificates.renewal_at(self._loaded) - self._clock.utc()).total_seconds()

    async def run(self, stop: asyncio.Event) -> None:
        """Look after the certificate until ``stop``."""
        pause_seconds = _FIRST_PAUSE_SECONDS
        while not stop.is_set():
            try:
                await self.refresh()
                pause_seconds = _FIRST_PAUSE_SECONDS
            except Exception as exc:  # noqa: BLE001 - a Secret or a configuration object that others damage must not end the webhook
                self._isolation.failed("certificate", exc)
                if self._loaded is None:
                    self._lacking = f"no certificate yet: {exc}"
                await sleep_until(stop, pause_seconds)
                pause_seconds = min(2 * pause_seconds, CHECK_SECONDS)
            else:
                await sleep_until(stop, CHECK_SECONDS)

    async def refresh(self) -> None:
        """Bring store, trust and what we serve up to date.

        Raises:
            ClusterError: the API server could not be asked.
            OSError: the directory could not be written.
        """
        bundle = await self._current()
        await self._register(bundle)
        if bundle != self._loaded:
            load(self._context, bundle.certificate, bundle.key)
            self._loaded = bundle
            log.info("certificate loaded", names=self._names, renewal_at=certificates.renewal_at(bundle).isoformat())
        self._lacking = None

    async def _current(self) -> Bundle:
        """The bundle that all replicas share, renewed where it is due."""
        for _ in range(_TRIES):
            stored = await self._store.read()
            before = stored.bundle if stored else None
            now = self._clock.utc()
            try:
                reason = certificates.renewal_reason(before, self._names, now) if before else "there is none"
            except CertificateError as exc:
                reason, before = f"the one kept cannot be read: {exc}", None
            if reason is None and before is not None:
                return before
            bundle = certificates.issue(self._names, now, before=before)
            if await self._store.write(bundle, over=stored):
                self._renewals.add(1)
                log.info("certificate issued", reason=reason, names=self._names)
                return bundle
        raise Conflict("the certificate changes faster than it can be read")

    async def _register(self, bundle: Bundle) -> None:
        """Make the configuration objects trust and reach us."""
        for kind, wanted in self._configurations(bundle.authorities):
            for _ in range(_TRIES):
                if await self._registered(kind, wanted, bundle):
                    break
            else:
                raise Conflict(f"{kind.kind} changes faster than it can be patched")

    def _still_trusted(self, found: bytes, bundle: Bundle) -> bytes:
        """Of the authorities in ``found``, a caBundle, those to be trusted a while longer beside the stored ones."""
        now = self._clock.monotonic()
        old = certificates.others(found, bundle.authorities, self._clock.utc())[:_MOST_OLD]
        return b"".join(each for each in old if now - self._old_since.setdefault(each, now) < OLD_TRUST_SECONDS)

    async def _registered(self, kind: Kind[Body], wanted: dict[str, Any], bundle: Bundle) -> bool:
        name = wanted["metadata"]["name"]
        try:
            found = await self._cluster.get(kind, name)
        except NotFound:
            try:
                await self._cluster.create(kind, wanted)
            except AlreadyExists:
                return False
            log.info("webhook registered", kind=kind.kind, name=name)
            return True
        if (old := self._still_trusted(trusted_by(found, wanted), bundle)) != b"":
            wanted = trusting(wanted, bundle.authorities + old)
        if (patch := trust_patch(found, wanted)) is None:
            return True
        try:
            await self._cluster.patch(kind, name, patch, resource_version=found["metadata"]["resourceVersion"])
        except (Conflict, NotFound):
            return False
        log.info("webhook registration brought up to date", kind=kind.kind, name=name)
        return True


class MountedCertificate:
    """Files that somebody else keeps, as cert-manager does; loaded again when they change."""

    def __init__(self, context: ssl.SSLContext, certificate: Path, key: Path, clock: Clock) -> None:
        self._context = context
        self._isolation = Isolation("certificate", clock)
        self._certificate = certificate
        self._key = key
        self._loaded: tuple[bytes, bytes] | None = None
        self._lacking: str | None = "no certificate yet"

    @property
    def lacking(self) -> str | None:
        """Why the API server cannot call us now; None where it can."""
        return self._lacking

    async def run(self, stop: asyncio.Event) -> None:
        """Look at the files until ``stop``."""
        while not stop.is_set():
            with self._isolation.item(self._certificate):
                self._look()
            await sleep_until(stop, CHECK_SECONDS if self._loaded else 1.0)

    def _look(self) -> None:
        try:
            found = (self._certificate.read_bytes(), self._key.read_bytes())
            if found != self._loaded:
                load(self._context, *found)
                self._loaded, self._lacking = found, None
                log.info("certificate loaded", path=str(self._certificate))
        except Exception as exc:
            if self._loaded is None:
                self._lacking = f"no certificate yet: {exc}"
            raise


def load(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Serve new connections with this certificate.

    Raises:
        ssl.SSLError: they are not a certificate and its key.
    """
    with pem_file.readable(certificate) as certificate_path, pem_file.readable(key) as key_path:
        context.load_cert_chain(certificate_path, key_path)


def server_context() -> ssl.SSLContext:
    """TLS for a server, still without a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
