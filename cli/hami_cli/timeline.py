"""The way of one pod as steps in time: from its own record, Kubernetes Events and the log of allocations. Pure.

Steps are of several clocks. What the API server writes is in whole seconds: within its second such a step comes after what leads to it, which
the log of allocations has to the millisecond. What has no time is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct

from hami_protocol import keys
from hami_protocol.envelope import TRACE_PARENT, Message, open_message
from hami_protocol.errors import EventError
from hami_protocol.event_line import event_line
from hami_protocol.kubernetes import Pod
from hami_protocol.provenance import Provenance

_NO_TIME = datetime.min.replace(tzinfo=UTC)
_WAY: Final = (
    r"created",
    r"refused|FilteringFailed|FailedScheduling",
    r"assigned|FilteringSucceed",
    r"lapsed",
    r"allocating|BindingSucceed|Scheduled|PodScheduled=True",
    r"served|Initialized|PodReadyToStartContainers|\S+ started|Started",
    r"success|ContainersReady|Ready",
    r"resized|applied|kept",
    r"\S+ ended|Killing|failed|released",
)
"""What a step says first, in the order of a pod's way: all of a row may come in any order."""


class Step(Struct, frozen=True, kw_only=True, rename="camel"):
    """One thing that happened."""

    time: str
    """RFC 3339, UTC."""
    source: str
    text: str


class Timeline(Struct, frozen=True, kw_only=True, rename="camel"):
    """All of it."""

    namespace: str
    pod: str
    uid: str
    trace_id: str
    """Of the trace that goes with the pod, to look up where traces are kept; empty where it has none."""
    steps: tuple[Step, ...]


def timeline(namespace: str, name: str, pod: Pod | None, happened: Iterable[dict[str, Any]], messages: Iterable[Message]) -> Timeline:
    """The way of the pod; of namesakes in the log, that of the one that there is, or of the last that there was."""
    counts = Provenance().counts
    kept = [(message, event) for message in messages if (event := _opened(message)) is not None and counts(event)]
    uid = pod.metadata.uid if pod else next((event.pod.uid for _, event in reversed(kept)), "")
    mine = [(message, event) for message, event in kept if event.pod.uid == uid]
    parent = (pod.metadata.annotations.get(keys.TRACE_PARENT, "") if pod else "") or next(
        (message.headers[TRACE_PARENT] for message, _ in mine if TRACE_PARENT in message.headers), ""
    )
    steps = [*(_own(pod) if pod else ())]
    steps += [Step(time=message.headers.get("ce-time", ""), source="bus", text=event_line(event)) for message, event in mine]
    steps += [_event(event) for event in happened if (event.get("involvedObject") or {}).get("uid") == uid]
    steps = _ordered([step for step in steps if moment(step.time) > _NO_TIME])
    return Timeline(namespace=namespace, pod=name, uid=uid, trace_id=_trace_id(parent), steps=tuple(steps))


def whole_second(time: str) -> bool:
    """Whether ``time`` is no more exact than a second."""
    return "." not in time


def _ordered(steps: Sequence[Step]) -> list[Step]:
    """The steps in time; one of a whole second after the exact ones of that second that come before it on the way."""
    exact = [(moment(step.time), _stage(step)) for step in steps if not whole_second(step.time)]

    def when(step: Step) -> tuple[datetime, int]:
        time, stage = moment(step.time), _stage(step)
        if whole_second(step.time):
            second = [at for at, of in exact if at.replace(microsecond=0) == time and of <= stage]
            time = max(second, default=time)
        return time, stage

    return sorted(steps, key=when)


def _stage(step: Step) -> int:
    """How far along its way the pod is at this step; what is not known is at the end of its second."""
    return next((place for place, pattern in enumerate(_WAY) if re.match(rf"(?:{pattern})\b", step.text)), len(_WAY))


def moment(time: str) -> datetime:
    """``time`` as a datetime; the beginning of all times for what is none."""
    try:
        parsed = datetime.fromisoformat(time)
    except ValueError:
        return _NO_TIME
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def _opened(message: Message) -> Any:
    try:
        return open_message(message)
    except EventError:
        return None


def _own(pod: Pod) -> Iterator[Step]:
    yield Step(time=pod.metadata.creation_timestamp or "", source="pod", text="created")
    for condition in pod.status.conditions or ():
        said = " ".join(filter(None, (f"{condition.type}={condition.status}", condition.reason, condition.message)))
        yield Step(time=condition.last_transition_time or "", source="condition", text=said)
    for status in (*(pod.status.init_container_statuses or ()), *(pod.status.container_statuses or ())):
        if status.state and status.state.running and (started := status.state.running.get("startedAt")):
            yield Step(time=str(started), source="container", text=f"{status.name} started")
        if status.state and (ended := status.state.terminated) and ended.finished_at:
            yield Step(time=ended.finished_at, source="container", text=f"{status.name} ended: exit code {ended.exit_code}")


def _event(event: dict[str, Any]) -> Step:
    time = event.get("firstTimestamp") or event.get("eventTime") or (event.get("metadata") or {}).get("creationTimestamp") or ""
    count = event.get("count")
    often = f" ({count} times)" if isinstance(count, int) and count > 1 else ""
    return Step(time=str(time), source="event", text=f"{event.get('reason', '')}: {event.get('message', '')}{often}")


def _trace_id(parent: str) -> str:
    parts = parent.split("-")
    return parts[1] if len(parts) == 4 and len(parts[1]) == 32 and parts[1].isalnum() else ""
