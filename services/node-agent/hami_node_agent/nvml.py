"""NVIDIA cards through NVML: what there is, how they are, what went wrong.

An error of one card is that card's ``fault``; only a library that cannot be loaded or started is a ``HardwareError``.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog

from hami_node_agent.discovery import nvidia_type
from hami_node_agent.hardware import DeviceFault, DeviceProcess, DeviceReading, HardwareError, HardwareEvent, Inventory, PhysicalDevice
from hami_node_agent.nvml_library import NvmlLibrary, text
from hami_node_agent.nvml_mig import offered
from hami_node_agent.sharing import Sharing
from hami_protocol.devices import MigProfile

T = TypeVar("T")
log = structlog.get_logger()
EVENT_WAIT_MILLISECONDS: Final = 1000
RECOVERY_ACTION_FIELD: Final = 230
"""``NVML_FI_DEV_GET_GPU_RECOVERY_ACTION``; drivers from R565 on answer."""
RECOVERY_ACTIONS: Final = {
    1: "the driver asks for a reset of the card",
    2: "the driver asks for a restart of the node",
    4: "the driver asks to drain the card and reset it",
    6: "the driver asks for a reset of the bus",
    7: "the driver asks for a restart of the system",
}
"""``nvmlDeviceGpuRecoveryAction_t``. Draining peer-to-peer traffic (3) and an IMEX domain (5) leave the card itself usable."""
RETRY_SECONDS: Final = (1.0, 5.0, 30.0)
LINK_SCORES: Final = {0: 60, 10: 50, 20: 40, 30: 30, 40: 20, 50: 10}
"""By NVML's common ancestor: same board, one switch, several switches, host bridge, same CPU, across CPUs."""
MAX_LINKS: Final = 18
_PERCENT: Final = 100


