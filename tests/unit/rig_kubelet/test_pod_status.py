"""Phase, conditions and container states follow from what the containers do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from hami_protocol import kubernetes as k
from hami_protocol.devices import ContainerKind
from hami_rig.kubelet import status
from hami_rig.kubelet.status import ContainerLife

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
POD = msgspec.convert(
    {
        "metadata": {"name": "p"},
        "status": {
            "phase": "Pending",
            "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
                {"type": "example.com/theirs", "status": "True", "reason": "Mine", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            ],
        },
    },
    k.Pod,
)


def a_life(kind: ContainerKind = ContainerKind.APP, **what: Any) -> ContainerLife:
    return ContainerLife(container=k.Container(name=f"{kind}", image="busybox"), kind=kind, **what)


RUNNING: dict[str, Any] = {"running": True, "started_at": NOW, "waiting": ""}
DONE: dict[str, Any] = {"over": True, "exit_code": 0, "started_at": NOW, "finished_at": NOW + timedelta(seconds=1)}
FAILED = {**DONE, "exit_code": 3}
INIT, SIDECAR, APP = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP


@pytest.mark.parametrize(
    ("lives", "phase"),
    [
        ([a_life()], "Pending"),
        ([a_life(INIT, **RUNNING), a_life()], "Pending"),
        ([a_life(INIT, **DONE), a_life(**RUNNING)], "Running"),
        ([a_life(INIT, **FAILED), a_life()], "Failed"),
        ([a_life(SIDECAR, **RUNNING), a_life()], "Pending"),
        ([a_life(SIDECAR, **RUNNING), a_life(**DONE)], "Succeeded"),
        ([a_life(**DONE), a_life(**RUNNING)], "Running"),
        ([a_life(**DONE), a_life(**FAILED)], "Failed"),
        ([a_life(exit_code=1, waiting="CrashLoopBackOff", started_at=NOW)], "Running"),
    ],
)
def test_the_phase_follows_from_the_containers(lives: list[ContainerLife], phase: str) -> None:
    assert status.phase(lives) == phase


def test_others_conditions_are_kept_and_times_move_only_with_the_status() -> None:
    report = status.report(POD, [a_life(**RUNNING)], now=NOW, host_ip="127.0.0.1", pod_ip="127.0.0.1")
    by_type = {each["type"]: each for each in report["conditions"]}
    assert by_type["PodScheduled"]["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    assert by_type["example.com/theirs"]["reason"] == "Mine"
    assert by_type["Ready"] == {"type": "Ready", "status": "True", "lastProbeTime": None, "lastTransitionTime": "2026-01-02T03:04:05Z"}


def test_a_crashing_container_shows_why_it_waits_and_how_it_ended_last() -> None:
    life = a_life(exit_code=3, waiting="CrashLoopBackOff", waiting_message="back-off", started_at=NOW, finished_at=NOW, restarts=2)
    shown = status.container_status(life)
    assert shown["state"] == {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}
    assert shown["lastState"]["terminated"]["exitCode"] == 3
    assert (shown["restartCount"], shown["ready"]) == (2, False)


def test_a_rejected_pod_is_failed_with_kubelets_reason() -> None:
    report = status.rejected(POD, "UnexpectedAdmissionError", "Pod was rejected: x", now=NOW)
    assert (report["phase"], report["reason"]) == ("Failed", "UnexpectedAdmissionError")
