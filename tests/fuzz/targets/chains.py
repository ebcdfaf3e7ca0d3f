"""What a decoder's result goes through: a watched node into the inventory, a watched pod into the ledger, a request through the whole verdict.

Invariants: a record that nobody can read fences its node and nothing else, nothing is oversold, and a pod that asks is never taken to ask nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import yaml

from hami_devices.records import read_assignment, read_left
from hami_devices.requests import RequestError
from hami_protocol import keys
from hami_protocol.errors import RecordError
from hami_protocol.kubernetes import Node, Pod
from hami_protocol.pods import pod_ref
from hami_runtime.kube.cluster import NODES, PODS, ClusterError
from hami_runtime.kube.wire import decode_object
from hami_scheduler.inventory import Inventory
from hami_scheduler.placement import ClusterState, Placement
from hami_scheduler.pods import PodLedger
from tests.fuzz.target import Target
from tests.fuzz.targets.bodies import NODE, POD
from tests.fuzz.targets.records import ASSIGNMENTS, CATALOG, DRS, HANDSHAKES, MIG, REGISTRATIONS, SGPU

ROOT = Path(__file__).parents[3]


def _pods() -> tuple[bytes, ...]:
    """A pod of every vendor."""
    with (ROOT / "examples/all-vendors/pods.yaml").open() as file:
        documents = list(yaml.safe_load_all(file))
    for number, body in enumerate(documents):
        body["metadata"] |= {"uid": f"u{number}", "namespace": "default"}
        limits = body["spec"]["containers"][0]["resources"]["limits"]
        body["spec"]["containers"][0]["resources"] = {"limits": {name: str(amount) for name, amount in limits.items()}}
    return tuple(msgspec.json.encode(body) for body in documents)


def _node(**annotations: bytes) -> bytes:
    return msgspec.json.encode(
        {
            "metadata": {
                "name": "n1",
                "uid": "n",
                "labels": {"node.kubernetes.io/instance-type": "inf2"},
                "annotations": {NODE_KEYS[name]: value.decode() for name, value in annotations.items()},
            },
            "status": {
                "capacity": {
                    "aws.amazon.com/neuron": "2",
                    "aws.amazon.com/neuroncore": "4",
                    "kunlunxin.com/xpu": "8",
                    "enflame.com/gcu": "2",
                }
            },
        }
    )


CAPACITY = {"aws.amazon.com/neuron": "2", "aws.amazon.com/neuroncore": "4", "kunlunxin.com/xpu": "8", "enflame.com/gcu": "2"}
NODE_KEYS = {
    "nvidia": "hami.io/node-nvidia-register",
    "score": "hami.io/node-nvidia-score",
    "handshake": "hami.io/node-handshake-nvidia",
    "cordon": "hami.io/device-cordon",
    "mode": "hami.io/node-allocation-mode",
    "generation": "hami.io/node-nvidia-generation",
    "drs": "enflame.com/gcu-drs-capacity",
    "sgpu": "metax-tech.com/node-gpu-devices",
    "ascend": "hami.io/node-register-Ascend910B3",
    "losses": "metax-tech.com/gpu.topology.losses",
}
NODES_SEEN = (
    _node(
        nvidia=REGISTRATIONS[1],
        handshake=HANDSHAKES[0],
        score=b'[{"uuid":"G","score":{"H":100}}]',
        cordon=b"G",
        mode=b"cdi",
        generation=b"4",
    ),
    _node(nvidia=REGISTRATIONS[4], drs=DRS[0], sgpu=SGPU[0], losses=b'{"1":0,"2":110}'),
    _node(ascend=b'[{"id":"npu","count":4,"devmem":65536,"devcore":20,"health":true,"custominfo":{"NetworkID":1}}]'),
    NODE,
)
PODS_SEEN = tuple(
    msgspec.json.encode(
        {
            "metadata": {
                "name": "p",
                "namespace": "default",
                "uid": "u",
                "annotations": {
                    keys.ASSIGNED_NODE: "n1",
                    "hami.io/vgpu-devices-allocated": assigned.decode(),
                    "hami.io/amd-devices-allocated": "a,AMD_X,1000,76:;",
                    keys.MIG_ALLOCATIONS: instances.decode(),
                    keys.BIND_PHASE: "allocating",
                    "metax-tech.com/sgpu-app-class": "online",
                    "assigned-containers": '{"c":{"allocated":false,"request":3,"profileID":"1","profileName":"3g.20gb"}}',
                    "hami.io/enflame-vgpu-devices-allocated": "n1-enflame-drs-0,Enflame,20480,50:;",
                },
            },
            "spec": {
                "nodeName": "n1",
                "containers": [
                    {"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1", "amd.com/gpu": "1", "amd.com/gpucores": "25"}}}
                ],
            },
            "status": {"phase": "Running", "containerStatuses": [{"name": "c", "state": {"running": {}}}]},
        }
    )
    for assigned, instances in zip(ASSIGNMENTS, (*MIG, b"", b"[]", b""), strict=True)
)
STANDING: Node = decode_object(NODES, NODES_SEEN[0])


def _seen_node(data: bytes) -> Any:
    node = decode_object(NODES, data)
    state = ClusterState(CATALOG)
    inventory = Inventory(state, CATALOG)
    name = "n1"
    inventory.node_changed(name, STANDING)
    inventory.node_changed(name, node)
    state.validate()
    fenced = sorted(state.fences(name))
    inventory.node_changed(name, STANDING)
    assert not state.fences(name), "a repaired record lifts its fence"
    inventory.node_changed(name, None)
    state.validate()
    return fenced


def _seen_pod(data: bytes) -> Any:
    pod = decode_object(PODS, data)
    state = ClusterState(CATALOG)
    inventory = Inventory(state, CATALOG)
    inventory.node_changed("n1", STANDING)
    ledger = PodLedger(state, CATALOG)
    change = ledger.changed(None, pod)
    state.validate()
    entry = state.entry(pod.metadata.uid)
    assert entry is None or all(charge.memory_mib >= 0 and charge.cores >= 0 and charge.shares >= 0 for charge in entry.charges)
    ledger.changed(pod, None)
    state.validate()
    assert not list(state.entries())
    return change.fenced is not None, entry is not None


def _asked(data: bytes) -> Any:
    pod = decode_object(PODS, data)
    request = CATALOG.read_pod(pod)
    if not request.asks:
        return "nothing"
    for container in request.containers:
        for asked in container.requests:
            assert asked.count >= 1
            assert asked.memory_mib >= 0
            assert asked.cores >= 0
            assert asked.memory_mib or asked.memory_percent or asked.parts or not CATALOG.vendor(asked.vendor).memory_resource
    state = ClusterState(CATALOG)
    Inventory(state, CATALOG).node_changed("n1", STANDING)
    found = state.judge(request, ["n1"], uid=pod.metadata.uid)
    if isinstance(found, Placement):
        state.reserve(pod_ref(pod), found, now=0.0)
        state.validate()
        return "placed"
    assert found.summary
    return sorted(found.reasons)


def _held(data: bytes) -> Any:
    pod: Pod = decode_object(PODS, data)
    found = []
    error: RecordError | None = None
    for vendor in CATALOG.vendors:
        try:
            found.append(read_assignment(pod, vendor))
            read_left(pod, vendor)
        except RecordError as exc:
            error = exc
    if error is not None and not any(found):
        raise error
    return found


TARGETS = (
    Target(name="a node as it is watched", call=_seen_node, refuses=(ClusterError,), seeds=NODES_SEEN),
    Target(name="a pod as it is watched", call=_seen_pod, refuses=(ClusterError,), seeds=PODS_SEEN),
    Target(
        name="what a pod holds",
        call=_held,
        refuses=(ClusterError, RecordError),
        seeds=PODS_SEEN,
        covers=("hami_devices.records.read_assignment", "hami_devices.records.read_left"),
    ),
    Target(
        name="what a pod asks",
        call=_asked,
        refuses=(ClusterError, RequestError),
        seeds=(*_pods(), POD),
        covers=tuple(f"hami_devices.requests.read_{what}" for what in ("pod", "container", "plainly", "count", "memory", "cores")),
    ),
)
