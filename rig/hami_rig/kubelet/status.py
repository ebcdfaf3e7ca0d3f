"""What kubelet reports of a pod: phase, conditions and container statuses, from what its containers do. Pure.

Invariants: a phase never goes back from ``Succeeded`` or ``Failed``; a condition's time moves only when its status does; conditions that
others wrote are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hami_protocol import kubernetes as k
from hami_protocol.devices import ContainerKind

STAMP = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(kw_only=True, slots=True)
class ContainerLife:
    """What one container does now."""

    container: k.Container
    kind: ContainerKind
    waiting: str = "PodInitializing"
    """Why it does not run yet or any more; empty while it runs or once it has ended for good."""
    waiting_message: str = ""
    started_at: datetime | None = None
    running: bool = False
    exit_code: int | None = None
    """Of its last run."""
    finished_at: datetime | None = None
    restarts: int = 0
    over: bool = False
    """It will not run again."""

    @property
    def succeeded(self) -> bool:
        """Whether it has ended for good, and well."""
        return self.over and self.exit_code == 0


def phase(lives: Sequence[ContainerLife]) -> str:
    """The pod's phase."""
    apps = [life for life in lives if life.kind is ContainerKind.APP]
    if any(life.over and life.exit_code != 0 for life in lives if life.kind is ContainerKind.INIT):
        return "Failed"
    if apps and all(life.over for life in apps):
        return "Succeeded" if all(life.exit_code == 0 for life in apps) else "Failed"
    started = any(life.running or life.exit_code is not None for life in apps)
    return "Running" if started else "Pending"


def report(pod: k.Pod, lives: Sequence[ContainerLife], *, now: datetime, host_ip: str, pod_ip: str) -> dict[str, Any]:
    """The pod's status."""
    current = phase(lives)
    started = pod.status.phase != "" and any(life.started_at for life in lives)
    inits = [life for life in lives if life.kind is not ContainerKind.APP]
    apps = [life for life in lives if life.kind is ContainerKind.APP]
    initialized = all(life.succeeded or (life.kind is ContainerKind.SIDECAR and life.running) for life in inits) or current != "Pending"
    ready = all(life.running for life in (*apps, *(life for life in inits if life.kind is ContainerKind.SIDECAR)))
    finished = "PodCompleted" if current == "Succeeded" else None
    unready = None if ready else finished or "ContainersNotReady"
    conditions = {
        "PodReadyToStartContainers": (started and current in ("Pending", "Running"), None),
        "Initialized": (initialized, finished if initialized else "ContainersNotInitialized"),
        "Ready": (ready, unready),
        "ContainersReady": (ready, unready),
        "PodScheduled": (True, None),
    }
    status: dict[str, Any] = {
        "phase": current,
        "conditions": merged_conditions(pod, conditions, now),
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}],
        "podIP": pod_ip,
        "podIPs": [{"ip": pod_ip}],
        "startTime": _stamp(min((life.started_at for life in lives if life.started_at), default=now)),
        "qosClass": quality_class(pod),
        "containerStatuses": [container_status(life) for life in apps],
    }
    if inits:
        status["initContainerStatuses"] = [container_status(life) for life in inits]
    return status


def rejected(pod: k.Pod, reason: str, message: str, *, now: datetime) -> dict[str, Any]:
    """The status of a pod that was not let in."""
    return {
        "phase": "Failed",
        "reason": reason,
        "message": message,
        "startTime": _stamp(now),
        "conditions": merged_conditions(pod, {}, now),
    }


def container_status(life: ContainerLife) -> dict[str, Any]:
    """The status of one container."""
    container = life.container
    last = {}
    if life.exit_code is not None and not life.over:
        last = {"terminated": _terminated(life, container)}
    if life.running:
        state: dict[str, Any] = {"running": {"startedAt": _stamp(life.started_at)}}
    elif life.over:
        state = {"terminated": _terminated(life, container)}
    else:
        state = {"waiting": {"reason": life.waiting, **({"message": life.waiting_message} if life.waiting_message else {})}}
    return {
        "name": container.name,
        "image": container.image,
        "imageID": container.image,
        "ready": life.running if life.kind is not ContainerKind.INIT else life.succeeded,
        "started": life.running,
        "restartCount": life.restarts,
        "state": state,
        "lastState": last,
        **({"containerID": f"rig://{container.name}-{life.restarts}"} if life.started_at else {}),
    }


def merged_conditions(pod: k.Pod, own: Mapping[str, tuple[bool, str | None]], now: datetime) -> list[dict[str, Any]]:
    """``own`` conditions over those that the pod has; a time moves only where a status does."""
    before = {each.type: each for each in pod.status.conditions or ()}
    merged: list[dict[str, Any]] = []
    for type_, (holds, reason) in own.items():
        status = "True" if holds else "False"
        known = before.get(type_)
        since = known.last_transition_time if known and known.status == status and known.last_transition_time else _stamp(now)
        condition: dict[str, Any] = {"type": type_, "status": status, "lastProbeTime": None, "lastTransitionTime": since}
        merged.append({**condition, "reason": reason} if reason else condition)
    for type_, known in before.items():
        if type_ not in own:
            merged.append(
                {
                    "type": type_,
                    "status": known.status,
                    "lastProbeTime": None,
                    "lastTransitionTime": known.last_transition_time or _stamp(now),
                    **({"reason": known.reason} if known.reason else {}),
                    **({"message": known.message} if known.message else {}),
                }
            )
    return merged


def quality_class(pod: k.Pod) -> str:
    """``Guaranteed``, ``Burstable`` or ``BestEffort``, from cpu and memory."""
    containers = (*(pod.spec.init_containers or ()), *pod.spec.containers)
    asks = False
    guaranteed = True
    for container in containers:
        limits, requests = container.resources.limits or {}, container.resources.requests or {}
        for resource in ("cpu", "memory"):
            asks = asks or resource in limits or resource in requests
            guaranteed = guaranteed and resource in limits and requests.get(resource, limits[resource]) == limits[resource]
    return "Guaranteed" if asks and guaranteed else "Burstable" if asks else "BestEffort"


def _terminated(life: ContainerLife, container: k.Container) -> dict[str, Any]:
    return {
        "exitCode": life.exit_code or 0,
        "reason": "Completed" if life.exit_code == 0 else "Error",
        "startedAt": _stamp(life.started_at),
        "finishedAt": _stamp(life.finished_at),
        "containerID": f"rig://{container.name}-{life.restarts}",
    }


def _stamp(moment: datetime | None) -> str | None:
    return moment.strftime(STAMP) if moment else None
