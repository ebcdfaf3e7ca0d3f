"""Webhook process: settings, wiring, run. Decides nothing; ``review`` does."""

from __future__ import annotations

from pathlib import Path

import structlog

from hami_devices import config
from hami_devices.catalog import Catalog
from hami_runtime import lifecycle, logs
from hami_runtime.clock import SystemClock
from hami_runtime.http import HealthServer, bounds_of, serve_app
from hami_runtime.kube import http as kube
from hami_runtime.kube.cluster import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS, Body, Kind
from hami_runtime.settings import from_command_line
from hami_runtime.telemetry import Telemetry
from hami_webhook.http import Reviews
from hami_webhook.keeper import CertificateKeeper, Configurations, Keeper, MountedCertificate, server_context
from hami_webhook.registration import Endpoint, Side, configuration
from hami_webhook.review import Policy
from hami_webhook.service import Webhook
from hami_webhook.settings import Settings
from hami_webhook.stores import DirectoryStore, SecretStore

log = structlog.get_logger()
ABOUT = "Admits pods that ask for devices: sets their scheduler and defaults, refuses what cannot be served."


def main() -> None:
    """Run the process until it is told to stop."""
    settings = from_command_line(Settings, program="hami-webhook", about=ABOUT)
    logs.configure(settings.log_level, "webhook", for_good=True)
    lifecycle.run(run(settings))


async def run(settings: Settings) -> None:
    """Wire the parts and run them."""
    catalog = _catalog(settings.device_config)
    clock = SystemClock()
    telemetry = Telemetry("webhook", settings.otlp_endpoint or None)
    context = server_context()
    async with kube.connect(
        settings.kubeconfig or None, settings.kube_context or None, user_agent="hami-webhook", telemetry=telemetry
    ) as cluster:
        policy = settings.policy(catalog)
        webhook = Webhook(cluster, clock, catalog, policy, telemetry=telemetry)
        reviews = Reviews(webhook.reviewer, telemetry=telemetry, max_body_bytes=settings.max_body_bytes)
        async with serve_app(
            reviews.application(),
            settings.webhook_host,
            settings.webhook_port,
            ssl=context,
            bounds=bounds_of(settings),
            telemetry=telemetry,
        ) as port:
            endpoint = settings.endpoint(port)
            keeper: Keeper
            if settings.certificate_file:
                keeper = MountedCertificate(context, Path(settings.certificate_file), Path(settings.certificate_key_file), clock)
            else:
                directory = settings.certificate_directory
                store = (
                    DirectoryStore(Path(directory))
                    if directory
                    else SecretStore(cluster, namespace=settings.namespace, name=settings.secret_name)
                )
                keeper = CertificateKeeper(
                    context,
                    store,
                    cluster,
                    clock,
                    names=endpoint.names,
                    configurations=_configurations(settings, catalog, policy, endpoint),
                    telemetry=telemetry,
                )
            health = HealthServer(
                lambda: keeper.lacking or webhook.lacking, telemetry=telemetry, host=settings.health_host, port=settings.health_port
            )
            async with health:
                lifecycle.announce(settings.ready_file, {"health": health.port, "webhook": port})
                log.info("listening", webhook=port, health=health.port, reached_at=endpoint.url or f"service {endpoint.service}")
                await lifecycle.serve(keeper.run, webhook.run, grace_seconds=settings.grace_seconds)
    telemetry.close()


def _catalog(path: str) -> Catalog:
    if not path:
        return Catalog()
    devices, warnings = config.load(Path(path).read_text(encoding="utf-8"))
    for warning in warnings:
        log.warning("device configuration", warning=warning)
    return Catalog(devices)


def _configurations(settings: Settings, catalog: Catalog, policy: Policy, endpoint: Endpoint) -> Configurations:
    """The configuration objects that this installation keeps."""
    sides: list[tuple[Side, Kind[Body]]] = [("Mutating", MUTATING_WEBHOOKS)]
    if settings.validating:
        sides.append(("Validating", VALIDATING_WEBHOOKS))

    def objects(authorities: bytes) -> list[tuple[Kind[Body], Body]]:
        return [
            (
                kind,
                configuration(
                    side,
                    endpoint,
                    authorities,
                    resources=catalog.managed_resources,
                    system_keys=catalog.system_pod_keys,
                    trusted_users=policy.trusted_users,
                    failure_policy=settings.failure_policy,
                    all_pods=any(vendor.idle_env for vendor in catalog.vendors),
                ),
            )
            for side, kind in (sides if settings.register else ())
        ]

    return objects
