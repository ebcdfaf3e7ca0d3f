"""Choosing among devices that stand in groups (of one board, of one network), so that few groups are broken. Pure; ties end at the lowest index."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hami_devices.model import DeviceState


def grouped(states: Sequence[DeviceState], group_of: Callable[[DeviceState], str]) -> list[list[DeviceState]]:
    """The states by group, in their order; the groups by their lowest index."""
    groups: dict[str, list[DeviceState]] = {}
    for state in states:
        groups.setdefault(group_of(state), []).append(state)
    return sorted(groups.values(), key=lambda group: min((state.device.index, state.device.uuid) for state in group))


def largest_first(states: Sequence[DeviceState], count: int, group_of: Callable[[DeviceState], str]) -> tuple[DeviceState, ...]:
    """``count`` of at least so many states: from the largest group first, inside a group in their order."""
    groups = sorted(grouped(states, group_of), key=len, reverse=True)
    return tuple(state for group in groups for state in group)[:count]


def concentration(containers: Sequence[Sequence[DeviceState]], group_of: Callable[[DeviceState], str]) -> float:
    """How far each container's devices stand together: the share of its largest group, summed over containers. 0 where one stands in none."""
    if any(not group_of(state) for states in containers for state in states):
        return 0.0
    return sum(max(map(len, grouped(states, group_of))) / len(states) for states in containers)


def info_text(state: DeviceState, name: str) -> str:
    """An entry of a device's custom info as text: a number without its fraction, empty where there is none."""
    value = state.device.custom_info.get(name)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
