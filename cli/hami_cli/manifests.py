"""Pods out of manifests: of pods themselves, of lists, and of the templates of workloads. Pure.

What a workload asks for is what its controller would make of it: ``replicas`` pods (a Job: ``parallelism``), named after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
import yaml

from hami_protocol.kubernetes import Pod
from hami_protocol.simulation import MOST_PODS

_WORKLOADS: Final = {
    "Deployment": "replicas",
    "ReplicaSet": "replicas",
    "StatefulSet": "replicas",
    "ReplicationController": "replicas",
    "Job": "parallelism",
}


class ManifestError(ValueError):
    """A manifest that cannot be used; the text names the document and the field."""


def pods(text: str, *, name: str) -> list[Pod]:
    """The pods in YAML or JSON documents; what is no pod and makes none is left out.

    Raises:
        ManifestError: it cannot be read, or has no pod or too many.
    """
    try:
        documents = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, RecursionError, ValueError) as exc:
        raise ManifestError(f"{name}: no YAML: {exc}") from exc
    found = [pod for place, document in enumerate(documents) for pod in _pods(document, f"{name}: document {place + 1}")]
    if not found:
        raise ManifestError(f"{name}: no pod in it; accepted: Pod, List, {', '.join(_WORKLOADS)}")
    if len(found) > MOST_PODS:
        raise ManifestError(f"{name}: {len(found)} pods; accepted: at most {MOST_PODS}")
    return found


def _pods(document: Any, path: str, depth: int = 0) -> Iterator[Pod]:
    if document is None:
        return
    if not isinstance(document, dict):
        raise ManifestError(f"{path}: {type(document).__name__}; accepted: an object")
    kind = document.get("kind")
    if kind == "Pod":
        yield _pod(document, path)
    elif kind == "List" and depth == 0 and isinstance(document.get("items"), list):
        for place, item in enumerate(document["items"]):
            yield from _pods(item, f"{path}.items[{place}]", depth + 1)
    elif kind in _WORKLOADS:
        yield from _of_workload(document, path, _WORKLOADS[kind])


def _of_workload(document: dict[str, Any], path: str, field: str) -> Iterator[Pod]:
    metadata, spec = document.get("metadata"), document.get("spec")
    if not isinstance(metadata, dict) or not isinstance(spec, dict) or not isinstance(spec.get("template"), dict):
        raise ManifestError(f"{path}: metadata, spec and spec.template; accepted: an object each")
    count = spec.get(field, 1)
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MOST_PODS:
        raise ManifestError(f"{path}.spec.{field}: {count!r}; accepted: 0 to {MOST_PODS}")
    template = spec["template"]
    inner = template.get("metadata") or {}
    if not isinstance(inner, dict):
        raise ManifestError(f"{path}.spec.template.metadata: {inner!r}; accepted: an object")
    for number in range(count):
        place = {"namespace": metadata.get("namespace") or "default", "name": f"{metadata.get('name', 'pod')}-{number}"}
        yield _pod({**template, "metadata": {**inner, **place}}, f"{path}.spec.template")


def _pod(document: dict[str, Any], path: str) -> Pod:
    try:
        return msgspec.convert(document, Pod)
    except msgspec.ValidationError as exc:
        raise ManifestError(f"{path}: {exc}") from exc
