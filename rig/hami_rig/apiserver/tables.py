"""Objects as rows, for ``kubectl get``: the columns of the real server for the kinds that are served. Pure; ``now`` is an argument."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from hami_runtime.kube.store_objects import Object
from hami_runtime.kube.store_resources import (
    CONFIG_MAPS,
    EVENTS,
    LEASES,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    PRIORITY_CLASSES,
    REPLICA_SETS,
    RESOURCE_QUOTAS,
    SECRETS,
    VALIDATING_WEBHOOKS,
    Resource,
)

__all__ = ["age", "table"]

_Body = Mapping[str, Any]
_NONE = "<none>"
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def table(resource: Resource, bodies: Iterable[_Body], now: datetime, *, revision: int | None = None, include: str = "Metadata") -> Object:
    """Return the bodies as a ``Table``; ``include`` says what each row carries besides: ``None``, ``Metadata`` or ``Object``."""
    columns, cells = _LAYOUTS.get(resource, _PLAIN)
    rows = []
    for body in bodies:
        row: Object = {"cells": cells(body, now)}
        if include == "Object":
            row["object"] = body
        elif include == "Metadata":
            row["object"] = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": body["metadata"]}
        rows.append(row)
    metadata = {"resourceVersion": str(revision)} if revision is not None else {}
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [_definition(column) for column in columns],
        "rows": rows,
    }


def _definition(column: str) -> Object:
    """A column is written as its name, ``+`` before it if only ``-o wide`` shows it, ``#`` or ``?`` behind it for numbers and truth values."""
    kind = {"#": "integer", "?": "boolean"}.get(column[-1], "string")
    name = column.strip("+#?")
    shape = "name" if name == "Name" else ""
    return {"name": name, "type": kind, "format": shape, "description": name, "priority": 1 if column.startswith("+") else 0}


def age(since: str | None, now: datetime) -> str:
    """Return how long ago a time of the API was, as kubectl writes it: ``5s``, ``3m20s``, ``2d4h``."""
    if not since:
        return "<unknown>"
    seconds = max(0, int((now - datetime.fromisoformat(since)).total_seconds()))
    minutes, hours, days = seconds // _MINUTE, seconds // _HOUR, seconds // _DAY
    if seconds < 2 * _MINUTE:
        return f"{seconds}s"
    if minutes < 10:
        return _two(minutes, "m", seconds % _MINUTE, "s")
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    return _two(days, "d", hours % 24, "h") if days < 8 else f"{days}d"


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}{small}{small_unit}" if small else f"{large}{large_unit}"


def _created(body: _Body, now: datetime) -> str:
    return age(body["metadata"].get("creationTimestamp"), now)


def _name(body: _Body) -> str:
    name: str = body["metadata"]["name"]
    return name


# Pods


def _pod(pod: _Body, now: datetime) -> list[Any]:
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    containers = status.get("containerStatuses") or ()
    ready = sum(1 for each in containers if each.get("ready"))
    restarts = sum(each.get("restartCount", 0) for each in (*containers, *(status.get("initContainerStatuses") or ())))
    return [
        _name(pod),
        f"{ready}/{len(spec.get('containers') or ())}",
        _pod_status(pod),
        str(restarts),
        _created(pod, now),
        status.get("podIP") or _NONE,
        spec.get("nodeName") or _NONE,
        status.get("nominatedNodeName") or _NONE,
        _NONE,
    ]


def _pod_status(pod: _Body) -> str:
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    phase = status.get("phase", "")
    if pod["metadata"].get("deletionTimestamp") and phase not in ("Succeeded", "Failed"):
        return "Terminating"
    if any(each.get("reason") == "SchedulingGated" for each in status.get("conditions") or ()):
        return "SchedulingGated"
    if starting := _init_status(spec, status.get("initContainerStatuses") or ()):
        return starting
    reason = status.get("reason") or phase
    for each in reversed(status.get("containerStatuses") or ()):
        reason = _state_reason(each) or reason
    return str(reason)


def _init_status(spec: _Body, statuses: Sequence[_Body]) -> str | None:
    containers = spec.get("initContainers") or ()
    sidecars = {each.get("name") for each in containers if each.get("restartPolicy") == "Always"}
    for index, each in enumerate(statuses):
        terminated = (each.get("state") or {}).get("terminated")
        if (terminated and not terminated.get("exitCode")) or (each.get("name") in sidecars and each.get("started")):
            continue
        reason = _state_reason(each)
        return f"Init:{reason}" if reason and reason != "PodInitializing" else f"Init:{index}/{len(containers)}"
    return None


def _state_reason(status: _Body) -> str | None:
    state = status.get("state") or {}
    if waiting := state.get("waiting"):
        return waiting.get("reason") or None
    if terminated := state.get("terminated"):
        return terminated.get("reason") or f"ExitCode:{terminated.get('exitCode', 0)}"
    return None


# Other kinds


def _node(node: _Body, now: datetime) -> list[Any]:
    status = node.get("status") or {}
    info = status.get("nodeInfo") or {}
    conditions = {each["type"]: each["status"] for each in status.get("conditions") or ()}
    state = {"True": "Ready", "False": "NotReady"}.get(conditions.get("Ready", ""), "NotReady" if "Ready" in conditions else "Unknown")
    if (node.get("spec") or {}).get("unschedulable"):
        state += ",SchedulingDisabled"
    prefix = "node-role.kubernetes.io/"
    roles = sorted(key.removeprefix(prefix) for key in node["metadata"].get("labels") or {} if key.startswith(prefix))
    addresses = {each["type"]: each["address"] for each in status.get("addresses") or ()}
    return [
        _name(node),
        state,
        ",".join(roles) or _NONE,
        _created(node, now),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP", _NONE),
        addresses.get("ExternalIP", _NONE),
        info.get("osImage") or "<unknown>",
        info.get("kernelVersion") or "<unknown>",
        info.get("containerRuntimeVersion") or "<unknown>",
    ]


