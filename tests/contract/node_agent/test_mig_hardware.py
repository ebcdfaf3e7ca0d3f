"""Cards that are cut into MIG instances: what the fake keeps, the adapter to NVML keeps on a driver in memory. Then what NVML alone has."""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from pathlib import Path

import msgspec
import pynvml
import pytest

from hami_devices.config import MIG_ALLOWANCES
from hami_node_agent import nvml_mig
from hami_node_agent.discovery import allowance_of, allowed_profiles
from hami_node_agent.mig import MadeInstance, Spot, by_names
from hami_node_agent.mig_hardware import MODELS, FakeMig, MigError, MigHardware, profiles_of
from hami_node_agent.nvml import NvmlHardware
from hami_node_agent.nvml_library import NvmlLibrary
from hami_node_agent.nvml_mig import NvmlMig
from hami_node_agent.sharing import Sharing
from hami_protocol.devices import MigInstance, MigProfile, Placement
from hami_protocol.mig import MigIdentity
from tests.contract.node_agent.nvml_mig_driver import REV2, Card, MigDriver

A100 = "A100-SXM4-40GB"


def spot(profile: MigProfile, place: int = 0, gpu: str = "GPU-a") -> Spot:
    return Spot(gpu, MigInstance(profile=profile.name, placement=profile.placements[place]))


class MigHardwareContract(ABC):
    """What every such hardware does."""

    @abstractmethod
    def hardware(self, model: str) -> MigHardware:
        """One fresh card ``GPU-a`` of a model."""

    @abstractmethod
    def use(self, hardware: MigHardware, uuid: str) -> None:
        """A program runs on an instance."""

    @abstractmethod
    def half(self, hardware: MigHardware, there: Spot) -> None:
        """Somebody was killed while making an instance."""

    @pytest.mark.parametrize("model", sorted(MODELS))
    async def test_instances_lie_where_the_model_allows_and_never_overlap_nor_take_more_compute_than_there_is(self, model: str) -> None:
        smallest, two, three, four, seven = profiles_of(f"NVIDIA-{model}")
        cards = self.hardware(model)
        for place in range(len(smallest.placements)):
            await cards.make(spot(smallest, place))
        assert len(await cards.instances()) == 7
        for profile in (two, three, four, seven):
            with pytest.raises(MigError, match="insufficient resources"):
                await cards.make(spot(profile))
        cards = self.hardware(model)
        await cards.make(spot(four))
        await cards.make(spot(three, 1))
        with pytest.raises(MigError, match="insufficient resources"):
            await cards.make(spot(smallest, -1))
        cards = self.hardware(model)
        with pytest.raises(MigError, match="cannot lie at 1"):
            await cards.make(Spot("GPU-a", MigInstance(profile=two.name, placement=Placement(start=1, size=2))))
        with pytest.raises(MigError, match=r"offers no profile 5g.*it offers 1g"):
            await cards.make(Spot("GPU-a", MigInstance(profile="5g.1gb", placement=Placement(start=0, size=1))))
        assert await cards.instances() == ()

    async def test_what_is_made_is_listed_as_it_was_answered_and_gone_when_taken_away(self) -> None:
        cards = self.hardware(A100)
        one, two, *_ = profiles_of(A100)
        first, second = await cards.make(spot(one, 6)), await cards.make(spot(two, 0))
        assert first.identity.uuid != second.identity.uuid
        assert set(await cards.instances()) == {first, second}
        await cards.unmake(first)
        assert await cards.instances() == (second,)

    async def test_an_instance_in_use_stays_whole(self) -> None:
        cards = self.hardware(A100)
        made = await cards.make(spot(profiles_of(A100)[2]))
        self.use(cards, made.identity.uuid)
        with pytest.raises(MigError, match="in use"):
            await cards.unmake(made)
        assert await cards.instances() == (made,)

    async def test_taking_away_twice_is_no_error(self) -> None:
        cards = self.hardware(A100)
        made = await cards.make(spot(profiles_of(A100)[0]))
        await cards.unmake(made)
        await cards.unmake(made)

    async def test_an_instance_that_took_the_place_of_another_is_not_taken_for_it(self) -> None:
        cards = self.hardware(A100)
        first = await cards.make(spot(profiles_of(A100)[1]))
        await cards.unmake(first)
        second = await cards.make(first.spot)
        await cards.unmake(first)
        assert await cards.instances() == (second,)

    async def test_one_that_was_made_half_is_listed_without_a_uuid_and_can_be_taken_away(self) -> None:
        cards = self.hardware(A100)
        there = spot(profiles_of(A100)[2], 1)
        self.half(cards, there)
        (found,) = await cards.instances()
        assert (found.spot, found.complete) == (there, False)
        await cards.unmake(found)
        made = await cards.make(there)
        assert made.complete

    async def test_a_card_that_is_not_there_is_an_error_that_names_it(self) -> None:
        with pytest.raises(MigError, match="GPU-z"):
            await self.hardware(A100).make(spot(profiles_of(A100)[0], gpu="GPU-z"))


