"""Agents are rolled, deleted and killed, kubelet restarts, the node reboots: each while a Deployment scales, and no storm of failed pods comes.

Kubelet fails a pod for good that it cannot give its devices, and the Deployment makes another one at once. So what counts is how many have failed.
``tests/cluster/test_rollouts.py`` has the same rules for services that are processes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.install.conftest import running
from tests.install.harness.cluster import Cluster
from tests.install.harness.images import BUSYBOX
from tests.install.harness.machine import NODE, CommandFailed

FIRST, MOST = 2, 14
"""Replicas; the node has 20 shares, and those of a pod that ends are free a little later."""
STEP_SECONDS = 0.5
STEPS_AFTER = 4
"""Of the Deployment, once what is tested has happened."""
AGENT = ("-n", "hami-node-agent")
CONTAINER: dict[str, Any] = {
    "name": "main",
    "image": BUSYBOX,
    "command": ["sh", "-c", "trap exit TERM; sleep 100000 & wait"],
    "resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "100"}},
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running() as cluster:
        cluster.kubectl("label", "node", NODE, "gpu=on")
        cluster.hami("install", "--overlay", "rig")
        yield cluster


class Scaling:
    """A Deployment that gets one replica more again and again, and begins anew at the most."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._over = threading.Event()
        self._growing = threading.Thread(target=self._grow)
        self.replicas = FIRST
        self.steps = 0

    def pods(self) -> list[dict[str, Any]]:
        return list(self.cluster.get("pods", "-l", "app=busy")["items"])

    def failed(self, *, but: frozenset[str] = frozenset()) -> list[str]:
        """What kubelet wrote of each pod that it failed, without those of these UIDs."""
        failed = [each for each in self.pods() if each["status"].get("phase") == "Failed" and each["metadata"]["uid"] not in but]
        return [str(each["status"].get("message")) for each in failed]

    def running(self) -> frozenset[str]:
        pods = [each for each in self.pods() if "deletionTimestamp" not in each["metadata"]]
        return frozenset(each["metadata"]["uid"] for each in pods if each["status"].get("phase") == "Running")

    def start(self) -> None:
        labels = {"app": "busy"}
        template = {"metadata": {"labels": labels}, "spec": {"terminationGracePeriodSeconds": 1, "containers": [CONTAINER]}}
        self.cluster.apply(
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": "busy", "namespace": "default"},
                "spec": {"replicas": FIRST, "selector": {"matchLabels": labels}, "template": template},
            }
        )
        self.settle()
        self._growing.start()

    def settle(self) -> None:
        """Wait until all replicas run."""
        self.cluster.machine.until(lambda: len(self.running()) == self.replicas, f"{self.replicas} running pods")

    def go_on(self, steps: int) -> None:
        """Wait until it has been scaled so many times more."""
        enough = self.steps + steps
        self.cluster.machine.until(lambda: self.steps >= enough, "steps of the Deployment")

    def stop(self) -> None:
        self._over.set()
        self._growing.join()

    def _grow(self) -> None:
        while not self._over.wait(STEP_SECONDS):
            wanted = self.replicas + 1 if self.replicas < MOST else FIRST
            try:
                self.cluster.kubectl("scale", "deployment/busy", f"--replicas={wanted}")
            except CommandFailed:
                continue  # the API server is away while the node reboots
            self.replicas = wanted
            self.steps += 1


@contextmanager
def scaling(cluster: Cluster) -> Iterator[Scaling]:
    """Scales before, while and after the block runs; in the end all replicas run, and the installation is sound."""
    deployment = Scaling(cluster)
    deployment.start()
    try:
        deployment.go_on(1)
        yield deployment
        deployment.go_on(STEPS_AFTER)
    finally:
        deployment.stop()
    deployment.settle()
    cluster.machine.until(lambda: cluster.hami("doctor"), "a sound installation")


@pytest.fixture(autouse=True)
def empty(cluster: Cluster) -> Iterator[None]:
    yield
    cluster.kubectl("delete", "deployment", "busy", "--ignore-not-found", "--cascade=foreground", "--timeout=120s")


def agent(cluster: Cluster) -> dict[str, Any]:
    """The agent's pod; one that is ending does not count."""
    pods = cluster.get("pods", *AGENT)["items"]
    (pod,) = [each for each in pods if "deletionTimestamp" not in each["metadata"]]
    return dict(pod)


def replaced(cluster: Cluster, old: dict[str, Any]) -> bool:
    """Whether another container of an agent than ``old``'s is ready."""
    (now,), (before,) = agent(cluster)["status"]["containerStatuses"], old["status"]["containerStatuses"]
    return bool(now["ready"]) and now["containerID"] != before["containerID"]


def test_rolling_updates_of_agents_fail_no_pod(cluster: Cluster) -> None:
    with scaling(cluster) as deployment:
        for _ in range(2):
            cluster.kubectl(*AGENT, "rollout", "restart", "daemonset/hami-node-agent")
            cluster.kubectl(*AGENT, "rollout", "status", "daemonset/hami-node-agent", "--timeout=180s")
    assert deployment.failed() == []


def test_an_agents_pod_that_is_deleted_fails_no_pod(cluster: Cluster) -> None:
    old = agent(cluster)
    with scaling(cluster) as deployment:
        cluster.kubectl(*AGENT, "delete", "pod", old["metadata"]["name"])
        cluster.machine.until(lambda: replaced(cluster, old), "another agent")
    assert deployment.failed() == []


def test_an_agent_that_is_killed_costs_one_pod_at_most(cluster: Cluster) -> None:
    old = agent(cluster)
    with scaling(cluster) as deployment:
        cluster.kill_container(old["status"]["containerStatuses"][0]["containerID"])
        cluster.machine.until(lambda: replaced(cluster, old), "another agent")
    assert len(deployment.failed()) <= 1, deployment.failed()


def test_a_kubelet_that_restarts_costs_one_pod_at_most(cluster: Cluster) -> None:
    with scaling(cluster) as deployment:
        before = deployment.running()
        cluster.restart_kubelet()
        cluster.machine.until(lambda: deployment.running() - before, "a pod that was started after the restart")
    assert len(deployment.failed()) <= 1, deployment.failed()
    restarts = [container["restartCount"] for pod in deployment.pods() for container in pod["status"].get("containerStatuses", ())]
    assert set(restarts) == {0}  # what ran runs on


def test_a_node_that_reboots_brings_no_storm(cluster: Cluster) -> None:
    """What runs at a reboot is failed by kubelet itself, which starts before any device plugin; of others one pod at most fails."""
    with scaling(cluster) as deployment:
        before = deployment.running()
        cluster.reboot()
        cluster.machine.until(lambda: deployment.running() - before, "a pod that was created after the reboot")
    lost = deployment.failed(but=before)
    assert len(lost) <= 1, lost
