"""What a release is made of: the workflow builds what there is, and the krew manifest names what the workflow builds."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.dockerfile import PROJECT, ROOT, stages
from tools import images, krew_manifest

WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
JOBS: dict[str, dict[str, Any]] = WORKFLOW["jobs"]
KREW = yaml.safe_load(krew_manifest.MANIFEST.read_text())


def steps(job: str, action: str) -> list[dict[str, Any]]:
    return [step for step in JOBS[job]["steps"] if step.get("uses", "").startswith(f"{action}@")]


def test_every_image_is_built_for_two_architectures_signed_and_attested() -> None:
    assert tuple(JOBS["image"]["strategy"]["matrix"]["target"]) == images.TARGETS
    (build,) = steps("image", "docker/build-push-action")
    assert build["with"]["file"] == images.DOCKERFILE
    assert build["with"]["platforms"] == "linux/amd64,linux/arm64"
    assert (build["with"]["provenance"], build["with"]["sbom"]) == ("mode=max", True)
    given = set(re.findall(r"^(\w+)=", build["with"]["build-args"], re.MULTILINE))
    assert given == {*(each.partition("=")[0] for each in stages()["runtime"].all("ARG")), "SOURCE_DATE_EPOCH"}
    assert any(
        "cosign sign" in step.get("run", "") and "@${{ steps.build.outputs.digest }}" in step["env"]["IMAGE"]
        for step in JOBS["image"]["steps"]
    )
    assert steps("image", "actions/attest-build-provenance")


@pytest.mark.parametrize("job", JOBS)
def test_a_job_has_the_rights_that_it_names_and_checkouts_leave_no_token(job: str) -> None:
    assert WORKFLOW["permissions"] == {}
    assert JOBS[job]["permissions"]
    assert all(step["with"]["persist-credentials"] is False for step in steps(job, "actions/checkout"))


@pytest.mark.parametrize("job", JOBS)
def test_no_expression_is_put_into_a_script(job: str) -> None:
    """Values reach a script through its environment alone, where a shell does not read them as commands."""
    assert not [step["run"] for step in JOBS[job]["steps"] if "${{" in step.get("run", "")]


class TestKrew:
    def test_the_manifest_is_of_this_version_and_has_what_krew_demands(self) -> None:
        assert KREW["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2"
        assert (KREW["kind"], KREW["metadata"]["name"]) == ("Plugin", "hami")
        assert KREW["spec"]["version"] == f"v{PROJECT['project']['version']}"
        assert "kubectl-hami" in PROJECT["project"]["scripts"]
        for platform in KREW["spec"]["platforms"]:
            assert platform["bin"] == "kubectl-hami"
            assert re.fullmatch(r"[0-9a-f]{64}", platform["sha256"])
            assert f"/releases/download/{KREW['spec']['version']}/" in platform["uri"]

    def test_its_archives_are_those_that_the_workflow_builds(self) -> None:
        built = {each["platform"] for each in JOBS["plugin"]["strategy"]["matrix"]["include"]}
        named = {re.search(r"kubectl-hami-([\w-]+)\.tar\.gz$", each["uri"])[1] for each in KREW["spec"]["platforms"]}  # type: ignore[index]
        assert built == named
        for each in KREW["spec"]["platforms"]:
            labels = each["selector"]["matchLabels"]
            assert f"{labels['os']}-{labels['arch']}.tar.gz" in each["uri"]

    def test_a_release_fills_in_its_address_and_digests(self) -> None:
        filled = krew_manifest.filled(KREW, "https://forge.example/team/hami", lambda name: f"digest of {name}")
        assert filled["spec"]["homepage"] == "https://forge.example/team/hami"
        for platform in filled["spec"]["platforms"]:
            name = platform["uri"].rpartition("/")[2]
            assert platform["uri"] == f"https://forge.example/team/hami/releases/download/{KREW['spec']['version']}/{name}"
            assert platform["sha256"] == f"digest of {name}"
        assert "example.invalid" not in yaml.safe_dump(filled)
