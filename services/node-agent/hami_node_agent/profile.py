"""Cards that exist only in a YAML profile: for the rig, tests and demos. Never chosen by itself: a setting names the file.

::

    vendor: nvidia              # whose resource and annotations, by the type in them; nvidia is the default
    count: 4                    # shorthand: so many equal cards, each like `device`
    device: {memory_mib: 32768, cores: 100, model: Tesla V100-PCIE-32GB, numa: 0, healthy: true}
                                # its `uuid` may have {node} and {index} in it; `custom_info` is what the vendor says besides;
                                # with `memory_used_mib` and `busy_percent` it is measured, as the driver would say
    devices:                    # or one by one; what is left out is as in `device`
      - {uuid: GPU-..., index: 0, memory_mib: 24576, model: NVIDIA A10, numa: 1, healthy: false, xids: [79]}
    split_count: 10             # these four override the cluster's configuration
    memory_scaling: 1.0
    core_scaling: 1.0
    mode: hami-core
    links: {GPU-a: {GPU-b: 100}}   # pair scores

The file is read again when it changes: `healthy` follows at once, each number that is added to `xids` is raised once as an event.
"""

from __future__ import annotations

import asyncio
import uuid as uuids
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct, field

from hami_node_agent.discovery import nvidia_type
from hami_node_agent.hardware import (
    DeviceFault,
    DeviceReading,
    HardwareError,
    HardwareEvent,
    Inventory,
    InventoryChanged,
    PhysicalDevice,
)
from hami_node_agent.mig_hardware import profiles_of
from hami_node_agent.sharing import Sharing
from hami_protocol.devices import Count
from hami_protocol.errors import RecordError
from hami_protocol.registration import check_ids, clean

_NAMESPACE: Final = uuids.UUID("6d1c2f0e-6a0b-5c43-9a5d-0e1f7b7a4c11")
POLL_SECONDS: Final = 0.25


class ProfileDevice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One card of a profile; what is None is as in the profile's ``device``."""

    uuid: str | None = None
    index: Count | None = None
    memory_mib: Count | None = None
    cores: Count | None = None
    model: str | None = None
    numa: int | None = None
    healthy: bool | None = None
    xids: tuple[int, ...] = ()
    memory_used_mib: Count | None = None
    busy_percent: Annotated[int, Meta(ge=0, le=100)] | None = None
    custom_info: dict[str, Any] = field(default_factory=dict)


class Profile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cards of one node; see the module's text."""

    vendor: str = "nvidia"
    count: Annotated[int, Meta(ge=0, le=4096)] = 0
    device: ProfileDevice = ProfileDevice()
    devices: tuple[ProfileDevice, ...] = ()
    split_count: Annotated[int, Meta(ge=1, le=1000)] | None = None
    memory_scaling: float | None = None
    core_scaling: float | None = None
    mode: str | None = None
    links: dict[str, dict[str, int]] | None = None


def read(text: bytes | str) -> Profile:
    """The profile in ``text``, YAML.

    Raises:
        HardwareError: it is none.
    """
    try:
        return msgspec.yaml.decode(text or "{}", type=Profile)
    except (msgspec.DecodeError, msgspec.ValidationError) as exc:
        raise HardwareError(f"device profile: {exc}") from exc


