"""The port of cards that are cut into MIG instances, through NVML: what a card offers, what is on it, make and take away exactly one.

An instance is a GPU instance (memory and compute of the card) with one compute instance over all of it. The driver numbers profiles per card: the
constants of NVML ask for a profile, the id in its answer names it from then on. Before anything is destroyed its placement and UUID are compared,
since the driver gives ids again. What fails half way is undone; a process killed half way leaves a GPU instance without a UUID, which is listed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import byref, c_uint
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from hami_devices.config import MigAllowance
from hami_node_agent.discovery import allowance_of, nvidia_type
from hami_node_agent.hardware import HardwareError
from hami_node_agent.mig import MadeInstance, Spot, by_names
from hami_node_agent.mig_hardware import MigError
from hami_node_agent.nvml_library import NvmlLibrary, text
from hami_protocol.devices import MigInstance, MigProfile, Placement
from hami_protocol.mig import MigIdentity

T = TypeVar("T")
MINORS: Final = Path("/proc/driver/nvidia-caps/mig-minors")
_BASE_PROFILES: Final = 7
"""NVML's first constants are the plain profiles of 1, 2, 3, 4, 7, 8 and 6 slices; the others are variants of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """One profile of one card."""

    number: int
    """What the driver calls it on this card."""
    profile: MigProfile
    most: int
    """How many of it the card holds."""


class _There(NamedTuple):
    """A GPU instance on a card."""

    handle: Any
    number: int
    spot: Spot
    compute_profiles: tuple[Any, ...]


