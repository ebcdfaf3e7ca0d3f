"""Why a pod, or a workload that has none, is not ready: read from states, conditions and events as the API server has them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from hami_cli.installation import Object, Ref

MOST_TEXT: Final = 300
_NOTHING_YET: Final = frozenset({"ContainerCreating", "PodInitializing"})
"""Waiting for these says nothing; an event does."""


def pods_not_ready(pods: Iterable[Object], events: Sequence[Object]) -> dict[str, str]:
    """The pods that are not ready, by name, each with its reason. Pods that have done their work are left out."""
    reasons = {each["metadata"]["name"]: why(each, events) for each in pods}
    return {name: reason for name, reason in reasons.items() if reason}


def why(pod: Object, events: Sequence[Object]) -> str:
    """Why a pod is not ready; empty where it is, or has succeeded."""
    status = pod.get("status") or {}
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    if (conditions.get("Ready") or {}).get("status") == "True" or status.get("phase") == "Succeeded":
        return ""
    return "; ".join(dict.fromkeys(filter(None, _reasons(pod, status, conditions, events)))) or f"phase {status.get('phase', 'unknown')}"


def workload(of: Ref, body: Object | None, events: Sequence[Object]) -> str:
    """Why a workload has fewer pods than it should; empty where nothing says so."""
    if body is None:
        return "it does not exist"
    for condition in (body.get("status") or {}).get("conditions") or ():
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            return _short(condition.get("message", ""))
    made_by = [each for each in events if each.get("reason") in {"FailedCreate", "FailedDaemonPod"} and _is_of(each, of)]
    return _short(max(made_by, key=_when)["message"]) if made_by else ""


def claims_not_bound(claims: Iterable[Object], events: Sequence[Object]) -> dict[str, str]:
    """The claims of volumes that are not bound, by name, each with its newest warning."""
    waiting = (each for each in claims if (each.get("status") or {}).get("phase") != "Bound")
    return {each["metadata"]["name"]: _pair("not bound", _newest(each, events).get("message", "")) for each in waiting}


def selector(body: Object) -> str:
    """The label selector of a workload's pods, as kubectl takes it."""
    return ",".join(f"{key}={value}" for key, value in sorted(body["spec"]["selector"]["matchLabels"].items()))


def _reasons(pod: Object, status: Object, conditions: Mapping[str, Object], events: Sequence[Object]) -> Iterator[str]:
    if pod["metadata"].get("deletionTimestamp"):
        yield "it is being deleted"
    if status.get("phase") == "Failed" or status.get("reason"):
        yield _pair(status.get("reason", "Failed"), status.get("message", ""))
        return
    scheduled = conditions.get("PodScheduled") or {}
    if scheduled.get("status") == "False":
        yield f"not scheduled: {_short(scheduled.get('message', ''))}"
        return
    vague = True
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        reason, says_why = _container(container)
        vague = vague and not says_why
        yield reason
    if vague:
        event = _newest(pod, events)
        yield _pair(event.get("reason", ""), event.get("message", ""))


def _container(status: Object) -> tuple[str, bool]:
    """A container's reason, and whether it explains anything."""
    state, last = status.get("state") or {}, (status.get("lastState") or {}).get("terminated")
    name = f"container {status['name']}"
    if waiting := state.get("waiting"):
        reason = waiting.get("reason", "")
        ended = f"; {_ended(last)}" if last else ""
        return f"{name}: {_pair(reason, waiting.get('message', ''))}{ended}", reason not in _NOTHING_YET
    if (terminated := state.get("terminated")) and terminated.get("exitCode"):
        return f"{name}: {_ended(terminated)}", True
    if "running" in state and not status.get("ready"):
        doing = "it runs and is not ready" if status.get("started") else "it has not started yet"
        return f"{name}: {doing}{f'; {_ended(last)}' if last else ''}", bool(last)
    return "", False


def _ended(terminated: Object) -> str:
    return f"last ended with exit code {terminated.get('exitCode')}{_behind(' (', terminated.get('reason'), ')')}" + _behind(
        ": ", _short(terminated.get("message", ""))
    )


def _newest(body: Object, events: Sequence[Object]) -> Object:
    """The newest warning on an object; empty where there is none."""
    uid = body["metadata"].get("uid")
    mine = [each for each in events if (each.get("involvedObject") or {}).get("uid") == uid and each.get("type") == "Warning"]
    return max(mine, key=_when, default={})


def _is_of(event: Object, of: Ref) -> bool:
    """Whether an event is a workload's, or one of a ReplicaSet that is named after it."""
    involved: Mapping[str, Any] = event.get("involvedObject") or {}
    name = str(involved.get("name", ""))
    return (involved.get("kind"), name) == (of.kind, of.name) or (involved.get("kind") == "ReplicaSet" and name.startswith(f"{of.name}-"))


def _when(event: Object) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp") or "")


def _pair(reason: str, message: str) -> str:
    return ": ".join(filter(None, (reason, _short(message))))


def _behind(before: str, text: str | None, after: str = "") -> str:
    return f"{before}{text}{after}" if text else ""


def _short(text: str) -> str:
    """One line of bounded length; of several lines the last, where a traceback has its reason."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[-1] if lines else "")[:MOST_TEXT]
