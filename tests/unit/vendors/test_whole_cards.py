"""Vendors of whole cards by count: MetaX GPU, Enflame GCU, Biren, and Vastai with its dies."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hami_devices.fit import NodeFit, fit_node
from hami_devices.model import DeviceRequest, DeviceState
from hami_devices.scores import node_score
from hami_devices.vendors.metax import LOSSES, SCORES, read_points
from hami_protocol import assignment
from hami_protocol.errors import RecordError
from tests.builders import a_request, a_state, example
from tests.unit.vendors.vendor_world import a_node_with, asked, devices, figures, fit, held, share

METAX, GCU, BIREN, VASTAI = "metax-tech.com/gpu", "enflame.com/gcu", "birentech.com/gpu", "vastaitech.com/va"
POINTS = '{"1":0,"2":110,"3":270,"4":540,"5":580,"6":730,"7":930,"8":1240}'


def some(resource: str, count: int = 1) -> DeviceRequest:
    request = asked({resource: count})
    assert request is not None
    return request


def card(vendor: str, number: int = 0, **fields: Any) -> DeviceState:
    return a_state(vendor=vendor, **{"uuid": f"dev-{number}", "index": number, "shares": 1, "memory_mib": 100, **fields})


# MetaX


@pytest.mark.parametrize(
    ("key", "points"), [example("Metax GPU 526 2", "2", 110), example("Metax GPU 526 8", "8", 1240), ("9", None)], ids=str
)
def test_a_node_s_points_are_read(key: str, points: int | None) -> None:
    assert read_points(POINTS).get(key) == points
    assert read_points("no json") == read_points('{"1": "x"}') == {}


def metax_fit(count: int, policy: str, annotations: dict[str, str], *, capacity: int = 4) -> tuple[float, float]:
    """The bonus of the node, and what its score becomes with it."""
    node = a_node_with({METAX: str(capacity)}, annotations=annotations)
    states = [a_state(device, vendor="Metax-GPU") for device in devices("Metax-GPU", node)]
    found = fit_node(states, a_request(some(METAX, count), node_policy=policy))
    assert isinstance(found, NodeFit)
    base = node_score(states)
    return found.bonus, base - found.bonus if policy == "spread" else base + found.bonus


@pytest.mark.parametrize(
    ("count", "policy", "annotations", "score"),
    [
        example("Metax GPU 527", 2, "binpack", {LOSSES: '{"1":100,"2":200}'}, 1800),
        example("Metax GPU 528", 1, "spread", {SCORES: '{"1":100,"2":200}'}, 1900),
        example("Metax GPU 529", 2, "binpack", {LOSSES: '{"1":123,"2":321}'}, 1679),
        example("node score 30", 2, "binpack", {LOSSES: '{"1":123,"2":321}'}, 1679),
        example("Metax GPU 530", 1, "binpack", {}, 0),
        pytest.param(1, "binpack", {LOSSES: "no json"}, 2000, id="losses that cannot be read"),
    ],
)
def test_links_decide_between_metax_nodes(count: int, policy: str, annotations: dict[str, str], score: float) -> None:
    assert metax_fit(count, policy, annotations)[1] == score


@pytest.mark.departs("a node that says nothing of its links is not preferred under spread to one that does")
@pytest.mark.example("edge 44")
def test_a_node_without_scores_is_not_preferred_under_spread() -> None:
    silent, told = metax_fit(1, "spread", {}), metax_fit(1, "spread", {SCORES: POINTS})
    assert silent[1] >= told[1]


@pytest.mark.departs("a second container gets another card, where the reference asks for the first one's, which is full")
@pytest.mark.example("Metax GPU 531")
def test_two_containers_get_a_metax_gpu_each() -> None:
    found = fit_node([card("Metax-GPU", 0), card("Metax-GPU", 1)], a_request(some(METAX), some(METAX)))
    assert isinstance(found, NodeFit)
    assert len({given.uuid for container in found.assignments[0].containers for given in container.shares}) == 2


@pytest.mark.example("Metax GPU 532")
def test_metax_gpus_are_counted_from_capacity() -> None:
    (device,) = devices("Metax-GPU", a_node_with({METAX: "1"}))
    assert (device.uuid, device.memory_mib, device.cores, device.shares) == ("test-metax-0", 65536, 100, 1)


# Enflame GCU


@pytest.mark.example("Enflame GCU 589")
def test_gcus_are_counted_from_capacity() -> None:
    found = devices("GCU", a_node_with({GCU: "2"}, name="testnode"))
    assert [(device.uuid, device.memory_mib, device.cores) for device in found] == [
        ("testnode-GCU-0", 100, 100),
        ("testnode-GCU-1", 100, 100),
    ]


@pytest.mark.parametrize(
    ("where", "count"), [example("Enflame GCU 590 limits", "limits", 3), example("Enflame GCU 590 requests", "requests", 2)]
)
def test_a_gcu_is_booked_whole(where: str, count: int) -> None:
    request = asked({GCU: count}) if where == "limits" else asked(requests={GCU: count})
    assert figures(request) == (count, 0, 100, 100)
    assert request is not None
    found = fit_node([card("GCU", number) for number in range(count)], a_request(request))
    assert isinstance(found, NodeFit)
    assert [(given.memory_mib, given.cores) for given in found.assignments[0].containers[0].shares] == [(100, 100)] * count


@pytest.mark.parametrize(
    ("states", "count", "result"),
    [
        example("Enflame GCU 591", [card("GCU", used_shares=1)], 1, "1/1 ExclusiveDeviceAllocateConflict"),
        example("Enflame GCU 592", [card("GCU")], 2, "1/1 AllocatedCardsInsufficientRequest"),
    ],
)
def test_gcus_fit(states: list[DeviceState], count: int, result: str) -> None:
    assert fit(states, some(GCU, count)) == result


# Biren


BIREN_REGISTER = "hami.io/node-biren-register"


@pytest.mark.example("Biren 847")
def test_biren_devices_have_all_their_cores() -> None:
    text = '[{"id":"7-0","count":1,"devmem":32768,"type":"Biren","health":true,"devicepairscore":{}}]'
    (device,) = devices("Biren", a_node_with(annotations={BIREN_REGISTER: text}))
    assert (device.uuid, device.cores, device.memory_mib) == ("7-0", 100, 32768)


@pytest.mark.departs("an empty text registers no device, which is no error: the reference writes it where a vendor has none")
@pytest.mark.example("Biren 848")
def test_an_empty_biren_registration_is_no_error() -> None:
    assert devices("Biren", a_node_with(annotations={BIREN_REGISTER: ""})) == ()


def test_a_biren_registration_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(RecordError):
        devices("Biren", a_node_with(annotations={BIREN_REGISTER: "7-0"}))


@pytest.mark.parametrize(
    ("limits", "requests"),
    [
        example("Biren 849 limits", {BIREN: 1}, None),
        example("Biren 849 requests", None, {BIREN: 1}),
        example("Biren 849 both", {BIREN: 1}, {BIREN: 1}),
    ],
)
def test_biren_cards_are_asked_by_count(limits: dict[str, int] | None, requests: dict[str, int] | None) -> None:
    assert figures(asked(limits, requests=requests)) == (1, 0, 100, 0)


@pytest.mark.parametrize(
    ("states", "count", "policy", "result"),
    [
        example("Biren 850", [card("Biren", used_shares=1)], 1, "spread", "1/1 CardTimeSlicingExhausted"),
        example("Biren 851", [card("Biren", shares=2, used_shares=1)], 1, "mutex", "1/1 ExclusiveDeviceAllocateConflict"),
        example("Biren 852", [card("Biren", 0), card("Biren", 1)], 3, "spread", "2/2 AllocatedCardsInsufficientRequest"),
    ],
)
def test_biren_cards_fit(states: list[DeviceState], count: int, policy: str, result: str) -> None:
    assert fit(states, some(BIREN, count), policy=policy) == result


@pytest.mark.parametrize(
    ("vendor", "given", "text"),
    [
        example("Biren 853", "Biren", share("test1", "Biren", 2048, 1), "test1,Biren,2048,1:;"),
        example("Enflame GCU 593", "GCU", share("testnode-GCU-0", "GCU", 0, 0), "testnode-GCU-0,GCU,0,0:;"),
        example("Iluvatar 791", "MR-V100", share("k8s-gpu-iluvatar-0", "MR-V100", 0, 0), "k8s-gpu-iluvatar-0,MR-V100,0,0:;"),
    ],
)
def test_assignments_are_written(vendor: str, given: Any, text: str) -> None:
    assert assignment.encode(held(vendor, [given])) == text


# Vastai


def die(number: int, card_number: int, **fields: Any) -> DeviceState:
    return card("Vastai", number, custom_info={"DeviceStrategy": "die", "AIC": str(card_number)}, **fields)


@pytest.mark.parametrize(
    ("states", "count", "policy", "result"),
    [
        example("Vastai 863", [die(0, 1, used_shares=1), die(1, 1), die(2, 2)], 1, "mutex", ["dev-2"]),
        example("Vastai 864", [die(0, 1, shares=2, used_shares=1), die(1, 1)], 1, "mutex", "2/2 ExclusiveDeviceAllocateConflict"),
        example(
            "Vastai 865 three",
            [die(1, 1), die(2, 1), die(3, 1), die(4, 2), die(5, 2), die(6, 3)],
            3,
            "spread",
            ["dev-3", "dev-2", "dev-1"],
        ),
        example(
            "Vastai 865 four",
            [die(1, 1), die(2, 1), die(3, 1), die(4, 2), die(5, 2), die(6, 3)],
            4,
            "spread",
            ["dev-3", "dev-2", "dev-1", "dev-5"],
            departs="whole groups by size, inside a group in the order of the device policy, where HAMi's list is in another order",
        ),
        example(
            "Vastai 866",
            [die(1, 1), die(2, 1), die(3, 2)],
            5,
            "spread",
            "3/3 AllocatedCardsInsufficientRequest",
            departs="fewer devices than asked are no fit",
        ),
        example("Vastai 867", [card("Vastai")], 2, "spread", "1/1 AllocatedCardsInsufficientRequest"),
        pytest.param([die(0, 1, used_shares=1), die(1, 1)], 1, "spread", ["dev-1"], id="without mutex a die of a used card will do"),
        pytest.param([card("Vastai", 0), card("Vastai", 1)], 2, "spread", ["dev-1", "dev-0"], id="cards that are no dies"),
    ],
)
def test_vastai_dies_fit(states: list[DeviceState], count: int, policy: str, result: list[str] | str) -> None:
    assert fit(states, some(VASTAI, count), policy=policy) == result


@pytest.mark.example("Vastai 868")
def test_vastai_cards_are_asked_by_count() -> None:
    assert figures(asked({VASTAI: 1})) == (1, 0, 100, 0)


@pytest.mark.parametrize(
    ("states", "bonus"),
    [
        pytest.param([die(0, 1), die(1, 1)], 1.0, id="one card"),
        pytest.param([die(0, 1), die(1, 2)], 0.5, id="two cards"),
        pytest.param([die(0, 1), card("Vastai", 1)], 0.0, id="one that is no die"),
    ],
)
def test_dies_of_one_card_make_a_better_node(states: list[DeviceState], bonus: float) -> None:
    found = fit_node(states, a_request(some(VASTAI, 2)))
    assert isinstance(found, NodeFit)
    assert found.bonus == bonus


def test_custom_info_survives_our_own_registration() -> None:
    (device,) = devices("Vastai", a_node_with(annotations={"hami.io/node-va-register": '[{"id":"a","count":1,"custominfo":{"AIC":"1"}}]'}))
    assert device.custom_info == {"AIC": "1"}
    assert msgspec.json.decode(msgspec.json.encode(device), type=type(device)) == device
