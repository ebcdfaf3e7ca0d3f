"""The columns answer what the one-node function answers, for every cluster, policy and request."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from hami_devices.model import PodRequest, Reason
from hami_devices.reasons import Misfit
from hami_devices.scores import node_score
from hami_scheduler.placement import ClusterState, Placement
from tests.unit.placement.clusters import NODES, clusters, crowded_clusters, crowding_requests, requests

CANDIDATES = (*NODES, "never-seen")


def specified(
    state: ClusterState, request: PodRequest, candidates: tuple[str, ...] = CANDIDATES
) -> tuple[dict[str, float], dict[str, str], dict[str, str]]:
    """Node by node: who fits, with its score; who does not, and who never will."""
    fitting, failed, unresolvable = {}, {}, {}
    for name in candidates:
        number = state.number(name)
        if number is None:
            unresolvable[name] = str(Reason.UNREGISTERED)
            continue
        judged = state.fit(number, request)
        if isinstance(judged, Misfit):
            (unresolvable if judged.unresolvable else failed)[name] = judged.text
        else:
            fitting[name] = node_score(state.devices(name))
    return fitting, failed, unresolvable


@settings(max_examples=5 * settings.default.max_examples)
@given(crowded_clusters(), crowding_requests())
def test_containers_that_compete_for_devices_get_the_same_answer(state: ClusterState, request: PodRequest) -> None:
    fitting, failed, unresolvable = specified(state, request)
    answer = state.judge(request, CANDIDATES, uid="asking")
    assert (answer.failed, answer.unresolvable) == (failed, unresolvable)
    assert isinstance(answer, Placement) == bool(fitting)


@settings(max_examples=3 * settings.default.max_examples)
@given(clusters(), requests(), st.booleans())
def test_the_columns_answer_what_the_specification_answers(state: ClusterState, request: PodRequest, ranked: bool) -> None:
    fitting, failed, unresolvable = specified(state, request)
    answer = state.judge(request, CANDIDATES, uid="asking", ranked=ranked)
    assert (answer.failed, answer.unresolvable) == (failed, unresolvable)
    assert isinstance(answer, Placement) == bool(fitting)
    if isinstance(answer, Placement):
        sign = 1 if request.node_policy == "spread" else -1
        order = sorted(fitting, key=lambda name: (sign * fitting[name], name))
        assert answer.node == order[0]
        assert answer.fitting_count == len(fitting)
        assert answer.fitting == (tuple((name, fitting[name]) for name in order) if ranked else ())
        assert answer.score == fitting[answer.node]
    else:
        assert sum(answer.reasons.values()) == len(CANDIDATES)


@given(clusters(), requests(), st.lists(st.sampled_from(CANDIDATES)))
def test_judging_a_few_nodes_answers_what_judging_all_answers_of_them(state: ClusterState, request: PodRequest, few: list[str]) -> None:
    whole = state.judge(request, CANDIDATES, uid="asking")
    part = state.judge(request, few, uid="asking")
    said = {**whole.failed, **whole.unresolvable}
    assert {**part.failed, **part.unresolvable} == {name: text for name, text in said.items() if name in few}


@given(clusters(), requests(), st.randoms(use_true_random=False))
def test_the_order_of_candidates_does_not_matter(state: ClusterState, request: PodRequest, rng: random.Random) -> None:
    once = state.judge(request, CANDIDATES, uid="asking")
    shuffled = list(CANDIDATES)
    rng.shuffle(shuffled)
    assert state.judge(request, shuffled, uid="asking") == once


@given(clusters(), requests())
def test_judging_changes_nothing(state: ClusterState, request: PodRequest) -> None:
    before = {name: state.devices(name) for name in NODES}
    state.judge(request, CANDIDATES, uid="uid-0")
    state.explain(request, uid="uid-0")
    assert {name: state.devices(name) for name in NODES} == before
    state.validate()
