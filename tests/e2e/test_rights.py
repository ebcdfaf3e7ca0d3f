"""What the services ask of the API server in a story of all kinds of pods is what the manifests allow them."""

import aiohttp
import pytest

from hami_runtime.kube.calls import CALLS
from tests.e2e.conftest import CARD_MIB, World, a_pod, waits

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]
SEEN_BY_ALL = {
    "hami-webhook": {("list", "resourcequotas"), ("watch", "resourcequotas")},
    "hami-scheduler": {("create", "pods/binding"), ("patch", "nodes"), ("create", "events")},
    "hami-registry": {("patch", "pods"), ("patch", "nodes")},
    "hami-node-agent": {("watch", "pods"), ("watch", "nodes")},
}
"""Calls without which nothing was counted."""


MADE_IN_A_RIG = {
    "hami-webhook": {
        ("create", "mutatingwebhookconfigurations"),  # the manifests bring them
        ("create", "validatingwebhookconfigurations"),
    },
}


async def test_the_services_ask_for_what_they_are_allowed(world: World) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "devices", "namespace": "default"},
        "spec": {"hard": {"limits.nvidia.com/gpumem": str(4 * CARD_MIB)}},
    }
    try:
        await world.apply(quota, a_pod("locked", pool="locked"), a_pod("cdi", pool="cdi"), a_pod("too-big", mib=2 * CARD_MIB))
        await world.running("locked", "cdi")
        await world.until("too-big", waits)
        await world.clear()
    finally:
        await world.kubectl("delete", "resourcequota", "devices", "--ignore-not-found")
    async with aiohttp.ClientSession() as session, session.get(f"{world.api_url}/rig/requests") as answer:
        rows = (await answer.json())["requests"]
    seen: dict[str, set[tuple[str, str]]] = {}
    for row in rows:
        resource = f"{row['resource']}/{row['subresource']}" if row["subresource"] else row["resource"]
        seen.setdefault(row["user_agent"], set()).add((row["verb"], resource))
    for service, wanted in SEEN_BY_ALL.items():
        assert wanted <= seen[service]
        allowed = {(call.verb, call.resource) for call in CALLS[service]}
        assert seen[service] - allowed == MADE_IN_A_RIG.get(service, set())
