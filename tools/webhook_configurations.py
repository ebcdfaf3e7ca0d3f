"""Prints ``deploy/kustomize/base/webhook/webhooks.yaml``: the objects that make the API server call the webhook, without its certificate.

They are part of the installation, so that the webhook needs no right to make any, and so that they go when the installation goes. The webhook
fills in the caBundle. The path of a device configuration with other resource names may be given.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal

from hami_devices import ownership
from hami_devices.catalog import Catalog
from hami_devices.config import DeviceConfig, load
from hami_runtime.kube import accounts
from hami_webhook.registration import Endpoint, configuration
from tools import manifests
from tools.admission_policies import account

SERVICE = "hami-webhook"
HEADER = """\
# What makes the API server call the webhook: `make docs` writes this file. The webhook fills in the caBundle; until then, pods that ask for
# devices are refused, and no other pod is held up.
"""


def webhook_configuration(side: Literal["Mutating", "Validating"], catalog: Catalog) -> dict[str, Any]:
    """One of the two."""
    body = configuration(
        side,
        Endpoint(service=SERVICE, namespace=accounts.SYSTEM_NAMESPACE),
        b"",
        resources=catalog.managed_resources,
        system_keys=catalog.system_pod_keys,
        trusted_users=(account(writer) for writer in ownership.Writer),
        failure_policy="Fail",
        all_pods=any(vendor.idle_env for vendor in catalog.vendors),
    )
    for webhook in body["webhooks"]:
        del webhook["clientConfig"]["caBundle"]
    return body


def text(catalog: Catalog) -> str:
    """The file."""
    bodies = [webhook_configuration("Mutating", catalog), webhook_configuration("Validating", catalog)]
    return HEADER + manifests.dump(bodies)


def main() -> None:
    """Print it."""
    devices = load(Path(sys.argv[1]).read_text())[0] if len(sys.argv) > 1 else DeviceConfig()
    sys.stdout.write(text(Catalog(devices)))


if __name__ == "__main__":
    main()
