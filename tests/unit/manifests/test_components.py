"""Components that no overlay takes by itself: each builds upon an overlay, is what Kubernetes takes, and fits what it is put upon."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

from hami_devices import config
from hami_devices.catalog import Catalog
from hami_node_agent.settings import Settings as AgentSettings
from hami_protocol.devices import RegisterFormat
from hami_registry.settings import Settings as RegistrySettings
from hami_runtime import settings
from hami_webhook.settings import Settings as WebhookSettings
from tests.unit.manifests.conftest import KUSTOMIZE, Manifests
from tests.unit.manifests.test_references import allowed
from tools import vendor_plugins

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import kubernetes_validate

FAMILIES = sorted(vendor_plugins.families(Catalog()))
OF_OVERLAYS = {
    name.rpartition("/")[2]
    for path in (KUSTOMIZE / "overlays").glob("*/kustomization.yaml")
    for name in yaml.safe_load(path.read_text()).get("components", ())
}
TESTED_ELSEWHERE = {"volcano"}


def with_added(components: Sequence[str] = (), **more: Any) -> Manifests:
    """`minimal` with components, and what a kustomization adds besides."""
    with TemporaryDirectory() as folder:

        def relative(path: str) -> str:
            return os.path.relpath(KUSTOMIZE / path, Path(folder).resolve())

        kustomization = {"resources": [relative("overlays/minimal")], "components": [relative(f"components/{each}") for each in components]}
        Path(folder, "kustomization.yaml").write_text(yaml.safe_dump(kustomization | more))
        kubectl = Path(sys.executable).with_name("kubectl")
        done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return Manifests(list(yaml.safe_load_all(done.stdout)))


@cache
def with_all() -> Manifests:
    """`minimal` with every component that no overlay has, and the policies."""
    components = [
        "admission-policies",
        "webhook-certificate",
        "mig",
        "beside-hami",
        "device-configuration",
        "vendor-plugins",
        *(f"vendor-plugins/{name}" for name in FAMILIES),
    ]
    return with_added(components, images=[{"name": f"hami-{name}-plugin", "newTag": "1"} for name in FAMILIES])


def test_every_component_is_built_somewhere() -> None:
    here = {"admission-policies", "webhook-certificate", "mig", "vendor-plugins", "beside-hami", "device-configuration"}
    assert {path.name for path in (KUSTOMIZE / "components").iterdir()} == OF_OVERLAYS | here | TESTED_ELSEWHERE


def test_an_overlay_lets_the_services_reach_an_api_server_at_another_port() -> None:
    """The patch of the install page."""
    page = (KUSTOMIZE.parents[1] / "docs" / "install.md").read_text()
    (patches,) = [block for block in re.findall(r"```yaml\n(patches:.*?)```", page, re.DOTALL) if "api-server" in block]
    built = with_added(**yaml.safe_load(patches))
    policies = [each for each in built.of("NetworkPolicy") if each["metadata"]["name"] == "api-server"]
    assert {each["metadata"]["namespace"] for each in policies} == {"hami-system", "hami-node-agent"}
    for each in policies:
        (rule,) = each["spec"]["egress"]
        assert {port["port"] for port in rule["ports"]} == {443, 6443, 7443, 8443, 16443}


def test_all_four_services_read_the_device_configuration() -> None:
    built = with_added(["device-configuration"])
    for workload in ("hami-webhook", "hami-registry", "hami-scheduler", "hami-node-agent"):
        container = built.pods[workload]["spec"]["containers"][0]
        (path,) = [each["value"] for each in container["env"] if each["name"] == "HAMI_DEVICE_CONFIG"]
        (mount,) = [each for each in container["volumeMounts"] if path.startswith(f"{each['mountPath']}/")]
        (volume,) = [each for each in built.pods[workload]["spec"]["volumes"] if each["name"] == mount["name"]]
        namespace = "hami-node-agent" if workload == "hami-node-agent" else "hami-system"
        (content,) = [
            each["data"]
            for each in built.of("ConfigMap")
            if (each["metadata"]["namespace"], each["metadata"]["name"]) == (namespace, volume["configMap"]["name"])
        ]
        assert config.load(content[path.rpartition("/")[2]]) == (config.DeviceConfig(), ())


def test_every_object_is_what_kubernetes_takes() -> None:
    for each in with_all().objects:
        if "cert-manager.io" not in each["apiVersion"]:
            kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)


def test_an_agent_that_cuts_cards_is_let_to_and_gets_nothing_else() -> None:
    (agent,) = with_all().pods["hami-node-agent"]["spec"]["containers"]
    environ = {each["name"]: each.get("value") for each in agent["env"]}
    assert (environ["NVIDIA_MIG_CONFIG_DEVICES"], environ["NVIDIA_MIG_MONITOR_DEVICES"]) == ("all", "all")
    assert agent["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["SYS_ADMIN"]}
    assert not agent["securityContext"].get("privileged")


def test_beside_hami_agents_serve_without_grants_and_nodes_register_as_hami_reads_them() -> None:
    """The way back of docs/migrate.md."""

    def read(workload: str, shape: type[Any]) -> Any:
        (container,) = with_all().pods[workload]["spec"]["containers"]
        return settings.load(shape, {each["name"]: each.get("value", "x") for each in container["env"]})

    agent, registry = read("hami-node-agent", AgentSettings), read("hami-registry", RegistrySettings)
    assert (agent.require_grant_event, agent.register_format) == (False, RegisterFormat.JSON)
    assert registry.legacy_handshake
    page = (KUSTOMIZE.parents[1] / "docs" / "migrate.md").read_text()
    for said in ("beside-hami", "HAMI_REQUIRE_GRANT_EVENT=false", "HAMI_REGISTER_FORMAT=json", "HAMI_LEGACY_HANDSHAKE=true", "v2.8.0"):
        assert said in page


def test_the_webhook_shows_the_certificate_that_is_mounted_and_loses_the_rights_that_it_no_longer_needs() -> None:
    built = with_all()
    (container,) = built.pods["hami-webhook"]["spec"]["containers"]
    environ = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    read = settings.load(WebhookSettings, environ)
    mount = next(each for each in container["volumeMounts"] if each["name"] == "serving")
    assert read.certificate_file.startswith(mount["mountPath"])
    assert read.certificate_key_file.startswith(mount["mountPath"])
    certificate = built.one("Certificate", "hami-webhook")["spec"]
    assert "hami-webhook.hami-system.svc" in certificate["dnsNames"]
    volume = next(each for each in built.pods["hami-webhook"]["spec"]["volumes"] if each["name"] == "serving")
    assert volume["secret"]["secretName"] == certificate["secretName"]
    for each in built.of("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        assert each["metadata"]["annotations"] == {"cert-manager.io/inject-ca-from": "hami-system/hami-webhook"}
    assert not [each for each in built.of("Role", "RoleBinding") if each["metadata"]["name"] == "hami-webhook"]
    (role,) = [each for each in built.of("ClusterRole") if each["metadata"]["name"] == "hami-webhook"]
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"list", "watch"}


def test_webhook_and_policies_let_each_plugin_write_its_vendors_records_and_no_other() -> None:
    built, catalog = with_all(), Catalog()
    (container,) = built.pods["hami-webhook"]["spec"]["containers"]
    environ = {each["name"]: each["value"] for each in container["env"] if each["name"] == "HAMI_VENDOR_WRITERS"}
    writers = settings.load(WebhookSettings, environ).policy(catalog).vendor_writers
    families = vendor_plugins.families(catalog)
    assert set(writers) == {vendor_plugins.account(family) for family in families}
    for policy in built.of("ValidatingAdmissionPolicy"):
        if policy["metadata"]["name"] == "hami-service-writes":
            continue
        expression = policy["spec"]["variables"][0]
        assert expression["name"] == "writers"
        for family, (_, names) in families.items():
            for name in names:
                assert f"'{name}': ['{vendor_plugins.account(family)}']" in expression["expression"]
        assert "'NVIDIA'" not in expression["expression"]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_vendors_plugin_runs_on_its_own_nodes_with_its_own_account(family: str) -> None:
    built, name = with_all(), f"hami-{family}-plugin"
    pod = built.pods[name]["spec"]
    assert pod["nodeSelector"] == {family: "on"}
    assert vendor_plugins.account(family).endswith(f":{pod['serviceAccountName']}")
    (container,) = pod["containers"]
    assert container["image"] == f"{name}:1"
    assert set(container["resources"]) == {"requests", "limits"}
    assert {volume["hostPath"]["path"] for volume in pod["volumes"]} == {
        "/var/lib/kubelet/device-plugins",
        "/var/lib/kubelet/pod-resources",
        "/dev",
        "/sys",
    }
    assert allowed(built, name, "hami-nats") == set()
    (role,) = [each for each in built.of("ClusterRole") if each["metadata"]["name"] == name]
    assert {resource for rule in role["rules"] for resource in rule["resources"]} == {"nodes", "pods"}
