"""What an installation needs of a cluster before anything is applied, read off its objects, and what of it is missing. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from hami_cli.installation import Object, Plan, Ref, pod_templates, ref

SIGNING_KEY: Final = "hami-auth-callout"
REMEDIES: Final = {SIGNING_KEY: "make it with `hami install --make-key`, or hami-auth-callout keys | kubectl apply -f -"}
"""What to do about a Secret that is missing, by its name."""
DEFAULT_CLASS: Final = "storageclass.kubernetes.io/is-default-class"
LABEL_NODES: Final = "kubectl label node NODE {label}"


_SOURCES: Final = {
    "secret": "Secret",
    "secretKeyRef": "Secret",
    "secretRef": "Secret",
    "imagePullSecrets": "Secret",
    "configMap": "ConfigMap",
    "configMapKeyRef": "ConfigMap",
    "configMapRef": "ConfigMap",
}
"""The fields of a pod's spec that name a Secret or ConfigMap."""


class Mount(Struct, frozen=True, order=True):
    """A Secret or ConfigMap that a workload's pods cannot start without; no keys means any."""

    kind: str
    namespace: str
    name: str
    keys: frozenset[str]
    workload: str


class Claim(Struct, frozen=True, order=True):
    """Volumes that a StatefulSet claims; an empty class is the default one."""

    workload: Ref
    storage_class: str
    names: tuple[str, ...]


class Needs(Struct, frozen=True, kw_only=True):
    """What a plan needs, besides kinds."""

    mounts: tuple[Mount, ...]
    claims: tuple[Claim, ...]
    nodes: Mapping[str, Mapping[str, str]]
    """DaemonSet to its node selector."""
    minor: int
    """The least minor version of Kubernetes."""

    def without(self, name: str) -> Needs:
        """The same, where a Secret of that name will be made."""
        return replace(self, mounts=tuple(each for each in self.mounts if each.name != name))


class Has(Struct, frozen=True, kw_only=True):
    """What the cluster has of it."""

    keys: Mapping[tuple[str, str, str], frozenset[str] | None]
    """By kind, namespace and name, the keys of each Secret and ConfigMap; None where it may not be read. One that does not exist is left out."""
    storage_classes: Mapping[str, bool]
    """Name to whether it is the default."""
    claims: frozenset[tuple[str, str]]
    """Namespace and name of each claim that exists."""
    node_labels: tuple[Mapping[str, str], ...]
    version: str
    """As ``v1.34.2``."""


def needs(plan: Plan) -> Needs:
    """What ``plan`` needs."""
    made = {(each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]) for each in plan.objects}
    made |= {
        ("Secret", each["metadata"].get("namespace", ""), each["spec"]["secretName"]) for each in plan.objects if _is_certificate(each)
    }
    mounts = [mount for where, spec in pod_templates(plan.objects) for mount in _mounts(where, spec)]
    return Needs(
        mounts=tuple(sorted({each for each in mounts if (each.kind, each.namespace, each.name) not in made})),
        claims=tuple(claim for each in plan.objects if each["kind"] == "StatefulSet" for claim in _claims(each)),
        nodes={str(ref(each)): selector for each in plan.objects if (selector := _selector(each))},
        minor=max(map(_minor, plan.objects), default=0),
    )


def problems(wanted: Needs, has: Has) -> Iterator[str]:
    """What is missing, and what to do about each."""
    found = version(has.version)
    if found and found < (1, wanted.minor):
        yield f"the cluster is Kubernetes {has.version}; this overlay needs 1.{wanted.minor} or later"
    yield from _missing(wanted.mounts, has)
    for claim in wanted.claims:
        if all((claim.workload.namespace, name) in has.claims for name in claim.names):
            continue
        if claim.storage_class and claim.storage_class not in has.storage_classes:
            yield f"{claim.workload} claims volumes of the StorageClass {claim.storage_class}, which does not exist: create it"
        elif not claim.storage_class and not any(has.storage_classes.values()):
            known = f" (there is {', '.join(sorted(has.storage_classes))})" if has.storage_classes else ""
            remedy = f"annotate one with {DEFAULT_CLASS}=true, or take an overlay of your own without components/nats-storage"
            yield f"{claim.workload} claims volumes of the default StorageClass, and no StorageClass is the default{known}: {remedy}"


