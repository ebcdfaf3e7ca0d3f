"""Where a whole pod fits on one node, and what it is charged there: init containers, sidecars and application containers."""

from __future__ import annotations

import pytest
from hypothesis import given

from hami_devices.accounting import Account, charges_of
from hami_devices.fit import NodeFit, fit_node
from hami_devices.model import DeviceRequest, PodRequest
from hami_devices.reasons import Misfit
from hami_protocol.devices import ContainerKind, DeviceShare, VendorAssignment
from hami_scheduler.placement import ClusterState
from tests.builders import a_request, a_share, a_state, example
from tests.unit.placement.clusters import clusters, requests

INIT, SIDECAR, APP = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP
Uses = list[tuple[ContainerKind, dict[str, tuple[int, int]]]]


def effective(uses: Uses) -> tuple[dict[str, tuple[int, int, int]], dict[str, tuple[int, int, int]]]:
    """Per device: MiB, cores and slots, while init containers may run and when they are over."""
    account = Account()
    for kind, shares in uses:
        held = [DeviceShare(uuid=uuid, type="NVIDIA", memory_mib=memory, cores=cores) for uuid, (memory, cores) in shares.items()]
        account.add(kind, "NVIDIA", held)
    whole, running = ({c.uuid: (c.memory_mib, c.cores, c.shares) for c in charges} for charges in account.charges())
    return whole, running


def on(kind: ContainerKind, *uses: tuple[int, int]) -> Uses:
    """Containers of one kind on card g0."""
    return [(kind, {"g0": use}) for use in uses]


@pytest.mark.parametrize(
    ("uses", "result"),
    [
        example("pod charges 51", on(APP, (100, 10), (200, 20)), {"g0": (300, 30, 2)}),
        example("pod charges 52", on(INIT, (100, 10), (200, 30)), {"g0": (200, 30, 1)}),
        example("pod charges 53", on(INIT, (500, 50)) + on(APP, (100, 10)), {"g0": (500, 50, 1)}),
        example("pod charges 54", on(INIT, (100, 10)) + on(APP, (200, 20), (300, 30)), {"g0": (500, 50, 2)}),
        example("pod charges 55", on(INIT, (100, 10), (300, 30), (200, 20)) + on(APP, (50, 5)), {"g0": (300, 30, 1)}),
        example(
            "pod charges 56",
            [(INIT, {"g0": (200, 20), "g1": (300, 30)}), (APP, {"g0": (100, 10), "g1": (150, 15)})],
            {"g0": (200, 20, 1), "g1": (300, 30, 1)},
        ),
        example("pod charges 57", on(APP, (100, 10), (100, 10), (100, 10)), {"g0": (300, 30, 3)}),
        example("init containers 0,2", on(APP, (100, 10), (200, 20)), {"g0": (300, 30, 2)}),
        example("init containers 2,0", on(INIT, (100, 10), (200, 30)), {"g0": (200, 30, 1)}),
        example("init containers 1,1", on(INIT, (500, 50)) + on(APP, (100, 10)), {"g0": (500, 50, 1)}),
        example("init containers 1,2", on(INIT, (100, 10)) + on(APP, (200, 20), (300, 30)), {"g0": (500, 50, 2)}),
    ],
)
def test_charges_are_the_largest_moment_of_the_pod_s_life(uses: Uses, result: dict[str, tuple[int, int, int]]) -> None:
    assert effective(uses)[0] == result


@pytest.mark.example("pod charges 58")
def test_charges_shrink_when_init_containers_are_over() -> None:
    assert effective(on(INIT, (20000, 10)) + on(APP, (10000, 5))) == ({"g0": (20000, 10, 1)}, {"g0": (10000, 5, 1)})


def test_b9_a_sidecar_runs_beside_later_init_containers_and_beside_the_application() -> None:
    whole, running = effective([*on(SIDECAR, (16000, 0)), *on(INIT, (20000, 0)), *on(APP, (16000, 0))])
    assert (whole, running) == ({"g0": (36000, 0, 2)}, {"g0": (32000, 0, 2)})


