"""The overlay `production`: two of each service, three NATS servers with TLS, auth callout, admission policies, certificates of cert-manager.

cert-manager runs as one process of the node, without its own webhook: the webhook's package is internal to cert-manager's module,
and its command is a module that no proxy serves. Its kinds are the project's own, so their schemas judge our Certificates; what its
webhook would refuse besides is not seen.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.harness.building import ROOT
from tests.install.conftest import running
from tests.install.harness.cluster import MANIFESTS, Cluster
from tests.install.harness.images import BUSYBOX
from tests.install.harness.machine import NODE, CommandFailed
from tests.install.harness.traffic import Traffic, judge

OVERLAY = MANIFESTS / "production-rig"
EXAMPLES = ROOT / "examples"
API_PORT = 7443
"""None that the manifests name: `hami install` adds it to the NetworkPolicies."""

ASK_EXTENDER = """
import http.client, json, ssl
files = "/etc/hami/extender"
tls = ssl.create_default_context(cafile=f"{files}/ca.crt")
tls.load_cert_chain(f"{files}/tls.crt", f"{files}/tls.key")
tls.check_hostname = False
extender = http.client.HTTPSConnection("127.0.0.1", 9394, context=tls)
pod = {"metadata": {"name": "none", "namespace": "default", "uid": "none"}, "spec": {"containers": [{"name": "main"}]}}
extender.request("POST", "/filter", json.dumps({"Pod": pod, "NodeNames": []}), {"Content-Type": "application/json"})
answer = extender.getresponse()
print(answer.status, json.loads(answer.read()).get("NodeNames"))
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running(api_port=API_PORT) as cluster:
        yield cluster


@pytest.fixture(scope="module", autouse=True)
def traffic(cluster: Cluster) -> Traffic:
    return Traffic(cluster)


def test_nothing_is_applied_before_everything_is_there(cluster: Cluster) -> None:
    with pytest.raises(CommandFailed, match="nothing was applied") as refused:
        cluster.hami("install", "--overlay", OVERLAY)
    for lacking in ("cert-manager", "Prometheus operator", "hami-auth-callout", "StorageClass"):
        assert lacking in str(refused.value)
    assert "hami" not in cluster.kubectl("get", "namespaces", "-o", "name")


def test_the_install_page_is_followed(cluster: Cluster) -> None:
    cluster.start_cert_manager()
    cluster.define_prometheus_kinds()
    cluster.provide_volumes()
    cluster.kubectl("label", "node", NODE, "gpu=on")
    cluster.hami("install", "--overlay", OVERLAY, "--make-key")


def test_doctor_finds_nothing_wrong(cluster: Cluster) -> None:
    lines = cluster.hami("doctor").splitlines()
    assert [line for line in lines if not line.startswith("ok ")] == []


def test_there_are_as_many_of_each_as_the_overlay_says(cluster: Cluster) -> None:
    workloads = cluster.get("deployments,statefulsets", "-n", "hami-system")["items"]
    found = {each["metadata"]["name"]: each["status"]["readyReplicas"] for each in workloads}
    assert found == {"hami-nats": 3, "hami-registry": 2, "hami-scheduler": 2, "hami-webhook": 2, "hami-auth-callout": 2}


def test_a_pod_gets_its_share(cluster: Cluster) -> None:
    cluster.kubectl("apply", "-f", EXAMPLES / "first-share.yaml")
    cluster.kubectl("wait", "pod/first-share", "--for=condition=Ready", "--timeout=120s")
    shown = cluster.kubectl("exec", "first-share", "--", "sh", "-c", "grep -c . /etc/ld.so.preload; env")
    assert "CUDA_DEVICE_MEMORY_LIMIT_0=3000m" in shown


def test_the_api_server_holds_records(cluster: Cluster) -> None:
    with pytest.raises(CommandFailed, match="only HAMI writes these annotations"):
        cluster.kubectl("annotate", "--overwrite", "pod", "first-share", "hami.io/vgpu-devices-allocated=none")
    with pytest.raises(CommandFailed, match="only HAMI writes these annotations"):
        cluster.kubectl("annotate", "--overwrite", "node", NODE, "hami.io/node-nvidia-register=none")


