"""What the doctor finds of workloads and pods."""

from __future__ import annotations

from typing import Any

import pytest

from hami_cli import component_checks, service_checks
from hami_cli.checks import Check, Outcome, agents
from hami_cli.installation import Object
from hami_protocol.inventory import DeviceGroup, Inventory, InventoryNode
from hami_runtime.kube.calls import OWN_CERTIFICATE
from tests.builders import a_device

LABELS = {"app.kubernetes.io/component": "registry"}


def a_pod(*, ready: bool = True, phase: str = "Running", **metadata: Any) -> Object:
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off 40s"}
    status = {
        "name": "registry",
        "ready": False,
        "state": {"waiting": waiting},
        "lastState": {"terminated": {"exitCode": 1, "reason": "Error"}},
    }
    conditions = [{"type": "Ready", "status": str(ready)}]
    body = {"phase": phase, "conditions": conditions, "containerStatuses": [] if ready else [status]}
    return {"metadata": {"name": "hami-registry-1", "namespace": "hami-system", "labels": LABELS, **metadata}, "status": body}


def a_workload(kind: str = "Deployment", image: str = "registry.k8s.io/kube-scheduler:v1.34.2", **status: Any) -> Object:
    template = {"spec": {"containers": [{"name": "kube-scheduler", "image": image}]}}
    metadata = {"name": "hami-registry", "namespace": "hami-system"}
    spec = {"selector": {"matchLabels": LABELS}, "template": template}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": spec, "status": status}


def outcomes(found: list[Check]) -> dict[str, Outcome]:
    return {each.what: each.outcome for each in found}


def test_pods_that_crash_are_named_with_their_reason() -> None:
    (check,) = component_checks.pods([a_workload()], [a_pod(ready=False)], [])
    assert (check.what, check.outcome) == ("pod hami-registry-1", Outcome.FAILED)
    assert check.detail == "container registry: CrashLoopBackOff: back-off 40s; last ended with exit code 1 (Error)"
    assert "logs hami-registry-1 --previous" in check.remedy


def test_a_workload_without_a_pod_is_named_with_who_refuses_it() -> None:
    event = {
        "type": "Warning",
        "reason": "FailedCreate",
        "message": "exceeded quota: q",
        "metadata": {},
        "involvedObject": {"kind": "ReplicaSet", "name": "hami-registry-5f"},
    }
    (check,) = component_checks.pods([a_workload()], [], [event])
    assert (check.what, check.detail) == ("Deployment hami-system/hami-registry", "exceeded quota: q")
    assert not list(component_checks.pods([a_workload("DaemonSet", desiredNumberScheduled=0)], [], []))


def test_pods_that_are_over_are_no_failure_and_a_rig_has_none() -> None:
    going = a_pod(ready=False, deletionTimestamp="2026-01-01T00:00:00Z")
    done = a_pod(ready=False, phase="Failed")
    assert outcomes(list(component_checks.pods([a_workload()], [a_pod(), going, done], []))) == {"pods": Outcome.OK}
    assert not list(component_checks.pods([], [], []))


@pytest.mark.parametrize(
    ("scheduler", "server", "outcome"),
    [
        ("v1.34.2", "v1.34.9+k3s1", Outcome.OK),
        ("v1.33.0", "v1.34.2-gke.1", Outcome.OK),
        ("v1.34.2", "v1.37.2", Outcome.WARNING),
        ("v1.34.2", "v1.33.0", Outcome.WARNING),
    ],
)
def test_kube_scheduler_is_at_most_one_version_older_than_the_api_server(scheduler: str, server: str, outcome: Outcome) -> None:
    image = f"registry.example:5000/kube-scheduler:{scheduler}"
    assert outcomes(list(component_checks.kube_scheduler([a_workload(image=image)], server))) == {"kube-scheduler version": outcome}


def test_an_image_by_digest_says_nothing_of_its_version() -> None:
    assert not list(component_checks.kube_scheduler([a_workload(image="kube-scheduler@sha256:00")], "v1.34.2"))


def test_an_agent_whose_record_is_empty_registers_nothing() -> None:
    def node(name: str, *, count: int) -> InventoryNode:
        devices = tuple(a_device(f"GPU-{name}-{number}") for number in range(count))
        return InventoryNode(name=name, device_groups=(DeviceGroup(device_type="nvidia", alive=True, since="", devices=devices),))

    inventory = Inventory(time="", nodes=(node("full", count=1), node("empty", count=0)))
    found = {each.what: each for each in agents(inventory, ["full", "empty"])}
    assert "its record is empty" in found["agent on empty"].detail
    assert found["agents"].detail == "1 of 2 nodes register devices"
    alone = {each.what: each.outcome for each in agents(Inventory(time="", nodes=(node("empty", count=0),)), ["empty"])}
    assert alone == {"agent on empty": Outcome.FAILED, "agents": Outcome.FAILED}


def test_where_cert_manager_issues_the_webhooks_certificate_no_rights_to_it_are_demanded() -> None:
    injected = {"metadata": {"name": "vgpu.hami.io", "annotations": {service_checks.INJECT: "hami-system/hami-webhook"}}}
    others = {"metadata": {"name": "other.example.com", "annotations": {service_checks.INJECT: "x/y"}}}
    assert not service_checks.own_certificate([others, injected])
    assert service_checks.own_certificate([others, {"metadata": {"name": "vgpu.hami.io"}}])
    demanded = service_checks.needed("hami-webhook", "hami-system", own_certificate=False)
    assert {access.resource for access in demanded} == {"pods", "resourcequotas"}
    assert len(service_checks.needed("hami-webhook", "hami-system")) == len(demanded) + sum(
        max(1, len(call.names)) for call in OWN_CERTIFICATE
    )
