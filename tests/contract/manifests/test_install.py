"""``hami install`` as a program: what it would apply is what kustomize builds, and what the cluster lacks is said before anything is applied."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from hami_rig.apiserver import kubeconfig
from tests.unit.manifests.conftest import KUSTOMIZE, OVERLAYS, build

VERSION = "v1.34.2"
"""kube-scheduler's in the overlays; where it is named, no cluster is asked."""


def hami(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "hami_cli.main", "install", *arguments], capture_output=True, text=True, check=False)


def objects(text: str) -> list[dict[str, Any]]:
    return sorted(yaml.safe_load_all(text), key=lambda each: json.dumps(each, sort_keys=True))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_would_be_applied_is_the_overlay(overlay: str) -> None:
    done = hami("--dry-run", "--overlay", overlay, "--kube-scheduler", VERSION)
    assert (done.returncode, done.stderr) == (0, "")
    wanted = sorted(build(f"overlays/{overlay}").objects, key=lambda each: json.dumps(each, sort_keys=True))
    assert objects(done.stdout) == wanted


def test_a_folder_is_taken_with_other_images() -> None:
    done = hami(
        "--dry-run",
        "--kube-scheduler",
        VERSION,
        "--overlay",
        str(KUSTOMIZE / "overlays" / "minimal"),
        "--images",
        "r.example/h",
        "--tag",
        "9",
    )
    images = [
        container["image"]
        for each in objects(done.stdout)
        if each["kind"] in {"DaemonSet", "Deployment"}
        for container in each["spec"]["template"]["spec"]["containers"]
    ]
    assert {"r.example/h/registry:9", "r.example/h/node-agent:9"} < set(images)


@pytest.mark.parametrize("overlay", ["huge", "./nowhere"])
def test_an_overlay_that_is_not_there_is_refused(overlay: str) -> None:
    done = hami("--dry-run", "--overlay", overlay)
    assert done.returncode == 2
    assert "accepted:" in done.stderr


def test_a_cluster_that_cannot_be_reached_is_named_with_the_way_that_needs_none(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(kubeconfig("http://127.0.0.1:1"))
    for arguments in ((), ("--dry-run",)):
        done = hami("--kubeconfig", str(path), *arguments)
        assert (done.returncode, done.stdout) == (1, "")
        assert "127.0.0.1:1" in done.stderr
        assert "--dry-run --kube-scheduler v1.34.2" in done.stderr
