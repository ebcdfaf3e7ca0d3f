"""What is written on a pod when it is bound."""

import msgspec
import pytest

from hami_devices.catalog import Catalog
from hami_protocol import keys
from hami_protocol.devices import ContainerKind, ContainerShares, DeviceShare, VendorAssignment
from hami_protocol.kubernetes import Pod
from hami_scheduler import binding
from tests.builders import a_pod, a_ref

GIVEN = VendorAssignment(
    vendor="NVIDIA",
    containers=(
        ContainerShares(
            container="main", kind=ContainerKind.APP, shares=(DeviceShare(uuid="GPU-A", type="NVIDIA", memory_mib=1000, cores=30),)
        ),
    ),
)
TEXT = "GPU-A,NVIDIA,1000,30:;"


def composed(pod: Pod | None = None, node: str = "n1", given: tuple[VendorAssignment, ...] = (GIVEN,)) -> binding.Binding:
    return binding.compose(pod or a_pod(gpu=1), a_ref(), node, given, catalog=Catalog(), time_seconds=1700000000)


def test_the_assignment_is_inside_the_binding() -> None:
    assert composed().annotations == {
        "hami.io/vgpu-node": "n1",
        "hami.io/vgpu-time": "1700000000",
        "hami.io/bind-time": "1700000000",
        "hami.io/bind-phase": "allocating",
        "hami.io/vgpu-devices-allocated": TEXT,
        "hami.io/vgpu-devices-to-allocate": TEXT,
    }
    assert composed().labels == {"hami.io/vgpu-node": "n1"}


@pytest.mark.parametrize("node", ["n" * 64, "-n1", "n1.", ""])
def test_a_node_whose_name_is_no_label_value_is_an_annotation_only(node: str) -> None:
    assert composed(node=node).labels == {}
    assert composed(node=node).annotations["hami.io/vgpu-node"] == node


def test_system_annotations_of_somebody_else_are_overwritten() -> None:
    forged = {keys.MIG_ALLOCATIONS: "forged", keys.BIND_PHASE: "success", "team": "a"}
    annotations = composed(a_pod(gpu=1, annotations=forged)).annotations
    assert annotations[keys.MIG_ALLOCATIONS] == ""
    assert annotations[keys.BIND_PHASE] == "allocating"
    assert "team" not in annotations


def test_a_pod_that_gets_nothing_is_bound_without_a_record() -> None:
    plain = composed(given=())
    assert (plain.annotations, plain.labels) == ({}, {})
    assert binding.is_written(plain, a_pod(node_name="n1"))


def test_a_pod_is_bound_by_us_where_it_carries_our_assignment() -> None:
    ours = composed()
    written = a_pod(gpu=1, node_name="n1", annotations=ours.annotations)
    assert binding.is_written(ours, written)
    served = ours.annotations | {keys.BIND_PHASE: "success", "hami.io/vgpu-devices-to-allocate": ";"}
    assert binding.is_written(ours, a_pod(gpu=1, node_name="n1", annotations=served))
    assert not binding.is_written(ours, a_pod(gpu=1, node_name="n2", annotations=ours.annotations))
    assert not binding.is_written(ours, a_pod(gpu=1, node_name="n1"))
    another = msgspec.structs.replace(ours, annotations=ours.annotations | {"hami.io/vgpu-devices-allocated": ";"})
    assert not binding.is_written(another, written)
