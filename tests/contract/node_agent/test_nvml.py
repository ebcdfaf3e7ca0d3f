"""The NVML adapter on a library in memory: pynvml's own names and error classes, cards that answer, and cards that do not."""
# ruff: noqa: N802, N815 - the names are NVML's

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from hami_node_agent import nvml, nvml_library
from hami_node_agent.hardware import DeviceFault, HardwareError
from hami_node_agent.nvml import NvmlHardware
from hami_node_agent.nvml_library import NvmlLibrary
from hami_node_agent.sharing import Sharing

GIB = 2**30
NOT_SUPPORTED = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
LOST = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)


class Library:
    """pynvml with cards of our own. ``fails`` maps (function, card) to what it raises."""

    NVMLError = pynvml.NVMLError
    NVMLError_NotSupported = pynvml.NVMLError_NotSupported
    NVMLError_InvalidArgument = pynvml.NVMLError_InvalidArgument
    NVMLError_Timeout = pynvml.NVMLError_Timeout
    nvmlEventTypeXidCriticalError = pynvml.nvmlEventTypeXidCriticalError
    NVML_TEMPERATURE_GPU = pynvml.NVML_TEMPERATURE_GPU
    NVML_GPU_INSTANCE_PROFILE_COUNT = pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT

    def __init__(self, count: int = 2) -> None:
        self.count = count
        self.fails: dict[tuple[str, int | None], pynvml.NVMLError] = {}
        self.inits = 0
        self.waits: list[Any] = []
        self.watched: list[int] = []
        self.samples: list[tuple[int, int, int]] = [(7, 20, 40), (7, 10, 30), (8, 20, 1000)]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        answer = getattr(type(self), f"_{name}", None)
        if answer is None:
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            card = arguments[0] if arguments and isinstance(arguments[0], int) else None
            for key in ((name, card), (name, None)):
                if key in self.fails:
                    raise self.fails[key]
            return answer(self, *arguments)

        return call

    def _nvmlInit(self) -> None:
        self.inits += 1

    def _nvmlDeviceGetCount(self) -> int:
        return self.count

    def _nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def _nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        return int(uuid.removeprefix("GPU-"))

    def _nvmlDeviceGetUUID(self, card: int) -> str:
        return f"GPU-{card}"

    def _nvmlDeviceGetName(self, card: int) -> bytes:
        return b"Tesla V100-PCIE-32GB"

    def _nvmlDeviceGetMinorNumber(self, card: int) -> int:
        return card + 4

    def _nvmlDeviceGetMemoryInfo(self, card: int) -> Any:
        return SimpleNamespace(total=32 * GIB + 12345, used=3 * GIB)

    def _nvmlDeviceGetPciInfo(self, card: int) -> Any:
        return SimpleNamespace(busId=f"00000000:0{card}:00.0".upper().encode())

    def _nvmlDeviceGetTemperature(self, card: int, sensor: int) -> int:
        return 40

    def _nvmlDeviceGetUtilizationRates(self, card: int) -> Any:
        return SimpleNamespace(gpu=17, memory=5)

    def _nvmlDeviceGetProcessUtilization(self, card: int, since: int) -> list[Any]:
        """Samples come in no order; a value above 100 is one that the driver did not fill."""
        found = [SimpleNamespace(pid=pid, timeStamp=at, smUtil=percent) for pid, at, percent in self.samples if at > since]
        if not found:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return found

    def _nvmlDeviceGetComputeRunningProcesses(self, card: int) -> list[Any]:
        return [SimpleNamespace(pid=7, usedGpuMemory=GIB), SimpleNamespace(pid=8, usedGpuMemory=None)]

    def _nvmlDeviceGetGpuInstanceProfileInfo(self, card: int, profile: int) -> Any:
        raise NOT_SUPPORTED

    def _nvmlDeviceGetTopologyCommonAncestor(self, one: int, other: int) -> int:
        return 10 if {one, other} == {0, 1} else 50

    def _nvmlDeviceGetNvLinkState(self, card: int, link: int) -> int:
        if link >= 6:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return int(link < 4)

    def _nvmlDeviceGetNvLinkRemotePciInfo(self, card: int, link: int) -> Any:
        return self._nvmlDeviceGetPciInfo(1 - card if card < 2 else 0)

    def _nvmlEventSetCreate(self) -> object:
        return object()

    def _nvmlDeviceGetSupportedEventTypes(self, card: int) -> int:
        return int(pynvml.nvmlEventTypeXidCriticalError)

    def _nvmlDeviceRegisterEvents(self, card: int, kinds: int, events: object) -> None:
        self.watched.append(card)

    def _nvmlEventSetWait_v2(self, events: object, milliseconds: int) -> Any:
        found = self.waits.pop(0) if self.waits else pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        if isinstance(found, pynvml.NVMLError):
            raise found
        return found


