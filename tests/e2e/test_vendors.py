"""Pods of vendors that are odd in different ways, the whole way, in both modes; ``hami rig run examples/all-vendors`` shows them all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
import yaml

from hami_protocol.devices import AllocationMode
from hami_rig import profile
from hami_rig.supervisor import Rig
from hami_runtime.kube import http
from tests.e2e.conftest import World

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

FOLDER = Path(__file__).parents[2] / "examples" / "all-vendors"
MODES = {
    "enflame-sliced": AllocationMode.ENVVAR,  # slices are several device ids, and no to-allocate annotation
    "ascend-910a": AllocationMode.ENVVAR,
    "amd": AllocationMode.CDI,
    "metax-shared": AllocationMode.CDI,
}
GIVEN: dict[str, dict[str, str]] = {
    "enflame": {
        "hami.io/enflame-vgpu-devices-allocated": "enflame-sliced-enflame-drs-1,Enflame,20480,50:;",
        "enflame.com/gcu-request-size": "3",
        "enflame.com/gcu-assigned": "false",
    },
    "ascend-910a": {
        "hami.io/Ascend910A-devices-allocated": "Ascend910A-1,Ascend910A,8738,0:;",
        "hami.io/Ascend910A-devices-to-allocate": ";",
        "huawei.com/Ascend910A": '[{"UUID":"Ascend910A-1","temp":"vir08","memory":8738}]',
    },
    "amd": {"hami.io/amd-devices-allocated": "GPU-amd-1,AMD_Instinct_MI300X,65536,76:;", "hami.io/amd-devices-to-allocate": ";"},
    "metax-sgpu": {
        "hami.io/metax-sgpu-devices-allocated": "GPU-metax-shared-1,Metax-SGPU,16384,30:;",
        "metax-tech.com/sgpu-qos-policy": "best-effort",
        "metax-tech.com/gpu-devices-allocated": '[[{"uuid":"GPU-metax-shared-1","compute":30,"vRam":16384}]]',
    },
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[World]:
    whole = profile.read(FOLDER / "profile.yaml")
    nodes = tuple(msgspec.structs.replace(node, allocation_mode=MODES[node.name]) for node in whole.nodes if node.name in MODES)
    async with Rig(msgspec.structs.replace(whole, nodes=nodes)) as rig, http.connect(str(rig.kubeconfig)) as cluster:
        yield World(rig, cluster)


async def test_pods_of_any_vendor_go_the_whole_way(world: World) -> None:
    pods: dict[str, dict[str, Any]] = {body["metadata"]["name"]: body for body in yaml.safe_load_all((FOLDER / "pods.yaml").read_text())}
    await world.apply(*(pods[name] for name in GIVEN))
    running = {pod.metadata.name: pod for pod in await world.running(*GIVEN)}
    for name, expected in GIVEN.items():
        found = running[name].metadata.annotations
        assert {key: found.get(key) for key in expected} == expected
    told = {name: world.given(pod)["env"] for name, pod in running.items()}
    assert told["enflame"]["HAMI_DEVICES"] == "enflame-sliced-enflame-drs-1"
    assert (told["amd"]["ROCR_VISIBLE_DEVICES"], told["amd"]["HSA_CU_MASK"], told["amd"]["HIP_DEVICE_MEMORY_LIMIT"]) == (
        "1",
        "0:0-75",
        "65536m",
    )
    assert not any(variable.startswith("CUDA_") for environment in told.values() for variable in environment)
    assert len(world.ids(running["enflame"])["enflame.com/drs-gcu"]) == 3
