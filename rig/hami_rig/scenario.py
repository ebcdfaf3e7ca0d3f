"""A folder with a profile and manifests: applied to a rig, until every pod is where its annotation says.

``rig.hami.io/expect`` is ``running``, ``pending``, ``succeeded`` or ``failed``; pods without it are not waited for. ``reached`` decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from msgspec import Struct

from hami_devices.catalog import Catalog
from hami_protocol import keys
from hami_protocol.kubernetes import Pod
from hami_rig.kubectl import kubectl
from hami_runtime.kube.cluster import PODS, Cluster

EXPECT = "rig.hami.io/expect"
PROFILE_FILE = "profile.yaml"
ACCEPTED = ("running", "pending", "succeeded", "failed")
LOOK_AGAIN_SECONDS = 0.2


class ScenarioError(ValueError):
    """A folder that cannot be run; the text says what is wrong with it."""


class Outcome(Struct, frozen=True, kw_only=True):
    """Where one pod is."""

    pod: str
    expected: str
    reached: bool
    node: str
    detail: str


def manifests(folder: Path) -> list[Path]:
    """The manifests of a scenario, in order of their names.

    Raises:
        ScenarioError: there are none.
    """
    found = sorted(path for path in folder.iterdir() if path.suffix in (".yaml", ".yml", ".json") and path.name != PROFILE_FILE)
    if not found:
        raise ScenarioError(f"{folder}: has no manifests; accepted: .yaml, .yml and .json files beside an optional {PROFILE_FILE}")
    return found


def reached(pod: Pod) -> bool:
    """Whether the pod is where its annotation says; a pod that asks for a device runs only once it has been given it.

    Raises:
        ScenarioError: the annotation is none of those accepted.
    """
    expected = pod.metadata.annotations.get(EXPECT, "")
    if expected not in ACCEPTED:
        raise ScenarioError(f"{pod.metadata.name}: {EXPECT}: {expected!r} is not accepted; accepted: {', '.join(ACCEPTED)}")
    conditions = {each.type: each for each in pod.status.conditions or ()}
    match expected:
        case "running":
            ready = "Ready" in conditions and conditions["Ready"].status == "True"
            return pod.status.phase == "Running" and ready and pod.metadata.annotations.get(keys.BIND_PHASE, "success") == "success"
        case "pending":
            scheduled = conditions.get("PodScheduled")
            return pod.status.phase == "Pending" and scheduled is not None and scheduled.reason == "Unschedulable"
        case _:
            return pod.status.phase.lower() == expected


def outcome(pod: Pod) -> Outcome:
    """Where the pod is, for a table."""
    scheduled = next((each for each in pod.status.conditions or () if each.type == "PodScheduled"), None)
    detail = pod.status.message or (scheduled.message if scheduled and scheduled.status == "False" else "") or ""
    return Outcome(
        pod=f"{pod.metadata.namespace}/{pod.metadata.name}",
        expected=pod.metadata.annotations.get(EXPECT, ""),
        reached=reached(pod),
        node=pod.spec.node_name,
        detail=detail or given(pod),
    )


def given(pod: Pod) -> str:
    """What the pod was given, by the annotations of its vendors, one a line; what is still to be handed out is left out."""
    return "\n".join(f"{key}: {text}" for key, text in sorted(pod.metadata.annotations.items()) if key in _vendors_keys())


@cache
def _vendors_keys() -> frozenset[str]:
    vendors = Catalog().vendors
    ours = {key for vendor in vendors for key in vendor.system_keys} - {vendor.to_allocate_key for vendor in vendors}
    return frozenset(ours | {keys.MIG_ALLOCATIONS})


async def run(kubeconfig: Path, cluster: Cluster, files: Iterable[Path], *, timeout_seconds: float) -> list[Outcome]:
    """Apply ``files`` in order and wait, at most ``timeout_seconds``, until all pods are where they should be."""
    for path in files:
        await kubectl(kubeconfig, "apply", "-f", str(path))
    outcomes: list[Outcome] = []
    try:
        async with asyncio.timeout(timeout_seconds):
            while True:
                pods = (await cluster.list(PODS)).items
                outcomes = [outcome(pod) for pod in pods if EXPECT in pod.metadata.annotations]
                if outcomes and all(each.reached for each in outcomes):
                    return outcomes
                await asyncio.sleep(LOOK_AGAIN_SECONDS)
    except TimeoutError:
        return outcomes
