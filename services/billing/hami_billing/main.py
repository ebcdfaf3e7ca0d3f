"""Process of the billing service: settings, wiring, run. Decides nothing; ``core`` does."""

from __future__ import annotations

import structlog

from hami_billing.api import application
from hami_billing.follower import Follower
from hami_billing.settings import Settings
from hami_billing.store import Store
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
ABOUT = "Keeps a durable ledger of who held which part of which card, and makes bills from it."


def main() -> None:
    """Run the process until it is told to stop."""
    settings = from_command_line(Settings, program="hami-billing", about=ABOUT)
    logs.configure(settings.log_level, "billing", for_good=True)
    lifecycle.run(run(settings))


async def run(settings: Settings) -> None:
    """Wire the parts and run them."""
    clock = SystemClock()
    telemetry = Telemetry("billing", settings.otlp_endpoint or None)
    with Store(settings.database_url) as store:
        async with (
            kube.connect(
                settings.kubeconfig or None,
                settings.kube_context or None,
                user_agent="hami-billing",
                telemetry=telemetry,
                connections=kube.REVIEW_CONNECTIONS,
            ) as reviews,
            jetstream.connect_process(settings, name="hami-billing", telemetry=telemetry) as bus,
        ):
            follower = Follower(bus, store, clock, kept_days=settings.kept_days, telemetry=telemetry)
            authorize = let_all_in if settings.api_open else Readers(AccessReviewer(reviews, clock))
            tls = self_signed.context("hami-billing") if settings.api_tls else None
            app = application(store, clock, authorize, settings.prices_file)
            health = HealthServer(lambda: follower.lacking, telemetry=telemetry, host=settings.health_host, port=settings.health_port)
            async with (
                health,
                serve_app(app, settings.api_host, settings.api_port, ssl=tls, bounds=bounds_of(settings), telemetry=telemetry) as api_port,
            ):
                lifecycle.announce(settings.ready_file, {"health": health.port, "api": api_port})
                log.info("listening", api=api_port, health=health.port)
                loops = (follower.allocations, follower.devices, follower.sweep)
                await lifecycle.serve(*loops, grace_seconds=settings.grace_seconds)
    telemetry.close()


if __name__ == "__main__":
    main()
