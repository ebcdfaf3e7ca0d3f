"""NVML in memory for cards that can be cut: pynvml's own names, structures and error classes, with what NVML's documentation says each call does.

Handles are pointers, profiles are numbered as a real card numbers them, and ids of instances are given again. A change of the MIG mode makes the
card's handles void.
"""
# ruff: noqa: N802 - the names are NVML's

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

import pynvml

from hami_node_agent.mig_hardware import MODELS
from hami_protocol.devices import Placement

NUMBERS = {1: 19, 2: 14, 3: 9, 4: 5, 7: 0}
"""How an A100 numbers its plain profiles, by their slices; the constants that ask for them are other numbers."""
CONSTANTS = {0: 1, 1: 2, 2: 3, 3: 4, 4: 7}
REV2 = 15
"""A variant: one slice of compute with two of memory."""


def error(code: int) -> pynvml.NVMLError:
    return pynvml.NVMLError(code)


@dataclass
class Compute:
    number: int
    slices: int
    uuid: str


@dataclass
class Instance:
    card: Card
    number: int
    profile: int
    placement: Placement
    computes: dict[int, Compute] = field(default_factory=dict)


@dataclass
class Card:
    uuid: str
    name: str
    minor: int
    can_be_cut: bool = True
    mode: int = pynvml.NVML_DEVICE_MIG_DISABLE
    pending: int = pynvml.NVML_DEVICE_MIG_DISABLE
    needs_reset: bool = False
    epoch: int = 0
    instances: dict[int, Instance] = field(default_factory=dict)

    @property
    def cuts(self) -> dict[int, tuple[str, int, int, tuple[Placement, ...], int, int]]:
        """Profile number to its name, slices, MiB, placements, most, processors."""
        rows = next(rows for model, rows in MODELS.items() if model in self.name)
        found = {
            NUMBERS[row.slices]: (
                row.name,
                row.slices,
                row.memory_mib,
                tuple(Placement(start=start, size=row.size) for start in row.starts),
                len(row.starts),
                row.processors,
            )
            for row in rows
        }
        one, two = found[NUMBERS[1]], found[NUMBERS[2]]
        double = tuple(Placement(start=start, size=2) for start in (0, 2, 4, 6))
        return found | {REV2: (two[0].replace("2g", "1g"), 1, two[2], double, 4, one[5])}


