"""A replica each of scheduler and registry where the API server's service proxy leads to: on an address that is not loopback, over TLS, for tokens.

The Services are those of the deployment. Where a cluster's replicas are pods, ours are processes: a pod that nobody runs says at which address.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from hami_rig.kubectl import kubectl
from hami_rig.processes import ManagedProcess
from hami_rig.service_settings import REGISTRY, SCHEDULER
from tests.cluster.harness import ports
from tests.cluster.harness.control_plane import GRACE_SECONDS, READY_SECONDS
from tests.cluster.harness.installation import Installation
from tests.cluster.harness.users import NAMESPACE

PORTS = ("HAMI_HEALTH_PORT", "HAMI_API_PORT", "HAMI_EXTENDER_PORT")
NOWHERE = "nowhere"
"""The node that those pods are on; endpoints are of nodes that there are."""
RESTRICTED = {
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""A security context that Pod Security admits at the level of our namespace."""


@asynccontextmanager
async def behind_the_proxy(installation: Installation) -> AsyncIterator[None]:
    """Replicas that the API server leads to, for as long as the context is open."""
    replicas = [_replica(installation, service) for service in (SCHEDULER, REGISTRY)]
    host = ports.own_address()
    await installation.restart(SCHEDULER)  # on the port that it has now, so that its identity says where it is
    await installation.able(SCHEDULER)
    try:
        await _apply(installation, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NOWHERE}, "spec": {"unschedulable": True}})
        for service, replica in zip((SCHEDULER, REGISTRY), replicas, strict=True):
            await replica.start()
            listens = await replica.ready(timeout_seconds=READY_SECONDS)
            name = f"{service}-proxied"
            await _apply(installation, _pod(name, service, int(listens["api"])))
            running = {"phase": "Running", "podIP": host, "podIPs": [{"ip": host}], "conditions": [{"type": "Ready", "status": "True"}]}
            patch = msgspec.json.encode({"status": running}).decode()
            await kubectl(
                installation.kubeconfig, "-n", NAMESPACE, "patch", "pod", name, "--subresource", "status", "--type", "merge", "-p", patch
            )
        yield
    finally:
        for service, replica in zip((SCHEDULER, REGISTRY), replicas, strict=True):
            await replica.stop(grace_seconds=GRACE_SECONDS)
            await kubectl(installation.kubeconfig, "-n", NAMESPACE, "delete", "pod", f"{service}-proxied", "--ignore-not-found", "--force")
        await kubectl(installation.kubeconfig, "delete", "node", NOWHERE, "--ignore-not-found")


def _replica(installation: Installation, service: str) -> ManagedProcess:
    first = installation.processes[service]
    process = ManagedProcess(f"{service}-proxied", first.command, folder=installation.folder, environ={})
    other = {"HAMI_IDENTITY": process.name, "HAMI_API_HOST": ports.own_address(), "HAMI_API_OPEN": "false", "HAMI_API_TLS": "true"}
    other |= {port: "0" for port in PORTS if port in first.environ}
    process.environ = {**first.environ, **other, "HAMI_READY_FILE": str(process.ready_file)}
    return process


def _pod(name: str, service: str, port: int) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": "hami", "app.kubernetes.io/component": service}
    container = {"name": "main", "image": "none", "ports": [{"name": "api", "containerPort": port}], "securityContext": RESTRICTED}
    metadata = {"name": name, "namespace": NAMESPACE, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"nodeName": NOWHERE, "containers": [container]}}


async def _apply(installation: Installation, body: dict[str, Any]) -> None:
    path = installation.folder / "proxied.json"
    path.write_bytes(msgspec.json.encode(body))
    await kubectl(installation.kubeconfig, "apply", "-f", str(path))
