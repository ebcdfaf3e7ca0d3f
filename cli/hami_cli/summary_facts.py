"""How much of a cluster is booked, per node, card, namespace and pod, and how that is spread. Pure.

Made from a snapshot of a live cluster, or from the text of a ``/metrics`` page, under our names or HAMi's own earlier ones. The figures are of what
is booked, unless somebody measured; a page that says nothing of cards is refused, never summed to zero.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

from hami_cli.snapshot import Snapshot

MIB: Final = 1 << 20
MOST_SAMPLES: Final = 2_000_000
EVEN_DEVIATION: Final = 0.15
CONCENTRATED_RATIO: Final = 0.6


class SummaryError(ValueError):
    """A text that is no metrics page, or says nothing of cards."""


class Pattern(StrEnum):
    """How bookings are spread over cards."""

    IDLE = "idle"
    """Nothing is booked."""
    CONCENTRATED = "concentrated"
    """The cards in use are at least 60 % full on average, and there are idle ones."""
    EVEN = "even"
    """All cards are about equally full: the standard deviation of their ratios is below 0.15."""
    FRAGMENTED = "fragmented"
    """Anything else: many cards are partly used."""


class _Fact(Struct, frozen=True, kw_only=True, rename="camel"):
    """Read-only, camelCase for programs."""


class CardSum(_Fact, frozen=True, kw_only=True):
    """One card."""

    node: str
    uuid: str
    model: str
    memory_mib: float
    allocated_memory_mib: float
    cores: float
    allocated_cores: float
    shares: int
    """How many containers share it."""


class HolderSum(_Fact, frozen=True, kw_only=True):
    """One pod, or one namespace (then ``pod`` is empty)."""

    namespace: str
    pod: str = ""
    memory_mib: float
    cores: float
    memory_percent: float
    """Of what is booked in all."""
    cores_percent: float


class Summary(_Fact, frozen=True, kw_only=True):
    """The whole answer."""

    source: str
    measured: bool
    """Whether the source has measured use besides; the figures here are of what is booked all the same."""
    node_count: int
    card_count: int
    memory_mib: float
    allocated_memory_mib: float
    cores: float
    allocated_cores: float
    pattern: Pattern
    cards: tuple[CardSum, ...]
    namespaces: tuple[HolderSum, ...]
    pods: tuple[HolderSum, ...]
    caveats: tuple[str, ...] = ()


def of_snapshot(snapshot: Snapshot) -> Summary:
    """The summary of a live cluster."""
    cards = [
        CardSum(
            node=card.node,
            uuid=card.uuid,
            model=card.model,
            memory_mib=card.memory_mib,
            allocated_memory_mib=card.allocated_memory_mib,
            cores=card.cores,
            allocated_cores=card.allocated_cores,
            shares=card.containers,
        )
        for card in snapshot.cards
    ]
    held = [(each.namespace, each.pod, float(each.memory_mib), float(each.cores)) for each in snapshot.charges]
    return _summary("live cluster", snapshot.measured, cards, held, snapshot.caveats)


def of_metrics(text: str, *, source: str) -> Summary:
    """The summary of what a ``/metrics`` page says.

    Raises:
        SummaryError: it is no metrics page, or one that says nothing of cards.
    """
    cards: dict[tuple[str, str], dict[str, float | str]] = {}
    held: dict[tuple[str, str, str, str], dict[str, float]] = {}
    measured = False
    try:
        for count, (name, labels, value) in enumerate(_samples(text)):
            if count > MOST_SAMPLES:
                raise SummaryError(f"{source}: more than {MOST_SAMPLES} samples")
            measured = measured or name in _MEASURED
            if (column := _CARD.get(name)) is not None:
                card = cards.setdefault((_label(labels, "node", "nodeid"), _label(labels, "device_uuid", "deviceuuid")), {})
                card[column] = value
                card["model"] = _label(labels, "device_type", "devicetype") or card.get("model", "")
            elif (column := _HELD.get(name)) is not None:
                key = (
                    _label(labels, "namespace", "podnamespace"),
                    _label(labels, "pod", "podname"),
                    _label(labels, "container_index", "containeridx"),
                    _label(labels, "device_uuid", "deviceuuid"),
                )
                held.setdefault(key, {})[column] = value
    except ValueError as exc:
        if isinstance(exc, SummaryError):
            raise
        raise SummaryError(f"{source}: no metrics page: {exc}") from exc
    if not any("memory_limit" in card for card in cards.values()):
        raise SummaryError(
            f"{source}: says nothing of cards; accepted: the scheduler's page, with hami_gpu_memory_limit_bytes or GPUDeviceMemoryLimit"
        )
    sums = [
        CardSum(
            node=node,
            uuid=uuid,
            model=str(card.get("model", "")),
            memory_mib=_figure(card, "memory_limit") / MIB,
            allocated_memory_mib=_figure(card, "memory") / MIB,
            cores=_figure(card, "core_limit"),
            allocated_cores=_figure(card, "cores"),
            shares=int(_figure(card, "shares")),
        )
        for (node, uuid), card in sorted(cards.items())
    ]
    listed = {card.uuid for card in sums}
    for key, each in sorted(held.items()):
        if key[3] not in listed:  # a card that its node no longer registers
            memory_mib, cores = each.get("memory", 0.0) / MIB, each.get("cores", 0.0)
            sums.append(
                CardSum(
                    node="",
                    uuid=key[3],
                    model="",
                    memory_mib=0.0,
                    allocated_memory_mib=memory_mib,
                    cores=0.0,
                    allocated_cores=cores,
                    shares=1,
                )
            )
    holders = [(key[0], key[1], each.get("memory", 0.0) / MIB, each.get("cores", 0.0)) for key, each in sorted(held.items())]
    return _summary(source, measured, sums, holders, ())


def pattern(cards: Iterable[CardSum]) -> Pattern:
    """How what is booked is spread over ``cards``, by memory."""
    ratios = [card.allocated_memory_mib / card.memory_mib for card in cards if card.memory_mib > 0]
    used = [ratio for ratio in ratios if ratio > 0]
    if not used:
        return Pattern.IDLE
    if len(ratios) > 1 and statistics.pstdev(ratios) < EVEN_DEVIATION:
        return Pattern.EVEN
    return Pattern.CONCENTRATED if statistics.fmean(used) >= CONCENTRATED_RATIO and len(used) < len(ratios) else Pattern.FRAGMENTED


def _summary(
    source: str,
    measured: bool,
    cards: list[CardSum],
    held: list[tuple[str, str, float, float]],
    caveats: tuple[str, ...],
) -> Summary:
    memory = sum(each[2] for each in held)
    cores = sum(each[3] for each in held)

    def sums(key: Callable[[tuple[str, str, float, float]], tuple[str, str]]) -> tuple[HolderSum, ...]:
        totals: dict[tuple[str, str], list[float]] = {}
        for each in held:
            total = totals.setdefault(key(each), [0.0, 0.0])
            total[0] += each[2]
            total[1] += each[3]
        ordered = sorted(totals.items(), key=lambda item: (-item[1][0], item[0]))
        return tuple(
            HolderSum(
                namespace=namespace,
                pod=pod,
                memory_mib=total[0],
                cores=total[1],
                memory_percent=100 * total[0] / memory if memory else 0.0,
                cores_percent=100 * total[1] / cores if cores else 0.0,
            )
            for (namespace, pod), total in ordered
        )

    return Summary(
        source=source,
        measured=measured,
        node_count=len({card.node for card in cards}),
        card_count=sum(card.memory_mib > 0 for card in cards),
        memory_mib=sum(card.memory_mib for card in cards),
        allocated_memory_mib=sum(card.allocated_memory_mib for card in cards),
        cores=sum(card.cores for card in cards),
        allocated_cores=sum(card.allocated_cores for card in cards),
        pattern=pattern(cards),
        cards=tuple(cards),
        namespaces=sums(lambda each: (each[0], "")),
        pods=sums(lambda each: (each[0], each[1])),
        caveats=caveats,
    )


def _samples(text: str) -> Iterable[tuple[str, Mapping[str, str], float]]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


def _label(labels: Mapping[str, str], *names: str) -> str:
    return next((labels[name] for name in names if name in labels), "")


def _figure(card: Mapping[str, float | str], column: str) -> float:
    value = float(card.get(column, 0.0))
    if not 0 <= value < float("inf"):
        raise SummaryError(f"{column}: {value}; accepted: a figure that is not negative")
    return value


_CARD: Final[dict[str, str]] = {
    "hami_gpu_memory_limit_bytes": "memory_limit",
    "GPUDeviceMemoryLimit": "memory_limit",
    "hami_gpu_memory_allocated_bytes": "memory",
    "GPUDeviceMemoryAllocated": "memory",
    "hami_gpu_core_limit_ratio": "core_limit",
    "GPUDeviceCoreLimit": "core_limit",
    "hami_gpu_core_allocated_ratio": "cores",
    "GPUDeviceCoreAllocated": "cores",
    "hami_gpu_shared_count": "shares",
    "GPUDeviceSharedNum": "shares",
}
_HELD: Final[dict[str, str]] = {
    "hami_vgpu_memory_allocated_bytes": "memory",
    "vGPUMemoryAllocated": "memory",
    "vGPUPodsDeviceAllocated": "memory",
    "hami_vgpu_core_allocated_ratio": "cores",
    "vGPUCoreAllocated": "cores",
}
_MEASURED: Final = frozenset(
    {
        "hami_host_gpu_memory_used_bytes",
        "HostGPUMemoryUsage",
        "hami_host_gpu_utilization_ratio",
        "HostCoreUtilization",
        "hami_vgpu_memory_used_bytes",
        "vGPU_device_memory_usage_in_bytes",
    }
)
