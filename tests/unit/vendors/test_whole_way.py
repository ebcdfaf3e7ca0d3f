"""Each pod of ``examples/all-vendors`` through webhook, fit and Binding, on the devices of its node: what it is given, to the letter."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from hami_devices import registrations
from hami_node_agent import discovery
from hami_node_agent import profile as agent_profile
from hami_node_agent.profile import ProfileHardware
from hami_node_agent.sharing import Sharing
from hami_protocol import registration
from hami_protocol.kubernetes import Node, ObjectMeta, Pod
from hami_rig import profile
from hami_scheduler import binding
from hami_scheduler.inventory import Inventory
from hami_scheduler.placement import ClusterState, Placement
from hami_webhook.patch import Patch
from tests.builders import a_ref
from tests.unit.vendors.vendor_world import CATALOG

FOLDER = Path(__file__).parents[3] / "examples" / "all-vendors"
PODS = {body["metadata"]["name"]: body for body in yaml.safe_load_all((FOLDER / "pods.yaml").read_text())}
NODES = {node.name: node for node in profile.read(FOLDER / "profile.yaml").expanded()}

GIVEN = {
    "nvidia": ("NVIDIA", "{uuid},NVIDIA,3000,0:;"),
    "mlu": ("MLU", "cambricon-cambricon-mlu-1,MLU,4096,25:;"),
    "dcu": ("DCU", "DCU-hygon-1,DCU,8192,25:;"),
    "metax-gpu": ("Metax-GPU", "metax-metax-3,Metax-GPU,65536,100:metax-metax-2,Metax-GPU,65536,100:;"),
    "metax-sgpu": ("Metax-SGPU", "GPU-metax-shared-1,Metax-SGPU,16384,30:;"),
    "gcu": ("GCU", "enflame-GCU-1,GCU,100,100:;"),
    "enflame": ("Enflame", "enflame-sliced-enflame-drs-1,Enflame,20480,50:;"),
    "kunlun": ("kunlun", "kunlun-kunlun-0,kunlun,98304,100:kunlun-kunlun-1,kunlun,98304,100:;"),
    "xpu": ("XPU", "XPU-kunlun-shared-0,XPU,49152,50:;"),
    "neuron": ("AWSNeuron", "neuron-AWSNeuron-0,AWSNeuron,0,3:neuron-AWSNeuron-1,AWSNeuron,0,3:;"),
    "ascend-910a": ("Ascend910A", "Ascend910A-1,Ascend910A,8738,0:;"),
    "ascend-910b2": ("Ascend910B2", "Ascend910B2-1,Ascend910B2,8192,0:;"),
    "ascend-910b3": ("Ascend910B3", "Ascend910B3-3,Ascend910B3,65536,0:Ascend910B3-2,Ascend910B3,65536,0:;"),
    "ascend-910b4-1": ("Ascend910B4-1", "Ascend910B4-1-1,Ascend910B4-1,16384,0:;"),
    "ascend-910b4": ("Ascend910B4", "Ascend910B4-1,Ascend910B4,8192,0:;"),
    "ascend-310p": ("Ascend310P", "Ascend310P-1,Ascend310P,3072,0:;"),
    "ascend-910c": ("Ascend910C", "Ascend910C-3,Ascend910C,65536,0:Ascend910C-2,Ascend910C,65536,0:;"),
    "iluvatar-mr-v100": ("MR-V100", "MR-V100-1,MR-V100,8192,25:;"),
    "iluvatar-mr-v50": ("MR-V50", "MR-V50-1,MR-V50,16384,0:;"),
    "iluvatar-bi-v150": ("BI-V150", "BI-V150-1,BI-V150,65536,100:BI-V150-0,BI-V150,65536,100:;"),
    "iluvatar-bi-v100": ("BI-V100", "BI-V100-1,BI-V100,4096,0:;"),
    "mthreads": ("Mthreads", "mthreads-mthreads-1,Mthreads,16384,4:;"),
    "amd": ("AMD", "GPU-amd-1,AMD_Instinct_MI300X,65536,76:;"),
    "biren": ("Biren", "biren-1,Biren,0,0:;"),
    "vastai": ("Vastai", "VA-vastai-1,Vastai,0,0:VA-vastai-0,Vastai,0,0:;"),
}


def node_of(name: str) -> Node:
    """The node as the API server has it once its agent's report is written on it."""
    rig_node = NODES[name]
    found = agent_profile.read(msgspec.yaml.encode(rig_node.devices))
    hardware = ProfileHardware(found, node=name)
    listed = discovery.registered(asyncio.run(hardware.scan()), hardware.sharing(Sharing()), {})
    vendor = CATALOG.by_device_type(found.vendor)
    assert vendor is not None
    text = registration.encode_json(listed) if vendor.registers_json or listed[0].custom_info else registration.encode_text(listed)
    return Node(metadata=ObjectMeta(name=name, labels=dict(rig_node.description.labels), annotations={vendor.register_key: text}))


@pytest.fixture(scope="module")
def state() -> ClusterState:
    cluster = ClusterState(CATALOG)
    inventory = Inventory(cluster, CATALOG)
    for name in NODES:
        assert not inventory.node_changed(name, node_of(name)).fenced
    return cluster


def admitted(body: dict[str, Any]) -> Pod:
    body = msgspec.json.decode(msgspec.json.encode(body))
    body["metadata"].setdefault("namespace", "default")
    Patch(body).apply(CATALOG.mutations(msgspec.convert(body, Pod)))
    return msgspec.convert(body, Pod)


def test_there_is_a_pod_and_a_node_of_every_vendor() -> None:
    assert sorted(vendor for vendor, _ in GIVEN.values()) == sorted(vendor.name for vendor in CATALOG.vendors)
    assert sorted(GIVEN) == sorted(PODS)
    types = sorted(str(node.devices["vendor"]) for node in NODES.values())
    assert types == sorted(vendor.device_type for vendor in CATALOG.vendors)


@pytest.mark.parametrize(("name", "vendor", "text"), [pytest.param(name, *given, id=name) for name, given in GIVEN.items()])
def test_each_pod_is_given_this(state: ClusterState, name: str, vendor: str, text: str) -> None:
    pod = admitted(PODS[name])
    placed = state.judge(CATALOG.read_pod(pod), state.nodes(), uid=name)
    assert isinstance(placed, Placement)
    devices = {each.device.uuid: each.device for each in state.devices(placed.node)}
    ref = a_ref(name)
    written = binding.compose(pod, ref, placed.node, placed.assignments, catalog=CATALOG, devices=devices, time_seconds=1)
    spec = CATALOG.vendor(vendor)
    first = placed.assignments[0].containers[0].shares[0].uuid
    assert {written.annotations[key] for key in spec.assignment_keys} == {text.replace("{uuid}", first)}
    assert set(spec.written_keys) - set(written.annotations) <= {"NEURON_RESOURCE_TYPE"}
    bound = msgspec.structs.replace(
        pod, metadata=msgspec.structs.replace(pod.metadata, annotations=written.annotations | pod.metadata.annotations)
    )
    assert CATALOG.read_assignments(bound) == placed.assignments


@pytest.mark.parametrize("name", NODES)
def test_each_node_s_devices_are_those_of_its_vendor(name: str) -> None:
    node = node_of(name)
    said = [vendor.name for vendor in CATALOG.vendors if registrations.device_record(vendor, node) is not None]
    assert said == [vendor.name for vendor in CATALOG.vendors if vendor.device_type == NODES[name].devices["vendor"]]