def test_an_init_container_does_not_run_beside_sidecars_that_start_after_it() -> None:
    whole, _ = effective([*on(INIT, (20000, 0)), *on(SIDECAR, (16000, 0)), *on(APP, (1000, 0))])
    assert whole == {"g0": (20000, 0, 2)}


def fitted(request: PodRequest, *uuids: str, **device: int) -> NodeFit | Misfit:
    return fit_node([a_state(uuid=uuid, index=place, **device) for place, uuid in enumerate(uuids)], request)


def entries(fit: NodeFit | Misfit) -> list[list[str]]:
    """UUIDs per container."""
    assert isinstance(fit, NodeFit)
    (assignment,) = fit.assignments
    return [[share.uuid for share in container.shares] for container in assignment.containers]


MIB_500_FREE = {"memory_mib": 8000, "used_memory_mib": 7500, "used_shares": 1}


@pytest.mark.parametrize(
    ("init", "app", "device", "text"),
    [
        example("pod charges 59", a_share(1, memory_mib=4000), a_share(1, memory_mib=100), MIB_500_FREE, "2/2 CardInsufficientMemory"),
        example(
            "pod charges 60",
            a_share(1, memory_mib=1, cores=30),
            a_share(1, memory_mib=1, cores=10),
            {"used_cores": 80, "used_shares": 1},
            "2/2 CardInsufficientCore",
        ),
    ],
)
def test_an_init_container_that_does_not_fit_keeps_the_pod_away(
    init: DeviceRequest, app: DeviceRequest, device: dict[str, int], text: str
) -> None:
    fit = fitted(a_request((INIT, init), (APP, app)), "u1", "u2", **device)
    assert isinstance(fit, Misfit)
    assert fit.text == text


@pytest.mark.example("pod charges 61")
def test_an_application_container_may_use_a_card_that_its_init_container_used() -> None:
    fit = fitted(a_request((INIT, a_share(2)), (APP, a_share(1)), device_policy="binpack"), "u1", "u2")
    assert entries(fit) == [["u2", "u1"], ["u2"]]


@pytest.mark.example("pod charges 62")
def test_each_container_has_its_entry_empty_ones_too() -> None:
    fit = fitted(a_request((INIT, None), (INIT, a_share(1)), (APP, a_share(1))), "u1")
    assert entries(fit) == [[], ["u1"], ["u1"]]


def test_b6_each_container_is_charged_on_the_card_it_gets() -> None:
    fit = fitted(a_request(a_share(1, memory_mib=10240), a_share(1, memory_mib=1024)), "A", "B", memory_mib=10240)
    first, second = entries(fit)
    assert first != second
    assert isinstance(fit, NodeFit)
    assert {charge.uuid: charge.memory_mib for charge in fit.charges} == {first[0]: 10240, second[0]: 1024}


def test_b9_the_whole_pod_fits_where_its_largest_moment_does() -> None:
    request = a_request((SIDECAR, a_share(1, memory_mib=16000)), (INIT, a_share(1, memory_mib=20000)), (APP, a_share(1, memory_mib=16000)))
    assert isinstance(fitted(request, "A", memory_mib=36000), NodeFit)
    assert isinstance(fitted(request, "A", memory_mib=35999), Misfit)


def test_two_exclusive_containers_get_two_cards() -> None:
    whole = a_share(1, cores=100)
    assert sorted(entries(fitted(a_request(whole, whole), "A", "B"))) == [["A"], ["B"]]
    assert isinstance(fitted(a_request(whole, whole), "A"), Misfit)


