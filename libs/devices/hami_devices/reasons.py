"""Why a pod does not fit on a node: as the short text of FailedNodes, and in figures for a person.

The short text is stable: no figure of what is free is in it, or kube-scheduler would try again for ever. The
detail says what was asked, what there is, and what would fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from hami_devices.model import UNRESOLVABLE, DeviceRequest, DeviceState, Reason, Selectors
from hami_devices.rules import Demand
from hami_devices.selectors import mode_accepted, type_accepted, uuid_accepted

WHOLE_PERCENT: Final = 100


def render(counts: Mapping[Reason, int], total: int) -> str:
    """``2/8 CardInsufficientCore, 3/8 CardInsufficientMemory``: how many of ``total`` devices for which reason, sorted as text."""
    return ", ".join(sorted(f"{count}/{total} {reason}" for reason, count in counts.items() if count))


@dataclass(frozen=True, kw_only=True, slots=True)
class Misfit:
    """Why one container's request of one vendor does not fit on a node."""

    counts: Mapping[Reason, int]
    """Devices per reason; for a reason of the whole node, that one alone."""
    devices: tuple[DeviceState, ...] = ()
    """The node's devices of that vendor, as they stood when the container was tried."""
    request: DeviceRequest
    selectors: Selectors = field(default_factory=Selectors)
    container: str = ""
    whole_node: bool = False

    @classmethod
    def bare(cls, reason: Reason, request: DeviceRequest, container: str = "", *, devices: tuple[DeviceState, ...] = ()) -> Misfit:
        """A reason of the node, not of its devices one by one."""
        return cls(counts={reason: 1}, devices=devices, request=request, container=container, whole_node=True)

    @property
    def text(self) -> str:
        """The short stable text."""
        return next(iter(self.counts)) if self.whole_node else render(self.counts, len(self.devices))

    @property
    def unresolvable(self) -> bool:
        """Whether no release of other pods helps: fewer devices than asked would do even if all were free."""
        if self.whole_node:
            return not UNRESOLVABLE.isdisjoint(self.counts)
        never = sum(count for reason, count in self.counts.items() if reason in UNRESOLVABLE)
        return len(self.devices) - never < self.request.count

    @property
    def detail(self) -> str:
        """What was asked, what there is and what would fit."""
        sentences = [sentence for reason in Reason if reason in self.counts and (sentence := _sentence(self, reason))]
        where = f"container {self.container}: " if self.container else ""
        return where + "; ".join(sentences)


def _sentence(misfit: Misfit, reason: Reason) -> str:
    text = _PLAIN.get(reason)
    if text is None:
        return _FIGURES[reason](misfit) if reason in _FIGURES else str(reason)
    return text.format(
        count=misfit.counts[reason], total=len(misfit.devices), asks=_cards(misfit.request.count), vendor=misfit.request.vendor
    )


def _cards(count: int) -> str:
    return "1 card" if count == 1 else f"{count} distinct cards"


def _suggest(what: str) -> str:
    return f"; would fit: {what}" if what else ""


def _able(misfit: Misfit) -> list[DeviceState]:
    """The devices that the pod accepts and that take new shares; all where there is none."""
    able = [s for s in misfit.devices if type_accepted(misfit.selectors, s.device.type) and uuid_accepted(misfit.selectors, s.device.uuid)]
    return [s for s in able if s.device.healthy and not s.cordoned] or list(misfit.devices)


def _memory(misfit: Misfit) -> str:
    request = misfit.request
    able = _able(misfit)
    nearest = max(able, key=lambda s: (s.device.memory_mib - s.used_memory_mib) - _needed(misfit, s).memory_mib)
    need = _needed(misfit, nearest).memory_mib
    free = sorted((max(s.device.memory_mib - s.used_memory_mib, 0) for s in able), reverse=True)
    if request.count == 1:
        return f"needs {need} MiB on one card, largest free {free[0]}{_suggest(f'{free[0]} MiB or less' if free[0] else '')}"
    largest = free[: request.count]
    fitting = largest[-1] if len(largest) == request.count else 0
    shown = ", ".join(map(str, largest))
    return f"needs {need} MiB on each of {request.count} cards, largest free {shown}{_suggest(f'{fitting} MiB or less' if fitting else '')}"


