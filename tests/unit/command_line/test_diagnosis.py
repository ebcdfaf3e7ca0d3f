"""From a sign to its cause, its remedy and the next command; the signs are those of Kubernetes' and our own messages."""

from __future__ import annotations

import shlex
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_cli.diagnose import text
from hami_cli.diagnosis import Evidence, diagnose
from hami_devices.model import Reason
from hami_protocol import keys
from hami_protocol.events import NodeShortfall, PodRefused
from hami_protocol.kubernetes import Condition, ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodStatus
from hami_protocol.pods import pod_ref
from tests.builders import a_pod, a_request


def with_status(pod: Pod, **status: Any) -> Pod:
    return Pod(metadata=pod.metadata, spec=pod.spec, status=PodStatus(**status))


def unscheduled(message: str) -> Evidence:
    condition = Condition(type="PodScheduled", status="False", reason="Unschedulable", message=message)
    return Evidence(namespace="default", name="p1", pod=with_status(a_pod("p1"), phase="Pending", conditions=(condition,)))


def waiting(reason: str, message: str) -> Evidence:
    status = ContainerStatus(name="main", state=ContainerState(waiting={"reason": reason, "message": message}))
    pod = with_status(a_pod("p1", node_name="n1"), phase="Pending", container_statuses=(status,))
    return Evidence(namespace="default", name="p1", pod=pod)


def an_event(pod: Pod, reason: str, message: str, time: str = "2026-01-01T00:00:00Z") -> dict[str, Any]:
    involved = {"kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid}
    return {"type": "Warning", "reason": reason, "message": message, "lastTimestamp": time, "involvedObject": involved}


def causes(evidence: Evidence) -> list[str]:
    return [finding.cause for finding in diagnose(evidence).findings]


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("0/3 nodes are available: 3 Insufficient cpu.", "too little CPU, memory or devices"),
        ("0/3 nodes are available: 1 Insufficient memory.", "too little CPU, memory or devices"),
        ("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.", "too little CPU, memory or devices"),
        ("0/1 nodes are available: 1 node(s) had untolerated taint {dedicated: gpu}.", "taints"),
        ("0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.", "selector or affinity"),
        ('persistentvolumeclaim "data" not found', "does not exist"),
        ("0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.", "not bound"),
        ("0/3 nodes are available: 3 2/2 CardInsufficientMemory.", "so much memory free"),
        ("0/3 nodes are available: 3 node(s) were unschedulable.", "cordoned"),
        ("extender call failed: connection refused", "kube-scheduler could not place"),
    ],
)
def test_what_keeps_a_pod_from_being_placed(message: str, cause: str) -> None:
    (finding,) = diagnose(unscheduled(message)).findings
    assert cause in finding.cause
    assert finding.object == "pod/default/p1"
    assert (finding.read_from, finding.text) == ("condition PodScheduled", message)
    assert finding.remedy
    assert finding.next_command


def test_one_message_that_names_several_causes_gives_them_all() -> None:
    found = causes(unscheduled("0/9 nodes are available: 4 Insufficient cpu, 5 node(s) had untolerated taint {a: b}."))
    assert len(found) == 2


@pytest.mark.parametrize("reason", Reason, ids=str)
def test_every_refusal_of_our_own_has_a_cause_of_its_own(reason: Reason) -> None:
    (cause,) = causes(unscheduled(f"0/1 nodes are available: 1 1/1 {reason}."))
    assert cause != "kube-scheduler could not place the pod"


def test_the_verdict_says_what_would_fit() -> None:
    pod = with_status(a_pod("p1", gpu=1, mem=99999), phase="Pending")
    nearest = (NodeShortfall(node="n1", reason="1/1 CardInsufficientMemory", detail="largest free 24576; would fit: 24576 MiB or less"),)
    reasons = {"1/1 CardInsufficientMemory": 1}
    refusal = PodRefused(pod=pod_ref(pod), summary="0/1 nodes fit", node_count=1, reasons=reasons, nearest=nearest)
    (finding,) = diagnose(Evidence(namespace="default", name="p1", pod=pod, refusal=refusal)).findings
    assert "would fit: 24576 MiB or less" in finding.text
    assert finding.next_command == "hami explain p1 -n default"


