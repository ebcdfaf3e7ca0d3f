"""The overlays `minimal` and `rig`, from the install page: label, install, look it over, take a share, be refused, upgrade, uninstall."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import ClassVar

import pytest

from tests.cluster.harness.building import ROOT
from tests.install.conftest import running
from tests.install.harness import images
from tests.install.harness.cluster import Cluster
from tests.install.harness.machine import NODE, CommandFailed, run
from tests.install.harness.traffic import Traffic, judge

EXAMPLES = ROOT / "examples"
CARDS = "/tmp/cards.conf"
ON_FAKE_CARDS = f"""export FAKE_GPU_CONFIG={CARDS} FAKE_GPU_STATE=/tmp/cards.state
export NVIDIA_VISIBLE_DEVICES=$(grep -a -o 'GPU-[0-9a-f-]*' /usr/local/vgpu/grant | sed -n 1p)
"""
GRANTED_MIB = 3000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running() as cluster:
        yield cluster


@pytest.fixture(scope="module", autouse=True)
def traffic(cluster: Cluster) -> Traffic:
    return Traffic(cluster)


class TestMinimal:
    """The overlay for nodes with cards, on one that has none: what it says then."""

    def test_services_run_and_wait_for_nodes_with_the_label(self, cluster: Cluster) -> None:
        cluster.hami("install", "--overlay", "minimal")
        assert cluster.get("pods", "-n", "hami-node-agent")["items"] == []
        with pytest.raises(CommandFailed, match="no node registers devices"):
            cluster.hami("doctor")

    def test_an_agent_without_a_driver_names_what_it_lacks(self, cluster: Cluster) -> None:
        cluster.kubectl("label", "node", NODE, "gpu=on")
        log = ("-n", "hami-node-agent", "logs", "daemonset/hami-node-agent", "-c", "node-agent")
        cluster.machine.until(lambda: "NVML Shared Library Not Found" in cluster.kubectl(*log), "the agent's reason")
        (pod,) = cluster.get("pods", "-n", "hami-node-agent")["items"]
        assert not pod["status"]["containerStatuses"][0]["ready"]


def test_the_install_page_is_followed(cluster: Cluster) -> None:
    """Over `minimal`, whose agent is not ready."""
    cluster.hami("install", "--overlay", "rig")


def test_doctor_finds_nothing_wrong(cluster: Cluster) -> None:
    lines = cluster.hami("doctor").splitlines()
    assert [line for line in lines if not line.startswith("ok ")] == []


class TestAShare:
    def test_a_container_sees_and_gets_its_share_and_no_more(self, cluster: Cluster) -> None:
        cluster.kubectl("apply", "-f", EXAMPLES / "first-share.yaml")
        cluster.kubectl("wait", "pod/first-share", "--for=condition=Ready", "--timeout=120s")
        self.give_cards(cluster, "first-share")
        assert self.allocate(cluster, GRANTED_MIB) == {"result": 0, "allocated_mib": GRANTED_MIB, "free_mib": 0, "total_mib": GRANTED_MIB}
        assert self.allocate(cluster, GRANTED_MIB + 1)["result"] == 2
        stepwise = self.allocate(cluster, 2 * GRANTED_MIB, "--step-mib", "100")
        assert (stepwise["result"], stepwise["allocated_mib"]) == (2, GRANTED_MIB)

    @staticmethod
    def give_cards(cluster: Cluster, pod: str) -> None:
        """Have the fake driver in a container know the node's cards."""
        record = cluster.get("node", NODE)["metadata"]["annotations"]["hami.io/node-nvidia-register"]
        cards = [entry.split(",") for entry in record.split(":") if entry]
        lines = [f"uuid={card[0]} name={card[4].replace(' ', '-')} memory_mib={card[2]}\n" for card in cards]
        cluster.kubectl("exec", "-i", pod, "--", "sh", "-c", f"cat > {CARDS}", given="".join(lines))

    @staticmethod
    def allocate(cluster: Cluster, mib: int, *options: str) -> dict[str, int]:
        command = f"{ON_FAKE_CARDS} vgpu-alloc --mib {mib} {' '.join(options)} || true"
        said = json.loads(cluster.kubectl("exec", "first-share", "--", "sh", "-c", command))
        return {key: said[key] for key in ("result", "allocated_mib", "free_mib", "total_mib")}

    def test_what_fits_nowhere_is_explained(self, cluster: Cluster) -> None:
        cluster.kubectl("apply", "-f", EXAMPLES / "too-big.yaml")
        cluster.machine.until(lambda: "would fit" in cluster.hami("explain", "too-big"), "an explanation")
        assert "49152 MiB" in cluster.hami("explain", "too-big")
        cluster.kubectl("delete", "-f", EXAMPLES / "too-big.yaml", "--wait=true")


def test_pod_security_is_enforced(cluster: Cluster) -> None:
    privileged = ("run", "no", "--image=busybox:1.36", "--restart=Never", "--privileged", "--dry-run=server")
    with pytest.raises(CommandFailed, match='violates PodSecurity "restricted:latest"'):
        cluster.kubectl("-n", "hami-system", *privileged)
    cluster.kubectl("-n", "hami-node-agent", *privileged)


