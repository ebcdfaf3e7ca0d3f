"""The ``scale`` of what has replicas, as ``kubectl scale`` reads and writes it. Pure."""

from collections.abc import Mapping
from typing import Any

from hami_runtime.kube.store_errors import ApiError, Cause
from hami_runtime.kube.store_objects import Object
from hami_runtime.kube.store_resources import Resource

__all__ = ["replicas_of", "scale_of"]

_SCALE = Resource(group="autoscaling", plural="scales", kind="Scale")


def scale_of(body: Mapping[str, Any]) -> Object:
    """Return the scale of an object."""
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    labels = (body["spec"].get("selector") or {}).get("matchLabels") or {}
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: body["metadata"][key] for key in kept if key in body["metadata"]},
        "spec": {"replicas": body["spec"].get("replicas", 1)},
        "status": {
            "replicas": (body.get("status") or {}).get("replicas", 0),
            "selector": ",".join(f"{key}={value}" for key, value in sorted(labels.items())),
        },
    }


def replicas_of(scale: Any, name: str) -> int:
    """Return how many replicas a scale asks for.

    Raises:
        ApiError: 422 if that is no number of replicas.
    """
    spec = scale.get("spec") if isinstance(scale, Mapping) else None
    replicas = spec.get("replicas", 0) if isinstance(spec, Mapping) else None
    if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 0:
        why = f"Invalid value: {replicas}: must be greater than or equal to 0"
        raise ApiError.invalid(_SCALE, name, [Cause("spec.replicas", "FieldValueInvalid", why)])
    return replicas
