"""What the services ask of a real API server, as its audit log has it, is what the manifests allow them, and nothing of it is refused."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest

from hami_runtime.kube.calls import CALLS
from tests.cluster.world import World, a_container, a_pod

pytestmark = pytest.mark.asyncio(loop_scope="session")
SEEN_BY_ALL = {
    "hami-webhook": {("list", "resourcequotas")},
    "hami-scheduler": {("create", "pods/binding"), ("patch", "nodes"), ("create", "events")},
    "hami-registry": {("patch", "pods"), ("patch", "nodes")},
    "hami-node-agent": {("list", "pods")},
}
"""Calls without which nothing was counted. A watch is in the log only once it has ended."""


async def test_every_call_is_one_that_a_service_is_known_to_make_and_is_allowed(world: World) -> None:
    await world.apply(a_pod("locked", a_container(mib=500), pool="locked"), a_pod("cdi", a_container(mib=500), pool="cdi"))
    await world.running("locked", "cdi")
    await world.gone("pods", "--all")
    seen: dict[str, set[tuple[str, str]]] = defaultdict(set)
    refused = []
    for line in world.installation.plane.audit_log.read_text().splitlines():
        entry = json.loads(line)
        reference = entry.get("objectRef")
        if reference is None or not entry.get("userAgent", "").startswith("hami-"):  # discovery, versions; tests that act as a service
            continue
        account = entry["user"]["username"].rpartition(":")[2]
        resource = "/".join(filter(None, (reference["resource"], reference.get("subresource"))))
        seen[account].add((entry["verb"], resource))
        if (
            entry.get("responseStatus", {}).get("code") == 403
            and entry.get("annotations", {}).get("authorization.k8s.io/decision") != "allow"
        ):
            refused.append((account, entry["verb"], resource))
    assert not refused
    for account, wanted in SEEN_BY_ALL.items():
        known = {(call.verb, call.resource) for call in CALLS[account]}
        assert seen[account] <= known
        assert wanted <= seen[account]
