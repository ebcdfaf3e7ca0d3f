"""What a vendor may change about how its devices are fitted: a handful of functions, each with a default that changes nothing.

A request carries its vendor's rules, so that whoever fits it asks no one whose it is. The functions are pure, and they keep the invariants of
``fit``: more room never turns a fit into a misfit, and the order in which devices are given does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from hami_protocol.devices import MigInstance

if TYPE_CHECKING:
    from hami_devices.model import DeviceRequest, DeviceState, PodRequest, Reason


class Demand(NamedTuple):
    """What one share takes of one device."""

    memory_mib: int
    cores: int
    cores_percent: int = 0
    """Of the card, as it was asked, where cores are booked in the card's own units."""
    slots: int = 1
    mark: str = ""
    """How it uses the device, in the vendor's own words, where others on it must know."""
    ignores_cores: bool = False
    """Cores are neither booked nor looked at."""
    instance: MigInstance | None = None
    """Which part of the card it becomes, where the card is cut into MIG instances."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """A node's devices of one vendor, when at least as many of them would do as one container asks for."""

    devices: tuple[DeviceState, ...]
    """All, by index and UUID: a place in it is a place on the board."""
    fitting: tuple[DeviceState, ...]
    """Those that would do, in the order of the device policy."""
    request: DeviceRequest


Picked = Sequence["DeviceState"] | Mapping["Reason", int]
"""The devices taken, or why there is no choice: reasons with numbers of devices."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a pod would get of one vendor on one node, to be compared with other nodes."""

    containers: tuple[tuple[DeviceState, ...], ...]
    """The devices of each container that asks for some, as they stood before the container took them."""
    devices: tuple[DeviceState, ...]
    """All of the vendor's devices on the node, as they stand without the pod, by index and UUID."""
    pod: PodRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """How one vendor's devices are fitted."""

    demand: Callable[[DeviceState, DeviceRequest], Demand | Reason] | None = None
    """What a share takes of a device, or why the device cannot give it; by default the request's memory and cores, and one slot."""
    pick: Callable[[Choice], Picked] | None = None
    """Which of the devices that would do; by default the first."""
    bonus: Callable[[Outcome], float] | None = None
    """How much better than another node this one would be, in points of the node score; more is better under every policy."""
    single_matters: bool = True
    """Whether ``pick`` and ``bonus`` matter where no container asks for more than one device."""
    board: Callable[[DeviceState], str] | None = None
    """What a device shares with others that ``mutex`` keeps free together with it; empty for nothing."""
    apart: bool = False
    """Application containers and sidecars of one pod get different devices."""
    names_model: bool = False
    """The assignment's text has the device's model in place of the vendor's word."""
    unhealthy: Reason | None = None
    """What an unhealthy device is called, where it is not ``CardNotHealth``."""

    @property
    def plain(self) -> bool:
        """Whether nothing is changed."""
        return self == PLAIN

    def matter(self, counts: Sequence[int]) -> bool:
        """Whether a pod whose containers ask for so many devices each may be fitted otherwise than by the request alone."""
        if self.demand is not None or self.board is not None or (self.apart and len(counts) > 1):
            return True
        return (self.pick is not None or self.bonus is not None) and (self.single_matters or max(counts) > 1)


PLAIN: Final = Rules()
