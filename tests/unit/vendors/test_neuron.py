"""AWS Neuron: blocks of neighbours, and cores as bits."""

from __future__ import annotations

from typing import Any

import pytest

from hami_devices.fit import NodeFit, fit_node
from hami_devices.model import DeviceRequest, DeviceState
from hami_devices.requests import RequestError
from hami_devices.vendors.neuron import core_numbers, split_cores
from hami_protocol.devices import ContainerKind
from hami_protocol.errors import RecordError
from tests.builders import a_device, a_request, a_state, example
from tests.unit.vendors.vendor_world import REFUSED, a_node_with, a_pod_asking, asked, devices, fit, held, share, written

DEVICES, CORES = "aws.amazon.com/neuron", "aws.amazon.com/neuroncore"
LABEL = "node.kubernetes.io/instance-type"


def some(resource: str, amount: int) -> DeviceRequest:
    request = asked({resource: amount})
    assert request is not None
    return request


def row(count: int, node_type: str, *used: int) -> list[DeviceState]:
    info = {"AWSNodeType": node_type} if node_type else {}
    return [
        a_state(
            vendor="AWSNeuron",
            uuid=f"{place}",
            index=place,
            shares=2,
            memory_mib=0,
            cores=3,
            custom_info=info,
            **({"used_shares": 1, "used_cores": 1} if place in used else {}),
        )
        for place in range(count)
    ]


@pytest.mark.example("AWS Neuron 691")
def test_devices_are_counted_from_capacity() -> None:
    (device,) = devices("AWSNeuron", a_node_with({DEVICES: "1", CORES: "2"}, labels={LABEL: "inf2.xlarge"}))
    assert (device.uuid, device.shares, device.cores, device.custom_info) == ("test-AWSNeuron-0", 2, 3, {"AWSNodeType": "inf2.xlarge"})


def test_a_node_that_does_not_count_cores_has_whole_devices() -> None:
    (device,) = devices("AWSNeuron", a_node_with({DEVICES: "1"}))
    assert (device.shares, device.cores) == (1, 1)
    with pytest.raises(RecordError):
        devices("AWSNeuron", a_node_with({DEVICES: "1", CORES: "64"}))


@pytest.mark.parametrize(
    ("cores", "result"),
    [
        example("AWS Neuron 692 1", 1, (1, 1)),
        example("AWS Neuron 692 2", 2, (1, 2)),
        example("AWS Neuron 692 6", 6, (3, 2)),
        example("AWS Neuron 694", 4, (2, 2)),
    ],
)
def test_cores_are_split_over_devices(cores: int, result: tuple[int, int]) -> None:
    request = some(CORES, cores)
    assert (request.count, request.parts) == result


@pytest.mark.parametrize(
    "cores",
    [
        example("AWS Neuron 693 3", 3, departs=REFUSED),
        example("AWS Neuron 693 0", 0, departs=REFUSED),
        example("AWS Neuron 693 -2", -2, departs=REFUSED),
        example("AWS Neuron 693 many", 2 * (2**31 - 1) + 2, departs=REFUSED),
    ],
)
def test_cores_that_cannot_be_split_are_refused(cores: int) -> None:
    assert split_cores(cores) is None or cores > 2**31
    with pytest.raises(RequestError, match=r"limits\[aws.amazon.com/neuroncore\]"):
        asked({CORES: cores})


@pytest.mark.parametrize(
    ("states", "count", "result"),
    [
        example("AWS Neuron 695", row(16, "inf2.48xlarge"), 16, list(range(16))),
        example("AWS Neuron 696 one", row(16, "trn1.32xlarge", 7), 8, list(range(8, 16))),
        example("AWS Neuron 696 two", row(16, "trn1.32xlarge", 7, 13), 8, None),
        example("AWS Neuron 697", row(16, "inf2.48xlarge", 5, 14), 8, list(range(6, 14))),
        pytest.param(row(4, ""), 2, None, id="a node that does not say its type"),
    ],
)
def test_several_devices_are_a_block(states: list[DeviceState], count: int, result: list[int] | None) -> None:
    found = fit(states, some(DEVICES, count))
    assert found == [str(place) for place in result] if result is not None else "1/" in found and isinstance(found, str)


@pytest.mark.example("AWS Neuron 698")
def test_trainium_has_no_block_of_two() -> None:
    assert fit(row(2, "trn1"), some(DEVICES, 2)) == "1/2 NumaNotFit"


@pytest.mark.example("AWS Neuron 699")
def test_a_core_in_use_is_not_there() -> None:
    assert fit(row(1, "inf2", 0), some(CORES, 2)) == "1/1 CardInsufficientCore"
    assert fit(row(1, "inf2", 0), some(CORES, 1)) == ["0"]


@pytest.mark.parametrize(
    ("limits", "shares", "ids", "by_cores"),
    [
        example("AWS Neuron 700", {CORES: 2}, [share("0", "AWSNeuron", 0, 3)], "0,1", True),
        example("AWS Neuron 701", {DEVICES: 2}, [share("0", "AWSNeuron", 0, 3), share("1", "AWSNeuron", 0, 3)], "0,1", False),
        pytest.param({CORES: 1}, [share("1", "AWSNeuron", 0, 2)], "3", True, id="the upper core of the second device"),
    ],
)
def test_the_plugin_reads_numbers(limits: dict[str, Any], shares: list[Any], ids: str, by_cores: bool) -> None:
    registered = [a_device(str(place), index=place, cores=3) for place in range(2)]
    assert written(held("AWSNeuron", shares), *registered, pod=a_pod_asking(limits), time_ns=5) == {
        "AWS_NEURON_IDS": ids,
        "NEURON_ALLOC_TIME": "5",
        "NEURON_ALLOCATED": "false",
        "aws.amazon.com/predicate-node": "n1",
        **({"NEURON_RESOURCE_TYPE": CORES} if by_cores else {}),
    }


@pytest.mark.departs("masks of a pod's containers lie in one another, so that neither sum nor maximum mixes bits; any number of cores")
@pytest.mark.example("edge 52")
def test_containers_of_a_pod_hold_masks_that_add_up() -> None:
    app, init = (ContainerKind.APP, some(CORES, 1)), (ContainerKind.INIT, some(CORES, 2))
    found = fit_node(row(1, "inf2"), a_request(init, app, app))
    assert isinstance(found, NodeFit)
    assert [container.shares[0].cores for container in found.assignments[0].containers] == [3, 1, 2]
    assert [charge.cores for charge in (*found.charges, *found.running_charges)] == [3, 3]
    assert core_numbers(2, 0b1010, 0b1111) == [9, 11]
