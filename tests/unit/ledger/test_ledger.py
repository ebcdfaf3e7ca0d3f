"""Who holds what: reservations, binding, shrinking and release, by pod UID, in step with what is charged on the devices."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from hami_devices.catalog import Catalog
from hami_devices.model import PodRequest
from hami_protocol.devices import ContainerKind, ContainerShares, DeviceShare, PodRef, VendorAssignment
from hami_scheduler.placement import ClusterState, Phase, Placement, Refusal
from hami_scheduler.placement.ledger import Ledger, LedgerError
from tests.builders import a_device, a_ref, a_request, a_share
from tests.unit.placement.clusters import NODES, OTHER, devices, pair_scores, requests

INIT, APP = ContainerKind.INIT, ContainerKind.APP
WITH_INIT = a_request((INIT, a_share(1, memory_mib=20000)), (APP, a_share(1, memory_mib=10000)))


def a_state_with(*nodes: str, **device: int) -> ClusterState:
    state = ClusterState(Catalog())
    for node in nodes or ("n1",):
        state.upsert_node(node, {"NVIDIA": (a_device(f"{node}-A", **device),)})
    return state


def place(state: ClusterState, request: PodRequest, pod: PodRef, now: float = 0.0) -> Placement:
    answer = state.judge(request, state.nodes(), uid=pod.uid)
    assert isinstance(answer, Placement)
    state.reserve(pod, answer, now=now)
    return answer


def used(state: ClusterState, node: str = "n1") -> int:
    return sum(device.used_memory_mib for device in state.devices(node))


def held(memory_mib: int, uuid: str = "n1-A", kind: ContainerKind = APP) -> VendorAssignment:
    share = DeviceShare(uuid=uuid, type="NVIDIA", memory_mib=memory_mib, cores=0)
    return VendorAssignment(vendor="NVIDIA", containers=(ContainerShares(container="main", kind=kind, shares=(share,)),))


def test_a_reservation_lapses_after_thirty_seconds_unless_it_is_renewed_or_bound() -> None:
    state = a_state_with()
    for name in ("lapses", "renewed", "bound"):
        place(state, a_request(memory_mib=1000), a_ref(name), now=100.0)
    state.renew("uid-renewed", 120.0)
    state.assume("uid-bound")
    assert state.expired(129.9) == []
    assert state.expired(130.0) == ["uid-lapses"]
    assert state.expired(150.0) == ["uid-lapses", "uid-renewed"]
    assert used(state) == 3000


def test_the_phases_go_forward_only() -> None:
    state = a_state_with()
    place(state, WITH_INIT, a_ref())
    assert state.confirm("uid-p1").phase is Phase.BOUND
    assert state.assume("uid-p1").phase is Phase.BOUND
    assert used(state) == 20000
    assert state.shrink("uid-p1").phase is Phase.SHRUNK
    assert state.shrink("uid-p1").phase is Phase.SHRUNK
    assert state.confirm("uid-p1").phase is Phase.SHRUNK
    assert used(state) == 10000
    state.validate()


def test_a_pod_whose_init_containers_alone_asked_holds_nothing_once_they_are_over() -> None:
    state = a_state_with()
    place(state, a_request((INIT, a_share(1, memory_mib=2000))), a_ref())
    state.confirm("uid-p1")
    state.shrink("uid-p1")
    assert (used(state), state.used_in("default")) == (0, {})
    assert state.release("uid-p1") is not None
    state.validate()


@pytest.mark.example("pod charges 58")
def test_what_a_shrunk_pod_gave_back_never_comes_back() -> None:
    state = a_state_with()
    assignments = place(state, WITH_INIT, a_ref()).assignments
    state.confirm("uid-p1")
    state.shrink("uid-p1")
    state.charge(a_ref(), "n1", assignments, shrunk=False)
    assert used(state) == 10000


def test_a_pod_that_is_filtered_again_frees_what_it_held() -> None:
    state = a_state_with("n1", "n2")
    first = place(state, a_request(), a_ref())
    second = place(state, a_request(), a_ref())
    assert first.node == second.node == "n1"
    assert used(state, "n1") == 24576
    assert used(state, "n2") == 0
    state.validate()


def test_c3_exactly_one_node_is_charged_however_often_a_pod_moves() -> None:
    state = a_state_with("n1", "n2")
    place(state, a_request(memory_mib=1000), a_ref())
    state.charge(a_ref(), "n2", (held(1000, "n2-A"),), shrunk=False)
    assert (used(state, "n1"), used(state, "n2")) == (0, 1000)
    state.charge(a_ref(), "n2", (held(1000, "n2-A"),), shrunk=False)
    assert (used(state, "n1"), used(state, "n2")) == (0, 1000)


def test_c1_a_late_delete_of_an_old_uid_never_frees_its_namesake() -> None:
    state = a_state_with()
    state.charge(a_ref("web", uid="old"), "n1", (held(8000),), shrunk=False)
    assert state.release("old") is not None
    state.charge(a_ref("web", uid="new"), "n1", (held(9000),), shrunk=False)
    assert state.release("old") is None
    assert used(state) == 9000


def test_what_is_charged_survives_its_node_and_device() -> None:
    state = a_state_with()
    state.charge(a_ref(), "n1", (held(8000),), shrunk=False)
    state.upsert_node("n1", {"NVIDIA": (a_device("n1-B"),)})
    assert used(state) == 0
    state.upsert_node("n1", {"NVIDIA": (a_device("n1-B"), a_device("n1-A", index=1))})
    assert used(state) == 8000
    state.remove_node("n1")
    state.upsert_node("n0", {"NVIDIA": (a_device("n0-A"),)})
    state.upsert_node("n1", {"NVIDIA": (a_device("n1-A"),)})
    assert used(state) == 8000
    state.release("uid-p1")
    assert used(state) == 0
    state.validate()


def test_c7_a_pod_charged_before_its_node_is_known_is_charged_when_it_is() -> None:
    state = ClusterState(Catalog())
    state.charge(a_ref(), "n1", (held(8000),), shrunk=False)
    state.upsert_node("n1", {})
    state.upsert_node("n1", {"NVIDIA": (a_device("n1-A"),)})
    assert used(state) == 8000


def test_steps_of_unknown_pods_do_nothing() -> None:
    state = a_state_with()
    assert [step("nobody") for step in (state.assume, state.confirm, state.shrink, state.release, state.entry)] == [None] * 5
    assert state.renew("nobody", 0.0) is None


def test_b8_an_exclusive_card_stays_exclusive_before_and_after_init_containers() -> None:
    state = a_state_with(memory_mib=40000)
    exclusive = a_request((INIT, a_share(1, memory_mib=1000)), (APP, a_share(1, cores=100)))
    place(state, exclusive, a_ref("x"))
    other = a_request((INIT, a_share(1, memory_mib=1, cores=1)), (APP, a_share(1, memory_mib=20480, cores=22)))
    assert isinstance(state.judge(other, ["n1"], uid="y"), Refusal)
    state.confirm("uid-x")
    state.shrink("uid-x")
    assert isinstance(state.judge(other, ["n1"], uid="y"), Refusal)


def test_b9_room_of_an_ended_init_container_is_given_away_and_no_more() -> None:
    state = a_state_with(memory_mib=40960)
    pod = a_request(
        (ContainerKind.SIDECAR, a_share(1, memory_mib=16000)), (INIT, a_share(1, memory_mib=20000)), (APP, a_share(1, memory_mib=16000))
    )
    place(state, pod, a_ref("a"))
    state.confirm("uid-a")
    assert isinstance(state.judge(a_request(memory_mib=8000), ["n1"], uid="b"), Refusal)
    state.shrink("uid-a")
    assert isinstance(state.judge(a_request(memory_mib=9000), ["n1"], uid="b"), Refusal)
    assert isinstance(state.judge(a_request(memory_mib=8000), ["n1"], uid="b"), Placement)


def test_a_pod_is_entered_once() -> None:
    state = a_state_with()
    place(state, a_request(memory_mib=1000), a_ref())
    ledger = Ledger()
    entry = state.entry("uid-p1")
    assert entry is not None
    ledger.put(entry)
    with pytest.raises(LedgerError, match="already entered"):
        ledger.put(entry)
    assert list(ledger) == [entry]
    assert len(ledger) == 1


class LedgerMachine(RuleBasedStateMachine):
    """Any order of events, doubled and late ones too: the columns always hold what the entries say."""

    pods = Bundle("pods")

    @initialize()
    def start(self) -> None:
        self.state = ClusterState(Catalog(more=(OTHER,)))
        self.now = 0.0
        self.model: dict[str, str] = {}

    @rule(target=pods, name=st.sampled_from(["a", "b"]), uid=st.integers(0, 5))
    def a_pod_appears(self, name: str, uid: int) -> PodRef:
        return a_ref(name, uid=f"uid-{name}-{uid}")

    @rule(node=st.sampled_from(NODES), data=st.data())
    def a_node_registers(self, node: str, data: st.DataObject) -> None:
        listed = {vendor: data.draw(devices(node, vendor)) for vendor in ("NVIDIA", "OTHER")}
        scores = data.draw(pair_scores([device.uuid for device in listed["NVIDIA"]]))
        self.state.upsert_node(node, listed, cordoned=frozenset(data.draw(st.sets(st.just("NVIDIA-c")))), pair_scores=scores)

    @rule(node=st.sampled_from(NODES))
    def a_node_goes(self, node: str) -> None:
        self.state.remove_node(node)

    @rule(pod=pods, request=requests())
    def filter_reserves(self, pod: PodRef, request: PodRequest) -> None:
        answer = self.state.judge(request, NODES, uid=pod.uid)
        if isinstance(answer, Placement):
            self.state.reserve(pod, answer, now=self.now)
            self.model[pod.uid] = answer.node

    @rule(pod=pods, node=st.sampled_from(NODES), shrunk=st.booleans())
    def a_bound_pod_is_found(self, pod: PodRef, node: str, shrunk: bool) -> None:
        self.state.charge(pod, node, (held(500, "NVIDIA-c", INIT), held(100, "NVIDIA-d")), shrunk=shrunk)
        self.model[pod.uid] = node

    @rule(pod=pods, step=st.sampled_from(["assume", "confirm", "shrink"]))
    def an_entry_moves_on(self, pod: PodRef, step: str) -> None:
        assert (getattr(self.state, step)(pod.uid) is None) == (pod.uid not in self.model)

    @rule(pod=pods)
    def a_reservation_is_renewed(self, pod: PodRef) -> None:
        self.state.renew(pod.uid, self.now)

    @rule(pod=consumes(pods))
    def a_pod_ends(self, pod: PodRef) -> None:
        entry = self.state.release(pod.uid)
        assert (None if entry is None else entry.node) == self.model.pop(pod.uid, None)

    @rule(seconds=st.sampled_from([1.0, 20.0, 31.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for uid in self.state.expired(self.now):
            assert self.state.entry(uid).phase is Phase.RESERVED
            self.state.release(uid)
            self.model.pop(uid)
        assert self.state.expired(self.now) == []

    @rule(node=st.sampled_from(NODES), fenced=st.booleans(), vendor=st.sampled_from(["", "NVIDIA"]), available=st.booleans())
    def records_break_and_nodes_fall_silent(self, node: str, fenced: bool, vendor: str, available: bool) -> None:
        source = f"register {vendor}"
        (self.state.fence(node, source, "broken", vendor=vendor) if fenced else self.state.unfence(node, source))
        self.state.set_available(node, "NVIDIA", available)

    @rule(node=st.sampled_from(NODES), count=st.sampled_from([None, 0, 3, 20]), reason=st.sampled_from(["", "its agent stops"]))
    def agents_stop_and_kubelet_counts_anew(self, node: str, count: int | None, reason: str) -> None:
        self.state.set_allocatable(node, "NVIDIA", count)
        self.state.hold(node, "NVIDIA", reason)

    @invariant()
    def columns_and_entries_agree(self) -> None:
        if hasattr(self, "state"):
            self.state.validate()
            assert {entry.pod.uid: entry.node for entry in self.state.entries()} == self.model

    def teardown(self) -> None:
        if hasattr(self, "state"):
            for uid in list(self.model):
                self.state.release(uid)
            assert all(device.used_shares == 0 for name in NODES for device in self.state.devices(name))
            self.state.validate()


LedgerMachine.TestCase.settings = settings(stateful_step_count=30)
TestLedgerMachine = LedgerMachine.TestCase
