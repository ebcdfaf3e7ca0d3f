"""Why pods are not ready, from what the API server has of them."""

from __future__ import annotations

from typing import Any

import pytest

from hami_cli import readiness
from hami_cli.installation import Object, Ref

EVENTS: list[Object] = [
    {
        "type": "Warning",
        "reason": reason,
        "message": message,
        "lastTimestamp": f"2026-01-01T00:00:0{second}Z",
        "metadata": {},
        "involvedObject": {"kind": kind, "name": name, "uid": uid},
    }
    for second, (reason, message, kind, name, uid) in enumerate(
        [
            ("FailedMount", "an older one", "Pod", "p", "u"),
            ("FailedMount", 'MountVolume.SetUp failed: secret "hami-auth-callout" not found', "Pod", "p", "u"),
            ("BackOff", "of another pod", "Pod", "other", "v"),
            ("ProvisioningFailed", 'storageclass "none" not found', "PersistentVolumeClaim", "data-hami-nats-0", "c"),
            ("FailedCreate", 'pods "w-1" is forbidden: violates PodSecurity "restricted:latest"', "ReplicaSet", "w-5d8f", "r"),
        ]
    )
]


def a_pod(phase: str = "Pending", *, ready: bool = False, **status: Any) -> Object:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}, *status.pop("conditions", ())]
    return {"metadata": {"name": "p", "uid": "u"}, "status": {"phase": phase, "conditions": conditions, **status}}


def waiting(reason: str, message: str = "", **more: Any) -> Object:
    return {"name": "registry", "ready": False, "state": {"waiting": {"reason": reason, "message": message}}, **more}


LAST = {"lastState": {"terminated": {"exitCode": 1, "reason": "Error", "message": "Traceback\n  File\nNo usable temporary directory\n"}}}
NO_VOLUME = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims"
REASONS: dict[str, tuple[Object, str]] = {
    "not scheduled": (
        a_pod(conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NO_VOLUME}]),
        f"not scheduled: {NO_VOLUME}",
    ),
    "an image that is not there": (
        a_pod(containerStatuses=[waiting("ImagePullBackOff", 'Back-off pulling image "hami/registry:0.1.0"')]),
        'container registry: ImagePullBackOff: Back-off pulling image "hami/registry:0.1.0"',
    ),
    "crashes": (
        a_pod("Running", containerStatuses=[waiting("CrashLoopBackOff", "back-off 40s", **LAST)]),
        "container registry: CrashLoopBackOff: back-off 40s; last ended with exit code 1 (Error): No usable temporary directory",
    ),
    "waits for a Secret": (
        a_pod(containerStatuses=[waiting("ContainerCreating")]),
        'container registry: ContainerCreating; FailedMount: MountVolume.SetUp failed: secret "hami-auth-callout" not found',
    ),
    "an init container fails": (
        a_pod(
            initContainerStatuses=[{"name": "install-shim", "state": {"terminated": {"exitCode": 2, "reason": "Error", "message": ""}}}],
            containerStatuses=[waiting("PodInitializing")],
        ),
        "container install-shim: last ended with exit code 2 (Error); container registry: PodInitializing",
    ),
    "runs and is not ready": (
        a_pod("Running", containerStatuses=[{"name": "agent", "ready": False, "started": True, "state": {"running": {}}}])
        | {"metadata": {"name": "q", "uid": "none"}},
        "container agent: it runs and is not ready",
    ),
    "failed for good": (a_pod("Failed", reason="Evicted", message="The node was low on memory."), "Evicted: The node was low on memory."),
    "nothing is known": ({"metadata": {"name": "p"}, "status": {"phase": "Pending"}}, "phase Pending"),
}


@pytest.mark.parametrize("name", REASONS)
def test_a_pod_that_is_not_ready_has_its_reason(name: str) -> None:
    pod, reason = REASONS[name]
    assert readiness.why(pod, EVENTS) == reason


def test_ready_and_finished_pods_are_left_out() -> None:
    pods = [a_pod("Running", ready=True), a_pod("Succeeded"), a_pod() | {"metadata": {"name": "slow"}}]
    assert list(readiness.pods_not_ready(pods, [])) == ["slow"]


def test_a_workload_whose_pods_are_refused_says_who_refuses_them() -> None:
    of = Ref("apps", "Deployment", "n", "w")
    assert "violates PodSecurity" in readiness.workload(of, {"status": {}}, EVENTS)
    assert readiness.workload(Ref("apps", "Deployment", "n", "v"), {"status": {}}, EVENTS) == ""
    assert readiness.workload(of, None, EVENTS) == "it does not exist"
    condition = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}
    assert readiness.workload(of, {"status": {"conditions": [condition]}}, []) == "exceeded quota"


def test_a_claim_that_is_not_bound_has_its_reason() -> None:
    claims = [
        {"metadata": {"name": "data-hami-nats-0", "uid": "c"}, "status": {"phase": "Pending"}},
        {"metadata": {"name": "data-hami-nats-1", "uid": "d"}, "status": {"phase": "Bound"}},
    ]
    assert readiness.claims_not_bound(claims, EVENTS) == {"data-hami-nats-0": 'not bound: storageclass "none" not found'}


def test_long_messages_are_cut() -> None:
    assert len(readiness.why(a_pod(containerStatuses=[waiting("ErrImagePull", "x" * 5000)]), [])) < 400
