"""The manifests with components, as kustomize builds them, and which components change which object."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import yaml

from hami_devices.catalog import Catalog
from tools import vendor_plugins

KUSTOMIZE: Final = Path(__file__).resolve().parents[2] / "deploy" / "kustomize"
FAMILIES: Final = sorted(vendor_plugins.families(Catalog()))
COMPONENTS: Final = (
    "admission-policies",
    "high-availability",
    "nats-storage",
    "nats-accounts",
    "nats-cluster",
    "nats-auth-callout",
    "prometheus-operator",
    "grafana-dashboards",
    "fake-devices",
    "device-configuration",
    "mig",
    "webhook-certificate",
    "volcano",
    "vendor-plugins",
    *(f"vendor-plugins/{family}" for family in FAMILIES),
)
"""In the order in which an overlay takes them."""
NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "nats-cluster": ("nats-accounts", "nats-storage"),
    "nats-auth-callout": ("nats-accounts",),
    "vendor-plugins": ("admission-policies",),
    **{f"vendor-plugins/{family}": ("vendor-plugins", "admission-policies") for family in FAMILIES},
}
"""Components that build upon others."""
IMAGES: Final = yaml.safe_load((KUSTOMIZE / "overlays" / "production" / "kustomization.yaml").read_text())["images"]
"""Those that a component has and `minimal` has not."""
_HASH: Final = re.compile(r"-[bcdfghkmt2456789]{10}$")

Object = dict[str, Any]
Choice = frozenset[str]
"""The components that are taken."""
Key = tuple[str, str, str]
"""Kind, namespace and name of an object, without the hash of a generated name."""


def closed(choice: Iterable[str]) -> Choice:
    """``choice`` with all that its components build upon."""
    taken = frozenset(choice)
    return taken.union(*(NEEDS.get(each, ()) for each in taken))


def is_closed(choice: Choice) -> bool:
    """Whether nothing is missing that its components build upon."""
    return closed(choice) == choice


@cache
def build(choice: Choice, overlay: str = "overlays/minimal") -> dict[Key, Object]:
    """The objects of an overlay with the components of ``choice``."""
    with TemporaryDirectory() as folder:
        here = Path(folder).resolve()
        content = {
            "resources": [os.path.relpath(KUSTOMIZE / overlay, here)],
            "images": IMAGES,
            "components": [os.path.relpath(KUSTOMIZE / "components" / each, here) for each in COMPONENTS if each in choice],
        }
        Path(folder, "kustomization.yaml").write_text(yaml.safe_dump(content))
        command = [str(Path(sys.executable).with_name("kubectl")), "kustomize", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"kustomize with {', '.join(sorted(choice)) or 'no component'}: {done.stderr}")
    return {key(each): each for each in yaml.safe_load_all(done.stdout)}


def key(body: Object) -> Key:
    """What an object is called in every variant."""
    name = body["metadata"]["name"]
    return body["kind"], body["metadata"].get("namespace", ""), _HASH.sub("", name) if body["kind"] == "ConfigMap" else name


def variants() -> dict[Key, dict[Choice, Object | None]]:
    """Every object in every variant: by the components that change it, of which each possible choice is there; None where it does not exist."""
    everything = frozenset(COMPONENTS)
    probes = {each: _probes(each, everything) for each in COMPONENTS}
    _build_all({choice for pairs in probes.values() for pair in pairs for choice in pair})
    keys = sorted({key for pairs in probes.values() for pair in pairs for choice in pair for key in build(choice)})
    changes = {
        one: [each for each in COMPONENTS if any(build(without).get(one) != build(with_it).get(one) for without, with_it in probes[each])]
        for one in keys
    }
    choices = {one: [frozenset(taken) for taken in _subsets(changes[one])] for one in keys}
    _build_all({closed(choice) for possible in choices.values() for choice in possible})
    return {
        one: {choice: build(closed(choice)).get(one) for choice in possible if closed(choice) & set(changes[one]) == choice}
        for one, possible in choices.items()
    }


def _probes(component: str, everything: Choice) -> list[tuple[Choice, Choice]]:
    """Two pairs of choices that differ in one component: next to nothing taken, and next to all."""
    needed = closed({component})
    dependents = {each for each in COMPONENTS if component in NEEDS.get(each, ())}
    return [(needed - {component}, needed), (everything - dependents - {component}, everything - dependents)]


def _subsets(components: list[str]) -> Iterable[tuple[str, ...]]:
    return itertools.chain.from_iterable(itertools.combinations(components, count) for count in range(len(components) + 1))


def _build_all(choices: Iterable[Choice]) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(build, choices))