def an_event(card: int, xid: int, kind: int = pynvml.nvmlEventTypeXidCriticalError) -> Any:
    return SimpleNamespace(device=card, eventData=xid, eventType=kind)


@pytest.fixture
def library() -> Library:
    return Library()


def hardware(library: Library, tmp_path: Path, **options: Any) -> NvmlHardware:
    return NvmlHardware(NvmlLibrary(library), pci_root=tmp_path, **options)


def test_every_name_that_the_adapter_calls_is_pynvmls() -> None:
    names = set(re.findall(r"\b(?:nvml|_module)\.((?:nvml|NVML)\w+)", inspect.getsource(nvml) + inspect.getsource(nvml_library)))
    assert len(names) > 20
    assert [name for name in sorted(names) if not hasattr(pynvml, name)] == []


async def test_cards_are_described_as_the_protocol_registers_them(library: Library, tmp_path: Path) -> None:
    (tmp_path / "0000:01:00.0").mkdir()
    (tmp_path / "0000:01:00.0" / "numa_node").write_text("1\n")
    found = (await hardware(library, tmp_path).scan()).devices
    assert [(one.uuid, one.index, one.type, one.memory_mib, one.paths, one.numa, one.fault) for one in found] == [
        ("GPU-0", 0, "NVIDIA-Tesla V100-PCIE-32GB", 32768, ("/dev/nvidia4",), None, ""),
        ("GPU-1", 1, "NVIDIA-Tesla V100-PCIE-32GB", 32768, ("/dev/nvidia5",), 1, ""),
    ]


async def test_one_card_that_does_not_answer_costs_no_other(library: Library, tmp_path: Path) -> None:
    library.fails = {("nvmlDeviceGetMemoryInfo", 0): LOST, ("nvmlDeviceGetName", 0): LOST}
    first, second = (await hardware(library, tmp_path).scan()).devices
    assert "memory" in first.fault
    assert "name" in first.fault
    assert second.fault == ""


async def test_a_card_without_a_memory_figure_is_no_fault(library: Library, tmp_path: Path) -> None:
    library.fails = {("nvmlDeviceGetMemoryInfo", 0): NOT_SUPPORTED}
    first = (await hardware(library, tmp_path).scan()).devices[0]
    assert (first.memory_mib, first.fault) == (None, "")


async def test_a_card_that_cannot_even_be_named_is_left_out(library: Library, tmp_path: Path) -> None:
    library.fails = {("nvmlDeviceGetUUID", 0): LOST}
    assert [one.uuid for one in (await hardware(library, tmp_path).scan()).devices] == ["GPU-1"]


@pytest.mark.departs("the reference's process dies where NVML cannot be started during a scan")
@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetCount"])
async def test_a_driver_that_cannot_be_asked_is_the_one_error_and_is_asked_again(library: Library, tmp_path: Path, call: str) -> None:
    library.fails = {(call, None): LOST}
    cards = hardware(library, tmp_path)
    with pytest.raises(HardwareError):
        await cards.scan()
    library.fails = {}
    assert len((await cards.scan()).devices) == 2
    assert library.inits == 1


async def test_critical_xids_are_events_and_nothing_else_is(library: Library, tmp_path: Path) -> None:
    library.waits = [an_event(0, 1, kind=pynvml.nvmlEventTypeSingleBitEccError), an_event(1, 79), an_event(0, 13)]
    events = hardware(library, tmp_path).events()
    assert [await anext(events), await anext(events)] == [DeviceFault(uuid="GPU-1", xid=79), DeviceFault(uuid="GPU-0", xid=13)]
    assert library.watched == [0, 1]


