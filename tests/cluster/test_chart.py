"""The chart is the kustomize manifests: what helm renders is compared with what kustomize builds, object by object."""

from __future__ import annotations

import asyncio
import copy
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
import yaml

from hami_rig.kubectl import kubectl
from tests.cluster.harness import building
from tests.cluster.harness.control_plane import ControlPlane
from tests.cluster.test_install import CONTROLLERS, hami, names, of_others
from tools.chart.templates import name
from tools.chart.variants import COMPONENTS, FAMILIES, Choice, Key, Object, build, closed, key

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHART: Final = building.ROOT / "deploy" / "chart" / "hami"
VERSION: Final = "v1.34.2"
"""kube-scheduler's in the overlays."""
PRODUCTION: Final = frozenset(COMPONENTS[: COMPONENTS.index("fake-devices")])
PLUGINS: Final = [each for each in COMPONENTS if "/" in each]
PAIRS: Final = [frozenset(COMPONENTS[number::3]) for number in range(3)]
"""Three choices that have components apart that others have together."""
CHOICES: Final = [frozenset[str](), *(frozenset({each}) for each in COMPONENTS if "/" not in each), *PAIRS, frozenset(COMPONENTS)]


@pytest.fixture(scope="module")
def helm() -> Path:
    if reason := building.lacking(building.HELM):
        pytest.fail(f"no helm here: {reason}", pytrace=False)
    return building.binaries(building.HELM) / "helm"


async def ran(helm: Path, *arguments: str, kubeconfig: Path | None = None) -> tuple[int, str]:
    more = ["--kubeconfig", str(kubeconfig)] if kubeconfig else []
    process = await asyncio.create_subprocess_exec(
        str(helm), *arguments, *more, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


async def rendered(helm: Path, folder: Path, values: dict[str, Any], *arguments: str) -> dict[Key, Object]:
    text = await text_of(helm, folder, values, *arguments)
    found = [each for each in yaml.safe_load_all(text) if each]
    assert len({key(each) for each in found}) == len(found)
    return {key(each): each for each in map(unhashed, found)}


def unhashed(body: Object) -> Object:
    """``body`` with the device configuration under the name that it has in the sources: kustomize and the chart end it with other digests."""
    return dict(json.loads(re.sub(r"\b(hami-device-config)-[a-z0-9]{10}\b", r"\1", json.dumps(body))))


def values_of(choice: Choice) -> dict[str, Any]:
    values: dict[str, Any] = {"components": {}, "vendorPlugins": {}, "vendorPluginImages": {}}
    for each in closed(choice):
        section, _, short = name(each).partition(".")
        values[section][short] = True
        if section == "vendorPlugins":
            family = each.partition("/")[2]
            values["vendorPluginImages"][family] = f"hami-{family}-plugin"
    return values


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: "+".join(sorted(choice)) or "minimal")
async def test_it_renders_what_kustomize_builds(helm: Path, tmp_path: Path, choice: Choice) -> None:
    found, wanted = await rendered(helm, tmp_path, values_of(choice)), build(closed(choice))
    assert found.keys() == wanted.keys()
    for one, body in wanted.items():
        assert found[one] == unhashed(body), one


@pytest.mark.parametrize("overlay", ["rig", "production"])
async def test_the_values_that_come_with_it_are_the_overlays(helm: Path, tmp_path: Path, overlay: str) -> None:
    found = await rendered(helm, tmp_path, {}, "--values", str(CHART / f"values-{overlay}.yaml"))
    assert found == build(frozenset(), f"overlays/{overlay}")


def containers(body: Object) -> list[Object]:
    spec = ((body.get("spec") or {}).get("template") or {}).get("spec") or {}
    return [*spec.get("initContainers", ()), *spec.get("containers", ())]


SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "images": {"prefix": "registry.example:5000/hami", "tag": "9.9", "pullPolicy": "Always", "pullSecrets": [{"name": "pull"}]},
    "networkPolicy": {"apiServerPorts": [{"port": 7443, "protocol": "TCP"}]},
    "webhook": {"replicas": 3},
    "authCallout": {"replicas": 4},
    "nodeAgent": {"nodeSelector": {"pool": "a"}, "runtimeClassName": "nvidia", "resources": {"limits": {"memory": "1Gi"}}},
    "scheduler": {"env": [{"name": "HAMI_LOG_LEVEL", "value": "debug"}], "resources": {"requests": {"cpu": "1"}}},
    "kubeScheduler": {"image": "mirror.example/kube-scheduler", "tag": "v1.33.9"},
    "nats": {
        "image": "mirror.example/nats:1",
        "reloaderImage": "mirror.example/reloader:1",
        "storage": {"size": "9Gi", "className": "fast"},
    },
}


def set_containers(body: Object, changed: Object) -> None:
    """Images, resources and variables."""
    for container in containers(changed):
        image = container["image"]
        if image.startswith("hami/"):
            container["image"] = f"registry.example:5000/{image.partition(':')[0]}:9.9"
            container["imagePullPolicy"] = "Always"
        elif "kube-scheduler" in image:
            container["image"] = "mirror.example/kube-scheduler:v1.33.9"
        elif image.startswith("nats"):
            container["image"] = f"mirror.example/{'reloader' if 'reloader' in image else 'nats'}:1"
        if container["name"] == "extender":
            container["env"].append({"name": "HAMI_LOG_LEVEL", "value": "debug"})
            container["resources"] = {"requests": {"cpu": "1"}, "limits": container["resources"]["limits"]}
            container["resources"]["requests"]["memory"] = body["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"][
                "memory"
            ]
        if container["name"] == "node-agent":
            container["resources"]["limits"]["memory"] = "1Gi"


def expected(body: Object, values: dict[str, dict[str, Any]]) -> Object:
    """What kustomize makes of the same settings: images, patches of resources, variables, selectors and claims."""
    changed = copy.deepcopy(body)
    workload, spec = body["metadata"]["name"], ((changed.get("spec") or {}).get("template") or {}).get("spec")
    if (body["kind"], workload) == ("NetworkPolicy", "api-server"):
        changed["spec"]["egress"][0]["ports"] += values["networkPolicy"]["apiServerPorts"]
    if not containers(changed):
        return changed
    if (replicated := {"hami-webhook": "webhook", "hami-auth-callout": "authCallout"}.get(workload)) is not None:
        changed["spec"]["replicas"] = values[replicated]["replicas"]
    set_containers(body, changed)
    spec["imagePullSecrets"] = [{"name": "pull"}]
    if workload == "hami-node-agent":
        spec |= {"nodeSelector": {"gpu": "on", "pool": "a"}, "runtimeClassName": "nvidia"}
    for claim in changed["spec"].get("volumeClaimTemplates") or ():
        claim["spec"] |= {"storageClassName": "fast", "resources": {"requests": {"storage": "9Gi"}}}
    return changed


async def test_each_setting_is_where_it_belongs_and_nowhere_else(helm: Path, tmp_path: Path) -> None:
    found = await rendered(helm, tmp_path, values_of(PRODUCTION) | SETTINGS)
    for one, body in build(closed(PRODUCTION)).items():
        assert found[one] == expected(body, SETTINGS), one


async def test_another_device_configuration_is_in_both_maps_and_makes_pods_start_anew(helm: Path, tmp_path: Path) -> None:
    values = {"components": {"deviceConfiguration": True}, "deviceConfig": {"nvidia": {"deviceSplitCount": 4}}}
    first, second = await text_of(helm, tmp_path, values | {"deviceConfig": {}}), await text_of(helm, tmp_path, values)
    assert second.count("deviceSplitCount: 4") == 2
    names = [set(re.findall(r"hami-device-config-[a-z0-9]{10}", text)) for text in (first, second)]
    assert [len(each) for each in names] == [1, 1]
    assert names[0] != names[1]


async def text_of(helm: Path, folder: Path, values: dict[str, Any], *arguments: str) -> str:
    path = folder / "values.yaml"
    path.write_text(yaml.safe_dump(values))
    code, text = await ran(helm, "template", "hami", str(CHART), "--kube-version", VERSION, "--values", str(path), *arguments)
    assert code == 0, text
    return text


