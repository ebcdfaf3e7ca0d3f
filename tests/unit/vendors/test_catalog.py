"""The way in: which vendors there are, what a pod holds by its annotations, what the agent gives a container."""

from __future__ import annotations

import pytest

from hami_devices.catalog import Catalog
from hami_devices.environment import container_environment
from hami_protocol.devices import ContainerKind, ContainerShares, DeviceShare, VendorAssignment
from hami_protocol.errors import RecordError
from tests.builders import a_container, a_pod

ALLOCATED = "hami.io/vgpu-devices-allocated"
TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"
SHARE = DeviceShare(uuid="GPU-1", type="NVIDIA", memory_mib=4000, cores=30)
HELD = VendorAssignment(
    vendor="NVIDIA",
    containers=(
        ContainerShares(container="init", kind=ContainerKind.INIT),
        ContainerShares(container="main", kind=ContainerKind.APP, shares=(SHARE,)),
    ),
)


def test_nvidia_is_found_by_its_word_and_by_its_type() -> None:
    catalog = Catalog()
    assert catalog.vendor("NVIDIA") is catalog.by_device_type("nvidia")
    assert catalog.by_device_type("nobody") is None
    assert catalog.vendor("NVIDIA").register_key == "hami.io/node-nvidia-register"
    assert catalog.vendor("NVIDIA").handshake_key == "hami.io/node-handshake-nvidia"
    assert {ALLOCATED, TO_ALLOCATE, "hami.io/vgpu-node", "hami.io/bind-phase"} <= catalog.system_pod_keys


def test_an_assignment_is_written_to_both_keys_and_read_back() -> None:
    catalog = Catalog()
    annotations = catalog.assignment_annotations([HELD])
    assert annotations == {ALLOCATED: ";GPU-1,NVIDIA,4000,30:;", TO_ALLOCATE: ";GPU-1,NVIDIA,4000,30:;"}
    pod = a_pod("p", a_container("main", gpu=1), inits=[a_container("init")], annotations=annotations)
    assert catalog.read_assignments(pod) == (HELD,)


def test_the_reference_s_shifted_text_is_read_by_who_asks() -> None:
    pod = a_pod("p", a_container("main", gpu=1), inits=[a_container("init")], annotations={ALLOCATED: "GPU-1,NVIDIA,4000,30:;"})
    assert Catalog().read_assignments(pod) == (HELD,)


def test_a_pod_without_the_annotation_holds_nothing_and_a_broken_one_is_an_error() -> None:
    assert Catalog().read_assignments(a_pod()) == ()
    with pytest.raises(RecordError):
        Catalog().read_assignments(a_pod(gpu=1, annotations={ALLOCATED: "GPU-1,NVIDIA,many,30:;"}))


def test_the_container_is_told_exactly_what_was_booked() -> None:
    shares = (SHARE, DeviceShare(uuid="GPU-2", type="NVIDIA", memory_mib=8000, cores=30))
    assert container_environment(
        shares, shared_cache="/usr/local/vgpu/x.cache", oversubscribe=True, log_level="3", disable_core_limit=True
    ) == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-1,GPU-2",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "4000m",
        "CUDA_DEVICE_MEMORY_LIMIT_1": "8000m",
        "CUDA_DEVICE_SM_LIMIT": "30",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu/x.cache",
        "CUDA_OVERSUBSCRIBE": "true",
        "LIBCUDA_LOG_LEVEL": "3",
        "GPU_CORE_UTILIZATION_POLICY": "disable",
    }


def test_a_share_of_nothing_is_never_told_as_no_limit() -> None:
    with pytest.raises(ValueError, match="would be no limit"):
        container_environment([DeviceShare(uuid="GPU-1", type="NVIDIA", memory_mib=0, cores=0)], shared_cache="/x")
    with pytest.raises(ValueError, match="without shares"):
        container_environment([], shared_cache="/x")