def test_a_request_reaches_the_leader_through_either_replica(cluster: Cluster) -> None:
    """kube-scheduler calls the extender of its own pod, which may not lead; that one calls the other replica over TLS."""
    pods = cluster.get("pods", "-n", "hami-system", "-l", "app.kubernetes.io/component=scheduler")["items"]
    answers = [
        cluster.kubectl("-n", "hami-system", "exec", pod["metadata"]["name"], "-c", "extender", "--", "python", "-c", ASK_EXTENDER)
        for pod in pods
    ]
    assert answers == ["200 []\n"] * 2


class TestNetworkPolicies:
    UNUSED = frozenset({"hami-node-agent/nothing-else", "hami-system/nothing-else"})
    """They allow nothing."""

    def test_prometheus_reaches_every_metrics_port(self, cluster: Cluster) -> None:
        cluster.kubectl("create", "namespace", "monitoring")
        cluster.kubectl(
            "-n", "monitoring", "run", "prometheus", f"--image={BUSYBOX}", "--restart=Never", "--command", "--", "sleep", "1000000"
        )
        cluster.kubectl("-n", "monitoring", "wait", "pod/prometheus", "--for=condition=Ready", "--timeout=120s")
        pods = [pod for namespace in ("hami-system", "hami-node-agent") for pod in cluster.get("pods", "-n", namespace)["items"]]
        listening = {
            f"http://{pod['status']['podIP']}:{port['containerPort']}/metrics"
            for pod in pods
            for container in pod["spec"]["containers"]
            for port in container.get("ports", ())
            if port["name"] == "metrics"
        }
        assert len(listening) == len(pods) - 3  # NATS has none
        for url in sorted(listening):
            self.reached(cluster, url)

    @staticmethod
    def reached(cluster: Cluster, url: str) -> None:
        read = ("-n", "monitoring", "exec", "prometheus", "--", "busybox", "wget", "-qO-", url)
        cluster.machine.until(lambda: "hami_" in cluster.kubectl(*read), url, seconds=60)

    def test_every_connection_is_allowed_and_every_policy_is_used(self, cluster: Cluster, traffic: Traffic) -> None:
        policies = cluster.get("networkpolicies", "-A")["items"]
        unexplained, used = judge(traffic.connections(), policies)
        assert unexplained == []
        assert {f"{each['metadata']['namespace']}/{each['metadata']['name']}" for each in policies} - used == self.UNUSED

    def test_nothing_that_is_needed_is_refused(self, cluster: Cluster, traffic: Traffic) -> None:
        before = traffic.refusals()
        cluster.hami("doctor")
        cluster.hami("events")
        assert traffic.refusals() == before


@pytest.mark.parametrize("component", ["nats", "registry", "scheduler", "webhook", "auth-callout"])
def test_any_replica_may_be_lost(cluster: Cluster, component: str) -> None:
    selector = f"app.kubernetes.io/component={component}"
    first = cluster.get("pods", "-n", "hami-system", "-l", selector)["items"][0]["metadata"]["name"]
    cluster.kubectl("-n", "hami-system", "delete", "pod", first, "--wait=true")
    cluster.kubectl("-n", "hami-system", "wait", "pod", "-l", selector, "--for=condition=Ready", "--timeout=180s")
    cluster.machine.until(lambda: test_doctor_finds_nothing_wrong(cluster) is None, "a sound installation", seconds=120)


def test_uninstalled_it_leaves_nothing_that_is_called(cluster: Cluster) -> None:
    cluster.kubectl("delete", "pod", "first-share", "--wait=true")
    cluster.hami("uninstall", "--yes")
    kinds = "namespaces,clusterroles,clusterrolebindings,mutatingwebhookconfigurations,validatingwebhookconfigurations,validatingadmissionpolicies"
    assert [name for name in cluster.kubectl("get", kinds, "-o", "name").split() if "hami" in name] == []
    cluster.kubectl("run", "plain", f"--image={BUSYBOX}", "--restart=Never", "--command", "--", "sleep", "1000000")
    cluster.kubectl("wait", "pod/plain", "--for=condition=Ready", "--timeout=120s")
