"""What one object says of another is there: selectors find pods, volumes find their source, policies name ports that are listened on."""

from typing import Any

import pytest

from hami_runtime.kube.accounts import AGENT_NAMESPACE, SYSTEM_NAMESPACE
from tests import network_policies
from tests.network_policies import matches
from tests.unit.manifests.conftest import Manifests

Object = dict[str, Any]
NAMESPACES = {AGENT_NAMESPACE, SYSTEM_NAMESPACE}
SECURITY = "pod-security.kubernetes.io/"
MADE_LATER = {"hami-webhook-tls", "hami-auth-callout"}
"""Secrets that a service makes itself, or whoever installs it."""


def labels(pod: Object) -> dict[str, str]:
    found: dict[str, str] = pod["metadata"]["labels"]
    return found


def ports(pod: Object) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for container in pod["spec"]["containers"] for port in container.get("ports", ())}


def test_a_selector_finds_its_own_pods_and_no_others(overlay: Manifests) -> None:
    for workload in overlay.of("DaemonSet", "Deployment", "StatefulSet"):
        found = [name for name, pod in overlay.pods.items() if matches(workload["spec"]["selector"], labels(pod))]
        assert found == [workload["metadata"]["name"]]


def test_a_service_finds_pods_that_listen(overlay: Manifests) -> None:
    for service in overlay.of("Service"):
        (pod,) = [pod for pod in overlay.pods.values() if matches({"matchLabels": service["spec"]["selector"]}, labels(pod))]
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= set(ports(pod))


def test_a_workload_names_a_headless_service(overlay: Manifests) -> None:
    for workload in overlay.of("StatefulSet"):
        assert overlay.one("Service", workload["spec"]["serviceName"])["spec"]["clusterIP"] == "None"