def notices(wanted: Needs, has: Has) -> Iterator[str]:
    """What does not keep it from being installed, and yet somebody has to see to."""
    for name, selector in wanted.nodes.items():
        if not any(selector.items() <= labels.items() for labels in has.node_labels):
            label = " ".join(f"{key}={value}" for key, value in selector.items())
            yield f"{name} runs on nodes labelled {label}, and there is none yet: {LABEL_NODES.format(label=label)}"
    for mount in wanted.mounts:
        if has.keys.get((mount.kind, mount.namespace, mount.name), frozenset()) is None:
            yield f"{mount.kind} {mount.namespace}/{mount.name} must exist for {mount.workload}, and you may not read it"


def lacks(wanted: Needs, has: Has, name: str) -> bool:
    """Whether a Secret of that name is needed and does not exist."""
    return any(each.name == name and (each.kind, each.namespace, name) not in has.keys for each in wanted.mounts)


def version(text: str) -> tuple[int, int] | None:
    """Major and minor of ``v1.34.2``; None where it is none."""
    parts = text.removeprefix("v").split(".")
    try:
        return int(parts[0]), int(parts[1])
    except (IndexError, ValueError):
        return None


def _missing(mounts: Iterable[Mount], has: Has) -> Iterator[str]:
    lacking: dict[tuple[str, str, str], tuple[set[str], set[str]]] = defaultdict(lambda: (set(), set()))
    for mount in mounts:
        place = mount.kind, mount.namespace, mount.name
        there = has.keys.get(place, frozenset())
        if there is None or (place in has.keys and mount.keys <= there):
            continue
        keys, workloads = lacking[place]
        keys.update(mount.keys - there)
        workloads.add(mount.workload)
    for (kind, namespace, name), (keys, workloads) in lacking.items():
        what = f"lacks the keys {', '.join(sorted(keys))}" if (kind, namespace, name) in has.keys else "does not exist"
        remedy = REMEDIES.get(name, f"create it in the namespace {namespace}")
        yield f"{kind} {namespace}/{name} {what}, and {', '.join(sorted(workloads))} cannot start without: {remedy}"


def _is_certificate(body: Object) -> bool:
    return body["kind"] == "Certificate" and str(body["apiVersion"]).startswith("cert-manager.io/")


def _mounts(where: Ref, spec: Object) -> Iterator[Mount]:
    for field, source in _fields(spec):
        if field in _SOURCES and not source.get("optional"):
            name = source.get("secretName") or source.get("name")
            keys = [source["key"]] if "key" in source else [item["key"] for item in source.get("items") or ()]
            if name:
                yield Mount(_SOURCES[field], where.namespace, name, frozenset(keys), str(where))


def _fields(value: Any, field: str = "") -> Iterator[tuple[str, Object]]:
    """Every object in a pod's spec, with the name of the field that it is in."""
    if isinstance(value, dict):
        yield field, value
        for key, inner in value.items():
            yield from _fields(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from _fields(inner, field)


def _claims(body: Object) -> Iterator[Claim]:
    where, spec = ref(body), body["spec"]
    for template in spec.get("volumeClaimTemplates") or ():
        names = tuple(f"{template['metadata']['name']}-{where.name}-{number}" for number in range(spec.get("replicas", 1)))
        yield Claim(where, template["spec"].get("storageClassName") or "", names)


def _selector(body: Object) -> Mapping[str, str]:
    return (body["spec"]["template"]["spec"].get("nodeSelector") or {}) if body["kind"] == "DaemonSet" else {}


def _minor(body: Object) -> int:
    if body["kind"].startswith("ValidatingAdmissionPolicy"):
        return 30
    webhooks: list[Any] = body.get("webhooks") or []
    return 28 if any(each.get("matchConditions") for each in webhooks) else 0