async def test_a_card_whose_events_cannot_be_watched_leaves_the_others_watched(library: Library, tmp_path: Path) -> None:
    library.fails = {("nvmlDeviceRegisterEvents", 0): NOT_SUPPORTED}
    library.waits = [an_event(1, 79)]
    assert await anext(hardware(library, tmp_path).events()) == DeviceFault(uuid="GPU-1", xid=79)


@pytest.mark.departs("one failed wait takes no card out")
async def test_a_wait_that_fails_is_repeated_on_a_new_subscription(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "RETRY_SECONDS", (0.0,))
    library.waits = [LOST, LOST, an_event(1, 79)]
    assert await anext(hardware(library, tmp_path).events()) == DeviceFault(uuid="GPU-1", xid=79)
    assert library.watched == [0, 1] * 3


async def test_an_event_of_a_card_that_cannot_be_named_names_none(library: Library, tmp_path: Path) -> None:
    library.fails = {("nvmlDeviceGetUUID", None): LOST}
    library.waits = [an_event(1, 79)]
    assert await anext(hardware(library, tmp_path).events()) == DeviceFault(uuid="", xid=79)


async def test_a_probe_says_what_failed(library: Library, tmp_path: Path) -> None:
    cards = hardware(library, tmp_path)
    assert await cards.probe("GPU-0") == ""
    library.fails = {("nvmlDeviceGetTemperature", 0): LOST}
    assert await cards.probe("GPU-0")


async def test_a_reading_has_use_and_processes_or_is_none(library: Library, tmp_path: Path) -> None:
    cards = hardware(library, tmp_path)
    reading = await cards.reading("GPU-0")
    assert reading is not None
    assert (reading.memory_used_mib, reading.sm_percent, reading.memory_percent) == (3072, 17, 5)
    assert [(process.pid, process.memory_mib) for process in reading.processes] == [(7, 1024), (8, 0)]
    library.fails = {("nvmlDeviceGetMemoryInfo", None): NOT_SUPPORTED}
    assert await cards.reading("GPU-0") is None


async def test_a_reading_has_how_much_each_process_ran_since_the_last_one(library: Library, tmp_path: Path) -> None:
    cards = hardware(library, tmp_path)

    async def ran() -> dict[int, int | None]:
        reading = await cards.reading("GPU-0")
        assert reading is not None
        return {process.pid: process.sm_percent for process in reading.processes}

    assert await ran() == {7: 40, 8: 0}
    assert await ran() == {7: None, 8: None}  # nothing is new
    library.samples.append((8, 30, 55))
    assert await ran() == {7: 0, 8: 55}
    library.fails = {("nvmlDeviceGetProcessUtilization", None): NOT_SUPPORTED}
    assert await ran() == {7: None, 8: None}


@pytest.mark.example("MIG instances 50")
async def test_pairs_score_their_bridge_and_links_and_zero_where_the_two_ends_disagree(tmp_path: Path) -> None:
    library = Library(count=3)
    scores = (await hardware(library, tmp_path, pair_scores=True).scan()).pair_scores
    assert scores is not None
    assert scores["GPU-0"]["GPU-1"] == scores["GPU-1"]["GPU-0"] == 50 + 400
    assert scores["GPU-2"]["GPU-0"] == scores["GPU-0"]["GPU-2"] == 0  # card 2 says that it has links to card 0, card 0 does not
    assert scores["GPU-1"]["GPU-2"] == 10


def test_sharing_is_as_configured(library: Library, tmp_path: Path) -> None:
    assert hardware(library, tmp_path).sharing(Sharing(split_count=3)).split_count == 3


@pytest.mark.parametrize(
    ("action", "failure"),
    [(0, ""), (1, "the driver asks for a reset of the card"), (3, ""), (4, "the driver asks to drain the card and reset it")],
)
async def test_a_probe_fails_as_long_as_the_driver_asks_for_a_reset(tmp_path: Path, action: int, failure: str) -> None:
    class Recovering(Library):
        def _nvmlDeviceGetFieldValues(self, card: int, fields: list[int]) -> list[Any]:
            assert fields == [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
            return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=action))]

    assert await hardware(Recovering(), tmp_path).probe("GPU-0") == failure
