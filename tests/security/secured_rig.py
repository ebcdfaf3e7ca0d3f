"""A rig of real processes behind what production puts before them: NATS with the production overlay's own configuration, accounts and TLS, the auth
callout as a process, agents with tokens of their own, and ``/v1`` that wants a bearer token."""

from __future__ import annotations

import os
import resource
from contextlib import AsyncExitStack
from pathlib import Path

from hami_rig import profile
from hami_rig.service_settings import NODE_AGENT, REGISTRY, SCHEDULER, WEBHOOK, agent_process
from hami_rig.supervisor import Rig
from hami_runtime.kube import accounts
from tests.contract.manifests import test_nats_auth_callout as callouts
from tests.contract.manifests.production import ProductionBus, production_bus
from tests.contract.manifests.test_nats_auth_callout import Callout
from tests.e2e.conftest import NODE_OF_EACH_MODE

COMPONENTS = ("nats-accounts", "nats-auth-callout")
AGENT_USER = accounts.user(accounts.AGENT, accounts.AGENT_NAMESPACE)
NODES = ("locked", "cdi")
SERVICES = (WEBHOOK, SCHEDULER, REGISTRY, *map(agent_process, NODES))
_MIB = 2**20


class SecuredRig(Rig):
    """The rig, each service with a certificate of its own."""

    bus: ProductionBus

    def __init__(self) -> None:
        super().__init__(profile.parse(NODE_OF_EACH_MODE))
        self._stack = AsyncExitStack()
        self._issued: dict[str, tuple[Path, Path]] = {}
        self.callout: Callout | None = None

    async def close(self) -> None:
        """Everything, the bus last."""
        if self.callout is not None:
            await self.callout.stop()
        await super().close()
        await self._stack.aclose()

    def pids(self) -> dict[str, int]:
        """Of our services; one that has ended has 0, one that was started again another."""
        return {name: self.processes[name].pid for name in SERVICES}

    def memory_mib(self, name: str) -> int:
        """What a service has in memory."""
        pages = int(Path(f"/proc/{self.processes[name].pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize() // _MIB

    async def _start_nats(self) -> None:
        folder = self.folder / "production"
        folder.mkdir()
        os.environ["AUTH_ISSUER"] = callouts.SECRET["issuer"]
        self._stack.callback(os.environ.pop, "AUTH_ISSUER")
        self.bus = await self._stack.enter_async_context(production_bus(folder, *COMPONENTS, given={"timeout: 4": "timeout: 1"}))
        self.nats_url = self.bus.server.url

    async def _start_one(self, name: str) -> None:
        if self.callout is None:  # before the first service, once there is an API server
            folder = self.folder / "callout"
            folder.mkdir()
            self.callout = Callout(folder, self.bus, self.kubeconfig)
            await self.callout.start()
        service = next((each for each in (SCHEDULER, REGISTRY, NODE_AGENT) if name.startswith(each)), "")
        if service:
            self.processes[name].environ |= self._credentials(name, service)
        await super()._start_one(name)

    def _credentials(self, name: str, service: str) -> dict[str, str]:
        if service not in self._issued:
            self._issued[service] = self.bus.issue(f"hami-{service}")
        certificate, key = self._issued[service]
        found = {
            "HAMI_NATS_CA": str(self.bus.authority.certificate),
            "HAMI_NATS_CERTIFICATE": str(certificate),
            "HAMI_NATS_KEY": str(key),
        }
        if service != NODE_AGENT:
            return {**found, "HAMI_API_OPEN": "false"}
        token = self.folder / f"{name}.token"
        node = next(each for each in NODES if agent_process(each) == name)
        token.write_text(f"{AGENT_USER}@{node}")
        return {**found, "HAMI_NATS_TOKEN_FILE": str(token)}