def _types(misfit: Misfit) -> str:
    models = sorted({state.device.type for state in misfit.devices})
    present = f"node has {', '.join(models)}"
    if all(type_accepted(misfit.selectors, model) for model in models):
        modes = sorted({s.device.mode for s in misfit.devices if not mode_accepted(misfit.selectors, s.device.mode)})
        return f"asks mode {', '.join(misfit.selectors.modes)}, node has {', '.join(modes) or 'devices of another vendor'}"
    return f"type not accepted: {_wanted(misfit.selectors.use_types, misfit.selectors.avoid_types)}; {present}"


def _wanted(use: tuple[str, ...], avoid: tuple[str, ...]) -> str:
    parts = []
    if use:
        parts.append(f"asks {', '.join(use[:4])}")
    if avoid:
        parts.append(f"avoids {', '.join(avoid[:4])}")
    return " and ".join(parts) or "asks another vendor"


def _device_count(misfit: Misfit) -> str:
    has = len(misfit.devices)
    return f"asks {_cards(misfit.request.count)}, node has {has}{_suggest(f'{has} or fewer' if has else '')}"


def _cores(misfit: Misfit) -> str:
    if misfit.request.parts:
        return f"needs {misfit.request.parts} cores of one card, {misfit.counts[Reason.CORES]} of {len(misfit.devices)} have fewer free"
    nearest = max(_able(misfit), key=lambda state: state.device.cores - state.used_cores)
    unit = "%" if nearest.device.cores == WHOLE_PERCENT else f"of {nearest.device.cores}"
    return (
        f"needs {_needed(misfit, nearest).cores} {unit} of one card's cores, most free {max(nearest.device.cores - nearest.used_cores, 0)}"
    )


def _needed(misfit: Misfit, state: DeviceState) -> Demand:
    """What the request takes of the device; as it is written, where the device cannot give it."""
    request = misfit.request
    found = None if request.rules.demand is None else request.rules.demand(state, request)
    return found if isinstance(found, Demand) else Demand(memory_mib=request.memory_on(state.device.memory_mib), cores=request.cores)


def _uuids(misfit: Misfit) -> str:
    wanted = _wanted(misfit.selectors.use_uuids, misfit.selectors.avoid_uuids)
    return f"UUID not accepted on {misfit.counts[Reason.UUID]} of {len(misfit.devices)} cards: {wanted}"


_PLAIN: Final[dict[Reason, str]] = {
    Reason.UNREGISTERED: "node has registered no {vendor} device",
    Reason.UNAVAILABLE: "node has not registered its {vendor} devices for a while",
    Reason.AGENT: "the node's {vendor} agent does not serve pods now",
    Reason.ALLOCATABLE: "kubelet has too few {vendor} devices allocatable",
    Reason.FENCED: "a record on the node, or of a pod on it, cannot be read",
    Reason.HEALTH: "{count} of {total} cards unhealthy",
    Reason.CORDON: "{count} of {total} cards cordoned",
    Reason.NUMA: "asks {asks} that are linked or on one NUMA node, {count} are not",
    Reason.SLOTS: "too few shares free on {count} of {total} cards",
    Reason.EXCLUSIVE: "needs a card that nobody uses, {count} of {total} are in use",
    Reason.CORES_EXHAUSTED: "all cores taken on {count} of {total} cards",
    Reason.MIG: "{count} of {total} cards are cut into MIG instances",
    Reason.MODE: "{count} of {total} cards are not cut as the pod asks",
    Reason.CUSTOM: "{count} of {total} cards are another container's of this pod, which must have its own",
    Reason.UNHEALTHY: "{count} of {total} cards unhealthy",
    Reason.QOS: "{count} of {total} cards are shared under another QoS policy",
    Reason.APP_CLASS: "{count} of {total} cards are used by pods of another application class",
    Reason.PARTIAL: "asks {asks}, {count} would do",
}
_FIGURES: Final[dict[Reason, Callable[[Misfit], str]]] = {
    Reason.DEVICE_COUNT: _device_count,
    Reason.TYPE: _types,
    Reason.UUID: _uuids,
    Reason.MEMORY: _memory,
    Reason.CORES: _cores,
}