def offered(nvml: Any, card: Any) -> tuple[Offer, ...]:
    """Into what a card can be cut, the plain profiles first; nothing where it cannot be cut.

    Args:
        nvml: the library, started.
        card: NVML's handle.
    """
    found: list[tuple[Any, tuple[Placement, ...]]] = []
    plain: list[int] = []
    for number in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(card, number)
            placements = _placements(nvml, card, info.id)
        except nvml.NVMLError:
            continue  # the card has no such profile
        if number < _BASE_PROFILES:
            plain.append(int(info.multiprocessorCount))
        if placements and text(info.name):
            found.append((info, placements))
    most_processors = max(plain, default=0)
    return tuple(
        Offer(
            number=int(info.id),
            most=int(info.instanceCount),
            profile=MigProfile(
                name=text(info.name).removeprefix("MIG ").strip(),
                memory_mib=int(info.memorySizeMB),
                cores=min(100, -(-100 * int(info.multiprocessorCount) // most_processors)) if most_processors else 100,
                slice_count=int(info.sliceCount),
                placements=placements,
            ),
        )
        for info, placements in found
    )


class NvmlMig:
    """The MIG side of the cards that NVML sees."""

    def __init__(self, library: NvmlLibrary, *, allowances: Sequence[MigAllowance], minors: Path = MINORS) -> None:
        """Nothing is loaded before the first call.

        Args:
            library: NVML.
            allowances: by which names profiles are offered on which models.
            minors: where the driver says which device node admits to which instance.
        """
        self._library = library
        self._allowances = allowances
        self._minors = minors

    async def instances(self) -> tuple[MadeInstance, ...]:
        """All that are on the cards, whoever made them."""
        return await self._call(self._instances)

    async def make(self, spot: Spot) -> MadeInstance:
        """Make one, exactly there; turns the card's MIG mode on where it is off."""
        return await self._call(lambda: self._make(spot))

    async def unmake(self, made: MadeInstance) -> None:
        """Take one away, if it is still what it was."""
        await self._call(lambda: self._unmake(made))

    async def _call(self, work: Callable[[], T]) -> T:
        try:
            return await self._library.call(work)
        except HardwareError as exc:
            raise MigError(str(exc)) from exc

    # In the worker thread

    def _instances(self) -> tuple[MadeInstance, ...]:
        nvml = self._library.started()
        try:
            found: list[MadeInstance] = []
            for index in range(nvml.nvmlDeviceGetCount()):
                card = nvml.nvmlDeviceGetHandleByIndex(index)
                if self._is_cut(nvml, card):
                    uuid = text(nvml.nvmlDeviceGetUUID(card))
                    devices = _mig_devices(nvml, card)
                    found += [self._made(nvml, card, there, devices) for there in self._on(nvml, card, uuid)]
        except nvml.NVMLError as exc:
            raise MigError(f"MIG instances cannot be listed: {exc}") from exc
        return tuple(found)

    def _make(self, spot: Spot) -> MadeInstance:
        nvml = self._library.started()
        profile, start = spot.instance.profile, spot.instance.placement.start
        try:
            card = nvml.nvmlDeviceGetHandleByUUID(spot.gpu)
            offers = self._named(nvml, card)
        except nvml.NVMLError as exc:
            raise MigError(f"{spot.gpu} does not answer: {exc}") from exc
        offer = offers.get(profile)
        if offer is None:
            raise MigError(f"{spot.gpu} offers no profile {profile}; it offers {', '.join(offers) or 'none'}")
        if spot.instance.placement not in offer.profile.placements:
            raise MigError(f"profile {profile} cannot lie at {start} on {spot.gpu}")
        card = self._cut(nvml, card, spot.gpu)
        place = nvml.c_nvmlGpuInstancePlacement_t(spot.instance.placement.start, spot.instance.placement.size)
        try:
            instance = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(card, offer.number, byref(place))
        except nvml.NVMLError_InsufficientResources as exc:
            raise MigError(f"no room for {profile} at {start} on {spot.gpu}: insufficient resources") from exc
        except nvml.NVMLError as exc:
            raise MigError(f"{profile} at {start} on {spot.gpu} cannot be made: {exc}") from exc
        try:
            whole = max(_compute_profiles(nvml, instance), key=lambda info: (info.sliceCount, info.multiprocessorCount), default=None)
            if whole is None:
                raise MigError(f"{profile} on {spot.gpu} offers no compute instance")
            nvml.nvmlGpuInstanceCreateComputeInstance(instance, whole.id)
            number = int(nvml.nvmlGpuInstanceGetInfo(instance).id)
            there = _There(instance, number, spot, (whole,))
            made = self._made(nvml, card, there, _mig_devices(nvml, card))
            if not made.complete:
                raise MigError(f"{profile} at {start} on {spot.gpu} was made, and the driver lists no MIG device for it")
        except (MigError, nvml.NVMLError) as exc:
            left = _undo(nvml, instance)
            raise MigError(f"{profile} at {start} on {spot.gpu}: {exc}{left}") from exc
        return made

    def _unmake(self, made: MadeInstance) -> None:
        nvml = self._library.started()
        try:
            card = nvml.nvmlDeviceGetHandleByUUID(made.spot.gpu)
            devices = _mig_devices(nvml, card)
            for there in self._on(nvml, card, made.spot.gpu):
                if there.spot == made.spot and self._made(nvml, card, there, devices).identity == made.identity:
                    _destroy(nvml, there.handle, there.compute_profiles)
        except nvml.NVMLError_NotFound:
            return
        except nvml.NVMLError_InUse as exc:
            raise MigError(f"{made.identity.uuid or made.spot} is in use by another client") from exc
        except nvml.NVMLError as exc:
            raise MigError(f"{made.identity.uuid or made.spot} cannot be taken away: {exc}") from exc

    def _named(self, nvml: Any, card: Any) -> dict[str, Offer]:
        """What the card offers, by the names of the configuration, or the driver's where the configuration has none."""
        offers = {offer.profile.name: offer for offer in offered(nvml, card)}
        allowance = allowance_of(nvidia_type(text(nvml.nvmlDeviceGetName(card))), self._allowances)
        names = by_names([offer.profile for offer in offers.values()], allowance.profiles if allowance else ())
        renamed = {profile.name: name for name, profile in names.items()}
        return {renamed.get(name, name): offer for name, offer in offers.items()}

    def _is_cut(self, nvml: Any, card: Any) -> bool:
        try:
            current, _ = nvml.nvmlDeviceGetMigMode(card)
        except nvml.NVMLError_NotSupported:
            return False
        return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)

    def _cut(self, nvml: Any, card: Any, uuid: str) -> Any:
        """The card's handle, with MIG mode on.

        Raises:
            MigError: it cannot be turned on, or not without a reset of the card.
        """
        try:
            current, pending = nvml.nvmlDeviceGetMigMode(card)
            if current == pending == nvml.NVML_DEVICE_MIG_ENABLE:
                return card
            if current == pending:
                nvml.nvmlDeviceSetMigMode(card, nvml.NVML_DEVICE_MIG_ENABLE)
                card = nvml.nvmlDeviceGetHandleByUUID(uuid)  # the mode's change makes the old handle void
                current, pending = nvml.nvmlDeviceGetMigMode(card)
        except nvml.NVMLError as exc:
            raise MigError(f"MIG mode of {uuid} cannot be turned on: {exc}") from exc
        if current != nvml.NVML_DEVICE_MIG_ENABLE or pending != nvml.NVML_DEVICE_MIG_ENABLE:
            raise MigError(f"MIG mode of {uuid} waits for a reset of the card: drain the node and reset it, or reboot")
        return card

    def _on(self, nvml: Any, card: Any, uuid: str) -> list[_There]:
        """The GPU instances on a card."""
        found: list[_There] = []
        for name, offer in self._named(nvml, card).items():
            for handle in _filled(nvml, nvml.c_nvmlGpuInstance_t, offer.most, nvml.nvmlDeviceGetGpuInstances, card, offer.number):
                info = nvml.nvmlGpuInstanceGetInfo(handle)
                placement = Placement(start=int(info.placement.start), size=int(info.placement.size))
                spot = Spot(uuid, MigInstance(profile=name, placement=placement))
                found.append(_There(handle, int(info.id), spot, _compute_profiles(nvml, handle)))
        return found

    def _made(self, nvml: Any, card: Any, there: _There, devices: dict[int, tuple[int, str]]) -> MadeInstance:
        compute, uuid = devices.get(there.number, (0, ""))
        return MadeInstance(
            spot=there.spot,
            identity=MigIdentity(uuid=uuid, gpu_instance=there.number, compute_instance=compute),
            paths=_paths(self._minors, int(nvml.nvmlDeviceGetMinorNumber(card)), there.number, compute) if uuid else (),
        )


def _placements(nvml: Any, card: Any, profile: int) -> tuple[Placement, ...]:
    count = c_uint()
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(card, profile, None, byref(count))
    room = (nvml.c_nvmlGpuInstancePlacement_t * count.value)()
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(card, profile, room, byref(count))
    return tuple(Placement(start=int(each.start), size=int(each.size)) for each in room[: count.value])


def _filled(nvml: Any, kind: Any, most: int, ask: Callable[..., Any], *of: Any) -> list[Any]:
    """The handles that ``ask`` fills into an array with room for as many as there can be."""
    count = c_uint(most)
    room = (kind * most)()
    try:
        ask(*of, room, byref(count))
    except nvml.NVMLError_NotSupported:
        return []
    return list(room[: min(count.value, most)])


def _compute_profiles(nvml: Any, instance: Any) -> tuple[Any, ...]:
    found: list[Any] = []
    for number in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            found.append(
                nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, number, nvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
            )
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
            continue  # larger than the instance
    return tuple(found)


def _mig_devices(nvml: Any, card: Any) -> dict[int, tuple[int, str]]:
    """Of each GPU instance on the card with a compute instance: the first one's id, and the UUID that programs ask for."""
    found: dict[int, tuple[int, str]] = {}
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(card)):
        try:
            device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, index)
        except (nvml.NVMLError_NotFound, nvml.NVMLError_NotSupported):
            continue  # fewer than there can be, or the card's MIG mode is off
        number, compute = int(nvml.nvmlDeviceGetGpuInstanceId(device)), int(nvml.nvmlDeviceGetComputeInstanceId(device))
        if number not in found or compute < found[number][0]:
            found[number] = (compute, text(nvml.nvmlDeviceGetUUID(device)))
    return found