class TestFakeMig(MigHardwareContract):
    def hardware(self, model: str) -> MigHardware:
        return FakeMig({"GPU-a": f"NVIDIA-{model}"})

    def use(self, hardware: MigHardware, uuid: str) -> None:
        assert isinstance(hardware, FakeMig)
        hardware.busy.add(uuid)

    def half(self, hardware: MigHardware, there: Spot) -> None:
        assert isinstance(hardware, FakeMig)
        hardware.leave_half(there)


class TestNvmlMig(MigHardwareContract):
    driver: MigDriver

    def hardware(self, model: str) -> MigHardware:
        self.driver = MigDriver(Card("GPU-a", f"NVIDIA {model}", 3))
        return adapter(self.driver)

    def use(self, hardware: MigHardware, uuid: str) -> None:
        self.driver.busy.add(uuid)

    def half(self, hardware: MigHardware, there: Spot) -> None:
        self.driver.half(there.gpu, 9, there.instance.placement)


def adapter(driver: MigDriver, minors: Path = Path("/nowhere")) -> NvmlMig:
    return NvmlMig(NvmlLibrary(driver), allowances=MIG_ALLOWANCES, minors=minors)


def test_every_name_that_the_adapter_calls_is_pynvmls() -> None:
    names = set(re.findall(r"\bnvml\.((?:nvml|NVML|c_nvml)\w+)", inspect.getsource(nvml_mig)))
    assert len(names) > 25
    assert [name for name in sorted(names) if not hasattr(pynvml, name)] == []


async def test_mode_mig_is_turned_on_with_the_first_instance_and_nothing_is_asked_of_a_card_without_it() -> None:
    driver = MigDriver(Card("GPU-a", f"NVIDIA {A100}", 0), Card("GPU-b", "Tesla V100-PCIE-32GB", 1, can_be_cut=False))
    cards = adapter(driver)
    assert await cards.instances() == ()
    await cards.make(spot(profiles_of(A100)[0]))
    assert len(await cards.instances()) == 1
    assert driver.calls.count("nvmlDeviceSetMigMode") == 1


async def test_a_card_whose_mode_waits_for_a_reset_says_what_to_do() -> None:
    driver = MigDriver(Card("GPU-a", f"NVIDIA {A100}", 0, needs_reset=True))
    for _ in range(2):
        with pytest.raises(MigError, match=r"GPU-a waits for a reset of the card: drain the node"):
            await adapter(driver).make(spot(profiles_of(A100)[0]))
    assert driver.calls.count("nvmlDeviceSetMigMode") == 1


@pytest.mark.parametrize("function", ["nvmlGpuInstanceCreateComputeInstance", "nvmlGpuInstanceGetInfo", "nvmlDeviceGetMaxMigDeviceCount"])
async def test_of_an_instance_that_cannot_be_finished_nothing_is_left(function: str) -> None:
    driver = MigDriver(Card("GPU-a", f"NVIDIA {A100}", 0))
    driver.fails[function] = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
    with pytest.raises(MigError, match=r"3g.20gb at 4 on GPU-a"):
        await adapter(driver).make(spot(profiles_of(A100)[2], 1))
    assert driver.cards[0].instances == {}


async def test_the_compute_instance_takes_all_of_the_instance() -> None:
    driver = MigDriver(Card("GPU-a", f"NVIDIA {A100}", 0))
    await adapter(driver).make(spot(profiles_of(A100)[3]))
    (instance,) = driver.cards[0].instances.values()
    assert [compute.slices for compute in instance.computes.values()] == [4]


async def test_an_instance_names_the_device_nodes_that_admit_to_it(tmp_path: Path) -> None:
    minors = tmp_path / "mig-minors"
    minors.write_text("config 1\nmonitor 2\ngpu3/gi1/access 30\ngpu3/gi1/ci0/access 31\ngpu0/gi1/access 99\nnonsense\n")
    driver = MigDriver(Card("GPU-a", f"NVIDIA {A100}", 3))
    made = await adapter(driver, minors).make(spot(profiles_of(A100)[0]))
    assert made.paths == ("/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap31")


