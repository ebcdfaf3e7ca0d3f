"""MetaX sGPU: QoS, application classes, links."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hami_devices.admission import SetAnnotation
from hami_devices.fit import NodeFit, fit_node
from hami_devices.model import DeviceRequest, DeviceState
from hami_devices.records import read_assignment
from hami_devices.requests import RequestError
from hami_devices.vendors.metax_sgpu import APP_CLASS, QOS, SCALE, TOPOLOGY, by_zones, disturbance
from hami_protocol.errors import RecordError
from hami_scheduler.placement import ClusterState
from tests.builders import a_ref, a_request, a_state, example
from tests.unit.vendors.vendor_world import (
    CATALOG,
    REFUSED,
    a_node_with,
    a_pod_asking,
    asked,
    changes,
    devices,
    figures,
    fit,
    held,
    share,
    written,
)

COUNT, MEMORY, CORES = "metax-tech.com/sgpu", "metax-tech.com/vmemory", "metax-tech.com/vcore"
DEVICES = "metax-tech.com/node-gpu-devices"


def some(count: int = 1, *, memory: Any = 1, cores: int = 100, **annotations: str) -> DeviceRequest:
    keys = {"qos": QOS, "app_class": APP_CLASS, "linked": TOPOLOGY}
    request = asked({COUNT: count, MEMORY: memory, CORES: cores}, annotations={keys[name]: value for name, value in annotations.items()})
    assert request is not None
    return request


def gpu(number: int = 0, zone: int = 0, qos: str = "", **fields: Any) -> DeviceState:
    info = {"QosPolicy": qos, "LinkZone": zone}
    marks = fields.pop("marks", ())
    state = a_state(vendor="Metax-SGPU", **{"uuid": f"GPU-{number}", "index": number, "memory_mib": 65536, "custom_info": info, **fields})
    return DeviceState(**{**{name: getattr(state, name) for name in state.__slots__}, "marks": marks})


def test_devices_are_listed_by_the_vendor_s_own_plugin() -> None:
    text = (
        '[{"uuid":"GPU-a","bdf":"x","model":"MXC500","totalDevCount":16,"totalCompute":100,"totalVRam":65536,"availableDevCount":3,'
        '"availableCompute":1,"availableVRam":1,"numa":1,"healthy":true,"qosPolicy":"best-effort","linkZone":2}]'
    )
    (device,) = devices("Metax-SGPU", a_node_with(annotations={DEVICES: text}))
    assert (device.uuid, device.shares, device.memory_mib, device.cores, device.numa, device.healthy) == ("GPU-a", 16, 65536, 100, 1, True)
    assert device.custom_info == {"QosPolicy": "best-effort", "Model": "MXC500", "LinkZone": 2}


@pytest.mark.parametrize("text", ["{", '[{"uuid": ""}]', '[{"uuid": "a"}, {"uuid": "a"}]', '[{"uuid": "a", "totalVRam": -1}]'])
def test_a_list_that_cannot_be_read_is_an_error(text: str) -> None:
    with pytest.raises(RecordError):
        devices("Metax-SGPU", a_node_with(annotations={DEVICES: text}))


def test_an_empty_list_is_no_error() -> None:
    assert devices("Metax-SGPU", a_node_with(annotations={DEVICES: ""})) == ()


@pytest.mark.parametrize(
    ("limits", "result"),
    [
        example("Metax sGPU 569 1", {COUNT: 1}, (1, 0, 100, 100)),
        example("Metax sGPU 569 2", {COUNT: 2}, (2, 0, 100, 100)),
        example("Metax sGPU 570", {COUNT: 1, CORES: 30}, (1, 0, 100, 30)),
        example("Metax sGPU 571 bare", {COUNT: 1, MEMORY: 16}, (1, 16384, 0, 100)),
        example("Metax sGPU 571 Mi", {COUNT: 1, MEMORY: "1024Mi"}, (1, 1024, 0, 100)),
        example("Metax sGPU 571 Gi", {COUNT: 1, MEMORY: "16Gi"}, (1, 16384, 0, 100)),
        example(
            "edge 45",
            {COUNT: 1, MEMORY: "16k"},
            (1, 16384000, 0, 100),
            departs="16k is 16000 of the resource's unit, not a whole card",
        ),
    ],
)
def test_containers_ask_for(limits: dict[str, Any], result: tuple[int, ...]) -> None:
    assert figures(asked(limits)) == result


@pytest.mark.parametrize(
    "limits",
    [
        example("Metax sGPU 572 memory", {COUNT: 1, MEMORY: 2100001}, departs=REFUSED),
        example("Metax sGPU 572 count", {COUNT: 2200000000}, departs=REFUSED),
        example("Metax sGPU 572 cores", {COUNT: 1, CORES: 2200000000}, departs=REFUSED),
        example("Metax sGPU 573", {COUNT: 1, CORES: 120}, departs="more than all cores are refused at admission"),
        pytest.param({COUNT: 1, MEMORY: "500m"}, id="500m"),
    ],
)
def test_what_is_out_of_range_is_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=r"limits\[metax-tech.com/"):
        asked(limits)


@pytest.mark.parametrize(
    ("annotations", "count", "part"),
    [
        ({APP_CLASS: "both"}, 1, "online or offline"),
        ({APP_CLASS: "online"}, 2, "1 in a pod with"),
        ({QOS: "best"}, 1, "best-effort, fixed-share, burst-share"),
        ({QOS: ""}, 1, "best-effort, fixed-share, burst-share"),
    ],
)
def test_annotations_that_mean_nothing_are_refused(annotations: dict[str, str], count: int, part: str) -> None:
    with pytest.raises(RequestError, match=part):
        asked({COUNT: count}, annotations=annotations)


def test_the_webhook_writes_the_qos_that_is_meant() -> None:
    assert changes({COUNT: 1}) == (SetAnnotation(name=QOS, value="best-effort"),)
    assert changes({COUNT: 1}, annotations={QOS: "burst-share"}) == ()
    assert changes({COUNT: 1}, annotations={APP_CLASS: "online"}) == ()


ONLINE, OFFLINE, BURST = "online/", "offline/best-effort", "/burst-share"


@pytest.mark.parametrize(
    ("state", "request_", "result"),
    [
        example("Metax sGPU 574", gpu(used_shares=1), some(app_class="online"), "1/1 CardAppClassMismatch"),
        example(
            "Metax sGPU 575 half", gpu(used_shares=2, qos="burst-share"), some(cores=50, qos="best-effort"), "1/1 CardQosPolicyMismatch"
        ),
        example(
            "Metax sGPU 575 whole",
            gpu(used_shares=2, qos="burst-share", cores=200),
            some(cores=100, qos="best-effort"),
            ["GPU-0"],
        ),
        pytest.param(gpu(qos="burst-share"), some(cores=50), ["GPU-0"], id="a free device takes any policy"),
        pytest.param(
            gpu(used_shares=1, qos="best-effort", marks=((BURST, 1),)),
            some(cores=50),
            "1/1 CardQosPolicyMismatch",
            id="what pods were given counts, not what the node still reports",
        ),
        pytest.param(gpu(used_shares=1, marks=((ONLINE, 1),)), some(app_class="online"), ["GPU-0"], id="online beside online"),
        pytest.param(
            gpu(used_shares=1, marks=((ONLINE, 1),)), some(app_class="offline"), "1/1 CardAppClassMismatch", id="offline beside online"
        ),
        pytest.param(gpu(used_shares=1, marks=((OFFLINE, 1),)), some(), "1/1 CardAppClassMismatch", id="plain beside offline"),
        pytest.param(
            gpu(used_shares=1, used_cores=100, marks=((ONLINE, 1),)), some(app_class="online"), ["GPU-0"], id="online pods share cores"
        ),
        pytest.param(gpu(healthy=False), some(), "1/1 CardUnhealthy", id="its own word for an unhealthy card"),
    ],
)
def test_pods_on_a_device_agree(state: DeviceState, request_: DeviceRequest, result: list[str] | str) -> None:
    assert fit([state], request_) == result


@pytest.mark.parametrize(
    ("zones", "count", "result"),
    [
        example("Metax sGPU 576", {1: [1, 2], 2: [5]}, 1, [5]),
        example("Metax sGPU 577", {1: [1, 2], 2: [5, 6, 7]}, 4, [1, 2, 5, 6]),
        example(
            "Metax sGPU 578",
            {0: [3, 4], 1: [6, 7, 8]},
            4,
            [6, 7, 8, 3],
        ),
    ],
)
def test_whole_devices_come_from_the_smallest_zone(zones: dict[int, list[int]], count: int, result: list[int]) -> None:
    states = [gpu(number, zone) for zone, numbers in zones.items() for number in numbers]
    assert [state.device.index for state in by_zones(states, count)] == result


def bonus(states: list[DeviceState], request: DeviceRequest) -> float:
    found = fit_node(states, a_request(request))
    assert isinstance(found, NodeFit)
    return found.bonus


def zoned(*zones: int) -> list[DeviceState]:
    return [gpu(number, zone) for number, zone in enumerate(zones)]


@pytest.mark.parametrize(
    ("states", "count", "points"),
    [
        example("Metax sGPU 579", zoned(1, 1, 1, 1), 2, 60),
        example("Metax sGPU 580 one", zoned(1, 1, 1, 1), 1, -30),
        example("Metax sGPU 580 eight", zoned(1, 1, 1, 1, 2, 2, 2, 2), 8, 1200),
        example("node score 31", zoned(1, 1, 1, 1), 2, 60),
    ],
)
def test_a_node_is_better_where_links_are_kept(states: list[DeviceState], count: int, points: int) -> None:
    assert bonus(states, some(count, linked="true")) == points * SCALE
    assert bonus(states, some(count)) == 0


@pytest.mark.parametrize(
    ("online", "offline", "points"),
    [
        example("Metax sGPU 581 online", 2, 0, -40),
        example("Metax sGPU 581 offline", 0, 2, -200),
        example("Metax sGPU 581 both", 2, 2, -44),
    ],
)
def test_an_online_pod_prefers_to_disturb_little(online: int, offline: int, points: int) -> None:
    assert disturbance(online, offline) == points
    marks = tuple((mark, count) for mark, count in ((OFFLINE, offline), (ONLINE, online)) if count)
    assert bonus([gpu(used_shares=online + offline, marks=marks)], some(app_class="online")) == points * SCALE


def test_an_online_pod_goes_where_online_pods_are_few_and_offline_ones_not_alone() -> None:
    states = [
        gpu(0, used_shares=1, marks=((OFFLINE, 1),)),
        gpu(1, used_shares=2, marks=((ONLINE, 2),)),
        gpu(2, used_shares=1, marks=((ONLINE, 1),)),
    ]
    assert fit(states, some(app_class="online")) == ["GPU-2"]


@pytest.mark.example("Metax sGPU 582")
def test_a_device_s_qos_is_what_its_pods_were_given() -> None:
    state = ClusterState(CATALOG)
    registered = tuple(gpu(number, qos=qos).device for number, qos in enumerate(("best-effort", "burst-share", "best-effort")))
    state.upsert_node("n1", {"Metax-SGPU": registered})
    for number, cores in enumerate((50, 50, 100)):
        text = f"GPU-{number},Metax-SGPU,1024,{cores}:;"
        pod = a_pod_asking({COUNT: 1}, annotations={CATALOG.vendor("Metax-SGPU").allocated_key: text, QOS: "best-effort"})
        assignment = read_assignment(pod, CATALOG.vendor("Metax-SGPU"))
        assert assignment is not None
        state.charge(a_ref(f"p{number}"), "n1", (assignment,), shrunk=False)
    assert [found.marks for found in state.devices("n1")] == [(("/best-effort", 1),), (("/best-effort", 1),), (("/", 1),)]
    state.release("uid-p1")
    assert state.devices("n1")[1].marks == ()
    state.validate()


def test_the_plugin_reads_what_each_container_was_given() -> None:
    given = held("Metax-SGPU", [share("GPU-a", "Metax-SGPU", 4096, 60)], [], [share("GPU-b", "Metax-SGPU", 4096, 0)])
    found = written(given, time_ns=9)
    assert msgspec.json.decode(found["metax-tech.com/gpu-devices-allocated"]) == [
        [{"uuid": "GPU-a", "compute": 60, "vRam": 4096}],
        [],
        [{"uuid": "GPU-b", "vRam": 4096}],
    ]
    assert found["metax-tech.com/predicate-time"] == "9"