class MigDriver:
    """The library. ``fails`` maps a function to the error that it raises next; ``busy`` holds UUIDs of MIG devices that a program uses."""

    def __init__(self, *cards: Card) -> None:
        self.cards = cards
        self.fails: dict[str, pynvml.NVMLError] = {}
        self.busy: set[str] = set()
        self.calls: list[str] = []
        self._handles: dict[int, Any] = {}
        self._serial = 0

    def __getattr__(self, name: str) -> Any:
        answer = getattr(type(self), f"_{name}", None)
        if answer is None:
            if name.startswith("nvml"):
                raise AttributeError(name)
            return getattr(pynvml, name)  # constants, structures, error classes

        def call(*arguments: Any) -> Any:
            self.calls.append(name)
            if name in self.fails:
                raise self.fails.pop(name)
            return answer(self, *arguments)

        return call

    def _pointer(self, kind: Any, to: Any) -> Any:
        self._serial += 1
        self._handles[0x1000 + self._serial] = to
        return ctypes.cast(ctypes.c_void_p(0x1000 + self._serial), kind)

    def _at(self, pointer: Any) -> Any:
        found = self._handles.get(ctypes.cast(pointer, ctypes.c_void_p).value or 0)
        if found is None:
            raise error(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return found

    def _card(self, handle: Any) -> Card:
        card, epoch = self._at(handle)
        if epoch != card.epoch:
            raise error(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        assert isinstance(card, Card)
        return card

    def _instance(self, handle: Any) -> Instance:
        found = self._at(handle)
        assert isinstance(found, Instance)
        if found.card.instances.get(found.number) is not found:
            raise error(pynvml.NVML_ERROR_NOT_FOUND)
        return found

    def _cut(self, handle: Any) -> Card:
        card = self._card(handle)
        if card.mode != pynvml.NVML_DEVICE_MIG_ENABLE:
            raise error(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return card

    def half(self, uuid: str, profile: int, placement: Placement) -> None:
        """A GPU instance without a compute instance."""
        card = next(card for card in self.cards if card.uuid == uuid)
        number = next(number for number in range(1, 15) if number not in card.instances)
        card.mode = card.pending = pynvml.NVML_DEVICE_MIG_ENABLE
        card.instances[number] = Instance(card, number, profile, placement)

    # What pynvml has

    def _nvmlInit(self) -> None:
        pass

    def _nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def _nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        return self._pointer(pynvml.c_nvmlDevice_t, (self.cards[index], self.cards[index].epoch))

    def _nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any:
        for index, card in enumerate(self.cards):
            if card.uuid == uuid:
                return self._nvmlDeviceGetHandleByIndex(index)
        raise error(pynvml.NVML_ERROR_NOT_FOUND)

    def _nvmlDeviceGetUUID(self, handle: Any) -> str:
        found = self._at(handle)
        return found.uuid if isinstance(found, Compute) else self._card(handle).uuid

    def _nvmlDeviceGetName(self, handle: Any) -> str:
        return self._card(handle).name

    def _nvmlDeviceGetMinorNumber(self, handle: Any) -> int:
        return self._card(handle).minor

    def _nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        raise error(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def _nvmlDeviceGetPciInfo(self, handle: Any) -> Any:
        raise error(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def _nvmlDeviceGetMigMode(self, handle: Any) -> list[int]:
        card = self._card(handle)
        if not card.can_be_cut:
            raise error(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [card.mode, card.pending]

    def _nvmlDeviceSetMigMode(self, handle: Any, mode: int) -> int:
        card = self._card(handle)
        card.pending = mode
        if card.needs_reset:
            return int(pynvml.NVML_ERROR_RESET_REQUIRED)
        card.mode, card.epoch = mode, card.epoch + 1
        return int(pynvml.NVML_SUCCESS)

    def _nvmlDeviceGetGpuInstanceProfileInfo(self, handle: Any, constant: int) -> Any:
        card = self._card(handle)
        number = REV2 if constant == pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2 else NUMBERS.get(CONSTANTS.get(constant, 0))
        if not card.can_be_cut or number is None:
            raise error(pynvml.NVML_ERROR_NOT_SUPPORTED)
        name, slices, memory, _, most, processors = card.cuts[number]
        info = pynvml.c_nvmlGpuInstanceProfileInfo_v2_t()
        info.id, info.sliceCount, info.instanceCount, info.multiprocessorCount = number, slices, most, processors
        info.memorySizeMB, info.name = memory, f"MIG {name}".encode()
        return info

    def _nvmlDeviceGetGpuInstancePossiblePlacements(self, handle: Any, profile: int, room: Any, count: Any) -> int:
        placements = self._card(handle).cuts[profile][3]
        if room is not None:
            assert count._obj.value >= len(placements)
            for place, placement in enumerate(placements):
                room[place] = pynvml.c_nvmlGpuInstancePlacement_t(placement.start, placement.size)
        count._obj.value = len(placements)
        return int(pynvml.NVML_SUCCESS)

    def _nvmlDeviceGetGpuInstances(self, handle: Any, profile: int, room: Any, count: Any) -> int:
        card = self._cut(handle)
        found = [each for each in card.instances.values() if each.profile == profile]
        for place, instance in enumerate(found):
            room[place] = self._pointer(pynvml.c_nvmlGpuInstance_t, instance)
        count._obj.value = len(found)
        return int(pynvml.NVML_SUCCESS)

    def _nvmlDeviceCreateGpuInstanceWithPlacement(self, handle: Any, profile: int, place: Any) -> Any:
        card = self._cut(handle)
        wanted = Placement(start=place._obj.start, size=place._obj.size)
        _, slices, _, placements, _, _ = card.cuts[profile]
        if wanted not in placements:
            raise error(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        used = {
            eighth for each in card.instances.values() for eighth in range(each.placement.start, each.placement.start + each.placement.size)
        }
        compute = sum(card.cuts[each.profile][1] for each in card.instances.values())
        if used & set(range(wanted.start, wanted.start + wanted.size)) or compute + slices > 7:
            raise error(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
        number = next(number for number in range(1, 15) if number not in card.instances)
        card.instances[number] = Instance(card, number, profile, wanted)
        return self._pointer(pynvml.c_nvmlGpuInstance_t, card.instances[number])

    def _nvmlGpuInstanceGetInfo(self, handle: Any) -> Any:
        instance = self._instance(handle)
        info = pynvml.c_nvmlGpuInstanceInfo_t()
        info.id, info.profileId = instance.number, instance.profile
        info.placement.start, info.placement.size = instance.placement.start, instance.placement.size
        return info

    def _nvmlGpuInstanceDestroy(self, handle: Any) -> int:
        instance = self._instance(handle)
        if instance.computes:
            raise error(pynvml.NVML_ERROR_IN_USE)
        del instance.card.instances[instance.number]
        return int(pynvml.NVML_SUCCESS)

    def _nvmlGpuInstanceGetComputeInstanceProfileInfo(self, handle: Any, constant: int, engine: int) -> Any:
        assert engine == pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
        instance = self._instance(handle)
        slices, most = CONSTANTS.get(constant), instance.card.cuts[instance.profile][1]
        if slices is None or slices > most:
            raise error(pynvml.NVML_ERROR_NOT_SUPPORTED)
        info = pynvml.c_nvmlComputeInstanceProfileInfo_v2_t()
        info.id, info.sliceCount, info.instanceCount, info.multiprocessorCount = constant, slices, most // slices, 14 * slices
        return info

    def _nvmlGpuInstanceCreateComputeInstance(self, handle: Any, profile: int) -> Any:
        instance = self._instance(handle)
        slices = CONSTANTS[profile]
        if sum(each.slices for each in instance.computes.values()) + slices > instance.card.cuts[instance.profile][1]:
            raise error(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
        number = next(number for number in range(8) if number not in instance.computes)
        self._serial += 1
        instance.computes[number] = Compute(number, slices, f"MIG-{self._serial:08x}-0000-0000-0000-000000000000")
        return self._pointer(pynvml.c_nvmlComputeInstance_t, (instance, number))

    def _nvmlGpuInstanceGetComputeInstances(self, handle: Any, profile: int, room: Any, count: Any) -> int:
        instance = self._instance(handle)
        found = [number for number, each in instance.computes.items() if each.slices == CONSTANTS[profile]]
        for place, number in enumerate(found):
            room[place] = self._pointer(pynvml.c_nvmlComputeInstance_t, (instance, number))
        count._obj.value = len(found)
        return int(pynvml.NVML_SUCCESS)

    def _nvmlComputeInstanceDestroy(self, handle: Any) -> int:
        instance, number = self._at(handle)
        if number not in instance.computes:
            raise error(pynvml.NVML_ERROR_NOT_FOUND)
        if instance.computes[number].uuid in self.busy:
            raise error(pynvml.NVML_ERROR_IN_USE)
        del instance.computes[number]
        return int(pynvml.NVML_SUCCESS)

    def _nvmlDeviceGetMaxMigDeviceCount(self, handle: Any) -> int:
        return 7 if self._card(handle).can_be_cut else 0

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: int) -> Any:
        card = self._cut(handle)
        devices = [(instance, compute) for instance in card.instances.values() for compute in instance.computes.values()]
        if index >= len(devices):
            raise error(pynvml.NVML_ERROR_NOT_FOUND)
        return self._pointer(pynvml.c_nvmlDevice_t, devices[index][1])

    def _nvmlDeviceGetGpuInstanceId(self, handle: Any) -> int:
        compute = self._at(handle)
        return next(i.number for card in self.cards for i in card.instances.values() if compute in i.computes.values())

    def _nvmlDeviceGetComputeInstanceId(self, handle: Any) -> int:
        return int(self._at(handle).number)
