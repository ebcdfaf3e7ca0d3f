"""``hami uninstall`` at a real API server: what it refuses, the order in which it removes, and what is left. Its one node has no kubelet."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from hami_rig.kubectl import KubectlFailed, kubectl
from tests.cluster.harness.control_plane import ControlPlane
from tests.cluster.test_install import NAMESPACES, Object, Said, apply, empty, hami, names, of_others, plane

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["empty", "plane"]
REGISTER, CORDON = "hami.io/node-nvidia-register", "hami.io/device-cordon"
OURS = "mutatingwebhookconfigurations,validatingwebhookconfigurations,validatingadmissionpolicies,clusterroles,clusterrolebindings"


def a_pod(name: str, **annotations: str) -> Object:
    container = {"name": "main", "image": "none"}
    metadata = {"name": name, "namespace": "default", "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container], "nodeName": "node-1"}}


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def node(plane: ControlPlane) -> AsyncIterator[None]:
    """A node with our annotations and somebody else's."""
    metadata = {"name": "node-1", "labels": {"gpu": "on"}, "annotations": {REGISTER: "", CORDON: "GPU-1", "example.com/mine": "1"}}
    await apply(plane, {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    yield
    await kubectl(plane.admin, "delete", "pods", "--all", "--force", "--grace-period=0", timeout_seconds=60)
    await kubectl(plane.admin, "delete", "node", "node-1", "--ignore-not-found")


async def removed(plane: ControlPlane, *arguments: str, phase: str = "Succeeded") -> tuple[Said, list[Object]]:
    """Run it while somebody stands in for kubelet; what it said, and the clean-up pods that there were."""
    seen: dict[str, Object] = {}

    async def kubelet() -> None:
        state = {"name": "clean-up", "state": {"terminated": {"exitCode": 1, "message": "log\n/usr/local/vgpu: Operation not permitted"}}}
        patch = json.dumps({"status": {"phase": phase, "containerStatuses": [state]}})
        while True:
            found = json.loads(await kubectl(plane.admin, "get", "pods", "-A", "-l", "hami-clean-up", "-o", "json"))["items"]
            for each in found:
                seen[each["metadata"]["name"]] = each
                where = ["-n", each["metadata"]["namespace"], "pod", each["metadata"]["name"]]
                with contextlib.suppress(KubectlFailed):  # it may be gone meanwhile
                    await kubectl(plane.admin, "patch", *where, "--subresource=status", "--type=merge", "--patch", patch)
            await asyncio.sleep(0.5)

    standing_in = asyncio.create_task(kubelet())
    try:
        return await hami(plane, "uninstall", *arguments), list(seen.values())
    finally:
        standing_in.cancel()
        await asyncio.gather(standing_in, return_exceptions=True)


async def annotations(plane: ControlPlane) -> set[str]:
    found = json.loads(await kubectl(plane.admin, "get", "node", "node-1", "-o", "json"))
    return set(found["metadata"]["annotations"]) - {"kubectl.kubernetes.io/last-applied-configuration"}


async def test_all_of_production_goes_what_is_called_first_and_what_stays_is_told(plane: ControlPlane) -> None:
    await of_others(plane)
    assert (await hami(plane, "install", "--overlay", "production", "--make-key", "--no-wait")).code == 0
    said, pods = await removed(plane, "--yes")
    assert said.code == 0, said.err
    deleted = [line.split()[1] for line in said.err.splitlines() if line.startswith("deleting ")]
    assert deleted[:2] == ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"]
    assert deleted.index("ValidatingAdmissionPolicy") < deleted.index("DaemonSet") < deleted.index("ClusterRole")
    assert not await names(plane, OURS)
    assert not await names(plane, "namespaces")
    assert await annotations(plane) == {"example.com/mine"}
    assert "label gpu=on on node-1: kubectl label nodes -l gpu=on gpu-" in said.err
    (pod,) = pods
    assert pod["spec"]["nodeName"] == "node-1"
    assert pod["metadata"]["namespace"] == "hami-node-agent"
    assert {"/usr/local", "/var/run/cdi"} < {each["hostPath"]["path"] for each in pod["spec"]["volumes"]}


async def test_it_refuses_while_pods_hold_shares_unless_it_is_forced(plane: ControlPlane) -> None:
    await apply(plane, a_pod("held", **{"hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,3000,0:;"}))
    assert (await hami(plane, "install", "--no-wait")).code == 0
    refused = await hami(plane, "uninstall", "--yes")
    assert refused.code == 1
    assert "default/held" in refused.err
    assert "until one of its containers restarts" in refused.err
    assert await names(plane, "mutatingwebhookconfigurations")
    forced, _ = await removed(plane, "--yes", "--force")
    assert forced.code == 0, forced.err
    assert not await names(plane, OURS)
    assert not await names(plane, "namespaces")  # it has waited for them, as without --force


async def test_without_yes_and_without_a_terminal_nothing_is_removed(plane: ControlPlane) -> None:
    assert (await hami(plane, "install", "--no-wait")).code == 0
    before = await names(plane, OURS)
    previewed = await hami(plane, "uninstall", "--dry-run")
    assert previewed.code == 0
    assert "to be removed: MutatingWebhookConfiguration vgpu.hami.io" in previewed.err
    assert f"annotations {CORDON}, {REGISTER} of node node-1" in previewed.err
    asked = await hami(plane, "uninstall")
    assert (asked.code, "--yes" in asked.err) == (1, True)
    assert await names(plane, OURS) == before


async def test_what_another_way_of_deleting_has_left_is_removed_too(plane: ControlPlane) -> None:
    said, pods = await removed(plane, "--yes")
    assert said.code == 0, said.err
    assert [each["metadata"]["namespace"] for each in pods] == ["hami-clean-up"]
    assert await annotations(plane) == {"example.com/mine"}
    found = await kubectl(plane.admin, "get", "namespaces", "-o", "name")
    assert not [name for name in (*NAMESPACES, "hami-clean-up") if f"namespace/{name}\n" in f"{found}\n"]


async def test_files_that_cannot_be_removed_are_told_with_node_and_reason(plane: ControlPlane) -> None:
    said, _ = await removed(plane, "--yes", phase="Failed")
    assert said.code == 1
    assert "files on node-1: /usr/local/vgpu: Operation not permitted" in said.err
    assert await annotations(plane) == {"example.com/mine"}
