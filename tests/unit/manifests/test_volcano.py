"""Volcano's component: its plugin reaches the two verbs that change nothing, and nothing else of the scheduler."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.unit.manifests.conftest import KUSTOMIZE

COMPONENT = KUSTOMIZE / "components" / "volcano"


def built(folder: Path) -> list[dict[str, Any]]:
    (folder / "kustomization.yaml").write_text(
        yaml.safe_dump({"resources": ["base"], "components": ["component"], "namespace": "hami-system"})
    )
    for name, target in (("base", KUSTOMIZE / "base" / "scheduler"), ("component", COMPONENT)):
        (folder / name).mkdir()
        for file in target.iterdir():
            (folder / name / file.name).write_bytes(file.read_bytes())
    kubectl = Path(sys.executable).with_name("kubectl")
    done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, check=True)
    return list(yaml.safe_load_all(done.stdout))


def test_the_service_leads_to_the_listener_and_only_volcano_may_use_it(tmp_path: Path) -> None:
    objects = built(tmp_path)
    (deployment,) = [each for each in objects if each["kind"] == "Deployment"]
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    environment = {each["name"]: each.get("value") for each in container["env"]}
    assert container["name"] == "extender"
    assert environment["HAMI_VOLCANO_PORT"] == str(ports["volcano"])
    assert environment.get("HAMI_EXTENDER_HOST") in (None, "127.0.0.1")
    (service,) = [each for each in objects if each["kind"] == "Service" and each["spec"]["ports"][0]["name"] != "api"]
    assert service["spec"]["ports"][0]["targetPort"] == "volcano"
    (policy,) = [each for each in objects if each["kind"] == "NetworkPolicy" and each["metadata"]["name"] == "hami-volcano"]
    assert policy["spec"]["ingress"][0]["ports"] == [{"port": "volcano", "protocol": "TCP"}]


def test_the_plugins_configuration_calls_what_is_served() -> None:
    tiers = yaml.safe_load((COMPONENT / "scheduler.conf").read_text())["tiers"]
    (arguments,) = [plugin["arguments"] for tier in tiers for plugin in tier["plugins"] if plugin["name"] == "extender"]
    assert arguments["extender.urlPrefix"] == "http://hami-volcano.hami-system"
    assert {arguments["extender.predicateVerb"], arguments["extender.prioritizeVerb"]} == {"volcano/predicate", "volcano/prioritize"}
    assert arguments["extender.ignorable"] is False
