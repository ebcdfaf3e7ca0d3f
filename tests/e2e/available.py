"""A rig in which every part that decides is there twice, and NATS three times: two schedulers, two registries, a cluster of three servers."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from pathlib import Path

from hami_protocol import subjects
from hami_rig.processes import ManagedProcess
from hami_rig.service_settings import LOOPBACK, NAMESPACE
from hami_rig.supervisor import KUBE_SCHEDULER, Rig
from hami_runtime.bus import jetstream
from hami_runtime.kube.cluster import LEASES, Cluster

SERVERS = ("nats", "nats-2", "nats-3")
OTHER = {"scheduler": "scheduler-2", "scheduler-2": "scheduler", "registry": "registry-2", "registry-2": "registry"}
LEASE_OF = {"scheduler": "hami-scheduler-extender", "registry": "hami-registry"}
KUBE_SCHEDULER_OF = {"scheduler": KUBE_SCHEDULER, "scheduler-2": f"{KUBE_SCHEDULER}-2"}
"""As in a pod of the deployment: each replica has a kube-scheduler beside it, of which one works."""


class AvailableRig(Rig):
    """The rig; at the start the kube-scheduler beside ``scheduler`` works."""

    async def leader(self, cluster: Cluster, service: str, *, other_than: str = "") -> str:
        """Which replica of a service holds its lease, once that is known and is another than ``other_than``."""
        async with asyncio.timeout(30):
            while True:
                lease = await cluster.get(LEASES, LEASE_OF[service], namespace=NAMESPACE)
                holder = (lease.spec.holder_identity or "").partition("@")[0]
                if holder in OTHER and holder != other_than:
                    return holder
                await asyncio.sleep(0.05)

    async def stream_leaders(self) -> dict[str, str]:
        """Stream to the server that leads it, once each has a leader and is whole on every server."""
        leaders: dict[str, str] = {}
        async with asyncio.timeout(30), jetstream.connect(self.nats_url, name="e2e") as bus:
            while len(leaders) < len(subjects.STREAMS):
                session = await bus.session()
                for stream in subjects.STREAMS:
                    try:
                        answer = await session.ask(f"$JS.API.STREAM.INFO.{stream.name}", b"", timeout_seconds=2)
                    except (jetstream.BusUnavailable, TimeoutError):
                        continue
                    found = json.loads(answer.data).get("cluster", {})
                    whole = [each["name"] for each in found.get("replicas", ()) if each.get("current")]
                    if found.get("leader") and {found["leader"], *whole} == set(SERVERS):
                        leaders[stream.name] = found["leader"]
                await asyncio.sleep(0.05)
        return leaders

    async def work_beside(self, scheduler: str) -> None:
        """From now on the kube-scheduler beside this replica works, and no other."""
        for replica, name in KUBE_SCHEDULER_OF.items():
            if replica != scheduler and self.processes[name].pid:
                await self.kill(name)
        await self.restart(KUBE_SCHEDULER_OF[scheduler])

    async def _start_nats(self) -> None:
        listens = {name: (a_free_port(), a_free_port()) for name in SERVERS}
        routes = ",".join(f"nats://{LOOPBACK}:{route}" for _, route in listens.values())
        self.nats_url = ",".join(f"nats://{LOOPBACK}:{client}" for client, _ in listens.values())
        program = str(Path(sys.executable).with_name("nats-server"))
        for name, (client, route) in listens.items():
            arguments = ["--addr", LOOPBACK, "--port", str(client), "--name", name, "--jetstream", "--store_dir", str(self.folder / name)]
            clustered = ["--cluster_name", "rig", "--cluster", f"nats://{LOOPBACK}:{route}", "--routes", routes]
            process = self._define(name, [*arguments, *clustered], {}, program=program)
            process.ready_content = {"nats": client}
            self.ports[name] = process.ready_content
            await process.start()

    def _define(self, name: str, arguments: list[str], environ: dict[str, str], *, program: str = sys.executable) -> ManagedProcess:
        if name.partition("-")[0] in LEASE_OF:
            environ = {**environ, "HAMI_NATS_REPLICAS": str(len(SERVERS))}
        if name.startswith("scheduler"):  # a replica tells the others where it listens, so it has to know it
            environ = {**environ, "HAMI_EXTENDER_PORT": str(a_free_port())}
        return super()._define(name, arguments, environ, program=program)

    async def _start(self) -> None:
        await super()._start()
        for first in LEASE_OF:
            second, original = OTHER[first], self.processes[first]
            environ = {key: value for key, value in original.environ.items() if key.startswith("HAMI_") and key != "HAMI_READY_FILE"}
            environ |= {"HAMI_IDENTITY": second, "HAMI_HEALTH_PORT": "0", "HAMI_API_PORT": "0"}
            self._define(second, original.command[1:], environ)
            await self._start_one(second)
            await self.able(second)
        beside = self.processes[KUBE_SCHEDULER]
        configuration = self.folder / "kube-scheduler.yaml"
        other = self.folder / "kube-scheduler-2.yaml"
        urls = [f"http://{LOOPBACK}:{self.ports[replica]['extender']}" for replica in KUBE_SCHEDULER_OF]
        other.write_text(configuration.read_text().replace(urls[0], urls[1]))
        arguments = [each.replace(str(configuration), str(other)) for each in beside.command[1:]]
        self._define(KUBE_SCHEDULER_OF["scheduler-2"], arguments, {})


def a_free_port() -> int:
    """One that nobody listens on now."""
    with socket.socket() as found:
        found.bind((LOOPBACK, 0))
        port: int = found.getsockname()[1]
        return port
