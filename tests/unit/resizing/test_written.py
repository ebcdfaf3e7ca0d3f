"""What the registry writes on a pod whose share was resized."""

from __future__ import annotations

from hami_devices.catalog import Catalog
from hami_protocol import keys
from hami_protocol.devices import ContainerKind, ContainerShares, DeviceShare, PodRef, VendorAssignment
from hami_protocol.events import AllocationSucceeded, PodAllocating, ShareResizeApplied
from hami_protocol.kubernetes import ObjectMeta, Pod, PodSpec
from hami_registry.phases import GiveUp, LookUp, Nothing, PatchPod, Phases

POD = PodRef(namespace="default", name="p1", uid="u1")
KEY = "hami.io/vgpu-devices-allocated"


def held(mib: int, uuid: str = "GPU-a", vendor: str = "NVIDIA") -> tuple[VendorAssignment, ...]:
    share = DeviceShare(uuid=uuid, type="NVIDIA", memory_mib=mib, cores=30)
    return (VendorAssignment(vendor=vendor, containers=(ContainerShares(container="main", kind=ContainerKind.APP, shares=(share,)),)),)


def applied(mib: int, *, generation: int = 5, node: str = "n1", **more: str) -> ShareResizeApplied:
    return ShareResizeApplied(pod=POD, node=node, assignments=held(mib, **more), generation=generation)


def served() -> Phases:
    phases = Phases(Catalog())
    phases.judge(PodAllocating(pod=POD, node="n1", assignments=held(1000), bind_time_seconds=1))
    done = phases.judge(AllocationSucceeded(pod=POD, node="n1"))
    assert isinstance(done, PatchPod)
    phases.patched(done)
    return phases


def test_the_annotation_follows_what_the_agent_has_carried_out() -> None:
    phases = served()
    written = phases.judge(applied(2000))
    assert isinstance(written, PatchPod)
    assert written.annotations == {KEY: "GPU-a,NVIDIA,2000,30:;", keys.RESIZE_GENERATION: "5"}
    phases.patched(written)
    assert isinstance(phases.judge(applied(2000)), Nothing)
    assert isinstance(phases.judge(applied(1000, generation=4)), Nothing)
    assert isinstance(phases.judge(applied(1000, generation=6)), PatchPod)


def test_an_agent_resizes_pods_of_its_own_node_and_the_devices_that_they_hold() -> None:
    phases = served()
    assert isinstance(phases.judge(applied(2000, node="n2")), GiveUp)
    assert isinstance(phases.judge(applied(2000, uuid="GPU-b")), GiveUp)
    assert isinstance(phases.judge(applied(2000, vendor="nobody")), GiveUp)


def test_a_pod_that_is_not_known_is_looked_up() -> None:
    phases = Phases(Catalog())
    assert phases.judge(applied(2000)) == LookUp(pod=POD)
    meta = ObjectMeta(name="p1", namespace="default", uid="u1", annotations={KEY: "GPU-a,NVIDIA,1000,30:;"})
    phases.looked_up(Pod(metadata=meta, spec=PodSpec(node_name="n1")))
    written = phases.judge(applied(2000))
    assert isinstance(written, PatchPod)
    assert written.annotations == {KEY: "GPU-a,NVIDIA,2000,30:;", keys.RESIZE_GENERATION: "5"}
