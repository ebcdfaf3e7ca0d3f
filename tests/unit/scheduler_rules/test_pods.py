"""What a change of a pod does to the ledger."""

from typing import Any

import msgspec
import pytest

from hami_devices.catalog import Catalog
from hami_protocol import keys
from hami_protocol.kubernetes import ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodStatus
from hami_protocol.pods import pod_ref
from hami_scheduler.placement import ClusterState, Phase, Placement
from hami_scheduler.pods import PodChange, PodLedger, init_is_over
from tests.builders import a_container, a_device, a_pod, a_ref, a_request

ALLOCATED = "hami.io/vgpu-devices-allocated"


class World:
    def __init__(self) -> None:
        self.state = ClusterState(Catalog())
        self.pods = PodLedger(self.state, Catalog())
        for name in ("n1", "n2"):
            self.state.upsert_node(name, {"NVIDIA": (a_device(f"GPU-{name}", memory_mib=40960),)})

    def used_mib(self, node: str = "n1") -> int:
        self.state.validate()
        return sum(held.used_memory_mib for held in self.state.devices(node))

    def reserve(self, pod: Pod, node: str, memory_mib: int = 5000) -> None:
        found = self.state.judge(a_request(memory_mib=memory_mib), [node], uid=pod.metadata.uid)
        assert isinstance(found, Placement)
        self.state.reserve(pod_ref(pod), found, now=0.0)


@pytest.fixture
def world() -> World:
    return World()


def record(node: str = "n1", *entries: int) -> str:
    return "".join(f"GPU-{node},NVIDIA,{memory},0:;" if memory else ";" for memory in (entries or (5000,)))


def bound(name: str = "p1", *, node: str = "n1", text: str | None = None, **fields: Any) -> Pod:
    annotations = {ALLOCATED: record(node) if text is None else text, keys.ASSIGNED_NODE: node, keys.BIND_PHASE: "allocating"}
    return a_pod(name, gpu=1, node_name=node, annotations=annotations, **fields)


def with_status(pod: Pod, **fields: Any) -> Pod:
    return msgspec.structs.replace(pod, status=PodStatus(**fields))


def with_meta(pod: Pod, **fields: Any) -> Pod:
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, **fields))


def init_status(name: str, exit_code: int | None) -> ContainerStatus:
    state = ContainerState(running={}) if exit_code is None else ContainerState(terminated=ContainerStateTerminated(exit_code=exit_code))
    return ContainerStatus(name=name, state=state)


def test_a_bound_pod_is_charged_by_its_record(world: World) -> None:
    world.pods.changed(None, bound())
    assert world.used_mib() == 5000
    assert world.pods.changed(bound(), bound()) == PodChange()
    assert world.used_mib() == 5000


@pytest.mark.parametrize("confirmed", [True, False])
def test_what_our_own_binding_has_charged_is_not_charged_anew(world: World, confirmed: bool) -> None:
    """The watch may show it before the Binding is answered, or after."""
    catalog = Catalog()
    asking = a_pod("p1", gpu=1)
    found = world.state.judge(catalog.read_pod(asking), ["n1"], uid=asking.metadata.uid)
    assert isinstance(found, Placement)
    world.state.reserve(pod_ref(asking), found, now=0.0)
    (world.state.confirm if confirmed else world.state.assume)(asking.metadata.uid)
    charged = world.used_mib()
    world.pods.changed(None, bound(text=catalog.assignment_annotations(found.assignments)[ALLOCATED]))
    entry = world.state.entry(asking.metadata.uid)
    assert entry is not None
    assert (entry.phase, entry.charges is found.charges, world.used_mib()) == (Phase.BOUND, True, charged)


def test_a_record_that_says_something_else_than_our_own_binding_is_what_counts(world: World) -> None:
    world.reserve(bound(), "n1", 5000)
    world.state.confirm("uid-p1")
    world.pods.changed(None, bound(text=record("n1", 7000)))
    assert world.used_mib() == 7000


def test_a_terminating_pod_stays_charged_until_it_is_over(world: World) -> None:
    dying = with_meta(bound(), deletion_timestamp="2026-01-01T00:00:00Z")
    world.pods.changed(None, dying)
    assert world.used_mib() == 5000
    over = with_status(dying, phase="Succeeded")
    change = world.pods.changed(dying, over)
    assert change.improved == frozenset({"n1"})
    assert change.ended is not None
    assert world.used_mib() == 0
    assert world.pods.changed(over, None) == PodChange()


def test_a_deletion_frees_by_uid_whatever_the_annotations_say(world: World) -> None:
    world.pods.changed(None, bound())
    stripped = with_meta(bound(), annotations={})
    world.pods.changed(bound(), stripped)
    assert world.used_mib() == 5000
    assert world.pods.changed(stripped, None).ended is not None
    assert world.used_mib() == 0


