"""Which instance a share becomes, and where it lies."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_devices import mig
from hami_devices.catalog import Catalog
from hami_devices.fit import NodeFit, fit_node
from hami_devices.model import PodRequest, Reason
from hami_devices.reasons import Misfit
from hami_protocol.devices import ContainerKind, MigInstance, MigProfile, Placement, RegisteredDevice
from hami_scheduler.placement import ClusterState
from hami_scheduler.placement import Placement as Placed
from tests.builders import a_device, a_ref, a_request, a_share, a_state

PROFILES = (
    MigProfile(
        name="1g.5gb", memory_mib=5120, cores=14, slice_count=1, placements=tuple(Placement(start=start, size=1) for start in range(7))
    ),
    MigProfile(
        name="2g.10gb", memory_mib=10240, cores=28, slice_count=2, placements=tuple(Placement(start=start, size=2) for start in (0, 2, 4))
    ),
    MigProfile(
        name="3g.20gb", memory_mib=20480, cores=42, slice_count=3, placements=tuple(Placement(start=start, size=4) for start in (0, 4))
    ),
)


def instance(profile: str, start: int) -> MigInstance:
    size = {"1g.5gb": 1, "2g.10gb": 2, "3g.20gb": 4}[profile]
    return MigInstance(profile=profile, placement=Placement(start=start, size=size))


def a_card(uuid: str = "GPU-A", **fields: object) -> RegisteredDevice:
    return a_device(uuid, **{"memory_mib": 40960, "shares": 7, "mode": "mig", "mig_profiles": PROFILES, **fields})


def chosen(memory_mib: int, *taken: MigInstance) -> tuple[str, int] | None:
    found = mig.choose(PROFILES, taken, memory_mib)
    return None if found is None else (found[1].profile, found[1].placement.start)


@pytest.mark.example("MIG and health 95")
@pytest.mark.example("MIG instances 52")
def test_a_card_is_filled_from_both_ends() -> None:
    taken: list[MigInstance] = []
    starts = []
    for memory_mib in (20480, 10240, 5120, 5120):
        found = mig.choose(PROFILES, taken, memory_mib)
        assert found is not None
        taken.append(found[1])
        starts.append(found[1].placement.start)
    assert starts == [4, 0, 3, 2]


@pytest.mark.example("MIG and health 96")
def test_the_profile_is_what_is_booked() -> None:
    fit = fit_node([a_state(a_card())], a_request(memory_mib=10000))
    assert isinstance(fit, NodeFit)
    (share,) = fit.assignments[0].containers[0].shares
    assert (share.memory_mib, share.cores, share.instance) == (10240, 28, instance("2g.10gb", 0))
    assert fit.charges[0].instances == (instance("2g.10gb", 0),)


@pytest.mark.example("MIG and health 97")
def test_a_profile_without_a_free_place_is_passed_over_for_a_larger_one_alone() -> None:
    full = [instance("2g.10gb", start) for start in (0, 2, 4)]
    assert chosen(10000, *full) is None
    assert chosen(5000, *full) == ("1g.5gb", 6)
    assert chosen(5000, instance("3g.20gb", 0), instance("3g.20gb", 4)) is None
    assert chosen(5000, *(instance("1g.5gb", start) for start in range(7))) is None


def with_pods(*memories_mib: int) -> ClusterState:
    state = ClusterState(Catalog())
    state.upsert_node("n1", {"NVIDIA": (a_card(),)})
    for place, memory_mib in enumerate(memories_mib):
        placed = state.judge(a_request(memory_mib=memory_mib), ["n1"], uid=f"uid-{place}")
        assert isinstance(placed, Placed)
        state.reserve(a_ref(f"p{place}", uid=f"uid-{place}"), placed, now=0.0)
    state.validate()
    return state


def test_a_share_in_percent_takes_the_profile_that_is_large_enough() -> None:
    state = with_pods(10000, 10000, 10000)
    refused = state.judge(a_request(memory_percent=25), ["n1"], uid="u")
    assert not isinstance(refused, Placed)
    assert refused.failed == {"n1": "1/1 CardMigTopologyInfeasible"}
    empty = with_pods()
    whole = empty.judge(a_request(memory_percent=100), ["n1"], uid="u")
    assert isinstance(whole, Placed)
    assert whole.charges[0].memory_mib == 20480


@pytest.mark.example("MIG and health 98")
def test_one_card_gives_a_container_two_instances_where_a_shared_card_gives_one_share() -> None:
    fit = fit_node([a_state(a_card())], a_request(count=2, memory_mib=5000))
    assert isinstance(fit, NodeFit)
    assert [share.instance for share in fit.assignments[0].containers[0].shares] == [instance("1g.5gb", 6), instance("1g.5gb", 5)]
    shared = fit_node([a_state(a_device("GPU-A", shares=7))], a_request(count=2, memory_mib=5000))
    assert isinstance(shared, Misfit)
    assert shared.text == "NodeInsufficientDevice"


def test_the_instance_of_an_init_container_stays_until_the_pod_has_ended() -> None:
    request = a_request((ContainerKind.INIT, a_share(memory_mib=20000)), (ContainerKind.APP, a_share(memory_mib=20000)))
    fit = fit_node([a_state(a_card())], request)
    assert isinstance(fit, NodeFit)
    assert [c.shares[0].instance for c in fit.assignments[0].containers] == [instance("3g.20gb", 4), instance("3g.20gb", 0)]
    assert fit.running_charges[0].instances == fit.charges[0].instances
    third = a_request(*((ContainerKind.INIT, a_share(memory_mib=20000)),) * 2, (ContainerKind.APP, a_share(memory_mib=20000)))
    assert isinstance(fit_node([a_state(a_card())], third), Misfit)


def test_a_card_with_a_share_of_which_nobody_knows_where_it_lies_takes_no_more() -> None:
    misfit = fit_node([a_state(a_card(), used_shares=1, used_memory_mib=5120, used_cores=14)], a_request(memory_mib=5000))
    assert isinstance(misfit, Misfit)
    assert misfit.counts == {Reason.HEALTH: 1}


def test_what_a_pod_leaves_is_free_for_the_next() -> None:
    state = with_pods(20000, 20000)
    again = a_request(memory_mib=20000)
    assert not isinstance(state.judge(again, ["n1"], uid="u"), Placed)
    state.release("uid-0")
    state.validate()
    placed = state.judge(again, ["n1"], uid="u")
    assert isinstance(placed, Placed)
    assert placed.charges[0].instances == (instance("3g.20gb", 4),)


@given(st.lists(st.sampled_from([1, 5000, 10000, 20000]), max_size=8))
def test_instances_never_overlap_however_they_come(memories_mib: list[int]) -> None:
    taken: list[MigInstance] = []
    for memory_mib in memories_mib:
        found = mig.choose(PROFILES, taken, memory_mib)
        if found is not None:
            assert found[0].memory_mib >= memory_mib
            taken.append(found[1])
    for one, other in itertools.combinations(taken, 2):
        assert not mig.overlap(one.placement, other.placement)


@given(st.lists(st.sampled_from([instance("1g.5gb", 3), instance("2g.10gb", 0), instance("3g.20gb", 4)]), max_size=4))
def test_marks_say_which_instances_are_held(held: list[MigInstance]) -> None:
    counts = {mig.mark(each): held.count(each) for each in held}
    found = mig.marked(tuple(sorted(counts.items())))
    assert sorted(map(mig.mark, found)) == sorted(map(mig.mark, held))


@given(st.lists(st.tuples(st.sampled_from([5000, 10000, 20000]), st.booleans()), max_size=10), st.integers(1, 3))
def test_columns_and_specification_agree_on_cut_cards(story: list[tuple[int, bool]], count: int) -> None:
    state = ClusterState(Catalog())
    for name in ("n1", "n2", "n3"):
        state.upsert_node(name, {"NVIDIA": (a_card(f"{name}-a"), a_device(f"{name}-b", index=1, memory_mib=8000))})
    for place, (memory_mib, stays) in enumerate(story):
        placed = state.judge(a_request(memory_mib=memory_mib), ["n1", "n2"], uid=f"uid-{place}")
        if isinstance(placed, Placed):
            state.reserve(a_ref(f"p{place}", uid=f"uid-{place}"), placed, now=0.0)
            if not stays:
                state.release(f"uid-{place}")
    state.validate()
    request: PodRequest = a_request(count=count, memory_mib=10000)
    together = state.judge(request, ["n1", "n2", "n3"], uid="u", ranked=True)
    alone = {name: state.judge(request, [name], uid="u") for name in ("n1", "n2", "n3")}
    fitting = {name for name, _ in together.fitting} if isinstance(together, Placed) else set()
    assert fitting == {name for name, judged in alone.items() if isinstance(judged, Placed)}
    texts = dict(together.failed) | dict(together.unresolvable)
    for name in sorted(set(alone) - fitting):
        judged = alone[name]
        assert texts[name] == (dict(judged.failed) | dict(judged.unresolvable))[name]