async def test_kube_scheduler_is_of_the_clusters_version(helm: Path, tmp_path: Path) -> None:
    code, text = await ran(helm, "template", "hami", str(CHART), "--kube-version", "v1.36.4+k3s1")
    assert code == 0, text
    assert 'registry.k8s.io/kube-scheduler:v1.36.4"' in text


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"components": {"natsCluster": True}}, "natsAccounts"),
        ({"components": {"natsClusters": True}}, "natsClusters"),
        ({"images": {"pullPolicy": "sometimes"}}, "pullPolicy"),
        ({"nodeAgent": {"nodeSelector": {"gpu": True}}}, "nodeSelector"),
        ({"nats": {"storage": {"size": "much"}}}, "size"),
        ({"webhook": {"replicas": -1}}, "replicas"),
        ({"deviceConfig": {"nvidia": {"resourceCountName": "example.com/gpu"}}}, "resourceCountName"),
        ({"deviceConfig": {"nvidia": {"deviceSplitCount": 0}}}, "deviceSplitCount"),
        ({"registry": {"replicas": 2}}, "highAvailability"),
        ({"networkPolicy": {"apiServerPorts": [{"port": 70000}]}}, "apiServerPorts"),
    ],
)
async def test_values_that_make_no_sense_are_refused_with_their_place(
    helm: Path, tmp_path: Path, values: dict[str, Any], named: str
) -> None:
    path = tmp_path / "values.yaml"
    path.write_text(yaml.safe_dump(values))
    code, text = await ran(helm, "template", "hami", str(CHART), "--kube-version", VERSION, "--values", str(path))
    assert code != 0
    assert named in text


async def test_a_vendors_plugin_needs_its_image(helm: Path, tmp_path: Path) -> None:
    path = tmp_path / "values.yaml"
    path.write_text(yaml.safe_dump(values_of(frozenset({PLUGINS[0]})) | {"vendorPluginImages": {}}))
    code, text = await ran(helm, "template", "hami", str(CHART), "--kube-version", VERSION, "--values", str(path))
    assert code != 0
    assert f"vendorPluginImages.{FAMILIES[0]}" in text


async def test_helm_finds_nothing_to_complain_of(helm: Path) -> None:
    for values in ("values.yaml", "values-production.yaml", "values-rig.yaml"):
        code, text = await ran(helm, "lint", "--strict", str(CHART), "--values", str(CHART / values))
        assert code == 0, text


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plane() -> AsyncIterator[ControlPlane]:
    if reason := building.lacking():
        pytest.fail(f"no real Kubernetes here: {reason}", pytrace=False)
    async with ControlPlane(controllers=CONTROLLERS) as running:
        yield running


async def test_it_is_installed_changed_and_removed_on_a_real_api_server(helm: Path, plane: ControlPlane) -> None:
    await of_others(plane)
    code, text = await ran(helm, "install", "shares", str(CHART), kubeconfig=plane.admin)
    assert code == 0, text
    assert "hami doctor" in text
    before = await names(plane, "configmaps,roles,deployments")
    assert {"deployment.apps/hami-scheduler", "role.rbac.authorization.k8s.io/hami-webhook"} < before
    version = json.loads(await kubectl(plane.admin, "version", "-o", "json"))["serverVersion"]["gitVersion"]
    images = await kubectl(plane.admin, "-n", "hami-system", "get", "deployment", "hami-scheduler", "-o", "jsonpath={..image}")
    assert f"kube-scheduler:{version.partition('-')[0].partition('+')[0]}" in images
    said = await hami(plane, "install", "--no-wait")
    assert (said.code, "release shares" in said.err) == (1, True)
    code, text = await ran(helm, "upgrade", "shares", str(CHART), "--set", "components.webhookCertificate=true", kubeconfig=plane.admin)
    assert code == 0, text
    assert "role.rbac.authorization.k8s.io/hami-webhook" not in await names(plane, "roles")
    code, text = await ran(helm, "uninstall", "shares", kubeconfig=plane.admin)
    assert code == 0, text
    assert not await names(plane, "mutatingwebhookconfigurations,clusterroles,clusterrolebindings")
