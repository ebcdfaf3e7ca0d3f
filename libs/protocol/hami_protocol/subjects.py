"""Streams and subjects of the bus, made here and nowhere else. In a token, ``_`` stands for ``.``: no Kubernetes name has a ``_``."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from hami_protocol import events
from hami_protocol.errors import ProtocolError

DAY_SECONDS = 24 * 3600


class StreamSpec(Struct, frozen=True, kw_only=True):
    """A JetStream stream as it must be; made when missing, reconciled when different."""

    name: str
    subjects: tuple[str, ...]
    max_messages_per_subject: int = -1
    """-1 keeps all."""
    max_age_seconds: int = 0
    """0 keeps for ever."""
    description: str = ""
    duplicate_window_seconds: int = 120


DEVICES = StreamSpec(
    name="HAMI_DEVICES",
    subjects=("hami.v1.devices.*.*", "hami.v1.liveness.*.*"),
    max_messages_per_subject=1,
    description="what each node has, and whether it still registers",
)
ALLOCATIONS = StreamSpec(
    name="HAMI_ALLOCATIONS",
    subjects=("hami.v1.allocations.*.*.*.grant", "hami.v1.allocations.*.*.*.outcome"),
    max_age_seconds=7 * DAY_SECONDS,
    description="the log of grants and outcomes, in order, replayable",
)
VERDICTS = StreamSpec(
    name="HAMI_VERDICTS",
    subjects=("hami.v1.verdicts.*.*",),
    max_messages_per_subject=1,
    max_age_seconds=DAY_SECONDS,
    description="why a pod was refused, or why it is where it is",
)
USAGE = StreamSpec(
    name="HAMI_USAGE",
    subjects=("hami.v1.usage.*",),
    max_messages_per_subject=1,
    description="what containers use, measured",
)
STREAMS = (DEVICES, ALLOCATIONS, VERDICTS, USAGE)

INBOX = "_INBOX"
"""Below it are the subjects that answers go to."""
ALL_DEVICES = "hami.v1.devices.>"
ALL_LIVENESS = "hami.v1.liveness.>"
ALL_ALLOCATIONS = "hami.v1.allocations.>"
ALL_GRANTS = "hami.v1.allocations.*.*.*.grant"
ALL_OUTCOMES = "hami.v1.allocations.*.*.*.outcome"
ALL_VERDICTS = "hami.v1.verdicts.>"
ALL_USAGE = "hami.v1.usage.>"

ASK_EXPLAIN = "hami.v1.ask.explain"
ASK_SIMULATE = "hami.v1.ask.simulate"
ASK_INVENTORY = "hami.v1.ask.inventory"
ASK_HOLDINGS = "hami.v1.ask.holdings"

ALL_ASK_AGENT = "hami.v1.agent.*.*"

_RESERVED: Final = re.compile(r"[ \t\r\n*>_\0]")


def token(name: str) -> str:
    """``name`` as one subject token.

    Raises:
        ProtocolError: the name is empty or has a character that NATS reserves.
    """
    if not name or _RESERVED.search(name):
        raise ProtocolError(f"{name!r} cannot be part of a subject; accepted: a Kubernetes name")
    return name.replace(".", "_")


def name_of(token: str) -> str:
    """The Kubernetes name that ``token`` stands for."""
    return token.replace("_", ".")


def devices(node: str, device_type: str) -> str:
    """Where a node's devices of one type are reported."""
    return f"hami.v1.devices.{token(node)}.{token(device_type)}"


def liveness(node: str, device_type: str) -> str:
    """Where the registry says whether a node still registers."""
    return f"hami.v1.liveness.{token(node)}.{token(device_type)}"


def grant(node: str, namespace: str, pod: str) -> str:
    """Where the scheduler, and nobody else, grants."""
    return f"hami.v1.allocations.{token(node)}.{token(namespace)}.{token(pod)}.grant"


def outcome(node: str, namespace: str, pod: str) -> str:
    """Where the node's own agent, and nobody else, says how a grant went."""
    return f"hami.v1.allocations.{token(node)}.{token(namespace)}.{token(pod)}.outcome"


def is_grant(subject: str) -> bool:
    """Whether ``subject`` is one that ``grant`` makes."""
    return subject.startswith("hami.v1.allocations.") and subject.endswith(".grant")


def kind_of(subject: str) -> str:
    """What is said on ``subject``, one of ours: ``devices``, ``liveness``, ``allocations``, ``verdicts``, ``usage`` or ``ask``."""
    return subject.split(".", 3)[2]


def node_grants(node: str) -> str:
    """All grants on one node."""
    return f"hami.v1.allocations.{token(node)}.*.*.grant"


def pod_allocations(namespace: str, pod: str) -> str:
    """All that was ever granted to one pod, and its namesakes, on whatever node."""
    return f"hami.v1.allocations.*.{token(namespace)}.{token(pod)}.*"


def namespace_allocations(namespace: str) -> str:
    """All that was ever granted to pods of one namespace."""
    return f"hami.v1.allocations.*.{token(namespace)}.*.*"


def namespace_verdicts(namespace: str) -> str:
    """Where the scheduler says why, of all pods of one namespace."""
    return f"hami.v1.verdicts.{token(namespace)}.*"


def verdict(namespace: str, pod: str) -> str:
    """Where the scheduler says why."""
    return f"hami.v1.verdicts.{token(namespace)}.{token(pod)}"


def usage(node: str) -> str:
    """Where a node's agent reports measured use."""
    return f"hami.v1.usage.{token(node)}"


def ask_agent(node: str, device_type: str) -> str:
    """Where the scheduler asks a node's agent, before it binds a pod there, whether it serves pods."""
    return f"hami.v1.agent.{token(node)}.{token(device_type)}"


def inbox(node: str) -> str:
    """Where answers to a node's own agent go, and where nobody else listens."""
    return f"{INBOX}.{token(node)}"


def subject_of(event: events.Event, *, by_agent: bool = False) -> str:
    """The subject that ``event`` is published on.

    Args:
        event: any event.
        by_agent: for ``PodReleased``, which both sides say: the agent's own subject rather than the scheduler's.
    """
    match event:
        case events.DevicesReported():
            return devices(event.node, event.device_type)
        case events.LivenessChanged():
            return liveness(event.node, event.device_type)
        case events.PodReleased() if not by_agent:
            return grant(event.node, event.pod.namespace, event.pod.name)
        case events.PodAssigned() | events.AssignmentLapsed() | events.PodAllocating() | events.ShareResized():
            return grant(event.node, event.pod.namespace, event.pod.name)
        case events.ContainerServed() | events.AllocationSucceeded() | events.AllocationFailed() | events.PodReleased():
            return outcome(event.node, event.pod.namespace, event.pod.name)
        case events.ShareResizeApplied() | events.ShareResizeRefused():
            return outcome(event.node, event.pod.namespace, event.pod.name)
        case events.PodRefused() | events.PodPlaced():
            return verdict(event.pod.namespace, event.pod.name)
        case events.NodeUsage():
            return usage(event.node)
