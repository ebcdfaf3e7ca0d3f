"""``hami install`` at a real API server, which has no nodes: what is refused before anything is applied, and what a change of overlays leaves."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
import yaml

from hami_rig.kubectl import kubectl
from tests.cluster.harness import building
from tests.cluster.harness.control_plane import ControlPlane
from tests.cluster.test_overlays import KUSTOMIZE, OF_OTHERS, a_definition

pytestmark = pytest.mark.asyncio(loop_scope="module")
CONTROLLERS = ("namespace-controller", "serviceaccount-controller", "garbage-collector-controller")
NAMESPACES = ("hami-system", "hami-node-agent")
CLASS = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "standard", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
    "provisioner": "example.com/none",
}
Object = dict[str, Any]


class Said(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plane() -> AsyncIterator[ControlPlane]:
    if reason := building.lacking():
        pytest.fail(f"no real Kubernetes here: {reason}", pytrace=False)
    async with ControlPlane(controllers=CONTROLLERS) as running:
        yield running


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def empty(plane: ControlPlane) -> AsyncIterator[None]:
    """A cluster without HAMi, before and after."""
    yield
    kinds = "validatingadmissionpolicies,validatingadmissionpolicybindings,clusterroles,clusterrolebindings"
    webhooks = "mutatingwebhookconfigurations,validatingwebhookconfigurations"
    await kubectl(plane.admin, "delete", f"{webhooks},{kinds}", "-l", "app.kubernetes.io/part-of=hami", timeout_seconds=120)
    await kubectl(plane.admin, "delete", "namespaces", *NAMESPACES, "--ignore-not-found", timeout_seconds=120)


async def hami(plane: ControlPlane, *arguments: str, user: str = "") -> Said:
    config = plane.kubeconfig(user) if user else plane.admin
    command = [sys.executable, "-m", "hami_cli.main", *arguments, "--kubeconfig", str(config)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
    out, err = await process.communicate()
    return Said(process.returncode or 0, out.decode(), err.decode())


async def apply(plane: ControlPlane, *objects: Object) -> None:
    path = plane.folder / "objects.yaml"
    path.write_text(yaml.safe_dump_all(objects))
    await kubectl(plane.admin, "apply", "-f", str(path))


async def of_others(plane: ControlPlane) -> None:
    """The kinds that production needs, and a default class of volumes."""
    found = [a_definition(group, kind, plural) for group, kinds in OF_OTHERS.items() for kind, plural in kinds.items()]
    await apply(plane, *found, CLASS)
    await kubectl(plane.admin, "wait", "--for=condition=Established", "customresourcedefinitions", "--all")


async def names(plane: ControlPlane, kinds: str) -> set[str]:
    """What of our objects there is, as ``kind/name``."""
    return set((await kubectl(plane.admin, "get", kinds, "-A", "-l", "app.kubernetes.io/part-of=hami", "-o", "name")).split())


async def nothing_there(plane: ControlPlane) -> None:
    """No object of an overlay is in the cluster; a namespace that was made for the rehearsal may still be ending."""
    assert not await names(plane, "clusterroles,mutatingwebhookconfigurations,deployments,configmaps,services")
    for name in NAMESPACES:
        await kubectl(plane.admin, "wait", "--for=delete", f"namespace/{name}", "--timeout=60s", timeout_seconds=90)


async def test_all_that_is_missing_is_named_at_once_and_nothing_is_applied(plane: ControlPlane) -> None:
    said = await hami(plane, "install", "--overlay", "production")
    assert said.code == 1
    for part in (
        "Certificate (cert-manager.io)",
        "Secret hami-system/hami-auth-callout does not exist",
        "no StorageClass is the default",
    ):
        assert part in said.err
    await nothing_there(plane)


async def test_rights_that_the_user_lacks_are_named_and_the_rehearsals_namespaces_go_again(plane: ControlPlane) -> None:
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "almost-all"},
        "rules": [
            {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list"]},
            {"apiGroups": [""], "resources": ["*"], "verbs": ["*"]},
            {
                "apiGroups": ["rbac.authorization.k8s.io", "networking.k8s.io", "admissionregistration.k8s.io"],
                "resources": ["*"],
                "verbs": ["*"],
            },
        ],
    }
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "almost-all"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "almost-all"},
        "subjects": [{"kind": "User", "name": "tenant"}],
    }
    await apply(plane, role, binding)
    said = await hami(plane, "install", user="tenant")
    await kubectl(plane.admin, "delete", "clusterrole,clusterrolebinding", "almost-all")
    assert said.code == 1, said.err
    assert 'cannot create resource "deployments"' in said.err or 'cannot patch resource "deployments"' in said.err
    assert "deleted hami-node-agent, hami-system again" in said.err
    await nothing_there(plane)


async def test_from_minimal_to_production_a_change_that_cannot_be_made_in_place_is_refused_before_and_made_when_asked_for(
    plane: ControlPlane,
) -> None:
    await of_others(plane)
    assert (await hami(plane, "install", "--no-wait")).code == 0
    before = await names(plane, "configmaps,roles,deployments,networkpolicies")
    production = ("install", "--overlay", "production", "--make-key", "--no-wait")
    refused = await hami(plane, *production)
    assert refused.code == 1
    assert "spec.volumeClaimTemplates" in refused.err
    assert "--replace" in refused.err
    assert await names(plane, "configmaps,roles,deployments,networkpolicies") == before
    assert not await kubectl(plane.admin, "-n", "hami-system", "get", "secrets", "-o", "name")
    done = await hami(plane, *production, "--replace")
    assert done.code == 0, done.err
    path = "jsonpath={.spec.volumeClaimTemplates[0].metadata.name}"
    assert await kubectl(plane.admin, "-n", "hami-system", "get", "statefulset", "hami-nats", "-o", path) == "data"
    assert "secret/hami-auth-callout" in await kubectl(plane.admin, "-n", "hami-system", "get", "secrets", "-o", "name")
    maps = [name for name in await names(plane, "configmaps") if "hami-nats" in name or "kube-scheduler" in name]
    assert len(maps) == 2, maps  # those of minimal are gone


async def test_a_component_that_is_added_takes_rights_away_and_dry_run_says_so_before(plane: ControlPlane) -> None:
    await of_others(plane)
    assert (await hami(plane, "install", "--no-wait")).code == 0
    assert "role.rbac.authorization.k8s.io/hami-webhook" in await names(plane, "roles")
    folder = plane.folder / "with-certificate"
    folder.mkdir()
    below = f"../../..{KUSTOMIZE}"
    content = {"resources": [f"{below}/overlays/minimal"], "components": [f"{below}/components/webhook-certificate"]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(content))
    previewed = await hami(plane, "install", "--overlay", str(folder), "--dry-run")
    assert "would delete Role hami-system/hami-webhook" in previewed.err
    assert "role.rbac.authorization.k8s.io/hami-webhook" in await names(plane, "roles")
    done = await hami(plane, "install", "--overlay", str(folder), "--no-wait")
    assert done.code == 0, done.err
    assert not {name for name in await names(plane, "roles,rolebindings") if name.endswith("/hami-webhook")}


async def test_what_dry_run_prints_is_what_is_applied(plane: ControlPlane) -> None:
    assert (await hami(plane, "install", "--no-wait")).code == 0
    previewed = await hami(plane, "install", "--dry-run")
    path = plane.folder / "previewed.yaml"
    path.write_text(previewed.out)
    assert previewed.err == ""
    said = await kubectl(plane.admin, "apply", "-f", str(path), timeout_seconds=120)
    assert {line.rpartition(" ")[2] for line in said.splitlines()} == {"unchanged"}
    version = json.loads(await kubectl(plane.admin, "version", "-o", "json"))["serverVersion"]["gitVersion"]
    assert f"kube-scheduler:{version.partition('-')[0].partition('+')[0]}" in previewed.out


async def test_the_api_servers_own_port_is_in_the_network_policies(plane: ControlPlane) -> None:
    """This API server writes no endpoints of its own, so they are written as others do."""
    slices: Object = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "kubernetes", "namespace": "default", "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["192.0.2.1"], "conditions": {"ready": True}}],
        "ports": [{"name": "https", "port": 7443, "protocol": "TCP"}],
    }
    await apply(plane, slices)
    assert (await hami(plane, "install", "--no-wait")).code == 0
    for namespace in NAMESPACES:
        path = "jsonpath={.spec.egress[0].ports[*].port}"
        allowed = await kubectl(plane.admin, "-n", namespace, "get", "networkpolicy", "api-server", "-o", path)
        assert allowed == "443 6443 8443 16443 7443"
    assert "listens at 7443, which the NetworkPolicies allow" in (await hami(plane, "doctor")).out
    await kubectl(plane.admin, "apply", "-k", str(KUSTOMIZE / "overlays" / "minimal"), timeout_seconds=120)
    looked = await hami(plane, "doctor")
    await kubectl(plane.admin, "delete", "endpointslice", "kubernetes")
    assert [f"NetworkPolicy {each}/api-server does not allow 7443" in looked.out for each in NAMESPACES] == [True, True]


async def test_pods_that_cannot_be_created_are_named_with_the_reason_when_the_time_is_over(plane: ControlPlane) -> None:
    said = await hami(plane, "install", "--timeout", "1")
    assert said.code == 1
    assert "StatefulSet hami-system/hami-nats is not ready after 1 s" in said.err
    assert "its controller has not made its pods yet" in said.err
    assert "what was applied stays" in said.err


async def test_an_object_that_does_not_go_is_waited_for_no_longer_than_allowed(plane: ControlPlane) -> None:
    assert (await hami(plane, "install", "--no-wait")).code == 0
    stays = {"name": "stays", "labels": {"app.kubernetes.io/part-of": "hami"}, "finalizers": ["example.com/never"]}
    await apply(plane, {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": stays, "rules": []})
    said = await hami(plane, "install", "--no-wait", "--timeout", "1")
    released = ("--type=merge", "--patch", json.dumps({"metadata": {"finalizers": None}}))
    await kubectl(plane.admin, "patch", "clusterrole", "stays", *released)
    assert said.code == 1, said.err
    assert "deleting ClusterRole stays" in said.err
    assert "timed out" in said.err


async def test_what_helm_owns_is_left_to_helm(plane: ControlPlane) -> None:
    annotations = {"meta.helm.sh/release-name": "shares", "meta.helm.sh/release-namespace": "default"}
    role: Object = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "rules": []}
    labels = {"app.kubernetes.io/part-of": "hami"}
    await apply(plane, role | {"metadata": {"name": "hami-reader", "labels": labels, "annotations": annotations}})
    said = await hami(plane, "install")
    assert said.code == 1
    assert "Helm installed this as the release shares" in said.err, said.err
