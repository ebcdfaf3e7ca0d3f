"""Agents on the production overlay's bus with tokens of a real API server, which it binds to pods and nodes as kubelet asks it to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hami_protocol import subjects
from hami_rig.kubectl import kubectl
from hami_runtime.bus import MessageRefused
from hami_runtime.kube import accounts
from tests.cluster.harness import building
from tests.cluster.harness.control_plane import ControlPlane
from tests.contract.manifests.production import production_bus
from tests.contract.manifests.test_nats_accounts import a_message
from tests.contract.manifests.test_nats_auth_callout import SECRET, Callout, World, connected

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]
NAMESPACE = accounts.AGENT_NAMESPACE
KUSTOMIZE = building.ROOT / "deploy" / "kustomize"
PLAIN = {"name": "main", "image": "pause"}


class RealTokens:
    """What an administrator does with pods and tokens."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self._plane = plane
        self._folder = folder

    async def apply(self, *objects: dict[str, Any]) -> None:
        path = self._folder / "objects.json"
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
        await kubectl(self._plane.admin, "apply", "-f", str(path))

    async def pod(self, name: str, node: str, account: str = "hami-node-agent") -> None:
        metadata = {"name": name, "namespace": NAMESPACE}
        spec = {"nodeName": node, "serviceAccountName": account, "containers": [PLAIN]}
        await self.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    async def token(self, account: str, *, pod: str = "", audience: str = "hami-nats") -> str:
        """As kubelet asks for it."""
        bound = ["--bound-object-kind=Pod", f"--bound-object-name={pod}"] if pod else []
        given = [f"--audience={audience}"] if audience else []
        namespace = NAMESPACE if pod else accounts.namespace_of(account)
        token = await kubectl(self._plane.admin, "create", "token", account, f"--namespace={namespace}", *given, *bound)
        return token.strip()

    async def kubeconfig(self, account: str) -> Path:
        """Of a service account, under its own rights."""
        config = json.loads(self._plane.admin.read_text())
        config["users"][0]["user"] = {"token": await self.token(account, audience="")}
        path = self._folder / f"{account}.kubeconfig"
        path.write_text(json.dumps(config))
        return path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plane() -> AsyncIterator[ControlPlane]:
    if reason := building.lacking():
        pytest.fail(f"no real Kubernetes here: {reason}", pytrace=False)
    async with ControlPlane(controllers=()) as running:
        yield running


async def test_a_real_token_opens_the_bus_for_its_own_node_until_its_pod_is_gone(plane: ControlPlane, tmp_path: Path) -> None:
    tokens = RealTokens(plane, tmp_path)
    folder = tmp_path / "bus"
    folder.mkdir()
    for namespace in (accounts.SYSTEM_NAMESPACE, NAMESPACE):
        await kubectl(plane.admin, "create", "namespace", namespace)
    await kubectl(plane.admin, "apply", f"--namespace={NAMESPACE}", "-f", str(KUSTOMIZE / "base/node-agent/rbac.yaml"))
    await kubectl(plane.admin, "apply", "-f", str(KUSTOMIZE / "components/nats-auth-callout/rbac.yaml"))
    await tokens.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "other", "namespace": NAMESPACE}},
        *({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}} for name in ("node-1", "node-2.example")),
    )
    for pod, node, account in (
        ("agent-1", "node-1", "hami-node-agent"),
        ("agent-2", "node-2.example", "hami-node-agent"),
        ("other", "node-1", "other"),
    ):
        await tokens.pod(pod, node, account)
    one, two = [await tokens.token("hami-node-agent", pod=pod) for pod in ("agent-1", "agent-2")]
    refused = {
        "for the API server, not for the bus": await tokens.token("hami-node-agent", pod="agent-1", audience=""),
        "of another account": await tokens.token("other", pod="other"),
        "bound to no pod": await tokens.token("hami-node-agent"),
        "changed on its way": one[:-4] + ("AAAA" if not one.endswith("AAAA") else "BBBB"),
    }
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AUTH_ISSUER", SECRET["issuer"])
        async with production_bus(folder, "nats-accounts", "nats-auth-callout", given={"timeout: 4": "timeout: 2"}) as bus:
            callout = Callout(tmp_path, bus, await tokens.kubeconfig("hami-auth-callout"))
            world = World(bus, callout, tmp_path)
            await callout.start()
            try:
                await world.logged("NATS is connected")
                await _speak_for_their_own(world, one, two)
                for why, token in refused.items():
                    async with world.agent(f"stranger-{len(why)}", token) as stranger:
                        await world.logged(f"stranger-{len(why)}")
                        assert not stranger.connected, why
                await kubectl(plane.admin, "delete", "pod", "agent-1", f"--namespace={NAMESPACE}", "--force", "--grace-period=0")
                assert "does not know the token" in await _refused_at_last(world, one)
            finally:
                await callout.stop()
            for token in (one, two, *refused.values()):
                assert token not in callout.log
                assert token not in (folder / "log").read_text()


async def _speak_for_their_own(world: World, one: str, two: str) -> None:
    async with (
        world.bus.connect("hami-scheduler") as scheduler,
        world.agent("node-1", one) as first,
        world.agent("node-2.example", two) as second,
    ):
        await scheduler.ensure_streams(subjects.STREAMS)
        for agent, own, other in ((first, "node-1", "node-2.example"), (second, "node-2.example", "node-1")):
            await connected(agent)
            assert await agent.publish(a_message(subjects.devices(own, "nvidia"))) > 0
            with pytest.raises(MessageRefused):
                await agent.publish(a_message(subjects.devices(other, "nvidia")))


async def _refused_at_last(world: World, token: str) -> str:
    """The callout's line on a token that is no more; the API server itself believes in one for ten seconds."""
    line = ""
    for attempt in range(60):
        name = f"late-{attempt}"
        async with world.agent(name, token):
            line = await world.logged(f"hami-node-agent-{name}")
        if "is let in" not in line:
            break
        await asyncio.sleep(0.5)
    return line
