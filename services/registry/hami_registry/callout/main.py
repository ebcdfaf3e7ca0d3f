"""Process of the auth callout: settings, wiring, run. Decides nothing; ``claims`` does.

``hami-auth-callout`` (or ``hami-auth-callout run``) serves; ``hami-auth-callout keys`` prints a Secret with a new key and ends.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import structlog

from hami_devices.catalog import Catalog
from hami_registry.callout.responder import Responder
from hami_registry.callout.settings import Settings
from hami_runtime import lifecycle, logs
from hami_runtime.bus import jetstream
from hami_runtime.bus.nkeys import KeyFault, Kind, SigningKey
from hami_runtime.bus.signing_secret import new_secret
from hami_runtime.clock import SystemClock
from hami_runtime.http import HealthServer
from hami_runtime.kube import http as kube
from hami_runtime.settings import from_command_line
from hami_runtime.telemetry import Telemetry

log = structlog.get_logger()
ABOUT = """Lets node-agents onto the bus: each with its own token, and for its own node alone.

  hami-auth-callout [run]   answer NATS until stopped
  hami-auth-callout keys    print a Secret with a new key, for `kubectl apply -f -`, and end"""


def main() -> None:
    """The ``hami-auth-callout`` command."""
    arguments = sys.argv[1:]
    if arguments == ["keys"]:
        sys.stdout.write(new_secret())
        return
    settings = from_command_line(
        Settings, program="hami-auth-callout", about=ABOUT, arguments=arguments[1:] if arguments[:1] == ["run"] else arguments
    )
    logs.configure(settings.log_level, "auth-callout", for_good=True)
    try:
        lifecycle.run(run(settings, signing_key(Path(settings.signing_key_file).read_text())))
    except (KeyFault, OSError) as exc:
        log.error("auth-callout ends", reason=str(exc))
        raise SystemExit(1) from exc


async def run(settings: Settings, key: SigningKey) -> None:
    """Wire the parts and run them; users are signed with ``key``."""
    telemetry = Telemetry("auth-callout", settings.otlp_endpoint or None)
    name = f"hami-auth-callout-{settings.identity or f'{socket.gethostname()}-{os.getpid()}'}"
    async with (
        kube.connect(
            settings.kubeconfig or None, settings.kube_context or None, user_agent="hami-auth-callout", telemetry=telemetry
        ) as cluster,
        jetstream.connect_process(settings, name=name, telemetry=telemetry) as bus,
    ):
        responder = Responder(
            bus,
            cluster,
            SystemClock(),
            key,
            agent_namespace=settings.agent_namespace,
            agent_account=settings.agent_account,
            account=settings.bus_account,
            user_seconds=settings.user_seconds,
            device_types=sorted({vendor.device_type for vendor in Catalog().vendors} | settings.device_types),
            telemetry=telemetry,
        )

        def lacking() -> str | None:
            return None if bus.connected else "not connected to the bus"

        async with HealthServer(lacking, telemetry=telemetry, host=settings.health_host, port=settings.health_port) as health:
            lifecycle.announce(settings.ready_file, {"health": health.port})
            log.info("listening", health=health.port, issuer=key.public)
            await lifecycle.serve(responder.run, grace_seconds=settings.grace_seconds)
    telemetry.close()


def signing_key(text: str) -> SigningKey:
    """The key in a file.

    Raises:
        KeyFault: there is none, or it is not an account's.
    """
    key = SigningKey.from_seed(text)
    if key.kind is not Kind.ACCOUNT:
        raise KeyFault(f"HAMI_SIGNING_KEY_FILE: a key of a {key.kind.name.lower()}; accepted: an account's, beginning with SA")
    return key


if __name__ == "__main__":
    main()
