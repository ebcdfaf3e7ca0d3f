"""Strategies for every vendor: devices as it registers them, and containers that ask of it, near misses among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from hypothesis import strategies as st

from hami_devices.model import PodRequest
from hami_devices.requests import RequestError
from hami_devices.vendor import Vendor
from hami_devices.vendors.metax import LOSSES, SCORES
from hami_protocol.devices import RegisteredDevice
from hami_protocol.kubernetes import Container, Pod, ResourceRequirements
from hami_scheduler.placement import ClusterState, Placement
from tests.builders import a_pod, a_ref
from tests.unit.vendors.vendor_world import CATALOG

NODES = ("n1", "n2", "n3")
SELDOM = (1, 1, 1, 2, 2, 4, 8)
GARBAGE = st.sampled_from(
    ["NaN", "Inf", "1e400", "0x1", "", " 0.5", "-0.5", "0.5.1", "-1", "16.0Gi", "500m", "1.5", 2**31, 2**63, -1, "99.1", "1e3"]
)


def _infos(vendor: str) -> st.SearchStrategy[dict[str, Any]]:
    """What devices of the vendor say besides."""
    if vendor.startswith("Ascend"):
        return st.sampled_from([{}, {"NetworkID": 0.0}, {"NetworkID": 1.0}])
    return {
        "Vastai": st.sampled_from([{}, {"DeviceStrategy": "die", "AIC": "1"}, {"DeviceStrategy": "die", "AIC": "2"}]),
        "Metax-SGPU": st.builds(
            lambda qos, zone: {"QosPolicy": qos, "LinkZone": zone}, st.sampled_from(["", "best-effort", "burst-share"]), st.integers(0, 2)
        ),
        "Enflame": st.just({"minor": "0", "profiles": {"1g.6gb": "0", "3g.20gb": "1", "6g.40gb": "2"}, "maxSlice": 6}),
        "AWSNeuron": st.sampled_from([{"AWSNodeType": "inf2.48xlarge"}, {"AWSNodeType": "trn1.32xlarge"}, {}]),
        "Metax-GPU": st.sampled_from([{}, {LOSSES: {"1": 0, "2": 110}, SCORES: {"1": 7}}]),
    }.get(vendor, st.just({}))


def _figures(vendor: str) -> st.SearchStrategy[tuple[int, int, int]]:
    """Shares, MiB and cores of one device."""
    if vendor == "AWSNeuron":
        return st.sampled_from([(2, 0, 3), (4, 0, 15)])
    cores = {"Mthreads": 16, "AMD": 304}.get(vendor, 100)
    sizes = (100,) if vendor == "GCU" else (40960, 65536, 98304)
    shares = (1,) if vendor in {"Metax-GPU", "GCU"} else (1, 2, 6, 10)
    return st.tuples(st.sampled_from(shares), st.sampled_from(sizes), st.just(cores))


@st.composite
def devices(draw: st.DrawFn, vendor: Vendor, node: str) -> tuple[RegisteredDevice, ...]:
    """Up to eight devices of one vendor; on a node of theirs most things are alike."""
    figures, infos = draw(_figures(vendor.name)), _infos(vendor.name)
    common = draw(infos) if vendor.name == "AWSNeuron" else None
    soft = draw(st.booleans())
    listed = []
    for index in range(draw(st.integers(1, 8))):
        device = RegisteredDevice(
            uuid=f"{node}-{index}",
            index=index,
            shares=figures[0],
            memory_mib=figures[1],
            cores=figures[2],
            type=vendor.name,
            healthy=draw(st.sampled_from([True, True, True, True, False])),
            custom_info=common if common is not None else draw(infos),
        )
        if vendor.name.startswith("Ascend") and vendor.on_node is not None:
            device = vendor.on_node(device, {"hami-vnpu-core": "true"} if soft else {}, {})
        listed.append(device)
    return tuple(listed)


def _memories(vendor: Vendor) -> st.SearchStrategy[Any]:
    if vendor.name == "Mthreads":
        return st.sampled_from([2, 4, 8, 16, 32, 64, 96])
    units = (1024, 8192, 16384, 20000, 30000, 65536)
    return st.sampled_from([max(mib // vendor.memory_unit_mib, 1) for mib in units] + ["16Gi"])


@st.composite
def limits(draw: st.DrawFn, vendor: Vendor, *, garbage: bool = False) -> dict[str, Any]:
    """What one container asks; with ``garbage`` now and then what no container can."""
    if vendor.name == "AWSNeuron" and draw(st.booleans()):
        return {vendor.cores_resource: draw(st.sampled_from([1, 2, 4]) | (GARBAGE if garbage else st.nothing()))}
    if vendor.name == "Enflame" and draw(st.booleans()):
        return {vendor.memory_resource: draw(st.sampled_from([6, 20, 30])), vendor.cores_resource: draw(st.sampled_from([10, 50]))}
    asked: dict[str, Any] = {vendor.count_resource: draw(st.sampled_from(SELDOM))}
    if vendor.name != "Enflame":
        if vendor.memory_resource and draw(st.booleans()):
            asked[vendor.memory_resource] = draw(_memories(vendor))
        if vendor.cores_resource and not vendor.name.startswith("Ascend") and draw(st.booleans()):
            asked[vendor.cores_resource] = draw(st.sampled_from([4, 8, 16] if vendor.name == "Mthreads" else [1, 25, 50, 100]))
    if vendor.name == "Mthreads":
        count = asked[vendor.count_resource]
        asked |= {name: asked[name] * count for name in (vendor.memory_resource, vendor.cores_resource) if name in asked}
    if garbage:
        asked[draw(st.sampled_from(sorted(asked)))] = draw(GARBAGE)
    return asked


def annotations(vendor: Vendor) -> st.SearchStrategy[Mapping[str, str]]:
    """What a pod says to the vendor."""
    if vendor.name.startswith("Ascend"):
        return st.sampled_from([{}, {"huawei.com/vnpu-mode": "hami-core"}])
    if vendor.name == "Metax-SGPU":
        keys = ("sgpu-app-class", "sgpu-qos-policy", "sgpu-topology-aware")
        values = st.tuples(st.sampled_from(["", "online", "offline"]), st.sampled_from(["", "burst-share"]), st.sampled_from(["", "true"]))
        return values.map(lambda chosen: {f"metax-tech.com/{key}": value for key, value in zip(keys, chosen, strict=True) if value})
    return st.just({})


@st.composite
def pods(draw: st.DrawFn, vendor: Vendor, *, garbage: bool = False) -> Pod:
    """A pod with one to three containers, now and then an init container."""
    containers = [
        Container(name=f"c{place}", resources=ResourceRequirements(limits=draw(limits(vendor, garbage=garbage))))
        for place in range(draw(st.sampled_from([1, 1, 2])))
    ]
    inits = [Container(name="i0", resources=ResourceRequirements(limits=draw(limits(vendor))))] if draw(st.sampled_from([0, 0, 1])) else []
    policy = draw(st.sampled_from(["", "binpack", "spread", "mutex", "topology-aware", "numa", "numa,binpack", "mutex,spread"]))
    node_policy = draw(st.sampled_from(["binpack", "spread"]))
    said = {**draw(annotations(vendor)), "hami.io/gpu-scheduler-policy": policy, "hami.io/node-scheduler-policy": node_policy}
    return a_pod("asking", *containers, inits=inits, annotations=said)


@st.composite
def requests(draw: st.DrawFn, vendor: Vendor) -> PodRequest:
    """A pod's request that can be read."""
    pod = draw(pods(vendor))
    try:
        return CATALOG.read_pod(pod)
    except RequestError:
        count = {vendor.count_resource: 1}
        return CATALOG.read_pod(a_pod("asking", Container(name="c0", resources=ResourceRequirements(limits=count))))


@st.composite
def clusters(draw: st.DrawFn, vendor: Vendor) -> ClusterState:
    """Up to three nodes of the vendor with some pods on them."""
    state = ClusterState(CATALOG)
    for node in NODES[: draw(st.integers(1, 3))]:
        listed = draw(devices(vendor, node))
        cordoned = frozenset({listed[0].uuid}) if draw(st.sampled_from([False, False, True])) else frozenset()
        state.upsert_node(node, {vendor.name: listed}, cordoned=cordoned)
    for number in range(draw(st.integers(0, 5))):
        placed = state.judge(draw(requests(vendor)), NODES, uid=f"uid-{number}")
        if isinstance(placed, Placement):
            state.reserve(a_ref(f"p{number}"), placed, now=0.0)
    return state


def encoded(pod: Pod) -> dict[str, Any]:
    """The pod as the API server has it."""
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(pod))
    return found