class NvmlHardware:
    """The cards that NVML sees."""

    def __init__(self, library: NvmlLibrary, *, pair_scores: bool = False, pci_root: Path = Path("/sys/bus/pci/devices")) -> None:
        """Nothing is loaded before the first scan.

        Args:
            library: NVML.
            pair_scores: whether to measure how well each two cards are linked.
            pci_root: where the kernel says on which NUMA node a card is.
        """
        self._library = library
        self._pair_scores = pair_scores
        self._pci_root = pci_root
        self._profiles_of: dict[str, tuple[MigProfile, ...]] = {}
        self._sampled_until: dict[str, int] = {}
        """By card, the driver's time of the newest sample of use by process."""

    def sharing(self, configured: Sharing) -> Sharing:
        """As configured."""
        return configured

    async def scan(self) -> Inventory:
        """All cards now."""
        return await self._library.call(self._scan)

    async def probe(self, uuid: str) -> str:
        """Ask one card for its memory and temperature."""
        return await self._library.call(lambda: self._probe(uuid))

    async def reading(self, uuid: str) -> DeviceReading | None:
        """How busy one card is now."""
        return await self._library.call(lambda: self._reading(uuid))

    async def events(self) -> AsyncIterator[HardwareEvent]:
        """Critical XIDs, one by one. A wait that fails is repeated with growing pauses; it takes no card out."""
        attempt = 0
        events: Any = None
        while True:
            try:
                if events is None:
                    events = await self._library.call(self._subscribe)
                found = await self._library.call(functools.partial(self._wait, events))
                attempt = 0
            except (HardwareError, NvmlCallError) as exc:
                log.warning("NVML events cannot be read", reason=str(exc))
                events = None
                await asyncio.sleep(RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)])
                attempt += 1
                continue
            if found is not None:
                yield found

    # In the worker thread

    def _scan(self) -> Inventory:
        nvml = self._library.started()
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as exc:
            raise HardwareError(f"NVML does not count the cards: {exc}") from exc
        found = [device for index in range(count) if (device := self._device(index)) is not None]
        scores = self._scores([device.uuid for device in found if not device.fault]) if self._pair_scores else None
        return Inventory(devices=tuple(found), pair_scores=scores)

    def _device(self, index: int) -> PhysicalDevice | None:
        """One card; None where not even its UUID can be had, since it cannot be told from others then."""
        nvml = self._library.started()
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = text(nvml.nvmlDeviceGetUUID(handle))
        except nvml.NVMLError as exc:
            log.error("card cannot be identified", index=index, reason=str(exc))
            return None
        faults: list[str] = []

        def ask(what: str, call: Callable[[], T], default: T) -> T:
            try:
                return call()
            except nvml.NVMLError as exc:
                faults.append(f"{what}: {exc}")
                return default

        name = ask("name", lambda: text(nvml.nvmlDeviceGetName(handle)), "NVIDIA")
        unknown: int | None = 0
        minor = ask("minor number", lambda: int(nvml.nvmlDeviceGetMinorNumber(handle)), index)
        return PhysicalDevice(
            uuid=uuid,
            index=index,
            type=nvidia_type(name),
            memory_mib=ask("memory", lambda: self._memory_mib(handle), unknown),
            numa=self._numa(handle),
            paths=(f"/dev/nvidia{minor}",),
            fault="; ".join(faults),
            mig_profiles=self._profiles(handle, uuid),
        )

    def _profiles(self, handle: Any, uuid: str) -> tuple[MigProfile, ...]:
        """Into what the card can be cut: a card that has answered once is not asked again, nor forgotten when it is lost."""
        if not self._profiles_of.get(uuid):
            self._profiles_of[uuid] = tuple(offer.profile for offer in offered(self._library.started(), handle))
        return self._profiles_of[uuid]

    def _memory_mib(self, handle: Any) -> int | None:
        nvml = self._library.started()
        try:
            return int(nvml.nvmlDeviceGetMemoryInfo(handle).total) // 2**20 or None
        except nvml.NVMLError_NotSupported:
            return None

    def _numa(self, handle: Any) -> int | None:
        nvml = self._library.started()
        try:
            bus_id = text(nvml.nvmlDeviceGetPciInfo(handle).busId).lower().removeprefix("0000")
            node = int((self._pci_root / bus_id / "numa_node").read_text())
        except (nvml.NVMLError, OSError, ValueError):
            return None
        return node if node >= 0 else None

    def _probe(self, uuid: str) -> str:
        nvml = self._library.started()
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
            self._memory_mib(handle)
        except nvml.NVMLError as exc:
            return str(exc)
        return self._recovery_action(handle)

    def _recovery_action(self, handle: Any) -> str:
        """What the driver wants to be done with the card; empty for nothing, or where the driver does not say."""
        nvml = self._library.started()
        try:
            (found,) = nvml.nvmlDeviceGetFieldValues(handle, [RECOVERY_ACTION_FIELD])
        except (nvml.NVMLError, AttributeError):  # an older driver, or an older library
            return ""
        return RECOVERY_ACTIONS.get(int(found.value.uiVal), "") if found.nvmlReturn == 0 else ""

    def _reading(self, uuid: str) -> DeviceReading | None:
        nvml = self._library.started()
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            used = int(nvml.nvmlDeviceGetMemoryInfo(handle).used) // 2**20
            rates = nvml.nvmlDeviceGetUtilizationRates(handle)
            processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except nvml.NVMLError:
            return None
        ran = self._ran(handle, uuid)
        counted = tuple(
            DeviceProcess(
                pid=int(one.pid),
                memory_mib=int(one.usedGpuMemory or 0) // 2**20,
                sm_percent=None if ran is None else ran.get(int(one.pid), 0),
            )
            for one in processes
        )
        return DeviceReading(memory_used_mib=used, sm_percent=int(rates.gpu), memory_percent=int(rates.memory), processes=counted)

    def _ran(self, handle: Any, uuid: str) -> dict[int, int] | None:
        """By process, how much of the card's time it ran since the last look; None where the driver does not count that (MIG), or has nothing new."""
        nvml = self._library.started()
        since = self._sampled_until.get(uuid, 0)
        try:
            samples = sorted(nvml.nvmlDeviceGetProcessUtilization(handle, since), key=lambda one: int(one.timeStamp))
        except nvml.NVMLError:  # not supported, or no sample is newer
            return None
        newest = max((int(one.timeStamp) for one in samples), default=since)
        self._sampled_until[uuid] = max(since, newest)
        return {int(one.pid): int(one.smUtil) for one in samples if int(one.timeStamp) > since and int(one.smUtil) <= _PERCENT}

    def _subscribe(self) -> Any:
        nvml = self._library.started()
        try:
            events = nvml.nvmlEventSetCreate()
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as exc:
            raise NvmlCallError(str(exc)) from exc
        for index in range(count):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                wanted = nvml.nvmlEventTypeXidCriticalError & nvml.nvmlDeviceGetSupportedEventTypes(handle)
                if wanted:
                    nvml.nvmlDeviceRegisterEvents(handle, wanted, events)
            except nvml.NVMLError as exc:
                log.warning("card's events are not watched", index=index, reason=str(exc))
        return events

    def _wait(self, events: Any) -> DeviceFault | None:
        nvml = self._library.started()
        try:
            event = nvml.nvmlEventSetWait_v2(events, EVENT_WAIT_MILLISECONDS)
        except nvml.NVMLError_Timeout:
            return None
        except nvml.NVMLError as exc:
            raise NvmlCallError(str(exc)) from exc
        if event.eventType != nvml.nvmlEventTypeXidCriticalError:
            return None
        try:
            uuid = text(nvml.nvmlDeviceGetUUID(event.device))
        except nvml.NVMLError:
            uuid = ""
        return DeviceFault(uuid=uuid, xid=int(event.eventData))

    def _scores(self, uuids: list[str]) -> dict[str, dict[str, int]]:
        """How well each two cards are linked: the PCIe part plus 100 per NVLink; a pair that the two ends disagree on scores 0."""
        nvml = self._library.started()
        scores: dict[str, dict[str, int]] = {uuid: {} for uuid in uuids}
        for uuid in uuids:
            for other in uuids:
                if other == uuid:
                    continue
                try:
                    one, two = nvml.nvmlDeviceGetHandleByUUID(uuid), nvml.nvmlDeviceGetHandleByUUID(other)
                    ancestor = int(nvml.nvmlDeviceGetTopologyCommonAncestor(one, two))
                    there, back = self._links(one, two), self._links(two, one)
                except nvml.NVMLError as exc:
                    log.warning("link cannot be measured", one=uuid, other=other, reason=str(exc))
                    continue
                scores[uuid][other] = 0 if there != back else LINK_SCORES.get(ancestor, 0) + 100 * there
        return scores

    def _links(self, one: Any, other: Any) -> int:
        """Enabled NVLinks from ``one`` to ``other``."""
        nvml = self._library.started()
        target = text(nvml.nvmlDeviceGetPciInfo(other).busId)
        links = 0
        for link in range(MAX_LINKS):
            try:
                if nvml.nvmlDeviceGetNvLinkState(one, link) and text(nvml.nvmlDeviceGetNvLinkRemotePciInfo(one, link).busId) == target:
                    links += 1
            except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
                continue
        return links


class NvmlCallError(Exception):
    """A call failed that is tried again."""
