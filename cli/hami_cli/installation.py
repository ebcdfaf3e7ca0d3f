"""The plan of ``hami install``: images, objects, the kinds that the cluster must serve, and what is waited for. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import yaml
from msgspec import Struct

SERVICES: Final = ("node-agent", "registry", "scheduler", "webhook")
KUBE_SCHEDULER: Final = "registry.k8s.io/kube-scheduler"
PART_OF: Final = "app.kubernetes.io/part-of"
SELECTOR: Final = f"{PART_OF}=hami"
"""Every object of the manifests has this label; it is how an installation's objects are found again."""
WAITED_FOR: Final = ("StatefulSet", "Deployment", "DaemonSet")
"""In this order: the bus starts before its clients."""
BROUGHT_BY: Final = {
    "cert-manager.io": "cert-manager: https://cert-manager.io/docs/installation",
    "monitoring.coreos.com": "the Prometheus operator, or an overlay of your own without components/prometheus-operator",
}
"""Where kinds that are not Kubernetes' own come from, by their group."""

Object = dict[str, Any]
GroupKind = tuple[str, str]


class Ref(NamedTuple):
    """Which object: an object of a plan and one of the cluster are the same if these are equal."""

    group: str
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        """As users read it."""
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"

    @property
    def resource(self) -> str:
        """As kubectl takes it: ``kind.group/name``."""
        return f"{self.kind.lower()}{'.' if self.group else ''}{self.group}/{self.name}"

    @property
    def place(self) -> tuple[str, ...]:
        """The option that names its namespace to kubectl."""
        return (f"--namespace={self.namespace}",) if self.namespace else ()


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


class Plan(Struct, frozen=True, kw_only=True):
    """What will be applied."""

    objects: tuple[Object, ...]

    @property
    def refs(self) -> frozenset[Ref]:
        """All objects."""
        return frozenset(map(ref, self.objects))

    @property
    def workloads(self) -> tuple[Ref, ...]:
        """What is waited for, in that order."""
        return tuple(ref(each) for kind in WAITED_FOR for each in self.objects if each["kind"] == kind)

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The namespaces that it makes."""
        return tuple(each["metadata"]["name"] for each in self.objects if each["kind"] == "Namespace")

    @property
    def kinds(self) -> frozenset[GroupKind]:
        """Group and kind of all objects, without those that the plan itself defines."""
        defined = {
            (each["spec"]["group"], each["spec"]["names"]["kind"]) for each in self.objects if each["kind"] == "CustomResourceDefinition"
        }
        return frozenset((each.group, each.kind) for each in self.refs) - defined

    @property
    def rehearsable(self) -> tuple[Object, ...]:
        """What a dry run can judge: not the objects of kinds that the plan itself defines."""
        return tuple(each for each in self.objects if (ref(each).group, each["kind"]) in self.kinds)

    def lacking(self, served: Iterable[GroupKind]) -> Iterator[str]:
        """What the cluster has to serve before, and does not."""
        missing = sorted(self.kinds - set(served))
        if not missing:
            return
        kinds = ", ".join(f"{kind} ({group or 'core'})" for group, kind in missing)
        first = sorted({BROUGHT_BY[group] for group, _ in missing if group in BROUGHT_BY})
        remedy = f"install first {'; and '.join(first)}" if first else "it takes Kubernetes 1.30 or later"
        yield f"the cluster does not serve {kinds}: {remedy}"


def plan(text: str) -> Plan:
    """The plan for the objects in ``text``, YAML."""
    return Plan(objects=tuple(each for each in yaml.safe_load_all(text) if each))


def ref(body: Mapping[str, Any]) -> Ref:
    """Which object ``body`` is."""
    metadata = body["metadata"]
    return Ref(body["apiVersion"].rpartition("/")[0], body["kind"], metadata.get("namespace", ""), metadata["name"])


def pod_templates(objects: Iterable[Object]) -> Iterator[tuple[Ref, Object]]:
    """The spec of the pods of each workload."""
    for each in objects:
        if each["kind"] in WAITED_FOR:
            yield ref(each), each["spec"]["template"]["spec"]


def served(table: str) -> dict[GroupKind, str]:
    """The kinds that ``kubectl api-resources --no-headers`` lists, each with its resource's name for ``kubectl get``.

    Short names may be missing, so columns are counted from the end.
    """
    rows = [words for line in table.splitlines() if len(words := line.split()) >= 4]
    found = {(words[-3].rpartition("/")[0], words[-1]): words[0] for words in rows}
    return {(group, kind): f"{plural}.{group}" if group else plural for (group, kind), plural in found.items()}


def server_version(text: str) -> str:
    """The API server's version as an image's tag, from ``kubectl version --output=json``; a vendor's suffix is left out."""
    found: dict[str, Any] = json.loads(text).get("serverVersion") or {}
    version = str(found.get("gitVersion", ""))
    return version.partition("-")[0].partition("+")[0]
