"""Prints ``deploy/kustomize/components/prometheus-operator/rules.yaml``: ``deploy/prometheus/hami.rules.yaml`` as the operator's object."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from hami_runtime.kube import accounts
from tools import manifests

RULES = Path(__file__).resolve().parents[1] / "deploy" / "prometheus" / "hami.rules.yaml"
HEADER = "# Rules and alerts of deploy/prometheus/hami.rules.yaml: `make docs` writes this file.\n"


def rule_object() -> dict[str, Any]:
    """The PrometheusRule."""
    labels = {"app.kubernetes.io/name": "hami", "app.kubernetes.io/part-of": "hami"}
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "hami", "namespace": accounts.SYSTEM_NAMESPACE, "labels": labels},
        "spec": yaml.safe_load(RULES.read_text()),
    }


def text() -> str:
    """The file."""
    return HEADER + manifests.dump([rule_object()])


def main() -> None:
    """Print it."""
    sys.stdout.write(text())


if __name__ == "__main__":
    main()