def _event(event: _Body, now: datetime) -> list[Any]:
    series = event.get("series") or {}
    first = event.get("firstTimestamp") or event.get("eventTime")
    last = series.get("lastObservedTime") or event.get("lastTimestamp") or first
    subject = event.get("involvedObject") or {}
    source = event.get("source") or {}
    component = source.get("component") or event.get("reportingComponent") or ""
    host = source.get("host") or event.get("reportingInstance") or ""
    return [
        age(last, now),
        event.get("type", ""),
        event.get("reason", ""),
        f"{subject.get('kind', '').lower()}/{subject.get('name', '')}",
        subject.get("fieldPath", ""),
        f"{component}, {host}" if host else component,
        str(event.get("message", "")).strip(),
        age(first, now),
        series.get("count") or event.get("count") or 1,
        _name(event),
    ]


def _quota(quota: _Body, now: datetime) -> list[Any]:
    hard, used = (quota.get("spec") or {}).get("hard") or {}, (quota.get("status") or {}).get("used") or {}
    texts = {True: "", False: ""}
    for name in sorted(hard):
        limits = name.startswith("limits.")
        texts[limits] += f"{', ' if texts[limits] else ''}{name}: {used.get(name, '0')}/{hard[name]}"
    return [_name(quota), texts[False], texts[True], _created(quota, now)]


def _budget(budget: _Body, now: datetime) -> list[Any]:
    spec, status = budget.get("spec") or {}, budget.get("status") or {}
    bounds = [str(spec[name]) if name in spec else "N/A" for name in ("minAvailable", "maxUnavailable")]
    return [_name(budget), *bounds, status.get("disruptionsAllowed", 0), _created(budget, now)]


def _replica_set(body: _Body, now: datetime) -> list[Any]:
    spec, status = body["spec"], body.get("status") or {}
    containers = (spec["template"].get("spec") or {}).get("containers") or ()
    labels = (spec.get("selector") or {}).get("matchLabels") or {}
    return [
        _name(body),
        str(spec.get("replicas", 1)),
        str(status.get("replicas", 0)),
        str(status.get("readyReplicas", 0)),
        _created(body, now),
        ",".join(each.get("name", "") for each in containers),
        ",".join(each.get("image", "") for each in containers),
        ",".join(f"{key}={value}" for key, value in sorted(labels.items())) or _NONE,
    ]


def _priority_class(body: _Body, now: datetime) -> list[Any]:
    value, default = body.get("value", 0), bool(body.get("globalDefault"))
    return [_name(body), value, default, _created(body, now), body.get("preemptionPolicy", "")]


def _with(*members: Callable[[_Body], Any]) -> Callable[[_Body, datetime], list[Any]]:
    """Cells of a kind whose row is its name, some of its members, and its age."""
    return lambda body, now: [_name(body), *(member(body) for member in members), _created(body, now)]


_Layout = tuple[tuple[str, ...], Callable[[_Body, datetime], list[Any]]]
_PLAIN: _Layout = (("Name", "Age"), _with())
_WEBHOOKS: _Layout = (("Name", "Webhooks#", "Age"), _with(lambda body: len(body.get("webhooks") or ())))
_LAYOUTS: dict[Resource, _Layout] = {
    PODS: (("Name", "Ready", "Status", "Restarts", "Age", "+IP", "+Node", "+Nominated Node", "+Readiness Gates"), _pod),
    NODES: (
        (
            "Name",
            "Status",
            "Roles",
            "Age",
            "Version",
            "+Internal-IP",
            "+External-IP",
            "+OS-Image",
            "+Kernel-Version",
            "+Container-Runtime",
        ),
        _node,
    ),
    NAMESPACES: (("Name", "Status", "Age"), _with(lambda body: (body.get("status") or {}).get("phase", ""))),
    EVENTS: (
        (
            "Last Seen",
            "Type",
            "Reason",
            "Object",
            "+Subobject",
            "+Source",
            "Message",
            "+First Seen",
            "+Count",
            "+Name",
        ),
        _event,
    ),
    CONFIG_MAPS: (("Name", "Data", "Age"), _with(lambda body: len(body.get("data") or ()) + len(body.get("binaryData") or ()))),
    SECRETS: (("Name", "Type", "Data", "Age"), _with(lambda body: body.get("type", ""), lambda body: len(body.get("data") or ()))),
    RESOURCE_QUOTAS: (("Name", "Request", "Limit", "Age"), _quota),
    LEASES: (("Name", "Holder", "Age"), _with(lambda body: (body.get("spec") or {}).get("holderIdentity", ""))),
    MUTATING_WEBHOOKS: _WEBHOOKS,
    VALIDATING_WEBHOOKS: _WEBHOOKS,
    POD_DISRUPTION_BUDGETS: (("Name", "Min Available", "Max Unavailable", "Allowed Disruptions#", "Age"), _budget),
    PRIORITY_CLASSES: (("Name", "Value#", "Global-Default?", "Age", "PreemptionPolicy"), _priority_class),
    REPLICA_SETS: (("Name", "Desired", "Current", "Ready", "Age", "+Containers", "+Images", "+Selector"), _replica_set),
}
