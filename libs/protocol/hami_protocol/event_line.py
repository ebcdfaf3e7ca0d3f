"""An event in one line, for people. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from hami_protocol import events
from hami_protocol.devices import VendorAssignment


def event_line(event: events.Event) -> str:
    """One line that says what happened."""
    word, line = _LINES[type(event)]
    return f"{word:<11} {line(event)}"


def shares_text(assignments: Iterable[VendorAssignment]) -> str:
    """What is granted: ``main 3000 MiB 25 % of GPU-…``, one after the other."""
    return ", ".join(
        f"{container.container} {share.memory_mib} MiB{f' {share.cores} %' if share.cores else ''} of {share.uuid}"
        for assignment in assignments
        for container in assignment.containers
        for share in container.shares
    )


_LINES: Final[dict[type[Any], tuple[str, Callable[[Any], str]]]] = {
    events.PodAssigned: ("assigned", lambda event: f"{event.pod} to {event.node}: {shares_text(event.assignments)}"),
    events.AssignmentLapsed: ("lapsed", lambda event: f"{event.pod} on {event.node}: {event.reason}"),
    events.PodAllocating: ("allocating", lambda event: f"{event.pod} to {event.node}: {shares_text(event.assignments)}"),
    events.ShareResized: ("resized", lambda event: f"{event.pod} on {event.node}: {shares_text(event.assignments)}"),
    events.ContainerServed: ("served", lambda event: f"{event.pod} on {event.node}: container {event.container}"),
    events.AllocationSucceeded: ("success", lambda event: f"{event.pod} on {event.node}"),
    events.AllocationFailed: ("failed", lambda event: f"{event.pod} on {event.node}: {event.reason}"),
    events.ShareResizeApplied: ("applied", lambda event: f"{event.pod} on {event.node}: {shares_text(event.assignments)}"),
    events.ShareResizeRefused: ("kept", lambda event: f"{event.pod} on {event.node}: {event.reason}"),
    events.PodReleased: ("released", lambda event: f"{event.pod} on {event.node}" + (f": {event.reason}" if event.reason else "")),
    events.PodRefused: ("refused", lambda event: f"{event.pod}: {event.summary}"),
    events.PodPlaced: ("placed", lambda event: f"{event.pod} on {event.node}: {event.fitting_node_count} of {event.node_count} nodes fit"),
    events.DevicesReported: ("devices", lambda event: f"{event.node}: {len(event.devices)} of {event.device_type}"),
    events.LivenessChanged: ("liveness", lambda event: f"{event.node}: {'alive' if event.alive else 'away'}, {event.reason}"),
    events.NodeUsage: ("usage", lambda event: f"{event.node}: {len(event.containers)} containers"),
}
