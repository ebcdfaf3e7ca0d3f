"""How a pod's annotations follow the outcomes that its node's agent reports."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_devices import ownership
from hami_devices.catalog import Catalog
from hami_protocol import keys
from hami_protocol.devices import ContainerKind, ContainerShares, DeviceShare, MigInstance, Placement, PodRef, VendorAssignment
from hami_protocol.errors import RecordError
from hami_protocol.events import (
    AllocationFailed,
    AllocationSucceeded,
    ContainerServed,
    PodAllocating,
    PodAssigned,
    PodReleased,
    ShareResizeApplied,
)
from hami_protocol.kubernetes import ObjectMeta, Pod, PodSpec
from hami_registry.phases import GiveUp, LookUp, Nothing, PatchPod, Phases, without_served

POD = PodRef(namespace="default", name="p1", uid="u1")
KEY = "hami.io/vgpu-devices-to-allocate"
ALLOCATED = "hami.io/vgpu-devices-allocated"
A, B = "GPU-A,NVIDIA,3000,0:", "GPU-B,NVIDIA,5000,30:"


def granted(*held: str) -> PodAllocating:
    containers = []
    for place, text in enumerate(held):
        shares: tuple[DeviceShare, ...] = ()
        if text:
            uuid, kind, memory, cores = text.rstrip(":").split(",")
            shares = (DeviceShare(uuid=uuid, type=kind, memory_mib=int(memory), cores=int(cores)),)
        containers.append(ContainerShares(container=f"c{place}", kind=ContainerKind.APP, shares=shares))
    assignment = VendorAssignment(vendor="NVIDIA", containers=tuple(containers))
    return PodAllocating(pod=POD, node="n1", assignments=(assignment,), bind_time_seconds=1)


def served(text: str, container: str = "c0", node: str = "n1") -> ContainerServed:
    return ContainerServed(pod=POD, node=node, container=container, vendor="NVIDIA", to_allocate=text)


SUCCEEDED = AllocationSucceeded(pod=POD, node="n1")
FAILED = AllocationFailed(pod=POD, node="n1", reason="out of paper")


@pytest.fixture
def phases() -> Phases:
    return Phases(Catalog())


def carry_out(phases: Phases, event: object) -> dict[str, str]:
    verdict = phases.judge(event)  # type: ignore[arg-type]
    assert isinstance(verdict, PatchPod), verdict
    phases.patched(verdict)
    return verdict.annotations


def test_a_cdi_nodes_success_empties_everything_at_once(phases: Phases) -> None:
    phases.judge(granted(A, "", B))
    assert carry_out(phases, SUCCEEDED) == {keys.BIND_PHASE: "success", KEY: ";;;"}


def test_an_envvar_node_goes_container_by_container(phases: Phases) -> None:
    phases.judge(granted(A, B))
    assert carry_out(phases, served(f";{B};")) == {KEY: f";{B};"}
    assert carry_out(phases, served(";;", "c1")) == {KEY: ";;"}
    assert carry_out(phases, SUCCEEDED) == {keys.BIND_PHASE: "success"}


def test_a_failure_says_so_and_leaves_what_was_never_handed_out(phases: Phases) -> None:
    phases.judge(granted(A))
    assert carry_out(phases, FAILED) == {keys.BIND_PHASE: "failed"}


@pytest.mark.parametrize("first", [SUCCEEDED, FAILED])
@pytest.mark.parametrize("later", [SUCCEEDED, FAILED, served(";")])
def test_phases_only_move_forward(phases: Phases, first: object, later: object) -> None:
    phases.judge(granted(A))
    carry_out(phases, first)
    assert phases.judge(later) == Nothing()  # type: ignore[arg-type]


def test_an_entry_that_is_emptied_stays_so_when_events_come_out_of_order(phases: Phases) -> None:
    phases.judge(granted(A, B))
    assert carry_out(phases, served(f"{A};;", "c1")) == {KEY: f"{A};;"}
    assert carry_out(phases, served(f";{B};")) == {KEY: ";;"}
    assert phases.judge(served(f";{B};")) == Nothing()


def test_a_share_of_another_size_is_recorded_once_and_the_api_servers_policies_let_the_registry_do_it(phases: Phases) -> None:
    phases.judge(granted(A))
    carry_out(phases, SUCCEEDED)
    applied = resized(4000, generation=2)
    assert carry_out(phases, applied) == {ALLOCATED: "GPU-A,NVIDIA,4000,0:;", keys.RESIZE_GENERATION: "2"}
    assert isinstance(phases.judge(applied), Nothing)
    mine = ownership.pod_keys(Catalog())[ownership.Writer.REGISTRY]
    assert {keys.BIND_PHASE, KEY, ALLOCATED, keys.MIG_ALLOCATIONS, keys.RESIZE_GENERATION} <= mine
    assert keys.ASSIGNED_NODE not in mine, "where a pod is, the scheduler alone says"


def resized(memory_mib: int, *, generation: int) -> ShareResizeApplied:
    share = DeviceShare(uuid="GPU-A", type="NVIDIA", memory_mib=memory_mib, cores=0)
    held = (VendorAssignment(vendor="NVIDIA", containers=(ContainerShares(container="c0", kind=ContainerKind.APP, shares=(share,)),)),)
    return ShareResizeApplied(pod=POD, node="n1", assignments=held, generation=generation)


@pytest.mark.parametrize("sizes", [(4000, 300), (300, 3000)], ids=["two sizes", "there and back"])
def test_a_resize_that_is_delivered_again_does_not_overwrite_a_later_one(phases: Phases, sizes: tuple[int, int]) -> None:
    """Its acknowledgement was lost: the record then had the earlier size, and the ledger the later one."""
    first, second = (resized(size, generation=at) for at, size in enumerate(sizes, start=1))
    record = {keys.BIND_PHASE: "success", KEY: ";", ALLOCATED: "GPU-A,NVIDIA,3000,0:;"}
    phases.looked_up(the_pod(**record))
    for event in (first, second):
        record |= carry_out(phases, event)
    assert record[ALLOCATED] == f"GPU-A,NVIDIA,{sizes[1]},0:;"
    assert phases.judge(first, again=True) == LookUp(pod=POD)
    phases.looked_up(the_pod(**record))
    assert phases.judge(first) == Nothing()


def test_a_generation_that_cannot_be_read_is_none(phases: Phases) -> None:
    phases.looked_up(the_pod(**{ALLOCATED: "GPU-A,NVIDIA,3000,0:;", keys.RESIZE_GENERATION: "9" * 30}))
    assert carry_out(phases, resized(300, generation=1))[keys.RESIZE_GENERATION] == "1"


def test_an_agent_cannot_write_what_it_likes(phases: Phases) -> None:
    phases.judge(granted(A))
    assert phases.judge(served("GPU-Z,NVIDIA,999999,100:;")) == Nothing()
    assert isinstance(phases.judge(served(";;;;")), GiveUp)


def test_an_agent_speaks_for_its_own_node_only(phases: Phases) -> None:
    phases.judge(granted(A))
    verdict = phases.judge(AllocationSucceeded(pod=POD, node="n2"))
    assert verdict == GiveUp(reason="node n2 speaks for a pod of node n1")


def test_a_pod_that_is_not_known_is_looked_up(phases: Phases) -> None:
    assert phases.judge(SUCCEEDED) == LookUp(pod=POD)
    phases.looked_up(the_pod(**{keys.BIND_PHASE: "allocating", KEY: f"{A};"}))
    verdict = phases.judge(SUCCEEDED)
    assert isinstance(verdict, PatchPod)
    assert verdict.annotations == {keys.BIND_PHASE: "success", KEY: ";"}
    assert verdict.release_lock


def the_pod(**annotations: str) -> Pod:
    return Pod(metadata=ObjectMeta(namespace="default", name="p1", uid="u1", annotations=annotations), spec=PodSpec(node_name="n1"))


def test_a_grant_of_our_scheduler_leaves_the_lock_to_it(phases: Phases) -> None:
    phases.judge(granted(A))
    verdict = phases.judge(SUCCEEDED)
    assert isinstance(verdict, PatchPod)
    assert not verdict.release_lock


def test_a_record_that_cannot_be_read_is_left_as_it_is(phases: Phases) -> None:
    phases.looked_up(the_pod(**{KEY: "garbage;"}))
    assert carry_out(phases, SUCCEEDED) == {keys.BIND_PHASE: "success"}


def test_a_pod_that_has_ended_is_forgotten(phases: Phases) -> None:
    phases.judge(granted(A))
    phases.judge(PodReleased(pod=POD, node="n1"))
    assert phases.judge(SUCCEEDED) == LookUp(pod=POD)


def test_other_grants_ask_for_nothing(phases: Phases) -> None:
    assert phases.judge(PodAssigned(pod=POD, node="n1", assignments=())) == Nothing()


entries = st.sampled_from(["", A, B])


def test_a_record_that_the_reference_has_shortened_is_emptied_in_its_own_form(phases: Phases) -> None:
    pod = Pod(
        metadata=ObjectMeta(name="p1", namespace="default", uid="u1", annotations={KEY: f"{A};", ALLOCATED: f"{A};"}),
        spec=PodSpec(node_name="n1"),
    )
    phases.looked_up(pod)
    assert carry_out(phases, served(";", "c1")) == {KEY: ";"}


@given(st.lists(entries, max_size=5), st.lists(entries, max_size=5))
def test_serving_only_ever_empties_entries(before: list[str], served_now: list[str]) -> None:
    current = "".join(f"{entry};" for entry in before)
    text = "".join(f"{entry};" for entry in served_now)
    if len(before) != len(served_now):
        with pytest.raises(RecordError):
            without_served(current, text)
        return
    merged = without_served(current, text).split(";")[:-1]
    assert all(after in ("", mine) for mine, after in zip(before, merged, strict=True))
    assert [after == "" for after in merged] == [not mine or not theirs for mine, theirs in zip(before, served_now, strict=True)]


PLACE = '{"containerIndex":0,"deviceIndex":0,"gpuUUID":"GPU-A","profile":"1g.5gb","placement":{"start":6,"size":1}'
IDENTIFIED = f'[{PLACE},"migUUID":"MIG-x","gpuInstanceID":7,"computeInstanceID":0}}]'


@pytest.mark.parametrize(
    ("said", "written"),
    [
        (IDENTIFIED, True),
        (IDENTIFIED.replace('"start":6', '"start":5'), False),
        (IDENTIFIED.replace("GPU-A", "GPU-B"), False),
        (IDENTIFIED.replace('"deviceIndex":0', '"deviceIndex":1'), False),
        ("rubbish", False),
        ("", False),
    ],
)
def test_what_mig_instances_are_is_written_where_they_are_the_granted_ones(phases: Phases, said: str, written: bool) -> None:
    share = DeviceShare(
        uuid="GPU-A",
        type="NVIDIA",
        memory_mib=4992,
        cores=15,
        instance=MigInstance(profile="1g.5gb", placement=Placement(start=6, size=1)),
    )
    held = VendorAssignment(vendor="NVIDIA", containers=(ContainerShares(container="c0", kind=ContainerKind.APP, shares=(share,)),))
    phases.judge(PodAllocating(pod=POD, node="n1", assignments=(held,), bind_time_seconds=1))
    annotations = carry_out(phases, AllocationSucceeded(pod=POD, node="n1", mig_allocations=said))
    assert annotations.get(keys.MIG_ALLOCATIONS) == (said if written else None)


def test_the_assignment_of_a_pod_that_another_scheduler_has_bound_is_written_once(phases: Phases) -> None:
    event = msgspec.structs.replace(granted(A), unwritten=True)
    assert isinstance(phases.judge(event), LookUp)
    phases.looked_up(Pod(metadata=ObjectMeta(name="p1", namespace="default", uid="u1"), spec=PodSpec(node_name="n1")))
    assert carry_out(phases, event) == {
        keys.ASSIGNED_NODE: "n1",
        keys.ASSIGNED_TIME: "1",
        keys.BIND_TIME: "1",
        keys.BIND_PHASE: "allocating",
        ALLOCATED: f"{A};",
        KEY: f"{A};",
    }
    assert isinstance(phases.judge(event), Nothing)
    assert carry_out(phases, SUCCEEDED) == {keys.BIND_PHASE: "success", KEY: ";"}
    assert isinstance(phases.judge(event), Nothing)


def test_nothing_is_written_on_a_pod_that_is_on_another_node(phases: Phases) -> None:
    phases.looked_up(Pod(metadata=ObjectMeta(name="p1", namespace="default", uid="u1"), spec=PodSpec(node_name="n2")))
    assert isinstance(phases.judge(msgspec.structs.replace(granted(A), unwritten=True)), Nothing)


def test_a_grant_that_is_delivered_again_after_the_pod_has_ended_does_not_bring_back_what_was_served(phases: Phases) -> None:
    phases.judge(granted(A, B))
    carry_out(phases, served(f";{B};"))
    carry_out(phases, served(";;", "c1"))
    phases.judge(PodReleased(pod=POD, node="n1"))
    phases.judge(granted(A, B))
    assert isinstance(phases.judge(served(f";{B};")), LookUp)
    annotations = {keys.BIND_PHASE: "allocating", KEY: ";;"}
    phases.looked_up(
        Pod(metadata=ObjectMeta(name="p1", namespace="default", uid="u1", annotations=annotations), spec=PodSpec(node_name="n1"))
    )
    assert isinstance(phases.judge(served(f";{B};")), Nothing)
