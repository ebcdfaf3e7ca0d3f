"""Registry process: settings, wiring, run. Decides nothing; ``rules`` and ``phases`` do."""

from __future__ import annotations

from pathlib import Path

import structlog

from hami_devices import config
from hami_devices.catalog import Catalog
from hami_registry.api import application
from hami_registry.service import Registry
from hami_registry.settings import Settings
from hami_runtime import lifecycle, logs, self_signed
from hami_runtime.bus import jetstream
from hami_runtime.clock import SystemClock
from hami_runtime.http import HealthServer, bounds_of, serve_app
from hami_runtime.kube import http as kube
from hami_runtime.kube.access import AccessReviewer
from hami_runtime.kube.readers import Readers, let_all_in
from hami_runtime.settings import from_command_line
from hami_runtime.telemetry import Telemetry

log = structlog.get_logger()
ABOUT = "Keeps nodes' records, handshakes and liveness, and writes how grants went onto their pods."


def main() -> None:
    """Run the process until it is told to stop."""
    settings = from_command_line(Settings, program="hami-registry", about=ABOUT)
    logs.configure(settings.log_level, "registry", for_good=True)
    lifecycle.run(run(settings))


async def run(settings: Settings) -> None:
    """Wire the parts and run them."""
    clock = SystemClock()
    telemetry = Telemetry("registry", settings.otlp_endpoint or None)
    async with (
        kube.connect(
            settings.kubeconfig or None, settings.kube_context or None, user_agent="hami-registry", telemetry=telemetry
        ) as cluster,
        kube.connect(
            settings.kubeconfig or None,
            settings.kube_context or None,
            user_agent="hami-registry",
            telemetry=telemetry,
            connections=kube.REVIEW_CONNECTIONS,
        ) as reviews,
        jetstream.connect_process(settings, name="hami-registry", telemetry=telemetry) as bus,
    ):
        registry = Registry(
            bus,
            cluster,
            clock,
            _catalog(settings.device_config),
            identity=settings.replica,
            namespace=settings.namespace,
            legacy_handshake=settings.legacy_handshake,
            outcomes_anew=settings.outcomes_anew,
            telemetry=telemetry,
        )
        authorize = let_all_in if settings.api_open else Readers(AccessReviewer(reviews, clock))
        tls = self_signed.context("hami-registry") if settings.api_tls else None
        page = registry.page() if settings.web else None
        app = application(registry.inventory, bus, authorize, page)
        loops = [registry.run, *([page.run] if page else [])]
        health = HealthServer(lambda: registry.lacking, telemetry=telemetry, host=settings.health_host, port=settings.health_port)
        async with (
            health,
            serve_app(app, settings.api_host, settings.api_port, ssl=tls, bounds=bounds_of(settings), telemetry=telemetry) as api_port,
        ):
            lifecycle.announce(settings.ready_file, {"health": health.port, "api": api_port})
            log.info("listening", api=api_port, health=health.port, identity=settings.replica)
            await lifecycle.serve(*loops, grace_seconds=settings.grace_seconds)
    telemetry.close()


def _catalog(path: str) -> Catalog:
    if not path:
        return Catalog()
    devices, warnings = config.load(Path(path).read_text(encoding="utf-8"))
    for warning in warnings:
        log.warning("device configuration", warning=warning)
    return Catalog(devices)
