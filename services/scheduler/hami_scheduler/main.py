"""Scheduler process: settings, wiring, run. Decides nothing; ``placement`` and the core's other modules do."""

from __future__ import annotations

import os
import socket
import ssl
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import structlog
from msgspec.structs import replace

from hami_devices import config
from hami_devices.catalog import Catalog
from hami_devices.config import ConfigError, DeviceConfig
from hami_runtime import lifecycle, logs, self_signed
from hami_runtime import settings as process_settings
from hami_runtime.bus import jetstream
from hami_runtime.clock import SystemClock
from hami_runtime.http import HealthServer, bounds_of, serve_app
from hami_runtime.kube import http as kube
from hami_runtime.kube.access import AccessReviewer
from hami_runtime.kube.lease import LeaderElector
from hami_runtime.kube.readers import Readers, let_all_in
from hami_runtime.telemetry import Telemetry
from hami_scheduler import collector, extender, questions, resize_api
from hami_scheduler.forwarding import forwarding, identity
from hami_scheduler.service import Options, Scheduler
from hami_scheduler.settings import Settings

log = structlog.get_logger()

ABOUT = "Decides which node and devices a pod gets: kube-scheduler's extender, and /v1 for people who want to know why."


def main() -> None:
    """Run ``hami-scheduler``."""
    settings = process_settings.from_command_line(Settings, program="hami-scheduler", about=ABOUT)
    logs.configure(settings.log_level, "scheduler", for_good=True)
    try:
        lifecycle.run(run(settings))
    except (ConfigError, OSError) as exc:
        log.error("scheduler ends", reason=str(exc))
        raise SystemExit(1) from exc


async def run(settings: Settings) -> None:
    """Run until a signal."""
    catalog = load_catalog(settings)
    clock = SystemClock()
    telemetry = Telemetry("scheduler", settings.otlp_endpoint or None)
    name = settings.identity or f"{socket.gethostname()}-{os.getpid()}"
    server_tls, client_tls = extender_tls(settings)
    async with AsyncExitStack() as stack:
        stack.callback(telemetry.close)
        cluster = await stack.enter_async_context(
            kube.connect(settings.kubeconfig or None, settings.kube_context or None, user_agent="hami-scheduler", telemetry=telemetry)
        )
        bus = await stack.enter_async_context(jetstream.connect_process(settings, name="hami-scheduler", telemetry=telemetry))
        scheduler = Scheduler(
            cluster=cluster,
            bus=bus,
            clock=clock,
            catalog=catalog,
            identity=name,
            options=Options(
                placement=settings.placement,
                bind_timeout_seconds=settings.bind_timeout_seconds,
                hold_seconds=settings.hold_seconds,
                lock_expiry_seconds=settings.lock_expiry_seconds,
                preemption=settings.preemption,
                gang_wait_seconds=settings.gang_wait_seconds,
                adopted_schedulers=settings.adopted_schedulers,
                privileged=settings.privileged,
                card_metrics=settings.card_metrics,
            ),
            telemetry=telemetry,
            elector=LeaderElector(
                cluster,
                clock,
                name=settings.lease_name,
                namespace=settings.namespace,
                identity=identity(name, advertised_url(settings)),
                telemetry=telemetry,
            )
            if settings.leader_elect
            else None,
        )
        forwarder = await stack.enter_async_context(forwarding(client_tls, server_name=settings.extender_server_name))
        api_tls = self_signed.context("hami-scheduler") if settings.api_tls else None
        reviews = await stack.enter_async_context(
            kube.connect(
                settings.kubeconfig or None,
                settings.kube_context or None,
                user_agent="hami-scheduler",
                telemetry=telemetry,
                connections=kube.REVIEW_CONNECTIONS,
            )
        )
        authorize = let_all_in if settings.api_open else Readers(AccessReviewer(reviews, clock))
        extender_app = extender.application(scheduler, forwarder)
        extender_app.add_routes([resize_api.route(scheduler, authorize)])  # for wishes that another replica hands on
        serve = partial(serve_app, telemetry=telemetry)
        bounds = bounds_of(settings)
        large = replace(bounds, body_bytes=4 * extender.MAX_BODY_BYTES)
        api_app = questions.application(scheduler, bus, authorize, forwarder)
        ports = {
            "extender": await stack.enter_async_context(
                serve(extender_app, settings.extender_host, settings.extender_port, ssl=server_tls, bounds=large)
            ),
            "api": await stack.enter_async_context(serve(api_app, settings.api_host, settings.api_port, ssl=api_tls, bounds=bounds)),
        }
        if settings.volcano_host:
            volcano_app = extender.volcano_application(scheduler, forwarder)
            ports["volcano"] = await stack.enter_async_context(
                serve(volcano_app, settings.volcano_host, settings.volcano_port, bounds=replace(bounds, body_bytes=extender.MAX_BODY_BYTES))
            )
        health = HealthServer(scheduler.unready, telemetry=telemetry, host=settings.health_host, port=settings.health_port)
        ports["health"] = (await stack.enter_async_context(health)).port
        lifecycle.announce(settings.ready_file, ports)
        log.info("scheduler listens", **ports)
        await lifecycle.serve(
            *scheduler.loops,
            partial(questions.answer_on_bus, scheduler, bus),
            partial(collector.keep_calm, scheduler),
            grace_seconds=settings.grace_seconds,
        )


def load_catalog(settings: Settings) -> Catalog:
    """The vendors, as the device configuration describes them.

    Raises:
        OSError: the file cannot be read.
        ConfigError: it is no device configuration.
    """
    device_config = DeviceConfig()
    if settings.device_config:
        device_config, warnings = config.load(Path(settings.device_config).read_text(encoding="utf-8"))
        for warning in warnings:
            log.warning("device configuration", warning=warning)
    return Catalog(device_config, node_policy=settings.node_policy, device_policy=settings.device_policy)


def advertised_url(settings: Settings) -> str:
    """Where other replicas reach the extender; empty where only they could know that share its host, as with a free port."""
    if settings.advertise_url or not settings.extender_port:
        return settings.advertise_url
    scheme = "https" if settings.extender_certificate else "http"
    return f"{scheme}://{settings.extender_host}:{settings.extender_port}"


def extender_tls(settings: Settings) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    """TLS for serving the extender, with kube-scheduler's certificate asked for, and for calling the leader's; None for plain HTTP.

    Raises:
        OSError: a file cannot be read, or is none.
    """
    if not settings.extender_certificate:
        return None, None
    authority = settings.extender_client_ca or None
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority)
    server.load_cert_chain(settings.extender_certificate, settings.extender_key)
    if authority:
        server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=authority)
    client.load_cert_chain(settings.extender_certificate, settings.extender_key)
    return server, client


if __name__ == "__main__":
    main()
