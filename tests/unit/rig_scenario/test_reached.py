"""Where a scenario's pod has to be, and what counts as being there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from hami_protocol.kubernetes import Pod
from hami_rig import scenario
from hami_rig.scenario import ScenarioError


def a_pod(expect: str, phase: str, *conditions: dict[str, str], **annotations: str) -> Pod:
    metadata: dict[str, Any] = {"name": "p", "annotations": {"rig.hami.io/expect": expect, **annotations}}
    return msgspec.convert({"metadata": metadata, "status": {"phase": phase, "conditions": list(conditions)}}, Pod)


READY = {"type": "Ready", "status": "True"}
REFUSED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
ERROR = {"type": "PodScheduled", "status": "False", "reason": "SchedulerError"}


@pytest.mark.parametrize(
    ("pod", "reached"),
    [
        (a_pod("running", "Running", READY), True),
        (a_pod("running", "Running"), False),
        (a_pod("running", "Running", READY, **{"hami.io/bind-phase": "allocating"}), False),
        (a_pod("running", "Running", READY, **{"hami.io/bind-phase": "success"}), True),
        (a_pod("pending", "Pending", REFUSED), True),
        (a_pod("pending", "Pending"), False),
        (a_pod("pending", "Pending", ERROR), False),
        (a_pod("succeeded", "Succeeded"), True),
        (a_pod("failed", "Running", READY), False),
    ],
)
def test_a_pod_is_where_it_should_be_only_when_it_is_there_for_good(pod: Pod, reached: bool) -> None:
    assert scenario.reached(pod) is reached


def test_an_expectation_that_nobody_knows_is_refused_with_what_is_accepted() -> None:
    with pytest.raises(ScenarioError, match=r"'gone' is not accepted; accepted: running, pending"):
        scenario.reached(a_pod("gone", "Running"))


def test_a_refused_pods_detail_is_the_schedulers_sentence() -> None:
    assert scenario.outcome(a_pod("pending", "Pending", REFUSED)).detail == "0/1 nodes"


def test_a_running_pods_detail_is_what_its_vendor_wrote_on_it() -> None:
    pod = a_pod(
        "running",
        "Running",
        READY,
        **{
            "CAMBRICON_DSMLU_PROFILE": "0_1_1000",
            "hami.io/cambricon-mlu-devices-allocated": "mlu-0,MLU,256000,1:;",
            "hami.io/cambricon-mlu-devices-to-allocate": ";",
            "hami.io/bind-phase": "success",
        },
    )
    told = "CAMBRICON_DSMLU_PROFILE: 0_1_1000\nhami.io/cambricon-mlu-devices-allocated: mlu-0,MLU,256000,1:;"
    assert scenario.outcome(pod).detail == told


def test_manifests_are_taken_in_order_and_the_profile_is_none(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="has no manifests"):
        scenario.manifests(tmp_path)
    for name in ("b.yaml", "a.json", "profile.yaml", "README.md"):
        (tmp_path / name).touch()
    assert [path.name for path in scenario.manifests(tmp_path)] == ["a.json", "b.yaml"]
