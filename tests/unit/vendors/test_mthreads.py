"""Moore Threads: units of 512 MiB and sixteenths of a card, in the limits for all cards of a container together."""

from __future__ import annotations

from typing import Any

import pytest

from hami_devices.admission import SetAnnotation
from hami_devices.fit import NodeFit, fit_node
from hami_devices.requests import RequestError
from tests.builders import a_device, a_request, a_state, example
from tests.unit.vendors.vendor_world import BINARY_SUFFIX, REFUSED, a_node_with, asked, changes, devices, figures, held, share, written

COUNT, MEMORY, CORES = "mthreads.com/vgpu", "mthreads.com/sgpu-memory", "mthreads.com/sgpu-core"
FROM_THE_NODE = "a whole card is as large as the node says, not always 48 GiB, and is not written into the limits"


@pytest.mark.parametrize(
    ("cores", "memory", "count", "memory_mib"),
    [
        example("Moore Threads 807", 1, 1, 1, 8192),
        example("Moore Threads 808", 32, 192, 2, 49152),
        pytest.param(0, 9, 0, 0, id="no capacity"),
    ],
)
def test_devices_are_counted_from_capacity(cores: int, memory: int, count: int, memory_mib: int) -> None:
    found = devices("Mthreads", a_node_with({CORES: str(cores), MEMORY: str(memory)}))
    assert [device.uuid for device in found] == [f"test-mthreads-{place}" for place in range(count)]
    assert {(device.memory_mib, device.cores) for device in found} <= {(memory_mib, 16)}


@pytest.mark.parametrize(
    ("limits", "requests", "result"),
    [
        example("Moore Threads 810", None, {COUNT: 1}, (1, 0, 100, 16), departs="a whole card comes with its cores, as the webhook has it"),
        example("Moore Threads 811 16Gi", {COUNT: 1, MEMORY: "16Gi"}, None, (1, 16384, 0, 0), departs=BINARY_SUFFIX),
        example("Moore Threads 811 16.0Gi", {COUNT: 1, MEMORY: "16.0Gi"}, None, (1, 16384, 0, 0), departs=BINARY_SUFFIX),
        example("Moore Threads 815", {COUNT: 2, MEMORY: 192, CORES: 32}, None, (2, 49152, 0, 16)),
        pytest.param({COUNT: 1, MEMORY: 32, CORES: 4}, None, (1, 16384, 0, 4), id="a third of a card"),
        pytest.param({COUNT: 2, MEMORY: 64}, None, (2, 16384, 0, 0), id="of two cards"),
    ],
)
def test_containers_ask_for(limits: dict[str, Any] | None, requests: dict[str, Any] | None, result: tuple[int, ...]) -> None:
    assert figures(asked(limits, requests=requests)) == result


@pytest.mark.parametrize(
    "limits",
    [
        example("Moore Threads 809", {COUNT: 1, MEMORY: 1000, CORES: 1}, departs="the reader refuses the sizes that the webhook refuses"),
        example("Moore Threads 811 0", {COUNT: 0}, departs=REFUSED),
        example("Moore Threads 811 -1", {COUNT: -1}, departs=REFUSED),
        example("Moore Threads 811 many", {COUNT: 4294967296}, departs=REFUSED),
        example("Moore Threads 812", {COUNT: 1, MEMORY: 3}),
        example("Moore Threads 813 0", {COUNT: 0}),
        example("Moore Threads 813 -1", {COUNT: -1}),
        pytest.param({COUNT: 1, CORES: 17}, id="more cores than a card has"),
        pytest.param({COUNT: 2, CORES: 3}, id="cores that two cards cannot share"),
        pytest.param({MEMORY: 2}, id="of how many cards"),
    ],
)
def test_what_no_card_gives_is_refused(limits: dict[str, Any]) -> None:
    for call in (asked, changes):
        with pytest.raises(RequestError, match=r"limits\[mthreads.com/"):
            call(limits)


@pytest.mark.departs(FROM_THE_NODE)
@pytest.mark.example("Moore Threads 814")
def test_the_webhook_says_how_many_cards_are_asked() -> None:
    asks = {COUNT: 2}
    assert changes(asks) == (SetAnnotation(name="mthreads.com/request-gpu-num", value="2"),)
    assert changes(asks, annotations={"mthreads.com/request-gpu-num": "2"}) == ()
    assert changes({COUNT: 1}) == ()


@pytest.mark.departs(FROM_THE_NODE)
@pytest.mark.example("edge 60")
def test_a_smaller_card_is_a_whole_card_too() -> None:
    request = asked({COUNT: 1})
    assert request is not None
    found = fit_node([a_state(vendor="Mthreads", uuid="d", memory_mib=16384, cores=16)], a_request(request))
    assert isinstance(found, NodeFit)
    (given,) = found.assignments[0].containers[0].shares
    assert (given.memory_mib, given.cores) == (16384, 16)


@pytest.mark.departs("another container of the pod gets another card, where the reference asks for the same, also after several")
@pytest.mark.example("Moore Threads 817")
def test_containers_of_a_pod_get_cards_of_their_own() -> None:
    request = asked({COUNT: 1, MEMORY: 2})
    assert request is not None
    cards = [a_state(vendor="Mthreads", uuid=f"test{number}", index=number, memory_mib=49152, cores=16) for number in (123, 456)]
    found = fit_node(cards, a_request(request, request))
    assert isinstance(found, NodeFit)
    assert {one.shares[0].uuid for one in found.assignments[0].containers} == {"test123", "test456"}
    alone = fit_node(cards[:1], a_request(request, request))
    assert not isinstance(alone, NodeFit)
    assert alone.text == "1/1 CardNotFoundCustomFilterRule"


@pytest.mark.example("Moore Threads 816")
def test_the_plugin_reads_indexes() -> None:
    assert written(held("Mthreads", [share("d", "Mthreads", 1000, 1)]), a_device("d", index=0), time_ns=3) == {
        "mthreads.com/gpu-index": "0",
        "mthreads.com/predicate-time": "3",
        "mthreads.com/predicate-node": "n1",
    }
