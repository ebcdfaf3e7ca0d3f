"""The deployment as a real API server takes it, and what its policies hold people to."""

from __future__ import annotations

import json

import pytest
import yaml

from hami_rig.kubectl import kubectl
from tests.cluster.harness.building import ROOT
from tests.cluster.world import ALLOCATED, World, a_container, a_pod, shares_of

pytestmark = pytest.mark.asyncio(loop_scope="session")
ELSEWHERE = frozenset(
    {"Certificate", "Issuer", "PodMonitor", "PrometheusRule", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"}
)
"""Kinds of other people's, and those that the installation has already: the webhook has put its address there."""


@pytest.mark.parametrize("overlay", ["minimal", "production"])
async def test_every_object_of_an_overlay_is_accepted(world: World, overlay: str) -> None:
    folder = str(ROOT / "deploy" / "kustomize" / "overlays" / overlay)
    rendered = world.installation.folder / f"{overlay}.yaml"
    everything = yaml.safe_load_all(await kubectl(world.installation.kubeconfig, "kustomize", folder))
    rendered.write_text(yaml.safe_dump_all([body for body in everything if body["kind"] not in ELSEWHERE]))
    said = await world.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", str(rendered))
    assert "(server dry run)" in said


async def test_no_call_of_ours_is_forbidden(world: World) -> None:
    await world.apply(a_pod("any", a_container(mib=500), pool="cdi"), a_pod("other", a_container(mib=500), pool="locked"))
    await world.running("any", "other")
    await world.gone("pods", "--all")
    for name, process in world.installation.processes.items():
        if name in ("webhook", "scheduler", "registry") or name.startswith("node-agent"):
            lines = [line for line in process.log.read_text().splitlines() if "orbidden" in line]
            assert not lines, (name, lines[:3])


async def test_nobody_changes_what_was_granted(world: World) -> None:
    await world.apply(a_pod("held", a_container(mib=700)))
    (pod,) = await world.running("held")
    raised = pod.metadata.annotations[ALLOCATED].replace(",700,", ",32768,")
    body = json.dumps({"metadata": {"annotations": {ALLOCATED: raised}}})
    headers = {"Content-Type": "application/merge-patch+json"}
    for who in ("tenant", "admin", "scheduler", "kube-scheduler"):
        async with (
            world.installation.plane.session(who) as session,
            session.patch("/api/v1/namespaces/default/pods/held", data=body, headers=headers) as answer,
        ):
            assert answer.status == 403, (who, await answer.text())
    assert [share.memory_mib for (share,) in shares_of(await world.pod("held")).values()] == [700]