def test_a_late_deletion_of_a_namesake_frees_nothing(world: World) -> None:
    first, second = bound(uid="u1"), bound(uid="u2")
    world.pods.changed(None, second)
    assert world.pods.changed(first, None).ended is None
    assert world.used_mib() == 5000


def test_a_pod_bound_by_our_binding_is_charged_once(world: World) -> None:
    pod = a_pod(gpu=1)
    world.reserve(pod, "n1")
    world.state.assume(pod.metadata.uid)
    world.pods.changed(pod, bound())
    assert world.used_mib() == 5000
    entry = world.state.entry(pod.metadata.uid)
    assert entry is not None
    assert entry.phase is Phase.BOUND


def test_a_pod_bound_elsewhere_by_another_hand_gives_our_reservation_back(world: World) -> None:
    pod = a_pod(gpu=1)
    world.reserve(pod, "n1")
    change = world.pods.changed(pod, bound(node="n2"))
    assert change.withdrawn is not None
    assert change.withdrawn.node == "n1"
    assert (world.used_mib("n1"), world.used_mib("n2")) == (0, 5000)


def test_a_pod_bound_without_an_assignment_gives_our_reservation_back(world: World) -> None:
    pod = a_pod(gpu=1)
    world.reserve(pod, "n1")
    assert world.pods.changed(pod, a_pod(gpu=1, node_name="n1")).withdrawn is not None
    assert world.used_mib() == 0


def test_a_pod_that_is_deleted_while_reserved_lapses(world: World) -> None:
    pod = a_pod(gpu=1)
    world.reserve(pod, "n1")
    change = world.pods.changed(pod, None)
    assert change.withdrawn is not None
    assert change.ended is None
    assert world.used_mib() == 0


def unbound(*, phase: str = "allocating") -> Pod:
    return a_pod(gpu=1, annotations={ALLOCATED: record(), keys.ASSIGNED_NODE: "n1", keys.BIND_PHASE: phase})


def test_what_another_scheduler_assigned_and_has_not_bound_is_charged(world: World) -> None:
    world.pods.changed(None, unbound())
    assert world.used_mib() == 5000
    assert world.pods.changed(unbound(), unbound(phase="failed")).improved == frozenset({"n1"})
    assert world.used_mib() == 0


def test_once_filter_was_asked_annotations_of_an_unbound_pod_do_not_count(world: World) -> None:
    world.pods.changed(None, unbound())
    world.pods.asked("uid-p1")
    assert world.used_mib() == 0
    world.reserve(unbound(), "n2")
    world.pods.changed(unbound(), with_meta(unbound(), labels={"touched": "yes"}))
    assert (world.used_mib("n1"), world.used_mib("n2")) == (0, 5000)


@pytest.mark.parametrize("text", ["GPU-n1,NVIDIA,many,0:;", "GPU-n1,NVIDIA:;", "GPU-n1,NVIDIA,99999999999,0:;", ";;;GPU-n1,NVIDIA,1,0:;"])
def test_a_record_that_cannot_be_read_fences_the_node_until_the_pod_is_gone(world: World, text: str) -> None:
    pod = bound(text=text)
    change = world.pods.changed(None, pod)
    assert change.fenced is not None
    assert change.fenced.node == "n1"
    assert "default/p1" in change.fenced.reason
    assert world.state.fences("n1")
    assert world.pods.changed(pod, pod) == PodChange()
    assert world.pods.changed(pod, None).improved == frozenset({"n1"})
    assert not world.state.fences("n1")


def test_a_record_that_becomes_unreadable_stays_charged_and_a_repaired_one_lifts_the_fence(world: World) -> None:
    world.pods.changed(None, bound())
    world.pods.changed(bound(), bound(text="rubbish"))
    assert world.used_mib() == 5000
    assert world.state.fences("n1")
    world.pods.changed(bound(text="rubbish"), bound(text=record("n1", 6000)))
    assert world.used_mib() == 6000
    assert not world.state.fences("n1")


def a_pod_with_inits(*statuses: ContainerStatus) -> Pod:
    """HAMi#2723: a sidecar of 16000 MiB, an ordinary init container of 20000, an application of 16000."""
    pod = a_pod(
        "p1",
        a_container("app", gpu=1, mem=16000),
        inits=[a_container("side", sidecar=True, gpu=1, mem=16000), a_container("init", gpu=1, mem=20000)],
        node_name="n1",
        annotations={ALLOCATED: record("n1", 16000, 20000, 16000), keys.ASSIGNED_NODE: "n1"},
    )
    return with_status(pod, phase="Pending", init_container_statuses=statuses)