async def test_what_went_with_the_cards_mig_mode_is_gone() -> None:
    driver = MigDriver(Card("GPU-a", f"NVIDIA {A100}", 0))
    cards = adapter(driver)
    made = await cards.make(spot(profiles_of(A100)[0]))
    driver.cards[0].mode = driver.cards[0].pending = pynvml.NVML_DEVICE_MIG_DISABLE
    await cards.unmake(made)
    assert await cards.instances() == ()


async def test_a_variant_that_somebody_else_made_is_listed_by_the_drivers_name() -> None:
    driver = MigDriver(Card("GPU-a", f"NVIDIA {A100}", 0))
    driver.half("GPU-a", REV2, Placement(start=6, size=2))
    assert [made.spot.instance.profile for made in await adapter(driver).instances()] == ["1g.10gb"]


async def test_a_driver_that_cannot_be_started_is_the_ports_error() -> None:
    driver = MigDriver()
    driver.fails["nvmlInit"] = pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    with pytest.raises(MigError, match="nvml init failed"):
        await adapter(driver).instances()


@pytest.mark.departs(
    "the largest profile of an A100 with 80 GB is 7g.79gb in the reference's table and 7g.80gb to the driver: both are meant"
)
async def test_a_profile_has_the_configurations_name_in_the_registration_and_on_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = MODELS["A100-SXM4-80GB"]
    named = type(rows[4])(**{field: getattr(rows[4], field) for field in rows[4].__slots__} | {"name": "7g.80gb"})
    monkeypatch.setitem(MODELS, "A100-SXM4-80GB", (*rows[:4], named))
    driver = MigDriver(Card("GPU-a", "NVIDIA A100-SXM4-80GB", 0))
    library = NvmlLibrary(driver)
    (card,) = (await NvmlHardware(library).scan()).devices
    allowed = allowed_profiles(card, Sharing(mode="mig"))
    assert [profile.name for profile in allowed] == ["1g.10gb", "2g.20gb", "3g.40gb", "7g.79gb"]
    made = await NvmlMig(library, allowances=MIG_ALLOWANCES).make(spot(allowed[3]))
    assert made.spot.instance.profile == "7g.79gb"


async def test_a_scan_says_into_what_a_card_can_be_cut_and_remembers_it_when_the_card_is_lost() -> None:
    driver = MigDriver(Card("GPU-a", f"NVIDIA {A100}", 0))
    hardware = NvmlHardware(NvmlLibrary(driver))
    (card,) = (await hardware.scan()).devices
    plain = profiles_of(A100)
    assert [profile for profile in card.mig_profiles if profile.name != "1g.10gb"] == list(plain)
    driver.cards[0].can_be_cut = False
    (again,) = (await hardware.scan()).devices
    assert again.mig_profiles == card.mig_profiles


def test_names_mean_the_profile_so_called_or_the_plain_one_with_as_many_slices() -> None:
    def called(name: str) -> MigProfile:
        return msgspec.structs.replace(profiles_of(A100)[0], name=name)

    offered = [called("1g.5gb"), called("1g.10gb"), called("7g.80gb"), called("1g.5gb+me")]
    found = by_names(offered, ["1g.5gb", "1g.10gb", "1g.6gb", "7g.79gb", "2g.10gb", "7g.79gb+me", "1g.5gb+me"])
    assert {name: profile.name for name, profile in found.items()} == {
        "1g.5gb": "1g.5gb",
        "1g.10gb": "1g.10gb",
        "1g.6gb": "1g.5gb",
        "7g.79gb": "7g.80gb",
        "1g.5gb+me": "1g.5gb+me",
    }


@pytest.mark.departs("the longest model that is part of a card's type counts, not the first entry: an H200 is no H20")
def test_the_longest_model_that_is_part_of_the_cards_type_says_which_profiles_are_offered() -> None:
    for text, largest in (("NVIDIA H200-SXM5", "7g.141gb"), ("NVIDIA H20", "7g.96gb"), ("NVIDIA-A30", "4g.24gb")):
        allowance = allowance_of(text, MIG_ALLOWANCES)
        assert allowance is not None
        assert allowance.profiles[-1] == largest
    assert allowance_of("NVIDIA-Tesla T4", MIG_ALLOWANCES) is None


def test_what_has_a_uuid_is_complete() -> None:
    there = spot(profiles_of(A100)[0])
    identity = MigIdentity(uuid="", gpu_instance=1, compute_instance=0)
    assert not MadeInstance(spot=there, identity=identity).complete
