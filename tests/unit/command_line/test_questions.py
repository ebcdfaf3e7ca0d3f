"""What simulate asks, which card is cordoned, how a pod's way is told, and what doctor judges."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from hami_cli import checks, trace
from hami_cli.checks import Outcome
from hami_cli.cordon import node_of, with_card, without_card
from hami_cli.exits import CommandError
from hami_cli.manifests import ManifestError, pods
from hami_cli.profiles import USUAL, ProfileError, parse
from hami_cli.timeline import timeline
from hami_protocol import keys
from hami_protocol.envelope import Message, seal
from hami_protocol.events import AllocationSucceeded, PodAllocating, PodAssigned
from hami_protocol.inventory import DeviceGroup, Inventory, InventoryNode
from hami_rig.scheduler import configuration
from hami_webhook.certificates import issue
from tests.builders import a_device, a_pod, a_ref
from tests.unit.command_line.clusters import CATALOG, TIME, a_gpu_node

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TRUST = issue(["webhook"], NOW).authorities
POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1}}}]}\n"


def a_workload(kind: str, field: str, count: object) -> str:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c"}]}}
    document = {"kind": kind, "metadata": {"name": "w", "namespace": "team"}, "spec": {field: count, "template": template}}
    return msgspec.yaml.encode(document).decode()


def test_pods_are_found_in_documents_and_lists() -> None:
    listed = msgspec.yaml.encode({"kind": "List", "items": [msgspec.yaml.decode(POD), {"kind": "Service"}]}).decode()
    assert [pod.metadata.name for pod in pods(f"{POD}---\n---\n{listed}", name="f")] == ["p", "p"]


@pytest.mark.parametrize(("kind", "field"), [("Deployment", "replicas"), ("StatefulSet", "replicas"), ("Job", "parallelism")])
def test_a_workload_is_the_pods_that_its_controller_would_make(kind: str, field: str) -> None:
    found = pods(a_workload(kind, field, 3), name="f")
    assert [(pod.metadata.namespace, pod.metadata.name) for pod in found] == [("team", f"w-{number}") for number in range(3)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: Service\n", "no pod in it"),
        ("[1, 2", "no YAML"),
        ("kind: Pod\nmetadata: 5\n", "metadata"),
        ("- 1\n", "accepted: an object"),
        (a_workload("Deployment", "replicas", -1), "spec.replicas"),
        (a_workload("Deployment", "replicas", 5000), "spec.replicas"),
        (a_workload("Deployment", "replicas", True), "spec.replicas"),
    ],
)
def test_a_manifest_that_cannot_be_used_is_refused_with_its_place(text: str, said: str) -> None:
    with pytest.raises(ManifestError, match=said):
        pods(text, name="f")


@given(st.text(max_size=200))
def test_any_text_is_pods_or_the_one_error(text: str) -> None:
    with pytest.raises(ManifestError):
        pods(text, name="f")


def test_usual_nodes_are_named_and_others_come_from_a_file(tmp_path: Path) -> None:
    assert (parse("a100-80gb=3").nodes, parse("a100-80gb=3").device) == (3, USUAL["a100-80gb"].device)
    path = tmp_path / "mine=odd.yaml"
    path.write_text("name: mine\ncount: 2\nvendor: mlu\ndevice: {memory_mib: 1000, model: MLU}\n")
    assert (parse(f"{path}=2").name, parse(f"{path}=2").nodes) == ("mine", 2)


@pytest.mark.parametrize("given", ["a100-80gb", "a100-80gb=0", "a100-80gb=x", "=3", "nothing=1", "a100-80gb=99999", "a100-80gb=²"])
def test_a_profile_that_is_none_is_refused_with_what_is_accepted(given: str) -> None:
    with pytest.raises(ProfileError, match="accepted"):
        parse(given)


def test_a_card_is_cordoned_once_and_others_stay_as_they_are() -> None:
    assert with_card(("GPU-a",), "GPU-b") == with_card(("GPU-a", "GPU-b"), "GPU-b") == ("GPU-a", "GPU-b")
    assert without_card(("GPU-a", "GPU-b"), "GPU-a") == ("GPU-b",)
    assert without_card((), "GPU-a") == ()


def test_the_node_of_a_card_is_found_or_asked_for() -> None:
    nodes = [a_gpu_node("n1", "GPU-a", "twin"), a_gpu_node("n2", "twin", annotations={keys.DEVICE_CORDON: "gone"})]
    assert node_of(nodes, "GPU-a", "", CATALOG) == "n1"
    assert node_of(nodes, "twin", "n2", CATALOG) == "n2"
    assert node_of(nodes, "gone", "", CATALOG) == "n2"  # a card that was taken out while it was cordoned
    for card, node, said in (("twin", "", "n1, n2"), ("GPU-a", "n2", "no node n2"), ("x", "", "hami top cards")):
        with pytest.raises(CommandError, match=said):
            node_of(nodes, card, node, CATALOG)


def a_message(event: Any, time: str, trace: str = "") -> Message:
    return seal(event, event_id=time, source="/s", time=time, traceparent=trace)


def test_a_pods_way_is_told_in_order_from_all_sources() -> None:
    pod = a_pod("p1", annotations={keys.TRACE_PARENT: f"00-{'a' * 32}-{'b' * 16}-01"})
    metadata = msgspec.structs.replace(pod.metadata, creation_timestamp="2026-01-01T00:00:00Z")
    pod = msgspec.structs.replace(pod, metadata=metadata)
    uid = pod.metadata.uid
    happened = [
        {"reason": "Started", "message": "m", "firstTimestamp": "2026-01-01T00:00:03Z", "count": 2, "involvedObject": {"uid": uid}},
        {"reason": "Other", "message": "m", "firstTimestamp": "2026-01-01T00:00:03Z", "involvedObject": {"uid": "another"}},
    ]
    messages = [
        a_message(PodAssigned(pod=a_ref("p1", uid="namesake"), node="n0", assignments=()), "2025-12-31T00:00:00Z"),
        a_message(PodAssigned(pod=a_ref("p1"), node="n1", assignments=()), "2026-01-01T00:00:01.5+00:00"),
        a_message(AllocationSucceeded(pod=a_ref("p1"), node="n1"), "2026-01-01T00:00:02+00:00"),
        Message(subject="hami.v1.allocations.n1.default.p1.grant", data=b"torn"),
    ]
    found = timeline("default", "p1", pod, happened, messages)
    assert [step.source for step in found.steps] == ["pod", "bus", "bus", "event"]
    assert found.steps[-1].text == "Started: m (2 times)"
    assert (found.uid, found.trace_id) == (uid, "a" * 32)


def test_what_is_known_to_the_second_comes_after_what_leads_to_it_and_shows_no_thousandths() -> None:
    pod = a_pod("p1")
    metadata = msgspec.structs.replace(pod.metadata, creation_timestamp="2026-01-01T00:00:16Z")
    pod = msgspec.structs.replace(pod, metadata=metadata)
    happened = [
        {"reason": reason, "message": "", "firstTimestamp": "2026-01-01T00:00:16Z", "involvedObject": {"uid": pod.metadata.uid}}
        for reason in ("Started", "Scheduled", "Odd")
    ]
    messages = [
        a_message(PodAssigned(pod=a_ref("p1"), node="n1", assignments=()), "2026-01-01T00:00:16.866+00:00"),
        a_message(PodAllocating(pod=a_ref("p1"), node="n1", assignments=(), bind_time_seconds=0), "2026-01-01T00:00:16.905+00:00"),
        a_message(AllocationSucceeded(pod=a_ref("p1"), node="n1"), "2026-01-01T00:00:16.957+00:00"),
    ]
    found = timeline("default", "p1", pod, happened, messages)
    words = [step.text.split()[0].rstrip(":") for step in found.steps]
    assert words == ["created", "assigned", "allocating", "Scheduled", "Started", "success", "Odd"]
    shown = [line.split()[0] for line in trace.text(found).splitlines()[4:]]
    assert shown == ["0", "0.866", "0.905", "0", "0", "0.957", "0"]


def test_a_pod_that_is_gone_is_told_from_the_log_its_last_namesake_first() -> None:
    messages = [
        a_message(PodAssigned(pod=a_ref("p1", uid=uid), node="n1", assignments=()), time, trace=f"00-{'c' * 32}-{'d' * 16}-01")
        for uid, time in (("first", "2026-01-01T00:00:01Z"), ("second", "2026-01-01T00:00:02Z"))
    ]
    found = timeline("default", "p1", None, [], messages)
    assert (found.uid, len(found.steps), found.trace_id) == ("second", 1, "c" * 32)


def a_registration(name: str, bundle: bytes, policy: str = "Fail") -> dict[str, Any]:
    config = {"caBundle": base64.b64encode(bundle).decode()}
    return {"metadata": {"name": name}, "webhooks": [{"clientConfig": config, "failurePolicy": policy}]}


@pytest.mark.parametrize(
    ("days_left", "policy", "outcome"),
    [(300, "Fail", Outcome.OK), (300, "Ignore", Outcome.WARNING), (3, "Fail", Outcome.WARNING), (-1, "Fail", Outcome.FAILED)],
)
def test_a_webhooks_trust_is_looked_at(days_left: int, policy: str, outcome: Outcome) -> None:
    now = max(each.not_valid_after_utc for each in x509.load_pem_x509_certificates(TRUST)) - timedelta(days=days_left)
    found = list(checks.webhooks([a_registration(name, TRUST, policy) for name in checks.WEBHOOK_NAMES], now))
    assert [check.outcome for check in found] == [outcome, outcome]


def test_a_trust_that_is_no_certificate_is_a_failure() -> None:
    found = list(checks.webhooks([a_registration(name, b"none") for name in checks.WEBHOOK_NAMES], NOW))
    assert [check.outcome for check in found] == [Outcome.FAILED, Outcome.FAILED]


def test_a_webhook_that_is_not_registered_is_a_failure() -> None:
    assert {check.outcome for check in checks.webhooks([], NOW)} == {Outcome.FAILED}


GOOD = configuration.generate(CATALOG.managed_resources, extender_url="http://127.0.0.1:1")


def changed(**extender: Any) -> dict[str, Any]:
    return {**GOOD, "extenders": [{**GOOD["extenders"][0], **extender}]}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (changed(managedResources=GOOD["extenders"][0]["managedResources"][1:]), "lacks nvidia.com/gpu"),
        (changed(managedResources=[{"name": name} for name in CATALOG.managed_resources]), "counts nvidia.com/gpu"),
        (changed(ignorable=True), "ignorable"),
        (changed(nodeCacheCapable=False), "nodeCacheCapable"),
        (changed(preemptVerb=""), "preemptVerb"),
        ({**GOOD, "percentageOfNodesToScore": 50}, "sample of the nodes"),
        ({**GOOD, "podMaxBackoffSeconds": 10}, "waits so long"),
        ({**GOOD, "extenders": []}, "no extender"),
        ({"extenders": [{"bindVerb": "bind", "managedResources": [{}]}]}, "cannot be read"),
    ],
)
def test_a_scheduler_configuration_that_would_not_do_is_named_with_what_to_do(found: dict[str, Any], said: str) -> None:
    text = msgspec.yaml.encode(found).decode()
    bad = [
        check for check in checks.scheduler_configuration(text, CATALOG.managed_resources, source="f") if check.outcome is not Outcome.OK
    ]
    assert any(said in check.detail and check.remedy for check in bad), bad


def test_the_configurations_that_we_ship_are_good() -> None:
    shipped = Path(__file__).parents[3] / "deploy/kustomize/base/scheduler/kube-scheduler.yaml"
    for text in (msgspec.yaml.encode(GOOD).decode(), shipped.read_text()):
        found = list(checks.scheduler_configuration(text, CATALOG.managed_resources, source="f"))
        assert [check.outcome for check in found] == [Outcome.OK], found


def test_agents_that_are_away_streams_that_are_missing_and_rights_that_are_denied_are_named() -> None:
    def a_group(alive: bool) -> DeviceGroup:
        return DeviceGroup(device_type="nvidia", alive=alive, since=TIME, devices=(a_device("GPU-1"),))

    nodes = tuple(
        InventoryNode(name=name, device_groups=(a_group(alive),)) for name, alive in (("n1", True), ("n2", False), ("gone", False))
    )
    found = list(checks.agents(Inventory(time=TIME, nodes=nodes), ["n1", "n2", "n3"]))
    assert [(check.what, check.outcome) for check in found] == [("agent on n2", Outcome.FAILED), ("agents", Outcome.OK)]
    assert next(iter(checks.agents(Inventory(time=TIME, nodes=()), ["n1"]))).outcome is Outcome.FAILED
    assert next(iter(checks.streams({"A": True, "B": False}))).detail == "B: not there"
    denied = next(iter(checks.rights({access: access.verb != "patch" for access in checks.NEEDED}, checks.NEEDED)))
    assert "patch nodes: cordon" in denied.detail
    proxied = checks.proxied("gpu")
    told = [check.detail for check in checks.rights(dict.fromkeys(proxied, False), proxied)]
    assert told[0] == "you may not get services/proxy https:hami-registry:api: " + proxied[next(iter(proxied))]
    assert len(told) == 3
