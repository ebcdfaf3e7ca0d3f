"""Huawei Ascend: templates, HAMi-vNPU core, cards of two devices, networks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hami_devices.admission import AddEnv, SetLimit, SetRuntimeClass
from hami_devices.config_sections import ASCENDS
from hami_devices.fit import NodeFit, fit_node
from hami_devices.model import DeviceRequest, DeviceState
from hami_devices.requests import RequestError
from hami_devices.vendors.ascend import HARD_SPLIT, SOFT_SPLIT, round_up
from tests.builders import a_request, a_state, example
from tests.unit.vendors.vendor_world import (
    BINARY_SUFFIX,
    REFUSED,
    a_node_with,
    a_pod_asking,
    asked,
    changes,
    configured,
    devices,
    figures,
    fit,
    held,
    share,
    written,
)

SOFT = {"huawei.com/vnpu-mode": "hami-core"}
PATH = "spec.containers[0]"
BOOKED = "the reader gives the size that the webhook writes: what is asked, what is booked and the limit are one"
NO_CARD = "where no card is free as a whole the reason is its links, in devices, and is never 0 of so many"
CHIPS = {chip.common_word: chip for chip in ASCENDS}
SIZES = {
    "Ascend910A": (32768, 32768, {"vir02": 2184, "vir04": 4369, "vir08": 8738, "vir16": 17476}),
    "Ascend910B2": (65536, 65536, {"vir03_1c_8g": 8192, "vir06_1c_16g": 16384, "vir12_3c_32g": 32768}),
    "Ascend910B3": (65536, 65536, {"vir05_1c_16g": 16384, "vir10_3c_32g": 32768}),
    "Ascend910B4-1": (65536, 65536, {"vir05_1c_16g": 16384, "vir10_3c_32g": 32768}),
    "Ascend910B4": (32768, 32768, {"vir05_1c_8g": 8192, "vir10_3c_16g": 16384}),
    "Ascend310P": (21527, 24576, {"vir01": 3072, "vir02": 6144, "vir04": 12288}),
    "Ascend910C": (65536, 65536, {"vir05_1c_16g": 16384, "vir10_3c_32g": 32768}),
}


def limits(chip: str, count: int = 1, **more: Any) -> dict[str, Any]:
    name = f"huawei.com/{chip}"
    return {name: count, **{f"{name}-{dimension}": amount for dimension, amount in more.items()}}


def some(chip: str, count: int = 1, annotations: dict[str, str] | None = None, **more: Any) -> DeviceRequest:
    request = asked(limits(chip, count, **more), annotations=annotations)
    assert request is not None
    return request


def card(chip: str, number: int = 0, **fields: Any) -> DeviceState:
    chosen = CHIPS[chip]
    default = {"memory_mib": chosen.memory_allocatable_mib, "cores": chosen.ai_core, "mode": HARD_SPLIT}
    return a_state(vendor=chip, **{"uuid": f"dev-{number}", "index": number, "shares": 100, **default, **fields})


@pytest.mark.parametrize("chip", SIZES)
def test_every_chip_of_the_default_configuration_is_cut_in_its_templates(chip: str) -> None:
    allocatable, capacity, templates = SIZES[chip]
    config = CHIPS[chip]
    assert (config.memory_allocatable_mib, config.memory_capacity_mib) == (allocatable, capacity)
    assert {template.name: template.memory_mib for template in config.templates} == templates
    for size in templates.values():
        assert round_up(config, size) == size
        assert round_up(config, size - 1) == size
    assert round_up(config, max(templates.values()) + 1) == allocatable
    assert round_up(config, capacity) == allocatable
    assert round_up(config, capacity + 1) is None


@pytest.mark.parametrize(
    ("chip", "asks", "memory_mib"),
    [
        example("Ascend 758 template", "Ascend910A", {"memory": 8738}, 8738),
        example("Ascend 758 none", "Ascend910A", {}, 32768),
        example("Ascend 759", "Ascend910A", {"memory": 20000}, 32768),
    ],
)
def test_the_webhook_writes_what_is_booked(chip: str, asks: dict[str, int], memory_mib: int) -> None:
    resource = f"huawei.com/{chip}-memory"
    expected = (SetLimit(path=PATH, resource=resource, value=str(memory_mib)),)
    assert changes(limits(chip, **asks)) == (() if asks.get("memory") == memory_mib else expected)
    assert some(chip, **asks).memory_mib == memory_mib


@pytest.mark.parametrize(
    ("chip", "count", "asks", "part"),
    [
        example("Ascend 760", "Ascend910A", 2, {"memory": 40000}, "at most 32768"),
        example("Ascend 761", "Ascend910A", 2, {"memory": 8738}, "whole devices"),
        example("Ascend 762 odd", "Ascend910C", 3, {}, "even number"),
        example("Ascend 765", "Ascend910B3", 1, {"core": 10}, "nothing, unless"),
        example("Ascend 766", "Ascend910A", 2, {"memory": 8738}, "whole devices", departs=BOOKED),
        example("Ascend 769 negative", "Ascend910A", 1, {"memory": -100}, "whole number", departs=REFUSED),
        example("Ascend 769 milli", "Ascend910A", 1, {"memory": "-1m"}, "whole number", departs=REFUSED),
        example("Ascend 769 count", "Ascend910A", 2200000000, {}, "whole number", departs=REFUSED),
        example("Ascend 769 core", "Ascend910A", 1, {"core": -1}, "whole number", departs=REFUSED),
        example("edge 55", "Ascend910A", 1, {"memory": 0}, "more than 0", departs="0 MiB is refused"),
        example("edge 56", "Ascend910C", 1, {"memory": 16384}, "whole devices", departs="two devices of a card are not cut by template"),
    ],
)
def test_what_no_card_gives_is_refused(chip: str, count: int, asks: dict[str, Any], part: str) -> None:
    for call in (asked, changes):
        with pytest.raises(RequestError, match=part):
            call(limits(chip, count, **asks))


@pytest.mark.parametrize(("count", "booked"), [example("Ascend 762 1", 1, 2), example("Ascend 762 4", 4, 4), pytest.param(2, 2, id="2")])
def test_a_super_pod_gives_whole_cards(count: int, booked: int) -> None:
    assert some("Ascend910C", count).count == booked
    change = SetLimit(path=PATH, resource="huawei.com/Ascend910C", value=str(booked))
    assert (change in changes(limits("Ascend910C", count))) == (count != booked)


ALONE = (
    "vnpus: [{commonWord: Ascend910C, resourceName: huawei.com/Ascend910C, resourceMemoryName: huawei.com/Ascend910C-memory, "
    "memoryAllocatable: 65536, memoryCapacity: 65536, templates: [{name: vir05_1c_16g, memory: 16384}]}]"
)


@pytest.mark.example("Ascend 763 one")
def test_without_a_super_pod_one_stays_one() -> None:
    assert figures(asked(limits("Ascend910C", 1, memory=16384), catalog=configured(ALONE))) == (1, 16384, 0, 0)


@pytest.mark.departs("an odd number above one can never fit, and is refused where it is asked")
@pytest.mark.example("Ascend 763 odd")
def test_without_a_super_pod_an_odd_number_is_refused() -> None:
    with pytest.raises(RequestError, match="even number"):
        asked(limits("Ascend910C", 3), catalog=configured(ALONE))


@pytest.mark.parametrize(
    ("chip", "count", "annotations", "asks", "result"),
    [
        example("Ascend 764", "Ascend910B3", 1, SOFT, {"memory": 15360, "core": 20}, (1, 15360, 0, 20)),
        example("Ascend 765 zero", "Ascend910B3", 1, None, {"core": 0}, (1, 65536, 0, 0)),
        example("Ascend 767", "Ascend910B3", 1, SOFT, {"memory": 15360, "core": 10}, (1, 15360, 0, 10)),
        example("Ascend 769 16Gi", "Ascend910B3", 1, None, {"memory": "16Gi"}, (1, 16384, 0, 0), departs=BINARY_SUFFIX),
    ],
)
def test_containers_ask_for(
    chip: str, count: int, annotations: dict[str, str] | None, asks: dict[str, Any], result: tuple[int, ...]
) -> None:
    assert figures(some(chip, count, annotations, **asks)) == result


def scaled(factor: int) -> str:
    name = "huawei.com/Ascend910A"
    return (
        f"vnpus: [{{commonWord: Ascend910A, resourceName: {name}, resourceMemoryName: {name}-memory, memoryAllocatable: 32768, "
        f"memoryCapacity: 32768, memoryFactor: {factor}, templates: [{{name: vir02, memory: 2184}}, {{name: vir16, memory: 17476}}]}}]"
    )


@pytest.mark.parametrize(
    ("factor", "memory_mib"),
    [
        example("Ascend 768 10", 10, 1280),
        example("Ascend 768 100", 100, 12800),
        example("Ascend 768 0", 0, 128),
    ],
)
def test_a_factor_scales_once(factor: int, memory_mib: int) -> None:
    assert figures(asked(limits("Ascend910A", memory=128), annotations=SOFT, catalog=configured(scaled(factor)))) == (1, memory_mib, 0, 0)


@pytest.mark.departs("rounded to a template after it is scaled, and not scaled again")
@pytest.mark.example("edge 53")
def test_a_template_is_chosen_after_scaling() -> None:
    catalog = configured(scaled(100))
    asks = limits("Ascend910A", memory=128)
    assert figures(asked(asks, catalog=catalog)) == (1, 17476, 0, 0)
    (change,) = changes(asks, catalog=catalog)
    assert change == SetLimit(path=PATH, resource="huawei.com/Ascend910A-memory", value="17476Mi")
    assert changes(limits("Ascend910A", memory="17476Mi"), catalog=catalog) == ()


@pytest.mark.departs(REFUSED)
@pytest.mark.example("Ascend 770")
def test_what_a_factor_makes_too_large_is_refused() -> None:
    with pytest.raises(RequestError):
        asked(limits("Ascend910A", memory=300000000), catalog=configured(scaled(10)))


@pytest.mark.parametrize(
    ("chip", "states", "count", "result"),
    [
        example(
            "Ascend 771",
            "Ascend910B3",
            [card("Ascend910B3", number, custom_info={"NetworkID": network}) for number, network in enumerate((0, 1, 1))],
            2,
            ["dev-2", "dev-1"],
        ),
        example("Ascend 772", "Ascend910C", [card("Ascend910C", number) for number in (0, 1, 2)], 2, ["dev-1", "dev-0"]),
        example(
            "Ascend 773",
            "Ascend910C",
            [card("Ascend910C", number) for number in (0, 1, 2, 4, 6)],
            4,
            "2/5 AllocatedCardsInsufficientRequest",
        ),
        example(
            "Ascend 774 plain",
            "Ascend910C",
            [card("Ascend910C", number) for number in (0, 2)],
            2,
            "2/2 NumaNotFit",
            departs=NO_CARD,
        ),
        example(
            "Ascend 774 network",
            "Ascend910C",
            [card("Ascend910C", number, custom_info={"NetworkID": 0}) for number in (0, 2)],
            2,
            "2/2 NumaNotFit",
            departs=NO_CARD,
        ),
        pytest.param(
            "Ascend910B3", [card("Ascend910B3", number) for number in (0, 1, 2)], 2, ["dev-2", "dev-1"], id="no device says its network"
        ),
    ],
)
def test_several_devices_stand_together(chip: str, states: list[DeviceState], count: int, result: list[str] | str) -> None:
    assert fit(states, some(chip, count)) == result


@pytest.mark.parametrize(
    ("annotation", "annotations", "result"),
    [
        example("Ascend 775 plain", None, SOFT, "1/1 ModeNotFit"),
        example("Ascend 775 soft", "true", SOFT, ["device-0"]),
        pytest.param("false", SOFT, "1/1 ModeNotFit", id="said to be plain"),
        pytest.param("true", None, "1/1 ModeNotFit", id="a pod of templates on a node without"),
        pytest.param(None, None, ["device-0"], id="templates on a plain node"),
    ],
)
def test_the_two_ways_of_cutting_do_not_mix(annotation: str | None, annotations: dict[str, str] | None, result: list[str] | str) -> None:
    node = a_node_with(
        annotations={
            "hami.io/node-register-Ascend910B3": '[{"id":"device-0","count":4,"devmem":65536,"devcore":20,"health":true}]',
            **({"hami-vnpu-core": annotation} if annotation else {}),
        }
    )
    (device,) = devices("Ascend910B3", node)
    assert device.mode == (SOFT_SPLIT if annotation == "true" else HARD_SPLIT)
    assert fit([a_state(device, vendor="Ascend910B3")], some("Ascend910B3", 1, annotations, memory=8192)) == result


def test_cores_of_a_soft_split_are_percent() -> None:
    states = [card("Ascend910B3", mode=SOFT_SPLIT, cores=100, used_shares=1, used_cores=70)]
    assert fit(states, some("Ascend910B3", 1, SOFT, memory=8192, core=30)) == ["dev-0"]
    assert fit(states, some("Ascend910B3", 1, SOFT, memory=8192, core=31)) == "1/1 CardInsufficientCore"


@pytest.mark.parametrize(("networks", "bonus"), [((1, 1), 10.0), ((0, 1), 5.0), ((1, None), 0.0)])
def test_a_node_is_better_where_devices_are_of_one_network(networks: tuple[int | None, ...], bonus: float) -> None:
    states = [
        card("Ascend910B3", number, custom_info={} if network is None else {"NetworkID": float(network)})
        for number, network in enumerate(networks)
    ]
    found = fit_node(states, a_request(some("Ascend910B3", 2)))
    assert isinstance(found, NodeFit)
    assert found.bonus == bonus


@pytest.mark.parametrize(
    ("chip", "annotations", "given", "cut"),
    [
        example(
            "Ascend 755",
            "Ascend910A",
            None,
            share("device-0", "Ascend910A", 8738, 1),
            {"UUID": "device-0", "temp": "vir08", "memory": 8738, "core": 1},
        ),
        example(
            "Ascend 756",
            "Ascend910A",
            None,
            share("device-0", "Ascend910A", 8738, 0),
            {"UUID": "device-0", "temp": "vir08", "memory": 8738},
        ),
        example(
            "Ascend 757",
            "Ascend910B3",
            SOFT,
            share("device-0", "Ascend910B3", 8192, 5),
            {"UUID": "device-0", "memory": 8192, "core": 5},
        ),
        pytest.param(
            "Ascend910A", None, share("device-0", "Ascend910A", 32768, 0), {"UUID": "device-0", "memory": 32768}, id="a whole card"
        ),
    ],
)
def test_the_runtime_reads_how_cards_are_cut(chip: str, annotations: dict[str, str] | None, given: Any, cut: dict[str, Any]) -> None:
    found = written(held(chip, [given]), pod=a_pod_asking(annotations=annotations), time_ns=1_700_000_000 * 10**9)
    assert found["predicate-time"] == "1700000000"
    assert msgspec.json.decode(found[f"huawei.com/{chip}"]) == [cut]
    assert set(found) == {"predicate-time", f"huawei.com/{chip}"}


def overwriting(*chips: str) -> str:
    entries = ", ".join(
        f"{{commonWord: {chip}, resourceName: huawei.com/{chip}, memoryAllocatable: 1, memoryCapacity: 1, overwriteEnv: true, "
        "runtimeClassName: ascend}"
        for chip in chips
    )
    return f"vnpus: [{entries}]"


@pytest.mark.departs("decided once for each container, whatever the number of chips that it does not ask for")
@pytest.mark.example("edge 54")
def test_an_image_s_own_choice_of_devices_is_overwritten_once() -> None:
    catalog = configured(overwriting("A", "B"))
    assert changes({"cpu": 1}, catalog=catalog) == (AddEnv(path=PATH, name="ASCEND_VISIBLE_DEVICES", value=""),)
    assert changes({"huawei.com/A": 1}, catalog=catalog) == (SetRuntimeClass(name="ascend"),)
