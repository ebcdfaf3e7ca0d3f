"""Every overlay as a real API server takes it: accepted without a warning, the same when applied again, and gone when deleted."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from hami_rig import kubectl as running_kubectl
from tests.cluster.harness import building
from tests.cluster.harness.control_plane import ControlPlane
from tools.chart import variants

pytestmark = pytest.mark.asyncio(loop_scope="module")

KUSTOMIZE = building.ROOT / "deploy" / "kustomize"
OVERLAYS = sorted(path.name for path in (KUSTOMIZE / "overlays").iterdir())
kubectl = functools.partial(running_kubectl.kubectl, timeout_seconds=120.0)
"""For a hundred objects and more, on a machine that has other things to do."""
STRICTLY = ("apply", "--validate=strict", "--warnings-as-errors")
COMPONENTS = [*variants.COMPONENTS, "beside-hami"]
CONTROLLERS = ("serviceaccount-controller", "garbage-collector-controller", "namespace-controller")
"""The harness waits for the first one's accounts; without the others nothing is ever deleted in the foreground, and no namespace at all."""
OF_OTHERS = {
    "cert-manager.io": {"Certificate": "certificates", "Issuer": "issuers"},
    "monitoring.coreos.com": {"PodMonitor": "podmonitors", "PrometheusRule": "prometheusrules"},
}


def a_definition(group: str, kind: str, plural: str) -> dict[str, Any]:
    """Of a kind whose operator is not here: whatever it holds is accepted."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [version],
        },
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plane() -> AsyncIterator[ControlPlane]:
    if reason := building.lacking():
        pytest.fail(f"no real Kubernetes here: {reason}", pytrace=False)
    async with ControlPlane(controllers=CONTROLLERS) as running:
        definitions = running.folder / "definitions.yaml"
        found = [a_definition(group, kind, plural) for group, kinds in OF_OTHERS.items() for kind, plural in kinds.items()]
        definitions.write_text(yaml.safe_dump_all(found))
        await kubectl(running.admin, "apply", "-f", str(definitions))
        await kubectl(running.admin, "wait", "--for=condition=Established", "customresourcedefinitions", "--all")
        yield running


@pytest.mark.parametrize("overlay", OVERLAYS)
async def test_an_overlay_is_accepted_and_applied_again_changes_nothing(plane: ControlPlane, overlay: str) -> None:
    folder = str(KUSTOMIZE / "overlays" / overlay)
    await kubectl(plane.admin, "delete", "statefulsets", "--all-namespaces", "--all")  # whether it has a volume cannot be changed
    said = await kubectl(plane.admin, *STRICTLY, "-k", folder)
    made = await versions(plane, folder)
    assert len(made) == len(said.splitlines())
    await kubectl(plane.admin, "apply", "--validate=strict", "-k", folder)
    assert await versions(plane, folder) == made


async def versions(plane: ControlPlane, folder: str) -> dict[tuple[str, str, str], str]:
    """Each object's version, which changes when anything of it does."""
    found = json.loads(await kubectl(plane.admin, "get", "-k", folder, "-o", "json"))["items"]
    metadata = [(each["kind"], each["metadata"]) for each in found]
    return {(kind, each.get("namespace", ""), each["name"]): each["resourceVersion"] for kind, each in metadata}


async def test_the_command_line_installs_what_kustomize_builds_with_kube_scheduler_of_the_clusters_version(plane: ControlPlane) -> None:
    await kubectl(plane.admin, "delete", "statefulsets", "--all-namespaces", "--all")
    command = [sys.executable, "-m", "hami_cli.main", "install", "--no-wait", "--kubeconfig", str(plane.admin)]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    _, said = await process.communicate()
    assert process.returncode == 0, said.decode()
    made = await versions(plane, str(KUSTOMIZE / "overlays" / "minimal"))
    assert f"[{len(made)}/{len(made)}]" in said.decode()
    version = json.loads(await kubectl(plane.admin, "version", "-o", "json"))["serverVersion"]["gitVersion"]
    images = await kubectl(plane.admin, "-n", "hami-system", "get", "deployment", "hami-scheduler", "-o", "jsonpath={..image}")
    assert f"kube-scheduler:{version.partition('-')[0].partition('+')[0]}" in images


async def test_applied_again_it_leaves_the_webhooks_certificate_alone(plane: ControlPlane) -> None:
    folder = str(KUSTOMIZE / "overlays" / "minimal")
    await kubectl(plane.admin, "apply", "-k", folder)
    trusted = json.dumps([{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": "TFMwdExTMEs="}])
    await kubectl(plane.admin, "patch", "mutatingwebhookconfiguration", "vgpu.hami.io", "--type=json", "--patch", trusted)
    for apply in (("apply",), ("apply", "--server-side", "--force-conflicts")):
        await kubectl(plane.admin, *apply, "-k", folder)
        found = json.loads(await kubectl(plane.admin, "get", "mutatingwebhookconfiguration", "vgpu.hami.io", "-o", "json"))
        assert found["webhooks"][0]["clientConfig"]["caBundle"] == "TFMwdExTMEs="


async def test_deleted_it_leaves_nothing_that_is_called(plane: ControlPlane) -> None:
    folder = str(KUSTOMIZE / "overlays" / "production")
    await kubectl(plane.admin, "delete", "statefulsets", "--all-namespaces", "--all")
    await kubectl(plane.admin, "apply", "-k", folder)
    await kubectl(plane.admin, "delete", "-k", folder)
    kinds = "mutatingwebhookconfigurations,validatingwebhookconfigurations,validatingadmissionpolicies,clusterroles,clusterrolebindings"
    assert not [line for line in (await kubectl(plane.admin, "get", kinds, "-o", "name")).splitlines() if "hami" in line]


@pytest.fixture(params=COMPONENTS)
def with_component(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The folder of an overlay: `minimal` with a component and all that this builds upon."""
    below = os.path.relpath(KUSTOMIZE, tmp_path.resolve())
    taken = [f"{below}/components/{each}" for each in COMPONENTS if each in variants.closed({request.param})]
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump({"resources": [f"{below}/overlays/minimal"], "components": taken}))
    return str(tmp_path)


async def test_a_component_is_accepted_without_a_warning(plane: ControlPlane, with_component: str) -> None:
    await kubectl(plane.admin, "delete", "statefulsets", "--all-namespaces", "--all")
    said = await kubectl(plane.admin, *STRICTLY, "-k", with_component)
    assert len(await versions(plane, with_component)) == len(said.splitlines())
