"""Events are stored once and served twice: as core ``v1`` and as ``events.k8s.io/v1``, whose fields have other names. Pure.

Invariant: what is written through one API and read through the other says the same.
"""

from collections.abc import Mapping
from typing import Any

from hami_runtime.kube.store_objects import Object

__all__ = ["core_event", "modern_event"]

_NAMES = {  # core: events.k8s.io
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
_CORE_NAMES = {modern: core for core, modern in _NAMES.items()}


def modern_event(event: Mapping[str, Any]) -> Object:
    """The stored event as ``events.k8s.io/v1``."""
    return {**{_NAMES.get(key, key): value for key, value in event.items()}, "apiVersion": "events.k8s.io/v1"}


def core_event(event: Mapping[str, Any]) -> Object:
    """An ``events.k8s.io/v1`` body, or a patch of one, as it is stored."""
    core = {_CORE_NAMES.get(key, key): value for key, value in event.items()}
    return {**core, "apiVersion": "v1"} if "apiVersion" in core else core
