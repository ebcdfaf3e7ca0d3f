"""What ``hami install`` is about to do: which images, which objects, what the cluster must have before, what is waited for. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import yaml
from msgspec import Struct

SERVICES: Final = ("node-agent", "registry", "scheduler", "webhook")
KUBE_SCHEDULER: Final = "registry.k8s.io/kube-scheduler"
WAITED_FOR: Final = ("StatefulSet", "Deployment", "DaemonSet")
"""In this order: the bus comes before who speaks over it."""
BROUGHT_BY: Final = {
    "cert-manager.io": "cert-manager: https://cert-manager.io/docs/installation",
    "monitoring.coreos.com": "the Prometheus operator, or an overlay of your own without components/prometheus-operator",
}
"""Who brings kinds that are not Kubernetes' own, by their group."""

GroupKind = tuple[str, str]


class Images(Struct, frozen=True, kw_only=True):
    """Which images are run, where they are not the overlay's own; empty means those."""

    prefix: str = ""
    tag: str = ""
    kube_scheduler: str = ""

    def replaced(self) -> list[dict[str, str]]:
        """As kustomize words it."""
        found = []
        for service in SERVICES if self.prefix or self.tag else ():
            name = f"hami/{service}"
            new = {"newName": f"{self.prefix.rstrip('/')}/{service}"} if self.prefix else {}
            found.append({"name": name, **new, **({"newTag": self.tag} if self.tag else {})})
        if self.kube_scheduler:
            found.append({"name": KUBE_SCHEDULER, "newTag": self.kube_scheduler})
        return found


class Workload(NamedTuple):
    """What runs pods."""

    namespace: str
    name: str
    """As ``kind/name``."""


class Plan(Struct, frozen=True, kw_only=True):
    """What will be applied."""

    count: int
    kinds: frozenset[GroupKind]
    workloads: tuple[Workload, ...]
    """In the order in which they are waited for."""

    def lacking(self, served: Iterable[GroupKind]) -> str:
        """What the cluster has to have before, and has not; empty where nothing is lacking."""
        missing = sorted(self.kinds - set(served))
        if not missing:
            return ""
        kinds = ", ".join(f"{kind} ({group or 'core'})" for group, kind in missing)
        first = sorted({BROUGHT_BY[group] for group, _ in missing if group in BROUGHT_BY})
        remedy = f"install first {'; and '.join(first)}" if first else "it takes Kubernetes 1.30 or later"
        return f"the cluster does not know {kinds}: {remedy}. Nothing was applied"


def plan(text: str) -> Plan:
    """The plan for the objects in ``text``, YAML."""
    objects = [each for each in yaml.safe_load_all(text) if each]
    workloads = [each for kind in WAITED_FOR for each in objects if each["kind"] == kind]
    return Plan(
        count=len(objects),
        kinds=frozenset((_group(each["apiVersion"]), each["kind"]) for each in objects),
        workloads=tuple(
            Workload(each["metadata"]["namespace"], f"{each['kind'].lower()}/{each['metadata']['name']}") for each in workloads
        ),
    )


def served(table: str) -> set[GroupKind]:
    """The kinds that ``kubectl api-resources --no-headers`` lists; short names may be missing, so columns are counted from the end."""
    rows = (line.split() for line in table.splitlines())
    return {(_group(words[-3]), words[-1]) for words in rows if len(words) >= 4}


def server_version(text: str) -> str:
    """The API server's version as an image's tag, from ``kubectl version --output=json``; a vendor's suffix is left out."""
    found: dict[str, Any] = json.loads(text).get("serverVersion") or {}
    version = str(found.get("gitVersion", ""))
    return version.partition("-")[0].partition("+")[0]


def _group(api_version: str) -> str:
    return api_version.rpartition("/")[0]
