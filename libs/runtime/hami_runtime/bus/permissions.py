"""What each service may say and hear on the bus: the permissions of its NATS user. Pure; made from the subjects and from JetStream's API.

Only the scheduler grants, an agent publishes for its own node, only the registry touches what it acknowledges. Readers make consumers of their
own, under names with a random end, and may not touch those of others. Agents have an account of their own and make no consumer at all: a consumer
names the subject that it delivers to, and nothing checks that its maker may publish there (docs/decisions/0015).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from hami_protocol import subjects
from hami_protocol.subjects import StreamSpec
from hami_runtime.bus.api import PREFIX

INBOXES = f"{subjects.INBOX}.>"
ANSWER_SECONDS = 60
"""How long a user may take to answer a message that it was sent."""
MOST_SUBSCRIPTIONS = 16
"""Of an agent, which has three."""
_LIVE_GRANTS = "hami.v1.granted.*.*.*"
"""The server publishes there what the log has kept; the scheduler itself where the log takes nothing."""
AUTH_QUESTIONS = "$SYS.REQ.USER.AUTH"
"""Where a NATS server asks about who connects."""


class Permissions(Struct, frozen=True, kw_only=True):
    """Of one user. What is not allowed is forbidden, and ``deny_publish`` goes before what is allowed."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...] = (INBOXES,)
    deny_publish: tuple[str, ...] = ()
    answers: bool = False
    """May publish one reply to each message that it was sent."""
    max_payload_bytes: int = -1
    max_subscriptions: int = -1


def scheduler(*, durable: str) -> Permissions:
    """The scheduler: grants, verdicts, the streams themselves; reads devices and the log; answers why and what would be.

    It asks who leads, and each node's agent whether it serves pods.

    Args:
        durable: the registry's consumer of the log of grants, which nobody else touches.
    """
    return Permissions(
        publish=(
            subjects.ALL_GRANTS,
            _LIVE_GRANTS,
            "hami.v1.verdicts.*.*",
            subjects.ASK_EXPLAIN,
            subjects.ASK_SIMULATE,
            subjects.ALL_ASK_AGENT,
            *_makes(subjects.STREAMS),
            *_reads((subjects.DEVICES, subjects.ALLOCATIONS)),
            *_looks_up((subjects.ALLOCATIONS,)),
        ),
        subscribe=(INBOXES, subjects.ASK_EXPLAIN, subjects.ASK_SIMULATE, subjects.ASK_HOLDINGS),
        deny_publish=tuple(_touches(durable)),
        answers=True,
    )


def registry(*, durable: str, reports: str) -> Permissions:
    """The registry: liveness, devices of other plugins, outcomes that it has checked; acknowledges the log; reads all streams for its clients.

    It answers what there is, and asks the scheduler what its page shows besides.

    Args:
        durable: its consumer of the log.
        reports: its consumer of what agents publish and it has to check.
    """
    return Permissions(
        publish=(
            "hami.v1.devices.*.*",
            "hami.v1.liveness.*.*",
            subjects.ALL_OUTCOMES,
            *_makes((subjects.DEVICES, subjects.ALLOCATIONS, subjects.REPORTS)),
            *_reads(subjects.STREAMS),
            *_looks_up(subjects.STREAMS),
            subjects.ASK_HOLDINGS,
            subjects.ASK_SIMULATE,
            f"{PREFIX}STREAM.PURGE.{subjects.DEVICES.name}",
            *_acknowledges(subjects.ALLOCATIONS, durable),
            *_acknowledges(subjects.REPORTS, reports),
        ),
        subscribe=(INBOXES, subjects.ASK_INVENTORY),
        answers=True,
    )


def node_agent(node: str | None, *, device_types: Iterable[str] = ("*",)) -> Permissions:
    """A node's agent: its own devices, outcomes and usage; receives its own node's grants and no answers but its own; answers the scheduler.

    Args:
        node: its node; None where one user stands for all agents.
        device_types: of which it may report devices.

    Raises:
        ProtocolError: the node's name, or a type, cannot be part of a subject.
    """
    token = "*" if node is None else subjects.token(node)
    types = [each if each == "*" else subjects.token(each) for each in device_types]
    return Permissions(
        publish=(
            *(f"hami.v1.devices.{token}.{each}" for each in types),
            f"hami.v1.allocations.{token}.*.*.outcome",
            f"hami.v1.usage.{token}",
            direct(subjects.DEVICES, f"hami.v1.devices.{token}.*"),
            direct(subjects.ALLOCATIONS, f"hami.v1.allocations.{token}.*.*.grant"),
        ),
        subscribe=(
            INBOXES if node is None else f"{subjects.inbox(node)}.>",
            f"hami.v1.granted.{token}.*.*",
            f"hami.v1.agent.{token}.*",
        ),
        answers=True,
        max_payload_bytes=subjects.MAX_MESSAGE_BYTES,
        max_subscriptions=MOST_SUBSCRIPTIONS,
    )


def direct(stream: StreamSpec, subject: str) -> str:
    """Where the last message of ``subject`` is looked up."""
    return f"{PREFIX}DIRECT.GET.{stream.name}.{subject}"


def auth_callout() -> Permissions:
    """Who decides which agent is let in: hears the servers' questions, in an account of its own, and answers them."""
    return Permissions(publish=(), subscribe=(INBOXES, AUTH_QUESTIONS), answers=True)


def reader(*, durable: str) -> Permissions:
    """Somebody who follows: the command line, dashboards, billing. Says nothing but questions."""
    return Permissions(
        publish=("hami.v1.ask.*", *_reads(subjects.STREAMS), *_looks_up(subjects.STREAMS)),
        deny_publish=tuple(_touches(durable)),
    )


def _makes(streams: Iterable[StreamSpec]) -> Iterator[str]:
    for stream in streams:
        yield from (f"{PREFIX}STREAM.{verb}.{stream.name}" for verb in ("INFO", "CREATE", "UPDATE"))


def _reads(streams: Iterable[StreamSpec]) -> Iterator[str]:
    for stream in streams:
        yield f"{PREFIX}STREAM.INFO.{stream.name}"
        yield from (f"{PREFIX}CONSUMER.{verb}.{stream.name}.*" for verb in ("CREATE", "DELETE", "MSG.NEXT"))


def _looks_up(streams: Iterable[StreamSpec]) -> Iterator[str]:
    return (f"{PREFIX}STREAM.MSG.GET.{stream.name}" for stream in streams)


def _acknowledges(stream: StreamSpec, durable: str) -> Iterator[str]:
    yield from (f"{PREFIX}CONSUMER.{verb}.{stream.name}.{durable}" for verb in ("INFO", "CREATE", "DELETE", "MSG.NEXT"))
    yield f"$JS.ACK.{stream.name}.{durable}.>"


def _touches(durable: str) -> Iterator[str]:
    stream = subjects.ALLOCATIONS.name
    yield from (f"{PREFIX}CONSUMER.{verb}.{stream}.{durable}" for verb in ("CREATE", "DELETE", "MSG.NEXT"))
