"""What kubelet lets in: seen on a real one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hami_protocol import kubernetes as k
from hami_rig.kubelet import admission
from hami_rig.scheduler.objects import SchedulingPod


def a_pod(**limits: str) -> SchedulingPod:
    return msgspec.convert(
        {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]}}, SchedulingPod
    )


def a_node(spec: dict[str, Any] | None = None, **listed: str) -> k.Node:
    status = {"allocatable": {"cpu": "2", "memory": "1Gi", "pods": "1", **listed}}
    return msgspec.convert({"metadata": {"name": "n"}, "spec": spec or {}, "status": status}, k.Node)


@pytest.mark.parametrize(
    ("limits", "listed", "reason"),
    [
        ({"nvidia.com/gpumem": "3000"}, {}, None),
        ({"nvidia.com/gpu": "1"}, {}, None),
        ({"nvidia.com/gpu": "1"}, {"nvidia.com/gpu": "0"}, "OutOfnvidia.com/gpu"),
        ({"nvidia.com/gpu": "1"}, {"nvidia.com/gpu": "10"}, None),
        ({"cpu": "3"}, {}, "OutOfcpu"),
    ],
)
def test_only_what_the_node_lists_is_counted(limits: dict[str, str], listed: dict[str, str], reason: str | None) -> None:
    rejection = admission.out_of(a_pod(**limits), a_node(**listed), ())
    assert (rejection.reason if rejection else None) == reason


def test_pods_that_are_there_count_and_a_cordon_does_not() -> None:
    rejection = admission.out_of(a_pod(), a_node(), (a_pod(),))
    assert rejection is not None
    assert rejection.reason == "OutOfpods"
    assert admission.out_of(a_pod(), a_node({"unschedulable": True}), ()) is None
