"""From the driver's cards to what scheduler and kubelet are told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node_agent import discovery, modes, profile, sharing
from hami_node_agent.discovery import AdvertisedDevice
from hami_node_agent.hardware import HardwareError, Inventory, PhysicalDevice
from hami_node_agent.sharing import Sharing
from hami_protocol.devices import AllocationMode
from hami_protocol.errors import ProtocolError

CARD = "GPU-03f69c50-207a-2038-9b45-23cac89cb67a"


def a_card(uuid: str = "GPU-a", index: int = 0, **fields: Any) -> PhysicalDevice:
    return PhysicalDevice(**{"uuid": uuid, "index": index, "type": "NVIDIA A10", "memory_mib": 24576, **fields})


def test_both_lists_are_in_order_of_the_index_and_of_the_same_cards() -> None:
    inventory = Inventory(devices=(a_card("GPU-b", 1), a_card("GPU-c", 2, memory_mib=None), a_card("GPU-a", 0)))
    assert [device.uuid for device in discovery.registered(inventory, Sharing(), {})] == ["GPU-a", "GPU-b"]
    assert [device.id for device in discovery.advertised(inventory, Sharing(split_count=2), {})] == [
        "GPU-a-0",
        "GPU-a-1",
        "GPU-b-0",
        "GPU-b-1",
    ]


def test_a_card_without_a_figure_has_the_configured_memory_or_is_left_out_of_both_lists() -> None:
    inventory = Inventory(devices=(a_card(memory_mib=None),))
    assert discovery.registered(inventory, Sharing(), {}) == discovery.advertised(inventory, Sharing(), {}) == ()
    assert discovery.registered(inventory, Sharing(preconfigured_memory_mib=128000), {})[0].memory_mib == 128000


def test_a_sick_card_stays_in_both_lists_with_all_its_shares_sick() -> None:
    inventory = Inventory(devices=(a_card("GPU-a"), a_card("GPU-b", 1, fault="lost"), a_card("GPU-c", 2)))
    sick = {"GPU-a": "XID 79"}
    assert [device.healthy for device in discovery.registered(inventory, Sharing(), sick)] == [False, False, True]
    assert [device.healthy for device in discovery.advertised(inventory, Sharing(split_count=10), sick)] == [False] * 20 + [True] * 10


@pytest.mark.example("agent configuration 40")
@pytest.mark.parametrize(
    ("mib", "scaling", "registered"), [(81920, 1.5, 122880), (32768, 0.8, 26214), (32768, 1.0, 32768), (100, 1.1, 110)]
)
def test_memory_is_scaled_and_truncated(mib: int, scaling: float, registered: int) -> None:
    device = discovery.registered(Inventory(devices=(a_card(memory_mib=mib),)), Sharing(memory_scaling=scaling), {})[0]
    assert device.memory_mib == registered


@pytest.mark.parametrize(
    ("name", "registered"),
    [("Tesla P4", "NVIDIA-Tesla P4"), ("NVIDIA A30", "NVIDIA A30"), ("Odd, name: v1;", "NVIDIA-Odd- name- v1-")],
)
def test_the_type_has_the_vendors_prefix_and_no_separator(name: str, registered: str) -> None:
    assert discovery.nvidia_type(name) == registered


@pytest.mark.example("preferred devices 29")
@pytest.mark.parametrize("suffix", ["-0", "-10", "::replica-1"])
def test_a_slot_names_its_card(suffix: str) -> None:
    assert discovery.physical_id(CARD + suffix) == CARD


@pytest.mark.example("preferred devices 30")
def test_a_card_names_itself() -> None:
    assert discovery.physical_id("GPU-03f69c50-207a-2038-9b45-23cac89cb123") == "GPU-03f69c50-207a-2038-9b45-23cac89cb123"


def slots(*names: str) -> list[str]:
    """Slots by short names: ``a-0`` is slot 0 of card a."""
    return [f"GPU-00000000-0000-0000-0000-00000000000{name}" for name in names]


def cards(names: str) -> list[str]:
    return [f"GPU-00000000-0000-0000-0000-00000000000{name}" for name in names]


@pytest.mark.example("preferred devices 31")
def test_the_preferred_slots_are_of_the_granted_cards_with_those_that_must_be_among_them() -> None:
    available = slots("a-0", "a-1", "b-0", "c-0", "d-0", "d-1", "e-0", "f-0", "g-0", "h-0")
    found = discovery.preferred(cards("abcdefgh"), available, slots("d-1"), 8)
    assert set(found) == set(slots("a-0", "b-0", "c-0", "d-1", "e-0", "f-0", "g-0", "h-0"))


@pytest.mark.example("preferred devices 32, 33")
def test_what_cannot_be_preferred_is_said() -> None:
    with pytest.raises(ValueError, match=r"no available slice device found for annotated GPU GPU-.*a"):
        discovery.preferred(cards("a"), slots("b-0"), [], 1)
    with pytest.raises(ValueError, match="annotated devices 1 smaller than requested allocation size 2"):
        discovery.preferred(cards("a"), slots("a-0", "a-1"), [], 2)


@pytest.mark.example("agent configuration 37")
def test_kubelet_is_told_the_numa_node_only_where_that_is_asked() -> None:
    inventory = Inventory(devices=(a_card("GPU-uuid-1", numa=3),))
    assert discovery.advertised(inventory, Sharing(split_count=2), {}) == (
        AdvertisedDevice(id="GPU-uuid-1-0", healthy=True),
        AdvertisedDevice(id="GPU-uuid-1-1", healthy=True),
    )
    assert {device.numa for device in discovery.advertised(inventory, Sharing(split_count=2, numa_topology=True), {})} == {3}


def node_config(**entry: Any) -> str:
    return json.dumps({"nodeconfig": [{"name": "other", "devicesplitcount": 99}, {"name": "n1", **entry}]})


@pytest.mark.example("agent configuration 35")
def test_a_nodes_entry_overrides_the_clusters_configuration() -> None:
    text = node_config(devicesplitcount=3, deviceMemoryScaling=0.8, DEVICECORESCALING=1.4, libcudaloglevel=3)
    found = sharing.for_node(Sharing(split_count=1), text, "n1")
    assert (found.split_count, found.memory_scaling, found.core_scaling, found.log_level) == (3, 0.8, 1.4, "3")


@pytest.mark.example("agent configuration 36")
@pytest.mark.parametrize(
    ("filters", "kept"), [({}, True), ({"uuid": []}, True), ({"uuid": ["GPU-a"]}, False), ({"index": [0]}, False), ({"index": [1]}, True)]
)
def test_filtered_cards_are_left_out(filters: dict[str, Any], kept: bool) -> None:
    found = sharing.for_node(Sharing(), node_config(filterdevices=filters), "n1")
    assert bool(discovery.registered(Inventory(devices=(a_card(),)), found, {})) is kept


@pytest.mark.departs("a value that is there overrides, also when it is zero or false")
def test_false_and_zero_override() -> None:
    text = node_config(enablenumatopology=False, preconfigureddevicememory=0)
    found = sharing.for_node(Sharing(numa_topology=True, preconfigured_memory_mib=5), text, "n1")
    assert (found.numa_topology, found.preconfigured_memory_mib) == (False, 0)


@pytest.mark.departs("a configuration that cannot be read is an error, not an empty mode")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"nodeconfig": 7}',
        node_config(devicesplitcount=0),
        node_config(devicememoryscaling=-1),
        node_config(operatingmode="turbo"),
        node_config(devicesplitcount="many"),
        "[" * 10_000,
    ],
)
def test_a_node_configuration_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError):
        sharing.for_node(Sharing(), text, "n1")


@pytest.mark.parametrize(
    ("kubelet", "runtime", "config", "mode"),
    [
        ("v1.31.2", "containerd://2.0.1", None, AllocationMode.CDI),
        ("v1.31.2", "containerd://2.0.1", "[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = false", AllocationMode.ENVVAR),
        ("v1.28.9", "containerd://2.0.1", None, AllocationMode.ENVVAR),
        ("v1.29.0", "containerd://1.7.24", None, AllocationMode.ENVVAR),
        ("v1.29.0", "containerd://1.7.24", '[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = true', AllocationMode.CDI),
        ("v1.29.0", "containerd://1.6.9", "enable_cdi = true", AllocationMode.ENVVAR),
        ("v1.30.1+k3s1", "cri-o://1.30.0", None, AllocationMode.CDI),
        ("v1.30.1", "docker://27.0", None, AllocationMode.ENVVAR),
        ("", "", "not = [toml", AllocationMode.ENVVAR),
    ],
)
def test_cdi_is_chosen_only_where_kubelet_and_runtime_carry_it(
    kubelet: str, runtime: str, config: str | None, mode: AllocationMode
) -> None:
    chosen, reason = modes.choose(kubelet, runtime, config)
    assert chosen is mode
    assert reason


async def test_a_profile_of_equal_cards_is_short_and_always_the_same() -> None:
    text = "count: 3\ndevice: {memory_mib: 32768, model: Tesla V100-PCIE-32GB}\nsplit_count: 4\n"
    one, two = [await profile.ProfileHardware(profile.read(text), node="n1").scan() for _ in range(2)]
    assert one == two
    assert [(device.index, device.type, device.memory_mib, device.cores) for device in one.devices] == [
        (place, "NVIDIA-Tesla V100-PCIE-32GB", 32768, 100) for place in range(3)
    ]
    assert len({device.uuid for device in one.devices}) == 3
    assert profile.ProfileHardware(profile.read(text), node="n1").sharing(Sharing(split_count=10)).split_count == 4


async def test_cards_of_two_nodes_have_different_uuids() -> None:
    found = [(await profile.ProfileHardware(profile.read("count: 1"), node=node).scan()).devices[0].uuid for node in ("n1", "n2")]
    assert found[0] != found[1]


@pytest.mark.parametrize("text", ["devices: 7", "count: -1", "cuont: 3", "devices: [{uuid: a, memory_mib: -1}]", ": [", "[]"])
def test_a_profile_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(HardwareError):
        profile.read(text)


@pytest.mark.parametrize(("uuids", "complaint"), [(["a", "a"], "'a' appears twice"), (["0000:3b:00.0"], "accepted: an id without")])
async def test_ids_that_no_record_can_carry_are_refused(uuids: list[str], complaint: str) -> None:
    listed = ", ".join(f'{{uuid: "{uuid}"}}' for uuid in uuids)
    with pytest.raises(HardwareError, match=complaint):
        await profile.ProfileHardware(profile.read(f"devices: [{listed}]"), node="n1").scan()


@given(st.lists(st.sampled_from("abcd"), max_size=4), st.sets(st.tuples(st.sampled_from("abcd"), st.integers(0, 3)), max_size=10))
def test_a_preference_is_never_of_another_card_than_was_granted(granted: list[str], free: set[tuple[str, int]]) -> None:
    available = slots(*(f"{card}-{share}" for card, share in free))
    try:
        found = discovery.preferred(cards("".join(granted)), available, [], len(granted))
    except ValueError:
        assert any(sum(card == other for other, _ in free) < granted.count(card) for card in granted)
        return
    assert sorted(map(discovery.physical_id, found)) == sorted(cards("".join(granted)))
    assert len(set(found)) == len(found)


async def test_a_profile_is_measured_where_it_says_what_is_in_use() -> None:
    hardware = profile.ProfileHardware(
        profile.read("devices: [{uuid: GPU-a, memory_used_mib: 700, busy_percent: 40}, {uuid: GPU-b}]\ndevice: {memory_mib: 1000}"),
        node="n",
    )
    reading = await hardware.reading("GPU-a")
    assert reading is not None
    assert (reading.memory_used_mib, reading.sm_percent) == (700, 40)
    assert await hardware.reading("GPU-b") is None
    assert await hardware.reading("GPU-c") is None
