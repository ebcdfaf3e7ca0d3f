"""What people are told of a card: how it stands, and what was measured on it. One home for the command line, its reports and the web page. Pure.

Who tells adds what is booked of it, from the annotations of pods or from the log of allocations.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeVar

from msgspec import Struct

from hami_protocol.devices import RegisteredDevice
from hami_protocol.events import NodeUsage

OK: Final = "ok"
AWAY: Final = "away"
"""Its node does not register any more."""
UNHEALTHY: Final = "unhealthy"
CORDONED: Final = "cordoned"
GONE: Final = "gone"
"""Somebody holds something of it, and no node has it."""


class CardFact(Struct, frozen=True, kw_only=True, rename="camel"):
    """One card, camelCase for programs."""

    uuid: str
    device_type: str
    index: int
    model: str
    mode: str
    status: str
    """``ok``, or what keeps new pods away: ``unhealthy``, ``cordoned``, ``away``, ``gone``."""
    memory_mib: int
    cores: int
    shares: int
    used_memory_mib: int | None = None
    """Measured; None where nobody has measured."""
    used_sm_percent: int | None = None


class Use(NamedTuple):
    """What was measured."""

    memory_mib: int
    sm_percent: int


_Key = TypeVar("_Key", tuple[str, str], tuple[str, str, str])


class Measured:
    """What containers use, added up by container, by pod and by card. An agent's word counts for containers of its own node alone."""

    def __init__(self, usage: Iterable[NodeUsage]) -> None:
        self._containers: dict[tuple[str, str, str, str], Use] = {}
        self._pods: dict[tuple[str, str, str], Use] = {}
        self._cards: dict[tuple[str, str], Use] = {}
        self._enforced: dict[tuple[str, str, str], bool] = {}
        self._pods_enforced: dict[tuple[str, str], bool] = {}
        for event in usage:
            for container in event.containers:
                self._enforced[event.node, container.pod.uid, container.container] = container.enforced
                pod = event.node, container.pod.uid
                self._pods_enforced[pod] = self._pods_enforced.get(pod, True) and container.enforced
                for device in container.devices:
                    use = Use(device.memory_used_mib, device.sm_percent)
                    self._containers[event.node, container.pod.uid, container.container, device.uuid] = use
                    _add(self._pods, (event.node, container.pod.uid, device.uuid), use)
                    _add(self._cards, (event.node, device.uuid), use)

    def by_container(self, node: str, pod_uid: str, container: str, uuid: str) -> Use | None:
        """What a container on ``node`` uses of a card; None where nothing was measured there."""
        return self._containers.get((node, pod_uid, container, uuid))

    def enforced(self, node: str, pod_uid: str, container: str) -> bool | None:
        """Whether a container on ``node`` is held to its share; None where nobody looked. Known of an unreadable grant too, which has no devices."""
        return self._enforced.get((node, pod_uid, container))

    def pod_enforced(self, node: str, pod_uid: str) -> bool | None:
        """Whether all of a pod's containers on ``node`` are held to their shares; None where nobody looked."""
        return self._pods_enforced.get((node, pod_uid))

    def by_pod(self, node: str, pod_uid: str, uuid: str) -> Use | None:
        """What a pod's containers on ``node`` use of a card, together."""
        return self._pods.get((node, pod_uid, uuid))

    def of_card(self, node: str, uuid: str) -> Use | None:
        """What all use of a card, together."""
        return self._cards.get((node, uuid))


def standing(device: RegisteredDevice, *, alive: bool, cordoned: bool) -> str:
    """What keeps new pods from a card that its node registered: the worst of it, or ``ok``."""
    if not alive:
        return AWAY
    if not device.healthy:
        return UNHEALTHY
    return CORDONED if cordoned else OK


def _add(totals: dict[_Key, Use], key: _Key, use: Use) -> None:
    before = totals.get(key, Use(0, 0))
    totals[key] = Use(before.memory_mib + use.memory_mib, before.sm_percent + use.sm_percent)
