"""Streams and subjects of the bus, made here and nowhere else. In a token, ``_`` stands for ``.``: no Kubernetes name has a ``_``."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from hami_protocol import events
from hami_protocol.errors import ProtocolError
from hami_protocol.quantities import MIB

AGENT_SOURCE: Final = "/hami/node-agent/"
"""What the ``ce-source`` of an agent's events begins with; the node's name follows."""
DAY_SECONDS = 24 * 3600
MAX_MESSAGE_BYTES = 256 * 1024
"""Of every message on the bus, headers included: what a node's annotations may hold, which is what the largest message ends up in."""
MOST_CONSUMERS = 1000
"""Of one stream. Agents make none."""
MOST_REPORTS = 1000
"""Of one node, that wait to be checked."""


class Mapping(Struct, frozen=True):
    """Subjects under other names: what ``*`` stands for in ``source`` takes the place of the ``*`` in ``target``, from the left."""

    source: str
    target: str

    def __call__(self, subject: str) -> str:
        """``subject``, one of ``source`` or a filter that names some of those, as it is called there."""
        found = (given for given, part in zip(subject.split("."), self.source.split("."), strict=True) if part == "*")
        return ".".join(next(found) if part == "*" else part for part in self.target.split("."))

    @property
    def reversed(self) -> Mapping:
        """The way back; both sides must have the same number of ``*``."""
        return Mapping(self.target, self.source)


class StreamSpec(Struct, frozen=True, kw_only=True):
    """A JetStream stream as it must be; made when missing, reconciled when different. A bound that somebody has set on the server stays."""

    name: str
    subjects: tuple[str, ...]
    max_messages_per_subject: int = -1
    """-1 keeps all."""
    max_bytes: int = -1
    """-1 for no bound; the oldest messages give way."""
    max_message_bytes: int = -1
    """Headers included; a larger one is refused. -1 for no bound."""
    max_consumers: int = -1
    """-1 for no bound."""
    max_age_seconds: int = 0
    """0 keeps for ever."""
    description: str = ""
    duplicate_window_seconds: int = 120
    live: Mapping | None = None
    """On which subjects the server publishes, once more, what it has just kept: for readers that may make no consumer."""
    queue: Mapping | None = None
    """It is a queue: a message is removed once it is acknowledged, it is kept under another subject, and of each of these no more than
    ``max_messages_per_subject`` wait; further ones are refused."""


DEVICES = StreamSpec(
    name="HAMI_DEVICES",
    subjects=("hami.v1.devices.*.*", "hami.v1.liveness.*.*"),
    max_messages_per_subject=1,
    max_bytes=128 * MIB,
    max_message_bytes=MAX_MESSAGE_BYTES,
    max_consumers=MOST_CONSUMERS,
    description="what each node has, and whether it still registers",
)
ALLOCATIONS = StreamSpec(
    name="HAMI_ALLOCATIONS",
    subjects=("hami.v1.allocations.*.*.*.grant", "hami.v1.allocations.*.*.*.outcome"),
    max_messages_per_subject=1000,
    max_age_seconds=7 * DAY_SECONDS,
    max_bytes=384 * MIB,
    max_message_bytes=MAX_MESSAGE_BYTES,
    max_consumers=MOST_CONSUMERS,
    live=Mapping("hami.v1.allocations.*.*.*.grant", "hami.v1.granted.*.*.*"),
    description="the log of grants and outcomes, in order, replayable",
)
VERDICTS = StreamSpec(
    name="HAMI_VERDICTS",
    subjects=("hami.v1.verdicts.*.*",),
    max_messages_per_subject=1,
    max_age_seconds=DAY_SECONDS,
    max_bytes=128 * MIB,
    max_message_bytes=MAX_MESSAGE_BYTES,
    max_consumers=MOST_CONSUMERS,
    description="why a pod was refused, or why it is where it is",
)
USAGE = StreamSpec(
    name="HAMI_USAGE",
    subjects=("hami.v1.usage.*",),
    max_messages_per_subject=1,
    max_bytes=128 * MIB,
    max_message_bytes=MAX_MESSAGE_BYTES,
    max_consumers=MOST_CONSUMERS,
    description="what containers use, measured",
)
REPORTS = StreamSpec(
    name="HAMI_REPORTS",
    subjects=("hami.v1.reports.*.*.*",),
    max_messages_per_subject=MOST_REPORTS,
    max_bytes=128 * MIB,
    max_message_bytes=MAX_MESSAGE_BYTES,
    max_consumers=1,
    queue=Mapping("hami.v1.reports.*.*.*", "hami.v1.reports.*"),
    description="outcomes that agents have published and the registry has not checked yet",
)
"""Where agents have an account of their own, what they publish on outcome subjects comes in here (``tools/nats_configuration.py``)."""
STREAMS = (DEVICES, ALLOCATIONS, VERDICTS, USAGE)
"""What anyone with the right to may read."""

INBOX = "_INBOX"
"""Below it are the subjects that answers go to."""
ALL_DEVICES = "hami.v1.devices.>"
ALL_LIVENESS = "hami.v1.liveness.>"
ALL_ALLOCATIONS = "hami.v1.allocations.>"
ALL_GRANTS = "hami.v1.allocations.*.*.*.grant"
ALL_OUTCOMES = "hami.v1.allocations.*.*.*.outcome"
ALL_REPORTS = "hami.v1.reports.*"
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


def agent_source(node: str) -> str:
    """The ``ce-source`` of events that the agent of ``node`` publishes."""
    return f"{AGENT_SOURCE}{node}"


def subject_of(event: events.Event, source: str = "") -> str:
    """The subject on which ``source`` publishes ``event``.

    Args:
        event: any event.
        source: its ``ce-source``. It matters for ``PodReleased`` alone: an agent publishes it among its outcomes, the scheduler among its grants.
    """
    match event:
        case events.DevicesReported():
            return devices(event.node, event.device_type)
        case events.LivenessChanged():
            return liveness(event.node, event.device_type)
        case events.PodReleased() if not source.startswith(AGENT_SOURCE):
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
