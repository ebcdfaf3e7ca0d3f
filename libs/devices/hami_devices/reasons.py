"""Why a pod does not fit on a node: as the short text of FailedNodes, and in figures for a person.

The short text is stable: no figure of what is free is in it, or kube-scheduler would try again for ever (extender sheet, section 1). The
detail says what was asked, what there is, and what would fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hami_devices.model import UNRESOLVABLE, DeviceRequest, DeviceState, Reason, Selectors
from hami_devices.selectors import mode_accepted, type_accepted, uuid_accepted


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


def _sentence(misfit: Misfit, reason: Reason) -> str:  # noqa: PLR0911  # a table
    request, devices = misfit.request, misfit.devices
    count = misfit.counts[reason]
    match reason:
        case Reason.DEVICE_COUNT:
            return f"asks {_cards(request.count)}, node has {len(devices)}{_suggest(f'{len(devices)} or fewer' if devices else '')}"
        case Reason.PARTIAL:
            return f"asks {_cards(request.count)}, {count} would do"
        case Reason.MEMORY:
            return _memory(misfit)
        case Reason.CORES:
            free = max(state.device.cores - state.used_cores for state in devices)
            return f"needs {request.cores} % of one card's cores, most free {max(free, 0)}"
        case Reason.SLOTS:
            return f"all shares taken on {count} of {len(devices)} cards"
        case Reason.EXCLUSIVE:
            return f"needs a card that nobody uses, {count} of {len(devices)} are in use"
        case Reason.CORES_EXHAUSTED:
            return f"all cores taken on {count} of {len(devices)} cards"
        case Reason.TYPE:
            return _types(misfit)
        case Reason.UUID:
            return (
                f"UUID not accepted on {count} of {len(devices)} cards: {_wanted(misfit.selectors.use_uuids, misfit.selectors.avoid_uuids)}"
            )
        case Reason.NUMA:
            return f"asks {_cards(request.count)} on one NUMA node, {count} more are on others"
        case Reason.HEALTH:
            return f"{count} of {len(devices)} cards unhealthy"
        case Reason.CORDON:
            return f"{count} of {len(devices)} cards cordoned"
        case Reason.UNREGISTERED:
            return f"node has registered no {request.vendor} device"
        case Reason.UNAVAILABLE:
            return f"node has not registered its {request.vendor} devices for a while"
        case Reason.FENCED:
            return "a record on the node, or of a pod on it, cannot be read"
        case Reason.MIG:
            return f"{count} of {len(devices)} cards are cut into MIG instances"
        case _:
            return str(reason)


def _cards(count: int) -> str:
    return "1 card" if count == 1 else f"{count} distinct cards"


def _suggest(what: str) -> str:
    return f"; would fit: {what}" if what else ""


def _memory(misfit: Misfit) -> str:
    request = misfit.request
    able = [s for s in misfit.devices if type_accepted(misfit.selectors, s.device.type) and uuid_accepted(misfit.selectors, s.device.uuid)]
    able = [s for s in able if s.device.healthy and not s.cordoned] or list(misfit.devices)
    nearest = max(able, key=lambda s: (s.device.memory_mib - s.used_memory_mib) - request.memory_on(s.device.memory_mib))
    need = request.memory_on(nearest.device.memory_mib)
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