def test_what_is_mounted_is_there(overlay: Manifests) -> None:
    maps = {each["metadata"]["name"] for each in overlay.of("ConfigMap")}
    secrets = {each["spec"]["secretName"] for each in overlay.of("Certificate")} | MADE_LATER
    for workload in overlay.of("DaemonSet", "Deployment", "StatefulSet"):
        spec = workload["spec"]["template"]["spec"]
        volumes = {volume["name"]: volume for volume in spec.get("volumes", ())}
        claims = {claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", ())}
        mounted = {
            mount["name"]
            for container in [*spec.get("initContainers", ()), *spec["containers"]]
            for mount in container.get("volumeMounts", ())
        }
        assert mounted == set(volumes) | claims
        for volume in volumes.values():
            assert volume.get("configMap", {}).get("name") in {None, *maps}
            assert volume.get("secret", {}).get("secretName") in {None, *secrets}


def test_an_account_that_is_named_is_there(overlay: Manifests) -> None:
    accounts = {(account["metadata"]["namespace"], account["metadata"]["name"]) for account in overlay.of("ServiceAccount")}
    for name, pod in overlay.pods.items():
        if account := pod["spec"].get("serviceAccountName"):
            assert (overlay.namespace(name), account) in accounts


def test_a_pod_mounts_objects_of_its_own_namespace(overlay: Manifests) -> None:
    there = {(each["metadata"]["namespace"], each["metadata"]["name"]) for each in overlay.of("ConfigMap")}
    there |= {(each["metadata"]["namespace"], each["spec"]["secretName"]) for each in overlay.of("Certificate")}
    there |= {(SYSTEM_NAMESPACE, name) for name in MADE_LATER}
    for workload, pod in overlay.pods.items():
        for volume in pod["spec"].get("volumes", ()):
            named = volume.get("configMap", {}).get("name") or volume.get("secret", {}).get("secretName")
            assert named is None or (overlay.namespace(workload), named) in there, (workload, named)


def test_pods_that_work_on_their_node_are_in_a_namespace_of_their_own(overlay: Manifests) -> None:
    cluster_wide = {
        "Namespace", "ClusterRole", "ClusterRoleBinding", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration",
        "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
    }  # fmt: skip
    for each in overlay.objects:
        assert each["metadata"].get("namespace") in ({None} if each["kind"] in cluster_wide else NAMESPACES), each["metadata"]["name"]
    homes = {name: overlay.namespace(name) for name in overlay.pods}
    assert homes == {name: AGENT_NAMESPACE if name == "hami-node-agent" else SYSTEM_NAMESPACE for name in homes}


def test_pod_security_is_restricted_but_for_the_agents(overlay: Manifests) -> None:
    enforced = {
        each["metadata"]["name"]: {key.rpartition("/")[2]: level for key, level in each["metadata"]["labels"].items() if SECURITY in key}
        for each in overlay.of("Namespace")
    }
    assert enforced == {
        AGENT_NAMESPACE: dict.fromkeys(("enforce", "audit", "warn"), "privileged"),
        SYSTEM_NAMESPACE: dict.fromkeys(("enforce", "audit", "warn"), "restricted"),
    }


def as_pod(manifests: Manifests, workload: str) -> network_policies.Pod:
    """A workload's pods, as policies see them."""
    pod = manifests.pods[workload]
    return network_policies.Pod(manifests.namespace(workload), workload, labels(pod), ports(pod))


def policies_of(manifests: Manifests, workload: str) -> list[Object]:
    """The policies that a workload's pods are under."""
    policies, pod = manifests.of("NetworkPolicy"), as_pod(manifests, workload)
    return [each for each in policies if any(each in network_policies.of_pod(policies, pod, way) for way in ("Ingress", "Egress"))]


def allowed(manifests: Manifests, source: str, target: str) -> set[object]:
    """Ports of ``target``'s pods that ``source``'s pods may call."""
    policies = manifests.of("NetworkPolicy")
    caller, called = as_pod(manifests, source), as_pod(manifests, target)
    return {
        port
        for port in {*ports(manifests.pods[target]).values(), 443, 8222}
        if network_policies.allowing(policies, "Egress", caller, called, called, port)
        and network_policies.allowing(policies, "Ingress", called, caller, called, port)
    }


@pytest.mark.parametrize(
    ("source", "target", "wanted"),
    [
        ("hami-scheduler", "hami-nats", {4222}),
        ("hami-registry", "hami-nats", {4222}),
        ("hami-node-agent", "hami-nats", {4222}),
        ("hami-webhook", "hami-nats", set()),
        ("hami-node-agent", "hami-scheduler", set()),
        ("hami-node-agent", "hami-webhook", set()),
        ("hami-node-agent", "hami-registry", set()),
        ("hami-nats", "hami-scheduler", set()),
    ],
)
def test_who_may_call_whom(overlay: Manifests, source: str, target: str, wanted: set[object]) -> None:
    assert allowed(overlay, source, target) == wanted


def test_servers_of_the_bus_call_each_other_where_there_are_several(overlay: Manifests) -> None:
    several = overlay.one("StatefulSet", "hami-nats")["spec"]["replicas"] > 1
    assert allowed(overlay, "hami-nats", "hami-nats") == ({6222} if several else set())


def test_the_auth_callout_reaches_the_bus_and_is_reached_by_nobody(production: Manifests) -> None:
    assert allowed(production, "hami-auth-callout", "hami-nats") == {4222}
    for name in production.pods:
        assert allowed(production, name, "hami-auth-callout") == set()


def test_replicas_of_the_scheduler_call_each_other_where_there_are_several(overlay: Manifests) -> None:
    several = overlay.one("Deployment", "hami-scheduler")["spec"]["replicas"] > 1
    assert allowed(overlay, "hami-scheduler", "hami-scheduler") == ({9394} if several else set())


def test_of_what_there_are_several_one_at_a_time_goes(overlay: Manifests) -> None:
    for workload in overlay.of("Deployment", "StatefulSet"):
        budgets = [
            each for each in overlay.of("PodDisruptionBudget") if matches(each["spec"]["selector"], labels(workload["spec"]["template"]))
        ]
        assert bool(budgets) == (workload["spec"]["replicas"] > 1)
        assert all(each["spec"]["maxUnavailable"] == 1 for each in budgets)


def test_every_pod_has_a_policy_that_closes_it(overlay: Manifests) -> None:
    for name in overlay.pods:
        closing = [policy for policy in policies_of(overlay, name) if policy["spec"]["policyTypes"] == ["Ingress", "Egress"]]
        assert [policy for policy in closing if not policy["spec"].get("ingress") and not policy["spec"].get("egress")], name


def test_a_policy_names_ports_that_somebody_listens_on(overlay: Manifests) -> None:
    for policy in overlay.of("NetworkPolicy"):
        pods = [pod for name, pod in overlay.pods.items() if policy in policies_of(overlay, name)]
        assert pods, policy["metadata"]["name"]
        for rule in policy["spec"].get("ingress", ()):
            for port in rule["ports"]:
                assert any(port["port"] in {*ports(pod), *ports(pod).values()} for pod in pods)


def test_who_calls_the_api_server_is_let_to(overlay: Manifests) -> None:
    for name, pod in overlay.pods.items():
        outward = {
            port["port"]
            for policy in policies_of(overlay, name)
            for rule in policy["spec"].get("egress", ())
            if "to" not in rule
            for port in rule["ports"]
        }
        assert outward == ({443, 6443, 8443, 16443} if pod["spec"].get("serviceAccountName") else set()), name
