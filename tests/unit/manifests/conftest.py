"""The manifests as kubectl builds them, each folder once."""

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

KUSTOMIZE = Path(__file__).parents[3] / "deploy" / "kustomize"
BASES = sorted(path.name for path in (KUSTOMIZE / "base").iterdir())
OVERLAYS = sorted(path.name for path in (KUSTOMIZE / "overlays").iterdir())
SERVICES = ("node-agent", "registry", "scheduler", "webhook")
AUTH_CALLOUT = "hami-auth-callout"
"""In the production overlay alone, from the registry's image."""
WORKLOADS = ("DaemonSet", "Deployment", "StatefulSet")

Object = dict[str, Any]


class Manifests:
    """The objects of one folder."""

    def __init__(self, objects: list[Object]) -> None:
        self.objects = objects

    def of(self, *kinds: str) -> list[Object]:
        return [each for each in self.objects if each["kind"] in kinds]

    def one(self, kind: str, name: str) -> Object:
        (found,) = [each for each in self.of(kind) if each["metadata"]["name"] == name]
        return found

    def namespace(self, workload: str) -> str:
        """The namespace that a workload's pods are in."""
        (found,) = [each["metadata"]["namespace"] for each in self.of(*WORKLOADS) if each["metadata"]["name"] == workload]
        return str(found)

    @property
    def pods(self) -> dict[str, Object]:
        """The pod templates, by the name of their workload."""
        return {each["metadata"]["name"]: each["spec"]["template"] for each in self.of(*WORKLOADS)}


@cache
def build(folder: str | Path) -> Manifests:
    """What ``kubectl kustomize`` makes of a folder, by its name below ``deploy/kustomize`` or its path."""
    kubectl = Path(sys.executable).with_name("kubectl")
    done = subprocess.run([kubectl, "kustomize", KUSTOMIZE / folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return Manifests(list(yaml.safe_load_all(done.stdout)))


@pytest.fixture(params=OVERLAYS)
def overlay(request: pytest.FixtureRequest) -> Manifests:
    return build(f"overlays/{request.param}")


@pytest.fixture
def production() -> Manifests:
    return build("overlays/production")
