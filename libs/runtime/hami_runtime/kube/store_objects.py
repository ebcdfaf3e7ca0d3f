"""What the API server does to any object on its way into storage: merge patches, system-owned metadata, ``status`` kept apart. Pure.

Invariants: nothing here changes its arguments; a client can neither set nor change ``uid``, ``creationTimestamp``, ``generation`` or the
deletion marks; ``null`` is the same as absent; a write to an object never touches its status and a write to its status never its spec.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from hami_runtime.kube.store_resources import NAMESPACES, NODES, POD_DISRUPTION_BUDGETS, PODS, Resource

__all__ = ["Object", "copied", "merged", "prepared_for_create", "prepared_for_update", "timestamp", "with_metadata"]

Object = dict[str, Any]
"""A Kubernetes object as JSON has it."""

_SYSTEM_METADATA = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "name", "namespace")


def timestamp(moment: datetime) -> str:
    """Return the moment as the API writes it, in UTC and whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def copied(value: Any) -> Any:
    """Return a deep copy of a JSON value; members that are null are left out, as the server's typed decoding does."""
    if isinstance(value, Mapping):
        return {key: copied(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [copied(each) for each in value]
    return value


def merged(target: Any, patch: Any) -> Any:
    """Return ``target`` after an RFC 7396 merge patch: null deletes, objects merge, everything else replaces."""
    if not isinstance(patch, Mapping):
        return copied(patch)
    result = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def with_metadata(body: Mapping[str, Any], **changes: Any) -> Object:
    """Return the object with members of its metadata replaced; None removes one."""
    metadata = {**body["metadata"], **changes}
    return {**body, "metadata": {key: value for key, value in metadata.items() if value is not None}}


def prepared_for_create(resource: Resource, body: Mapping[str, Any], *, name: str, namespace: str, uid: str, now: datetime) -> Object:
    """Return what is stored when ``body`` is created; everything but the resource version."""
    given = copied(body)
    metadata = _without_empty(given.get("metadata") or {})
    for key in (*_SYSTEM_METADATA, "resourceVersion", "selfLink"):
        metadata.pop(key, None)
    metadata |= {"name": name, "uid": uid, "creationTimestamp": timestamp(now)}
    if resource.namespaced:
        metadata["namespace"] = namespace
    if resource.counts_generation:
        metadata["generation"] = 1
    created: Object = {**given, "kind": resource.kind, "apiVersion": resource.group_version, "metadata": metadata}
    if resource == NAMESPACES:
        metadata["labels"] = {**metadata.get("labels", {}), "kubernetes.io/metadata.name": name}
        created |= {"spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}
    elif resource == PODS:
        created["status"] = {"phase": "Pending", "qosClass": _qos_class(created)}
    elif resource == NODES:
        status = given.get("status") or {}
        created |= {"spec": given.get("spec") or {}, "status": {"allocatable": status.get("capacity") or {}, **status}}
    elif resource == POD_DISRUPTION_BUDGETS:
        created["status"] = {"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0}
    elif resource.has_status:
        created["status"] = {}
    return created


def prepared_for_update(resource: Resource, current: Mapping[str, Any], body: Mapping[str, Any], *, subresource: str = "") -> Object:
    """Return what is stored when ``body`` replaces ``current``, or its status; everything but the resource version."""
    given = copied(body)
    metadata = _without_empty(given.get("metadata") or {})
    for key in (*_SYSTEM_METADATA, "resourceVersion", "selfLink"):
        metadata.pop(key, None)
    metadata |= {key: current["metadata"][key] for key in _SYSTEM_METADATA if key in current["metadata"]}
    if subresource == "status":
        if "ownerReferences" in current["metadata"]:
            metadata["ownerReferences"] = current["metadata"]["ownerReferences"]
        return {**current, "metadata": metadata, "status": given.get("status") or {}}
    updated = {**given, "kind": resource.kind, "apiVersion": resource.group_version, "metadata": metadata}
    if resource.has_status:
        updated.pop("status", None)
        if "status" in current:
            updated["status"] = current["status"]
    if resource.counts_generation and _wanted(updated) != _wanted(current):
        metadata["generation"] = current["metadata"].get("generation", 0) + 1
    return updated


def _wanted(body: Mapping[str, Any]) -> Object:
    return {key: value for key, value in body.items() if key not in {"metadata", "status"}}


def _without_empty(metadata: Mapping[str, Any]) -> Object:
    return {key: value for key, value in metadata.items() if value not in ({}, [], "")}


def _qos_class(pod: Mapping[str, Any]) -> str:
    """``Guaranteed`` if every container has equal requests and limits of cpu and memory, ``BestEffort`` if none has any."""
    spec = pod.get("spec") or {}
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    every = [(each.get("resources") or {}) for each in containers]
    asked = [
        {name: (each.get("requests") or {}).get(name, (each.get("limits") or {}).get(name)) for name in ("cpu", "memory")} for each in every
    ]
    limits = [{name: (each.get("limits") or {}).get(name) for name in ("cpu", "memory")} for each in every]
    if not any(value for each in (*asked, *limits) for value in each.values()):
        return "BestEffort"
    guaranteed = asked == limits and all(value for each in limits for value in each.values())
    return "Guaranteed" if guaranteed else "Burstable"