@pytest.mark.parametrize(
    ("request_", "states", "text", "detail"),
    [
        pytest.param(
            a_request(count=2),
            [a_state()],
            "NodeInsufficientDevice",
            "container c0: asks 2 distinct cards, node has 1; would fit: 1 or fewer",
            id="A4 A5 two cards of one",
        ),
        pytest.param(
            a_request(count=1, cores=100),
            [a_state(used_memory_mib=2000, used_shares=1)],
            "1/1 CardInsufficientMemory",
            "container c0: needs 24576 MiB on one card, largest free 22576; would fit: 22576 MiB or less",
            id="A4 a whole card of one in use",
        ),
        pytest.param(
            a_request(count=2, memory_mib=20000),
            [a_state(uuid="a"), a_state(uuid="b", used_memory_mib=10000, used_shares=1)],
            "1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientMemory",
            (
                "container c0: needs 20000 MiB on each of 2 cards, largest free 24576, 14576; would fit: 14576 MiB or less; "
                "asks 2 distinct cards, 1 would do"
            ),
            id="one of two",
        ),
        pytest.param(
            a_request(cores=50, memory_mib=1),
            [a_state(used_cores=80, used_shares=1)],
            "1/1 CardInsufficientCore",
            "container c0: needs 50 % of one card's cores, most free 20",
            id="cores",
        ),
    ],
)
def test_reasons_come_with_figures(request_: PodRequest, states: list, text: str, detail: str) -> None:  # type: ignore[type-arg]
    fit = fit_node(states, request_)
    assert isinstance(fit, Misfit)
    assert (fit.text, fit.detail) == (text, detail)


@given(clusters(pods=2), requests())
def test_what_fits_is_never_over_committed_and_is_charged_as_it_is_assigned(state: ClusterState, request: PodRequest) -> None:
    for name in state.nodes():
        states = state.devices(name)
        fit = fit_node(states, request)
        if isinstance(fit, Misfit):
            assert fit.text
            assert fit.detail
            continue
        assert (fit.charges, fit.running_charges) == charges_of(fit.assignments)
        free = {(s.vendor, s.device.uuid): s for s in states}
        for charge in fit.charges:
            device = free[charge.vendor, charge.uuid]
            assert device.used_shares + charge.shares <= device.device.shares
            assert device.used_memory_mib + charge.memory_mib <= device.device.memory_mib
            assert not charge.cores or device.used_cores + charge.cores <= device.device.cores
        assert booked(fit.assignments) == asked(request)


def booked(assignments: tuple[VendorAssignment, ...]) -> dict[str, list[tuple[int, int]]]:
    """Per vendor: shares and cores of each container."""
    return {
        given.vendor: [
            (len(container.shares), max((share.cores for share in container.shares), default=0)) for container in given.containers
        ]
        for given in assignments
    }


def asked(request: PodRequest) -> dict[str, list[tuple[int, int]]]:
    vendors = {wanted.vendor for container in request.containers for wanted in container.requests}
    return {
        vendor: [
            next(((wanted.count, wanted.cores) for wanted in container.requests if wanted.vendor == vendor), (0, 0))
            for container in request.containers
        ]
        for vendor in vendors
    }


def test_a_container_without_a_request_never_changes_the_verdict() -> None:
    share = a_share(1, memory_percent=40)
    for devices in (["A"], ["A", "B"]):
        plain = fitted(a_request(share, share, share), *devices)
        padded = fitted(a_request((INIT, None), (APP, share), (APP, None), (APP, share), (APP, share)), *devices)
        assert isinstance(plain, NodeFit) == isinstance(padded, NodeFit)
        if isinstance(plain, NodeFit) and isinstance(padded, NodeFit):
            assert plain.charges == padded.charges


def test_a_share_says_what_is_charged() -> None:
    fit = fitted(a_request(memory_percent=33, cores=20), "A")
    assert isinstance(fit, NodeFit)
    assert fit.assignments[0].containers[0].shares == (DeviceShare(uuid="A", type="NVIDIA", memory_mib=8110, cores=20),)