def test_what_kept_it_back_earlier_is_not_found_again() -> None:
    evidence = unscheduled("0/1 nodes are available: 1 1/1 CardInsufficientMemory.")
    assert evidence.pod is not None
    older = an_event(evidence.pod, "FailedScheduling", "0/1 nodes are available: 1 1/1 CardCordoned.")
    both = Evidence(namespace="default", name="p1", pod=evidence.pod, events=(older,))
    assert causes(both) == ["no card has so much memory free"]
    placed = with_status(a_pod("p1", node_name="n1"), phase="Running")
    assert not causes(Evidence(namespace="default", name="p1", pod=placed, events=(an_event(placed, "FailedScheduling", "0/1"),)))


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("manifest unknown", "no such image"),
        ('failed to resolve reference "x/y:z": x/y:z: not found', "no such image"),
        ('failed to resolve reference "127.0.0.1:40157/x:1": not found', "no such image"),
        ("unauthorized: authentication required", "does not let the node pull"),
        ("pull access denied, repository does not exist or may require authorization", "does not let the node pull"),
        ("dial tcp 10.0.0.1:443: connect: connection refused", "does not reach the registry"),
        ("dial tcp: lookup registry.internal: no such host", "does not reach the registry"),
        ("x509: certificate signed by unknown authority", "certificate is not trusted"),
        ("429 Too Many Requests: toomanyrequests: You have reached your pull rate limit", "limits how often"),
        ("unexpected status from HEAD request to https://r/v2/x/manifests/1: 429 Too Many Requests", "limits how often"),
        ('Head "https://127.0.0.1:48429/v2/x/manifests/1": dial tcp 127.0.0.1:48429: connect: connection refused', "does not reach"),
        ("no match for platform in manifest: not found", "another platform"),
        ("something else", "cannot be pulled"),
    ],
)
@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff"])
def test_why_an_image_is_not_pulled(reason: str, message: str, cause: str) -> None:
    (finding,) = diagnose(waiting(reason, message)).findings
    assert cause in finding.cause
    assert finding.object == "pod/default/p1/main"


def test_the_particular_cause_is_found_in_the_events_where_the_state_says_nothing_particular() -> None:
    evidence = waiting("ImagePullBackOff", 'Back-off pulling image "x"')
    assert evidence.pod is not None
    event = an_event(evidence.pod, "Failed", 'Failed to pull image "x": unauthorized')
    (finding,) = diagnose(Evidence(namespace="default", name="p1", pod=evidence.pod, events=(event,))).findings
    assert "does not let the node pull" in finding.cause


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        (
            'admission webhook "vgpu.hami.io" denied the request: spec.containers[0].resources.limits[nvidia.com/gpu]: -1',
            "request for devices",
        ),
        ("exceeded quota: small, requested: limits.nvidia.com/gpu=1", "quota"),
        ('failed calling webhook "vgpu.hami.io": no endpoints available', "does not answer"),
        ('pods "x" is forbidden: violates PodSecurity "restricted"', "admission refused"),
    ],
)
def test_why_a_pod_never_came_to_be_is_in_its_controllers_events(message: str, cause: str) -> None:
    involved = {"kind": "ReplicaSet", "name": "web-5d", "uid": "r"}
    event = {"type": "Warning", "reason": "FailedCreate", "message": message, "involvedObject": involved}
    (finding,) = diagnose(Evidence(namespace="default", name="web-5d-xyz", pod=None, events=(event,))).findings
    assert cause in finding.cause
    assert finding.object == "replicaset/default/web-5d"


