"""From the ids of PreStartContainer to a pod: by checkpoint, held against PodResources, and without a checkpoint."""

from __future__ import annotations

from hami_node_agent import identity
from hami_node_agent.checkpoint import HeldDevices
from hami_node_agent.identity import AllocateCall, GrantedPod, Identified, ListedPod
from hami_node_agent.refusals import Refusal, RefusalKind
from hami_protocol.devices import ContainerKind, ContainerShares, DeviceShare
from tests.builders import a_ref

GPU = "nvidia.com/gpu"


def held(pod: str, container: str, *ids: str, resource: str = GPU) -> HeldDevices:
    return HeldDevices(
        pod_uid=pod, container=container, resource=resource, device_ids=frozenset(ids), cdi_names=(f"hami.io/gpu=c-{pod}-{container}",)
    )


# The pod of a real kubelet: init containers' ids come back in later containers of the same pod.
REUSING = (
    held("uid-p1", "i0", "s7"),
    held("uid-p1", "sidecar", "s7"),
    held("uid-p1", "i2", "s9", "s24"),
    held("uid-p1", "c", "s9"),
    held("uid-p1", "d", "s24", "s17"),
)


def shares(count: int) -> tuple[DeviceShare, ...]:
    return tuple(DeviceShare(uuid=f"GPU-{place}", type="NVIDIA", memory_mib=1000, cores=10) for place in range(count))


def granted(name: str = "p1", **counts: tuple[ContainerKind, int]) -> GrantedPod:
    return GrantedPod(
        pod=a_ref(name),
        containers=tuple(
            ContainerShares(container=container, kind=kind, shares=shares(count)) for container, (kind, count) in counts.items()
        ),
    )


REUSING_GRANT = granted(
    i0=(ContainerKind.INIT, 1),
    sidecar=(ContainerKind.SIDECAR, 1),
    i2=(ContainerKind.INIT, 2),
    c=(ContainerKind.APP, 1),
    d=(ContainerKind.APP, 2),
)
REUSING_LISTED = ListedPod(
    namespace="default",
    name="p1",
    containers={"sidecar": frozenset({"s7"}), "c": frozenset({"s9"}), "d": frozenset({"s24", "s17"})},
)


def kind_of(found: object) -> RefusalKind:
    assert isinstance(found, Refusal)
    return found.kind


def test_ids_name_the_pod_and_every_container_keeps_its_own_answer_although_ids_are_used_again() -> None:
    for ids in (["s7"], ["s24", "s9"], ["s9"], ["s17", "s24"]):
        found = identity.by_checkpoint(REUSING, GPU, ids, {"uid-p1", "uid-p2"})
        assert isinstance(found, Identified)
        assert found.pod_uid == "uid-p1"
        assert {name: entry.cdi_names[0] for name, entry in found.containers.items()} == {
            name: f"hami.io/gpu=c-uid-p1-{name}" for name in ("i0", "sidecar", "i2", "c", "d")
        }


def test_entries_of_pods_that_are_gone_and_of_other_resources_are_not_looked_at() -> None:
    entries = (held("uid-gone", "main", "s1"), held("uid-p2", "main", "s1"), held("uid-p3", "main", "s1", resource="other.com/x"))
    found = identity.by_checkpoint(entries, GPU, ["s1"], {"uid-p2", "uid-p3"})
    assert isinstance(found, Identified)
    assert found.pod_uid == "uid-p2"


def test_a_part_of_the_ids_of_a_container_names_nobody() -> None:
    assert kind_of(identity.by_checkpoint(REUSING, GPU, ["s17"], {"uid-p1"})) is RefusalKind.UNKNOWN_POD


def test_two_live_pods_with_the_same_ids_are_ambiguous() -> None:
    entries = (held("uid-p1", "main", "s1"), held("uid-p2", "main", "s1"))
    assert kind_of(identity.by_checkpoint(entries, GPU, ["s1"], {"uid-p1", "uid-p2"})) is RefusalKind.AMBIGUOUS


def test_no_ids_are_refused() -> None:
    assert kind_of(identity.by_checkpoint(REUSING, GPU, [], {"uid-p1"})) is RefusalKind.EMPTY_REQUEST


def test_pod_resources_agrees_although_it_lists_no_ordinary_init_containers() -> None:
    found = identity.by_checkpoint(REUSING, GPU, ["s9"], {"uid-p1"})
    assert isinstance(found, Identified)
    assert identity.cross_check(found, REUSING_GRANT, [REUSING_LISTED]) is None


def test_a_pod_whose_only_request_is_in_an_init_container_is_not_listed_and_starts() -> None:
    only_init = granted(i0=(ContainerKind.INIT, 1), c=(ContainerKind.APP, 0))
    found = identity.by_checkpoint([held("uid-p1", "i0", "s7")], GPU, ["s7"], {"uid-p1"})
    assert isinstance(found, Identified)
    assert identity.cross_check(found, only_init, []) is None


def test_where_pod_resources_says_something_else_nothing_starts() -> None:
    found = identity.by_checkpoint(REUSING, GPU, ["s9"], {"uid-p1"})
    assert isinstance(found, Identified)
    for wrong in (
        {**REUSING_LISTED.containers, "c": frozenset({"s17"})},
        {name: ids for name, ids in REUSING_LISTED.containers.items() if name != "d"},
        {**REUSING_LISTED.containers, "unknown": frozenset({"s30"})},
    ):
        listed = ListedPod(namespace="default", name="p1", containers=wrong)
        refusal = identity.cross_check(found, REUSING_GRANT, [listed])
        assert refusal is not None
        assert refusal.kind is RefusalKind.KUBELET_DISAGREES
        assert refusal.pod == REUSING_GRANT.pod


def a_call(name: str, *ids: str) -> AllocateCall:
    return AllocateCall(name=f"hami.io/gpu={name}", device_ids=frozenset(ids))


CALLS = (
    a_call("old", "s7"),
    a_call("i0", "s7"),
    a_call("sidecar", "s7"),
    a_call("i2", "s9", "s24"),
    a_call("c", "s9"),
    a_call("d", "s24", "s17"),
    a_call("p2", "s30"),
)


def test_without_a_checkpoint_the_order_of_our_calls_tells_containers_apart() -> None:
    found = identity.by_calls([REUSING_LISTED], CALLS, [REUSING_GRANT], GPU, ["s9"])
    assert isinstance(found, Identified)
    assert {name: entry.cdi_names[0] for name, entry in found.containers.items()} == {
        name: f"hami.io/gpu={name}" for name in ("i0", "sidecar", "i2", "c", "d")
    }


def test_without_a_checkpoint_a_pod_that_pod_resources_does_not_list_is_refused() -> None:
    assert kind_of(identity.by_calls([], CALLS, [REUSING_GRANT], GPU, ["s9"])) is RefusalKind.UNKNOWN_POD


def test_without_a_checkpoint_what_stays_ambiguous_is_refused() -> None:
    twins = [granted("p1", main=(ContainerKind.APP, 1)), granted("p2", main=(ContainerKind.APP, 1))]
    listed = [ListedPod(namespace="default", name=name, containers={"main": frozenset({"s1"})}) for name in ("p1", "p2")]
    assert kind_of(identity.by_calls(listed, [a_call("x", "s1")], twins, GPU, ["s1"])) is RefusalKind.AMBIGUOUS
