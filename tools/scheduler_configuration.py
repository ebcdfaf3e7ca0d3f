"""Prints ``deploy/kustomize/base/scheduler/kube-scheduler.yaml``: what kube-scheduler runs with beside our extender.

A test holds the file to what this prints. Every resource that the vendors' default configuration manages is in it; a cluster with another
device configuration gives its path as argument.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from hami_devices.catalog import Catalog
from hami_devices.config import DeviceConfig, load
from hami_rig.scheduler import configuration
from hami_runtime.kube import accounts

EXTENDER_URL = "http://127.0.0.1:9394"
EXTENDER_NAME = "hami-scheduler"
TLS = {
    "serverName": EXTENDER_NAME,
    "caFile": "/etc/hami/extender/ca.crt",
    "certFile": "/etc/hami/extender/tls.crt",
    "keyFile": "/etc/hami/extender/tls.key",
}
HEADER = """\
# kube-scheduler beside the hami-scheduler extender, in one pod: `make docs` writes this file.
#
# percentageOfNodesToScore: 100  otherwise kube-scheduler sends the extender a sample of the nodes
# podMaxBackoffSeconds: 2        a pod that was refused is tried again soon after something was released
# ignorable: false               with true, pods would be bound anywhere while the extender is away
# ignoredByScheduler: true       devices are counted by the extender alone
"""
RIG_HEADER = "# kube-scheduler's stand-in beside the extender, in docker-compose.yml: `make docs` writes this file.\n"


def kube_scheduler(resources: tuple[str, ...], *, tls: bool = False) -> dict[str, Any]:
    """The configuration for ``resources``, as the API server's types spell it; with ``tls`` for extenders that show and want a certificate."""
    body = configuration.generate(resources, extender_url=EXTENDER_URL)
    if tls:
        (called,) = body["extenders"]
        called |= {"urlPrefix": called["urlPrefix"].replace("http:", "https:"), "enableHTTPS": True, "tlsConfig": dict(TLS)}
    return {
        "apiVersion": body.pop("apiVersion"),
        "kind": body.pop("kind"),
        "leaderElection": {"leaderElect": True, "resourceName": "hami-kube-scheduler", "resourceNamespace": accounts.SYSTEM_NAMESPACE},
        "clientConnection": {"qps": 1000, "burst": 2000},
        **body,
        "profiles": [{"schedulerName": "hami-scheduler"}],
    }


def text(resources: tuple[str, ...], *, tls: bool = False) -> str:
    """The file."""
    return HEADER + msgspec.yaml.encode(kube_scheduler(resources, tls=tls)).decode()


def of_rig(resources: tuple[str, ...]) -> str:
    """The file for kube-scheduler's stand-in, of docker-compose.yml: `make docs` writes it to ``deploy/compose``."""
    return RIG_HEADER + msgspec.yaml.encode(configuration.generate(resources, extender_url=EXTENDER_URL)).decode()


def main() -> None:
    """Print it."""
    devices = load(Path(sys.argv[1]).read_text())[0] if len(sys.argv) > 1 else DeviceConfig()
    sys.stdout.write(text(Catalog(devices).managed_resources))


if __name__ == "__main__":
    main()
