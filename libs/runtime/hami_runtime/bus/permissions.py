"""What each service may say and hear on the bus: the permissions of its NATS user. Pure; made from the subjects and from JetStream's API.

Only the scheduler grants, an agent speaks for its own node, nobody but the registry touches what it acknowledges. Readers make consumers of their
own, under names with a random end, and may not touch those of others.
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
AUTH_QUESTIONS = "$SYS.REQ.USER.AUTH"
"""Where a NATS server asks about who connects."""


class Permissions(Struct, frozen=True, kw_only=True):
    """Of one user. What is not allowed is forbidden, and ``deny_publish`` goes before what is allowed."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...] = (INBOXES,)
    deny_publish: tuple[str, ...] = ()
    answers: bool = False
    """May publish one reply to each message that it was sent."""


def scheduler(*, durable: str) -> Permissions:
    """The scheduler: grants, verdicts, the streams themselves; reads devices and the log; answers why and what would be.

    It asks who leads, and each node's agent whether it serves pods.

    Args:
        durable: the registry's consumer of the log of grants, which nobody else touches.
    """
    return Permissions(
        publish=(
            subjects.ALL_GRANTS,
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


def registry(*, durable: str) -> Permissions:
    """The registry: liveness, devices of other plugins; reads devices, and for who asks it the log, verdicts and usage; acknowledges the log.

    It answers what there is, and asks the scheduler what its page shows besides.
    """
    stream = subjects.ALLOCATIONS.name
    return Permissions(
        publish=(
            "hami.v1.devices.*.*",
            "hami.v1.liveness.*.*",
            *_makes((subjects.DEVICES, subjects.ALLOCATIONS)),
            *_reads(subjects.STREAMS),
            *_looks_up(subjects.STREAMS),
            subjects.ASK_HOLDINGS,
            subjects.ASK_SIMULATE,
            f"{PREFIX}STREAM.PURGE.{subjects.DEVICES.name}",
            f"{PREFIX}CONSUMER.INFO.{stream}.{durable}",
            f"{PREFIX}CONSUMER.CREATE.{stream}.{durable}",
            f"{PREFIX}CONSUMER.DELETE.{stream}.{durable}",
            f"{PREFIX}CONSUMER.MSG.NEXT.{stream}.{durable}",
            f"$JS.ACK.{stream}.{durable}.>",
        ),
        subscribe=(INBOXES, subjects.ASK_INVENTORY),
        answers=True,
    )


def node_agent(node: str | None, *, durable: str) -> Permissions:
    """A node's agent: its own devices, outcomes and usage; reads grants, and no answers but its own; answers the scheduler.

    Args:
        node: its node; None where one user stands for all agents.
        durable: the registry's consumer, which it does not touch.

    Raises:
        ProtocolError: the node's name cannot be part of a subject.
    """
    token = "*" if node is None else subjects.token(node)
    return Permissions(
        publish=(
            f"hami.v1.devices.{token}.*",
            f"hami.v1.allocations.{token}.*.*.outcome",
            f"hami.v1.usage.{token}",
            *_reads((subjects.ALLOCATIONS,)),
            *_looks_up((subjects.DEVICES, subjects.ALLOCATIONS)),
        ),
        subscribe=(INBOXES if node is None else f"{subjects.inbox(node)}.>", f"hami.v1.agent.{token}.*"),
        deny_publish=tuple(_touches(durable)),
        answers=True,
    )


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


def _touches(durable: str) -> Iterator[str]:
    stream = subjects.ALLOCATIONS.name
    yield from (f"{PREFIX}CONSUMER.{verb}.{stream}.{durable}" for verb in ("CREATE", "DELETE", "MSG.NEXT"))