@pytest.mark.departs("a sidecar is charged beside what runs with it; the reference takes it for an init container")
def test_the_charge_shrinks_when_the_ordinary_init_containers_are_over(world: World) -> None:
    running = a_pod_with_inits(init_status("side", None), init_status("init", None))
    world.pods.changed(None, running)
    assert world.used_mib() == 36000
    over = a_pod_with_inits(init_status("side", None), init_status("init", 0))
    assert world.pods.changed(running, over).improved == frozenset({"n1"})
    assert world.used_mib() == 32000
    assert world.pods.changed(over, running).improved == frozenset()
    assert world.used_mib() == 32000


def test_a_shrunk_pod_is_found_shrunk_after_a_restart(world: World) -> None:
    world.pods.changed(None, a_pod_with_inits(init_status("side", None), init_status("init", 0)))
    assert world.used_mib() == 32000


@pytest.mark.parametrize(
    ("statuses", "over"),
    [
        pytest.param((), False, id="nothing known"),
        pytest.param((init_status("side", 0),), False, id="a crashing sidecar that exited 0"),
        pytest.param((init_status("side", 0), init_status("init", None)), False, id="the init container runs"),
        pytest.param((init_status("side", None), init_status("init", 1)), False, id="it failed"),
        pytest.param((init_status("side", None), init_status("init", 0)), True, id="it ended well"),
        pytest.param((init_status("side", 1), init_status("init", 0)), True, id="it ended well, and the sidecar crashed"),
    ],
)
def test_only_ordinary_init_containers_end_the_init_phase(statuses: tuple[ContainerStatus, ...], over: bool) -> None:
    assert init_is_over(a_pod_with_inits(*statuses)) is over


def test_a_pod_without_init_containers_has_no_init_phase_to_end() -> None:
    assert not init_is_over(a_pod(gpu=1))


def test_a_pod_that_ends_without_holding_anything_changes_nothing(world: World) -> None:
    assert world.pods.changed(None, with_status(a_pod(), phase="Failed")) == PodChange()
    assert world.pods.changed(a_pod(), None) == PodChange()
    assert world.state.entry(a_ref().uid) is None


def two_containers(text: str) -> Pod:
    containers = (a_container("c0", gpu=1, mem=1000), a_container("c1", gpu=2, mem=1000))
    return a_pod("p1", *containers, node_name="n1", annotations={ALLOCATED: text, keys.ASSIGNED_NODE: "n1"})


ONE, TWO = "GPU-n1,NVIDIA,1000,0:", "GPU-n1,NVIDIA,1000,0:GPU-x,NVIDIA,1000,0:"


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(bound(text=""), id="emptied to nothing"),
        pytest.param(bound(text=";"), id="emptied entry by entry"),
        pytest.param(with_meta(bound(), annotations={keys.ASSIGNED_NODE: "n1", keys.BIND_PHASE: "success"}), id="removed"),
        pytest.param(with_meta(bound(), annotations={}, labels={keys.ASSIGNED_NODE: "n1"}), id="all but the label removed"),
        pytest.param(two_containers(f"{ONE};;"), id="one container's entry emptied"),
        pytest.param(two_containers(f";{TWO};"), id="the other's"),
        pytest.param(two_containers(f"{ONE};{ONE};"), id="one device of two left"),
    ],
)
def test_a_record_that_lacks_what_its_pod_asks_for_fences_the_node(world: World, pod: Pod) -> None:
    change = world.pods.changed(None, pod)
    assert change.fenced is not None
    assert "default/p1" in change.fenced.reason
    assert world.state.fences("n1")
    assert world.pods.changed(pod, None).improved == frozenset({"n1"})
    assert not world.state.fences("n1")


def test_a_record_that_is_complete_fences_nothing(world: World) -> None:
    assert world.pods.changed(None, two_containers(f"{ONE};{TWO};")) == PodChange()
    assert world.used_mib() == 2000


def test_a_pod_that_asks_for_no_device_needs_no_record(world: World) -> None:
    plain = a_pod("p1", a_container(), node_name="n1", annotations={keys.ASSIGNED_NODE: "n1"})
    zero = a_pod("p2", gpu=0, node_name="n1", annotations={keys.ASSIGNED_NODE: "n1", ALLOCATED: ";"})
    assert (world.pods.changed(None, plain), world.pods.changed(None, zero)) == (PodChange(), PodChange())


def test_a_running_pod_whose_record_is_emptied_stays_charged(world: World) -> None:
    world.pods.changed(None, bound())
    world.pods.changed(bound(), bound(text=";"))
    assert world.used_mib() == 5000