class ProfileHardware:
    """A profile as hardware, in memory. ``become`` and ``raise_xid`` are what a test turns."""

    def __init__(self, profile: Profile, *, node: str) -> None:
        self._node = node
        self._profile = profile
        self._events: asyncio.Queue[HardwareEvent] = asyncio.Queue()

    @property
    def profile(self) -> Profile:
        """As it is now."""
        return self._profile

    def sharing(self, configured: Sharing) -> Sharing:
        """What the profile says wins over what is configured."""
        names = ("split_count", "memory_scaling", "core_scaling", "mode")
        return replace(configured, **{name: value for name in names if (value := getattr(self._profile, name)) is not None})

    async def scan(self) -> Inventory:
        """The profile's cards."""
        common = self._profile.device
        devices: list[PhysicalDevice] = []
        for place, own in enumerate(self._listed()):
            healthy = own.healthy if own.healthy is not None else common.healthy
            model = own.model or common.model or "Tesla V100-PCIE-32GB"
            devices.append(
                PhysicalDevice(
                    uuid=self._name(place, own),
                    index=own.index if own.index is not None else place,
                    type=nvidia_type(model) if self._profile.vendor == "nvidia" else clean(model),
                    memory_mib=_first(own.memory_mib, common.memory_mib, 32768),
                    cores=_first(own.cores, common.cores, 100),
                    numa=own.numa if own.numa is not None else common.numa,
                    fault="" if healthy is not False else "the profile says so",
                    mig_profiles=profiles_of(model),
                    custom_info=common.custom_info | own.custom_info,
                )
            )
        try:
            check_ids(device.uuid for device in devices)
        except RecordError as exc:
            raise HardwareError(f"device profile: {exc}") from exc
        return Inventory(devices=tuple(devices), pair_scores=self._profile.links)

    def _listed(self) -> tuple[ProfileDevice, ...]:
        return self._profile.devices or (ProfileDevice(),) * self._profile.count

    def _uuid(self, place: int) -> str:
        return f"GPU-{uuids.uuid5(_NAMESPACE, f'{self._node}/{place}')}"

    async def events(self) -> AsyncIterator[HardwareEvent]:
        """What ``become`` and ``raise_xid`` caused."""
        while True:
            yield await self._events.get()

    async def probe(self, uuid: str) -> str:
        """A card works where the profile says that it is healthy."""
        found = next((device for device in (await self.scan()).devices if device.uuid == uuid), None)
        return "no such device" if found is None else found.fault

    async def reading(self, uuid: str) -> DeviceReading | None:
        """What the profile says that is in use; None where it says nothing of a card."""
        common = self._profile.device
        for place, own in enumerate(self._listed()):
            memory = own.memory_used_mib if own.memory_used_mib is not None else common.memory_used_mib
            busy = own.busy_percent if own.busy_percent is not None else common.busy_percent
            if self._name(place, own) == uuid and (memory is not None or busy is not None):
                return DeviceReading(memory_used_mib=memory or 0, sm_percent=busy or 0)
        return None

    def become(self, profile: Profile) -> None:
        """Replace the profile: health follows at once, XIDs that are new are raised."""
        before = {self._name(place, device): device for place, device in enumerate(self._listed())}
        self._profile = profile
        self._events.put_nowait(InventoryChanged())
        for place, device in enumerate(self._listed()):
            name = self._name(place, device)
            seen = before[name].xids if name in before else ()
            for xid in device.xids[len(seen) if device.xids[: len(seen)] == seen else 0 :]:
                self.raise_xid(name, xid)

    def raise_xid(self, uuid: str, xid: int) -> None:
        """As if the driver had reported ``xid``."""
        self._events.put_nowait(DeviceFault(uuid=uuid, xid=xid))

    def _name(self, place: int, device: ProfileDevice) -> str:
        if device.uuid or not (pattern := self._profile.device.uuid):
            return device.uuid or self._uuid(place)
        index = device.index if device.index is not None else place
        return pattern.replace("{node}", self._node).replace("{index}", str(index))


def _first(*amounts: int | None) -> int:
    return next(amount for amount in amounts if amount is not None)


class ProfileFile(ProfileHardware):
    """A profile in a file, read again when it changes. A file that cannot be read any more changes nothing, and is tried again."""

    def __init__(self, path: Path, *, node: str) -> None:
        self._path = path
        self._stamp = self._stamped()
        super().__init__(read(self._content()), node=node)

    def _content(self) -> bytes:
        try:
            return self._path.read_bytes()
        except OSError as exc:
            raise HardwareError(f"device profile {self._path}: {exc.strerror}") from exc

    def _stamped(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    async def events(self) -> AsyncIterator[HardwareEvent]:
        """What changes of the file caused."""
        while True:
            while not self._events.empty():
                yield self._events.get_nowait()
            await asyncio.sleep(POLL_SECONDS)
            if (stamp := self._stamped()) == self._stamp:
                continue
            try:
                profile = read(self._content())
            except HardwareError:
                continue
            self._stamp = stamp
            self.become(profile)