def _destroy(nvml: Any, instance: Any, compute_profiles: Sequence[Any]) -> None:
    for profile in compute_profiles:
        most = int(profile.instanceCount)
        for compute in _filled(nvml, nvml.c_nvmlComputeInstance_t, most, nvml.nvmlGpuInstanceGetComputeInstances, instance, profile.id):
            nvml.nvmlComputeInstanceDestroy(compute)
    nvml.nvmlGpuInstanceDestroy(instance)


def _undo(nvml: Any, instance: Any) -> str:
    """Take away what was made so far; what is to be said if that fails too."""
    try:
        _destroy(nvml, instance, _compute_profiles(nvml, instance))
    except nvml.NVMLError as exc:
        return f"; it could not be undone: {exc}"
    return ""


def _paths(minors: Path, card: int, instance: int, compute: int) -> tuple[str, ...]:
    """The device nodes that admit to an instance; none where the driver has no such file."""
    try:
        lines = minors.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return ()
    numbers = {name: minor for name, _, minor in (line.strip().rpartition(" ") for line in lines) if minor.isascii() and minor.isdigit()}
    names = (f"gpu{card}/gi{instance}/access", f"gpu{card}/gi{instance}/ci{compute}/access")
    return tuple(f"/dev/nvidia-caps/nvidia-cap{numbers[name]}" for name in names if name in numbers)