@pytest.mark.parametrize(
    ("reason", "message", "cause"),
    [
        ("FailedCreatePodSandBox", "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network", "sandbox"),
        ("Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 503", "a probe"),
        ("FailedMount", 'MountVolume.SetUp failed for volume "v" : configmap "never-was" not found', "mounted"),
    ],
)
def test_what_kubelet_says_of_a_pod_that_does_not_start(reason: str, message: str, cause: str) -> None:
    pod = a_pod(node_name="n1")
    event = {"type": "Warning", "reason": reason, "message": message, "involvedObject": {"uid": pod.metadata.uid}}
    (finding,) = diagnose(Evidence(namespace="default", name="p1", pod=pod, events=(event,))).findings
    assert cause in finding.cause
    assert finding.read_from == f"event {reason}"


@pytest.mark.parametrize(
    ("status", "annotations", "cause"),
    [
        (
            {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Allocate failed due to no grant"},
            {},
            "hand the devices out",
        ),
        ({"phase": "Failed"}, {keys.BIND_PHASE: "failed"}, "never handed out"),
        ({"phase": "Failed", "reason": "Evicted", "message": "node was low on memory"}, {}, "evicted"),
    ],
)
def test_what_went_wrong_on_the_node(status: dict[str, Any], annotations: dict[str, str], cause: str) -> None:
    pod = with_status(a_pod("p1", node_name="n1", annotations=annotations), **status)
    assert any(cause in found for found in causes(Evidence(namespace="default", name="p1", pod=pod)))


@pytest.mark.parametrize(
    ("ended", "cause"),
    [
        (ContainerStateTerminated(exit_code=137, reason="OOMKilled"), "killed"),
        (ContainerStateTerminated(exit_code=1), "ends with an error"),
        (ContainerStateTerminated(exit_code=128, reason="StartError"), "cannot be started"),
        (ContainerStateTerminated(exit_code=127, reason="ContainerCannotRun"), "cannot be started"),
    ],
)
def test_a_container_that_ended_badly_is_named(ended: ContainerStateTerminated, cause: str) -> None:
    again = ContainerState(waiting={"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"})
    status = ContainerStatus(name="main", state=again, last_state=ContainerState(terminated=ended))
    pod = with_status(a_pod("p1", node_name="n1"), phase="Running", container_statuses=(status,))
    (finding,) = diagnose(Evidence(namespace="default", name="p1", pod=pod)).findings
    assert cause in finding.cause
    assert finding.object == "pod/default/p1/main"


def test_a_pod_that_runs_has_nothing_wrong_with_it() -> None:
    pod = with_status(a_pod("p1", node_name="n1"), phase="Running", conditions=(Condition(type="PodScheduled", status="True"),))
    found = diagnose(Evidence(namespace="default", name="p1", pod=pod))
    assert found.findings == ()
    assert "nothing is wrong" in text(found)


@given(st.text(max_size=200), st.text(max_size=40), st.text(max_size=40))
def test_no_text_of_a_tenant_breaks_the_diagnosis_or_the_command_or_steers_the_terminal(message: str, reason: str, name: str) -> None:
    condition = Condition(type="PodScheduled", status="False", message=message)
    pod = with_status(a_pod("p1"), phase="Pending", conditions=(condition,), reason=reason, message=message)
    found = diagnose(Evidence(namespace="default", name=name, pod=pod, events=(an_event(pod, reason, message),)))
    for finding in found.findings:
        assert set(shlex.split(finding.next_command)) & {"hami", "kubectl"}
        assert "{" not in finding.next_command.replace(shlex.quote(name), "").replace("'{.", "")
    assert "\x1b" not in text(found)


@pytest.mark.parametrize("of_pod", [True, False])
def test_a_share_without_a_seccomp_profile_is_warned_of(of_pod: bool) -> None:
    context = {"seccompProfile": {"type": "Unconfined"}}
    container = {"name": "main", **({} if of_pod else {"securityContext": context})}
    spec = {"nodeName": "n1", "containers": [container], **({"securityContext": context} if of_pod else {})}
    pod = msgspec.convert({"metadata": {"name": "p1", "namespace": "default"}, "spec": spec}, Pod)
    (finding,) = diagnose(Evidence(namespace="default", name="p1", pod=pod, request=a_request(memory_mib=100))).findings
    assert "without a seccomp profile" in finding.cause
    assert not diagnose(Evidence(namespace="default", name="p1", pod=pod)).findings
