"""From the driver's list of cards to what the scheduler is told and what kubelet is told. Pure.

Invariant: both lists come from one filter, so that kubelet never counts a card that the scheduler does not know, nor the other way round.
Device ids for kubelet are ``<uuid>-<n>``, one per share; they name slots, not places in memory.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from hami_devices import mig
from hami_devices.config import MigAllowance
from hami_node_agent.hardware import Inventory, PhysicalDevice
from hami_node_agent.mig import by_names
from hami_node_agent.sharing import Sharing, scaled
from hami_protocol.devices import MigProfile, RegisteredDevice
from hami_protocol.registration import clean

_UUID_DASHES: Final = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class AdvertisedDevice:
    """One slot as kubelet sees it."""

    id: str
    healthy: bool
    numa: int | None = None


def nvidia_type(name: str) -> str:
    """The registered type of a card that NVML calls ``name``: ``Tesla P4`` is ``NVIDIA-Tesla P4``, ``NVIDIA A30`` stays."""
    return clean(name if name.startswith("NVIDIA") else f"NVIDIA-{name}")


def registered(inventory: Inventory, sharing: Sharing, unhealthy: Mapping[str, str]) -> tuple[RegisteredDevice, ...]:
    """What the scheduler is told, by index. ``unhealthy`` holds why a card is out, by UUID; a card with a fault is out too."""
    if sharing.mode == mig.MODE:
        return tuple(_cut(device, sharing, unhealthy) for device, _ in _usable(inventory, sharing))
    return tuple(
        RegisteredDevice(
            uuid=device.uuid,
            index=device.index,
            shares=sharing.split_count,
            memory_mib=scaled(memory_mib, sharing.memory_scaling),
            cores=scaled(device.cores, sharing.core_scaling),
            type=clean(device.type),
            numa=device.numa or 0,
            healthy=not device.fault and device.uuid not in unhealthy,
            mode=sharing.mode,
            custom_info=device.custom_info,
        )
        for device, memory_mib in _usable(inventory, sharing)
    )


def uncut(inventory: Inventory, sharing: Sharing) -> tuple[PhysicalDevice, ...]:
    """Cards that are left out since they are to be cut into MIG instances, and cannot be."""
    if sharing.mode != mig.MODE:
        return ()
    return tuple(device for device in inventory.devices if not allowed_profiles(device, sharing))


def _cut(device: PhysicalDevice, sharing: Sharing, unhealthy: Mapping[str, str]) -> RegisteredDevice:
    """A card that is cut into MIG instances: not scaled, and shared by as many as its smallest profile allows."""
    profiles = allowed_profiles(device, sharing)
    return RegisteredDevice(
        uuid=device.uuid,
        index=device.index,
        shares=max(len(profile.placements) for profile in profiles),
        memory_mib=device.memory_mib or 0,
        cores=100,
        type=clean(device.type),
        numa=device.numa or 0,
        healthy=not device.fault and device.uuid not in unhealthy,
        mode=mig.MODE,
        mig_profiles=profiles,
    )


def allowed_profiles(device: PhysicalDevice, sharing: Sharing) -> tuple[MigProfile, ...]:
    """Of what the card offers, what the configuration allows, by the configuration's names."""
    allowance = allowance_of(device.type, sharing.mig_allowances)
    named = by_names(device.mig_profiles, allowance.profiles if allowance else ())
    return tuple(msgspec.structs.replace(profile, name=name) for name, profile in named.items())


def allowance_of(type_text: str, allowances: Iterable[MigAllowance]) -> MigAllowance | None:
    """The entry with the longest model that is part of the card's type: an H200 is no H20."""
    matches = [(len(model), each) for each in allowances for model in each.models if model in type_text]
    return max(matches, key=lambda match: match[0], default=(0, None))[1]


def advertised(inventory: Inventory, sharing: Sharing, unhealthy: Mapping[str, str]) -> tuple[AdvertisedDevice, ...]:
    """What kubelet is told: every share of every card, all shares of a sick card sick."""
    return tuple(
        AdvertisedDevice(
            id=f"{device.uuid}-{share}",
            healthy=not device.fault and device.uuid not in unhealthy,
            numa=device.numa if sharing.numa_topology else None,
        )
        for device, _ in _usable(inventory, sharing)
        for share in range(sharing.split_count)
    )


def physical_id(device_id: str) -> str:
    """The card of a slot: what stands before ``::``, or before the last of six dashes where a number follows it."""
    head, separator, _ = device_id.partition("::")
    if separator:
        return head
    uuid, _, tail = device_id.rpartition("-")
    return uuid if device_id.count("-") == _UUID_DASHES and tail.isascii() and tail.isdigit() else device_id


def card_of(device_id: str, cards: Container[str]) -> str:
    """The card of a slot, one of ``cards`` whatever the form of their UUIDs; as ``physical_id`` says where it is none of them."""
    uuid, _, tail = device_id.rpartition("-")
    return uuid if uuid in cards and tail.isascii() and tail.isdigit() else physical_id(device_id)


def preferred(granted: Iterable[str], available: Iterable[str], required: Iterable[str], size: int) -> tuple[str, ...]:
    """Which ``size`` of the ``available`` slots match the cards in ``granted``; the ``required`` ones are always among them.

    Raises:
        ValueError: they cannot be matched; kubelet then chooses by itself.
    """
    cards = tuple(granted)
    if len(cards) < size:
        raise ValueError(f"annotated devices {len(cards)} smaller than requested allocation size {size}")
    chosen = sorted(required)
    unmatched = [card_of(slot, cards) for slot in chosen]
    free = sorted(set(available) - set(chosen))
    for card in cards[:size]:
        if card in unmatched:
            unmatched.remove(card)
            continue
        slot = next((slot for slot in free if card_of(slot, cards) == card), None)
        if slot is None:
            raise ValueError(f"no available slice device found for annotated GPU {card}")
        free.remove(slot)
        chosen.append(slot)
    if len(chosen) != size:
        raise ValueError(f"preferred allocation selected {len(chosen)} devices, want {size}")
    return tuple(chosen)


def _usable(inventory: Inventory, sharing: Sharing) -> list[tuple[PhysicalDevice, int]]:
    usable: list[tuple[PhysicalDevice, int]] = []
    for device in sorted(inventory.devices, key=lambda device: (device.index, device.uuid)):
        memory_mib = device.memory_mib if device.memory_mib is not None else sharing.preconfigured_memory_mib or None
        excluded = device.uuid in sharing.excluded_uuids or device.index in sharing.excluded_indexes
        uncut = sharing.mode == mig.MODE and not allowed_profiles(device, sharing)
        if memory_mib is not None and not excluded and not uncut:
            usable.append((device, memory_mib))
    return usable
