"""What holds for every vendor: nothing asked becomes nothing, what is booked is what the limits say, and fitting keeps its promises."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hami_devices.fit import NodeFit, fit_node
from hami_devices.model import DeviceState, PodRequest, Reason
from hami_devices.reasons import Misfit
from hami_devices.requests import RequestError
from hami_devices.scores import node_score
from hami_devices.vendor import Vendor
from hami_protocol.kubernetes import Pod
from hami_scheduler.placement import ClusterState, Placement
from hami_webhook.patch import Patch
from tests.builders import a_ref
from tests.unit.vendors.vendor_cases import NODES, clusters, encoded, pods, requests
from tests.unit.vendors.vendor_world import CATALOG

EACH = pytest.mark.parametrize("vendor", CATALOG.vendors, ids=lambda vendor: vendor.name)
FEW = settings(max_examples=max(settings.default.max_examples // 10, 1), suppress_health_check=list(HealthCheck))


def admitted(pod: Pod) -> Pod:
    """The pod as the webhook leaves it."""
    body = encoded(pod)
    Patch(body).apply(CATALOG.mutations(pod))
    return msgspec.convert(body, Pod)


def _read(pod: Pod) -> PodRequest | RequestError:
    try:
        return CATALOG.read_pod(pod)
    except RequestError as exc:
        return exc


@EACH
@FEW
@given(data=st.data())
def test_what_is_asked_is_read_or_refused_and_never_becomes_nothing(vendor: Vendor, data: st.DataObject) -> None:
    pod = data.draw(pods(vendor, garbage=data.draw(st.booleans())))
    read = _read(pod)
    if isinstance(read, RequestError):
        assert read.field in str(read)
        assert "accepted" in read.reason
        with pytest.raises(RequestError):
            CATALOG.mutations(pod)
        return
    for asked in (asked for container in read.containers for asked in container.requests):
        assert asked.count > 0
        assert asked.vendor == vendor.name
        assert min(asked.memory_mib, asked.memory_percent, asked.cores, asked.parts) >= 0


@EACH
@FEW
@given(data=st.data())
def test_admission_changes_nothing_of_what_is_asked_and_nothing_twice(vendor: Vendor, data: st.DataObject) -> None:
    pod = data.draw(pods(vendor))
    before = _read(pod)
    if isinstance(before, RequestError):
        return
    once = admitted(pod)
    assert CATALOG.read_pod(once).containers == before.containers
    assert CATALOG.mutations(once) == ()


@EACH
@FEW
@given(data=st.data())
def test_what_fits_is_booked_as_asked_and_never_over_committed(vendor: Vendor, data: st.DataObject) -> None:
    state, request = data.draw(clusters(vendor)), data.draw(requests(vendor))
    for node in state.nodes():
        states = {each.device.uuid: each for each in state.devices(node)}
        fit = fit_node(list(states.values()), request)
        if isinstance(fit, Misfit):
            assert fit.text
            assert fit.detail
            continue
        for charge in (*fit.charges, *fit.running_charges):
            device = states[charge.uuid]
            assert device.used_shares + charge.shares <= device.device.shares
            assert device.used_memory_mib + charge.memory_mib <= device.device.memory_mib
            assert not charge.cores or device.used_cores + charge.cores <= device.device.cores
        for asked, given_ in _paired(request, fit):
            assert len({each.uuid for each in given_}) == len(given_) == asked.count
            assert all(each.memory_mib >= asked.memory_mib for each in given_)


def _paired(request: PodRequest, fit: NodeFit) -> list[tuple[Any, Any]]:
    (assignment,) = fit.assignments
    pairs = zip(request.containers, assignment.containers, strict=True)
    return [(asked.requests[0], held.shares) for asked, held in pairs if asked.requests]


@EACH
@FEW
@given(data=st.data())
def test_the_order_of_devices_does_not_matter(vendor: Vendor, data: st.DataObject) -> None:
    state, request = data.draw(clusters(vendor)), data.draw(requests(vendor))
    for node in state.nodes():
        states = list(state.devices(node))
        once = fit_node(states, request)
        data.draw(st.randoms(use_true_random=False)).shuffle(states)
        again = fit_node(states, request)
        assert isinstance(once, NodeFit) == isinstance(again, NodeFit)
        if isinstance(once, NodeFit):
            assert once == again
        elif isinstance(again, Misfit):
            assert once.text == again.text


@EACH
@FEW
@given(data=st.data())
def test_a_device_that_is_freed_never_turns_a_fit_into_a_misfit(vendor: Vendor, data: st.DataObject) -> None:
    state, request = data.draw(clusters(vendor)), data.draw(requests(vendor))
    single = dataclasses.replace(request, containers=request.containers[-1:])
    for node in state.nodes():
        states = list(state.devices(node))
        if isinstance(fit_node(states, single), NodeFit):
            freed = data.draw(st.sampled_from(range(len(states))))
            states[freed] = DeviceState(device=states[freed].device, vendor=vendor.name, cordoned=states[freed].cordoned)
            assert isinstance(fit_node(states, single), NodeFit)


@EACH
@FEW
@given(data=st.data())
def test_release_restores(vendor: Vendor, data: st.DataObject) -> None:
    state, request = data.draw(clusters(vendor)), data.draw(requests(vendor))
    before = {node: state.devices(node) for node in state.nodes()}
    placed = state.judge(request, NODES, uid="asking")
    if isinstance(placed, Placement):
        state.reserve(a_ref("asking", uid="asking"), placed, now=0.0)
        state.validate()
        state.release("asking")
    state.validate()
    assert {node: state.devices(node) for node in state.nodes()} == before


@EACH
@FEW
@given(data=st.data(), ranked=st.booleans())
def test_the_columns_answer_what_the_one_node_function_answers(vendor: Vendor, data: st.DataObject, ranked: bool) -> None:
    state, request = data.draw(clusters(vendor)), data.draw(requests(vendor))
    fitting, failed = _specified(state, request)
    answer = state.judge(request, NODES, uid="asking", ranked=ranked)
    assert {**answer.failed, **answer.unresolvable} == failed
    assert isinstance(answer, Placement) == bool(fitting)
    if isinstance(answer, Placement):
        sign = 1 if request.node_policy == "spread" else -1
        order = sorted(fitting, key=lambda name: (sign * fitting[name], name))
        assert answer.node == order[0]
        assert answer.score == fitting[answer.node]
        assert answer.fitting == (tuple((name, fitting[name]) for name in order) if ranked else ())


def _specified(state: ClusterState, request: PodRequest) -> tuple[dict[str, float], dict[str, str]]:
    fitting, failed = {}, {}
    for name in NODES:
        number = state.number(name)
        if number is None:
            failed[name] = str(Reason.UNREGISTERED)
            continue
        judged = state.fit(number, request)
        if isinstance(judged, Misfit):
            failed[name] = str(judged.text)
        else:
            fitting[name] = node_score(state.devices(name)) + (-judged.bonus if request.node_policy == "spread" else judged.bonus)
    return fitting, failed


def test_every_vendor_is_told_apart() -> None:
    for name in ("name", "device_type", "count_resource", "register_key", "allocated_key"):
        found = [getattr(vendor, name) for vendor in CATALOG.vendors]
        assert len(set(found)) == len(found), name
