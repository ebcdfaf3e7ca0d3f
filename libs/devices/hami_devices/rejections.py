"""What the short reasons of a refusal mean: parsed, and in words for people. Pure.

The texts are those of FailedNodes: ``3/8 CardInsufficientMemory, 5/8 CardTimeSlicingExhausted`` of a node's cards, or one reason of the whole node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from hami_devices.model import DeviceRequest, PodRequest, Reason

MINOR: Final = 0.25
"""A reason of fewer of a node's cards than this does not decide, where another reason has more."""
_ONE = "|".join(re.escape(reason) for reason in sorted(Reason, key=len, reverse=True))
_CARDS: Final = re.compile(rf"(\d{{1,9}})/(\d{{1,9}}) ({_ONE})")
_OURS: Final = rf"(?:\d{{1,9}}/\d{{1,9}} (?:{_ONE})(?:, \d{{1,9}}/\d{{1,9}} (?:{_ONE}))*|{_ONE})"
_IN_MESSAGE: Final = re.compile(rf"\b(\d{{1,9}}) ({_OURS})")
_TEXT: Final = re.compile(_OURS)


class Rejection(Struct, frozen=True, kw_only=True):
    """Nodes that are rejected for the same reasons."""

    nodes: int
    cards: Mapping[Reason, int]
    """How many of each node's cards, by reason; for a reason of the whole node, that one alone."""

    @property
    def deciding(self) -> tuple[Reason, ...]:
        """The reasons that decide on these nodes, the most frequent first."""
        others: dict[Reason, int] = {reason: count for reason, count in self.cards.items() if reason is not Reason.PARTIAL}
        cards: Mapping[Reason, int] = others or self.cards
        most, total = max(cards.values()), sum(cards.values())
        found = [reason for reason, count in cards.items() if count == most or count >= MINOR * total]
        return tuple(sorted(found, key=lambda reason: (-cards[reason], reason)))


def read_rejection(text: str, nodes: int) -> Rejection | None:
    """The rejection that ``text`` describes; None where it is not one of ours."""
    if not _TEXT.fullmatch(text):
        return None
    found = {Reason(match[3]): int(match[1]) for match in _CARDS.finditer(text)}
    return Rejection(nodes=nodes, cards=found or {Reason(text): 1})


def read_rejections(reasons: Mapping[str, int]) -> tuple[tuple[Rejection, ...], dict[str, int]]:
    """The rejections among ``reasons`` (text to number of nodes), and the texts that are not ours."""
    read = {text: read_rejection(text, nodes) for text, nodes in reasons.items()}
    return tuple(each for each in read.values() if each), {text: reasons[text] for text, each in read.items() if each is None}


def split_message(message: str) -> tuple[dict[str, int], str]:
    """Our reasons in kube-scheduler's message, and the message without them."""
    reasons: dict[str, int] = {}
    for match in _IN_MESSAGE.finditer(message):
        reasons[match[2]] = reasons.get(match[2], 0) + int(match[1])
    return reasons, _IN_MESSAGE.sub("", message)


def in_words(reasons: Mapping[str, int], request: PodRequest, *, other_vendors: int = 0) -> tuple[str, ...]:
    """``reasons`` grouped by what they mean, as ``22 nodes: no card with 90,000 MiB free``; the most frequent first.

    Args:
        reasons: text to number of nodes.
        request: what the pod asks.
        other_vendors: how many of the unregistered nodes have devices of other vendors.
    """
    rejections, others = read_rejections(reasons)
    groups: dict[str, int] = dict(others)
    for rejection in rejections:
        for words, nodes in _words_of(rejection, request, other_vendors):
            groups[words] = groups.get(words, 0) + nodes
    ordered = sorted(groups.items(), key=lambda group: (-group[1], group[0]))
    return tuple(f"{nodes:,} node{'' if nodes == 1 else 's'}: {words}" for words, nodes in ordered if nodes)


def _words_of(rejection: Rejection, request: PodRequest, other_vendors: int) -> Iterable[tuple[str, int]]:
    asked = _largest(request)
    if Reason.UNREGISTERED in rejection.cards:
        foreign = min(other_vendors, rejection.nodes)
        return ("cards of other vendors", foreign), (f"no registered {asked.vendor} card", rejection.nodes - foreign)
    return ((" or ".join(dict.fromkeys(_phrase(reason, asked) for reason in rejection.deciding)), rejection.nodes),)


def _largest(request: PodRequest) -> DeviceRequest:
    asks = [asked for container in request.containers for asked in container.requests]
    return max(asks, key=lambda asked: (asked.count, asked.memory_mib, asked.memory_percent))


def _phrase(reason: Reason, asked: DeviceRequest) -> str:
    if (whole := _OF_NODES.get(reason)) is not None:
        return whole.format(count=asked.count, vendor=asked.vendor)
    few = "no card" if asked.count == 1 else f"fewer than {asked.count} cards"
    memory = f"{asked.memory_mib:,} MiB" if asked.memory_mib else f"{asked.memory_percent} % of its memory"
    return f"{few} {_OF_CARDS[reason].format(memory=memory, cores=asked.cores)}"


_OF_CARDS: Final[Mapping[Reason, str]] = {
    Reason.MEMORY: "with {memory} free",
    Reason.CORES: "with {cores} % of its cores free",
    Reason.CORES_EXHAUSTED: "with any cores free",
    Reason.SLOTS: "with a free share",
    Reason.EXCLUSIVE: "that is not in use",
    Reason.TYPE: "of a model that the pod accepts",
    Reason.UUID: "with a UUID that the pod accepts",
    Reason.HEALTH: "that is healthy",
    Reason.UNHEALTHY: "that is healthy",
    Reason.CORDON: "that is not cordoned",
    Reason.MIG: "with a free MIG instance of that size",
    Reason.MODE: "in the mode that the pod asks for",
    Reason.CUSTOM: "left that no other container of the pod has",
    Reason.QOS: "under the pod's QoS policy",
    Reason.APP_CLASS: "of the pod's application class",
    Reason.PARTIAL: "that fit",
}
_OF_NODES: Final[Mapping[Reason, str]] = {
    Reason.DEVICE_COUNT: "fewer than {count} {vendor} cards",
    Reason.UNREGISTERED: "no registered {vendor} card",
    Reason.UNAVAILABLE: "the {vendor} agent does not report",
    Reason.AGENT: "the {vendor} agent does not serve pods now",
    Reason.ALLOCATABLE: "kubelet has too few {vendor} devices allocatable",
    Reason.FENCED: "a record cannot be read",
    Reason.NUMA: "no {count} such cards that are linked or on one NUMA node",
    Reason.QUOTA: "the namespace's quota is used up",
}
