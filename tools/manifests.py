"""Kubernetes objects as YAML that people read: nothing in it refers to elsewhere in the file, long expressions are blocks.

``python -m tools.manifests`` writes every generated manifest anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml

from hami_devices.catalog import Catalog

ROOT = Path(__file__).resolve().parents[1]
_BLOCK_CHARACTERS = 100


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, _data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else ">" if len(text) > _BLOCK_CHARACTERS else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def dump(objects: Iterable[dict[str, Any]]) -> str:
    """``objects`` as one file."""
    return yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=140)


def generated() -> dict[str, str]:
    """Every generated manifest: its path below ``deploy/kustomize`` and its text."""
    from tools import (
        admission_policies,
        grafana_dashboards,
        nats_configuration,
        prometheus_rules,
        scheduler_configuration,
        vendor_plugins,
        webhook_configurations,
    )

    catalog = Catalog()
    makers: dict[str, Callable[[], str]] = {
        "../compose/kube-scheduler.yaml": lambda: scheduler_configuration.of_rig(catalog.managed_resources),
        "base/scheduler/kube-scheduler.yaml": lambda: scheduler_configuration.text(catalog.managed_resources),
        "base/webhook/webhooks.yaml": lambda: webhook_configurations.text(catalog),
        "components/admission-policies/policies.yaml": lambda: admission_policies.text(catalog),
        "components/high-availability/kube-scheduler.yaml": lambda: scheduler_configuration.text(catalog.managed_resources, tls=True),
        "components/nats-accounts/accounts.conf": nats_configuration.text,
        "components/nats-auth-callout/accounts.conf": nats_configuration.callout_text,
        "components/prometheus-operator/rules.yaml": prometheus_rules.text,
    }
    dashboards = {f"components/grafana-dashboards/{name}.json": text for name, text in grafana_dashboards.dashboards().items()}
    plugins = {f"components/{path}": text for path, text in vendor_plugins.files(catalog).items()}
    return {path: make() for path, make in makers.items()} | dashboards | plugins


def main() -> None:
    """Write them."""
    for path, text in generated().items():
        whole = ROOT / "deploy" / "kustomize" / path
        whole.parent.mkdir(parents=True, exist_ok=True)
        whole.write_text(text)


if __name__ == "__main__":
    main()