def address(cluster: Cluster, component: str) -> str:
    """The address of a component's pod."""
    namespace = "hami-node-agent" if component == "node-agent" else "hami-system"
    (pod,) = cluster.get("pods", "-n", namespace, "-l", f"app.kubernetes.io/component={component}")["items"]
    return str(pod["status"]["podIP"])


class TestNetworkPolicies:
    UNUSED: ClassVar = {"hami-node-agent/nothing-else", "hami-system/nothing-else"}
    """They allow nothing."""

    def test_every_connection_is_allowed_and_every_policy_is_used(self, cluster: Cluster, traffic: Traffic) -> None:
        policies = cluster.get("networkpolicies", "-A")["items"]
        unexplained, used = judge(traffic.connections(), policies)
        assert unexplained == []
        assert {f"{each['metadata']['namespace']}/{each['metadata']['name']}" for each in policies} - used == self.UNUSED

    def test_nothing_that_is_needed_is_refused(self, cluster: Cluster, traffic: Traffic) -> None:
        before = traffic.refusals()
        cluster.hami("doctor")
        cluster.hami("events")
        cluster.kubectl("wait", "pod/first-share", "--for=condition=Ready")
        assert traffic.refusals() == before

    @pytest.mark.parametrize(("component", "port"), [("nats", 4222), ("nats", 8222), ("node-agent", 9394), ("registry", 9395)])
    def test_a_stranger_is_refused(self, cluster: Cluster, traffic: Traffic, component: str, port: int) -> None:
        before = traffic.refusals()
        with pytest.raises(CommandFailed, match="refused"):
            cluster.kubectl("exec", "first-share", "--", "busybox", "nc", "-w", "5", address(cluster, component), str(port))
        assert traffic.refusals() > before

    def test_an_agent_reaches_the_bus_and_no_other_service(self, cluster: Cluster) -> None:
        self.call(cluster, address(cluster, "nats"), 4222)
        for component, port in (("nats", 8222), ("webhook", 9443), ("registry", 9396), ("scheduler", 9396)):
            with pytest.raises(CommandFailed, match="ConnectionRefusedError"):
                self.call(cluster, address(cluster, component), port)

    @staticmethod
    def call(cluster: Cluster, host: str, port: int) -> None:
        program = f"import socket; socket.create_connection(('{host}', {port}), 10).close()"
        cluster.kubectl("-n", "hami-node-agent", "exec", "ds/hami-node-agent", "-c", "node-agent", "--", "python", "-c", program)


class TestUpgrade:
    def test_a_second_version_takes_over_and_pods_run_on(self, cluster: Cluster) -> None:
        cluster.import_images(images.ours(version=images.NEWER))
        cluster.hami("install", "--overlay", "rig", "--tag", images.NEWER)
        found = [each for namespace in ("hami-system", "hami-node-agent") for each in cluster.get("pods", "-n", namespace)["items"]]
        pods = [each for each in found if "deletionTimestamp" not in each["metadata"]]  # an agent that was replaced may still be ending
        ours = {each["image"] for pod in pods for each in pod["spec"]["containers"] if each["image"].startswith("hami/")}
        assert all(each["ready"] for pod in pods for each in pod["status"]["containerStatuses"])
        assert {image.rpartition(":")[2] for image in ours} == {images.NEWER}
        (status,) = cluster.get("pod", "first-share")["status"]["containerStatuses"]
        assert (status["ready"], status["restartCount"]) == (True, 0)
        test_doctor_finds_nothing_wrong(cluster)

    def test_the_share_is_held_as_before(self, cluster: Cluster) -> None:
        assert TestAShare.allocate(cluster, GRANTED_MIB + 1)["result"] == 2


class TestUninstall:
    def test_it_refuses_while_a_pod_holds_a_share(self, cluster: Cluster) -> None:
        with pytest.raises(CommandFailed, match="first-share"):
            cluster.hami("uninstall", "--yes")
        test_doctor_finds_nothing_wrong(cluster)

    def test_it_leaves_nothing(self, cluster: Cluster) -> None:
        cluster.kubectl("delete", "pod", "first-share", "--wait=true")
        cluster.hami("uninstall", "--yes")
        kinds = "namespaces,clusterroles,clusterrolebindings,mutatingwebhookconfigurations,validatingwebhookconfigurations"
        assert [name for name in cluster.kubectl("get", kinds, "-o", "name").split() if "hami" in name] == []
        assert [key for key in cluster.get("node", NODE)["metadata"]["annotations"] if "hami.io" in key] == []
        left = run(cluster.machine.on_node("find", "/var/run/cdi", "/usr/local", "/var/lib/kubelet/device-plugins"))
        assert [path for path in left.split() if any(name in path for name in ("hami", "vgpu", "nvidia-gpu"))] == []

    def test_pods_are_created_as_before(self, cluster: Cluster) -> None:
        cluster.kubectl("run", "plain", "--image=busybox:1.36", "--restart=Never", "--command", "--", "sleep", "1000000")
        cluster.kubectl("wait", "pod/plain", "--for=condition=Ready", "--timeout=120s")
