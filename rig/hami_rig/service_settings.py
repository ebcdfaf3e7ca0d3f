"""Which settings the rig gives to the four real services. Pure: names and values of their environment variables, nothing started."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from hami_rig.kubelet.kubelet import NodeFolder
from hami_rig.profile import RigNode

LOOPBACK = "127.0.0.1"
NAMESPACE = "kube-system"
WEBHOOK = "webhook"
SCHEDULER = "scheduler"
REGISTRY = "registry"
NODE_AGENT = "node-agent"


class ServicePaths(Struct, frozen=True, kw_only=True):
    """Where the services find each other."""

    folder: Path
    nats_url: str
    device_config: Path | None
    shim: bool
    """Whether the shim is installed below ``hook`` in every node's folder."""
    log_level: str
    otlp_endpoint: str = ""
    """Where traces and metrics go; empty for nowhere."""

    def kubeconfig(self, process: str) -> Path:
        """The kubeconfig of one process: each is somebody else to the API server."""
        return self.folder / "kubeconfigs" / process


def agent_process(node: str) -> str:
    """The name of a node's agent among the rig's processes."""
    return f"{NODE_AGENT}-{node}"


def user_tokens(nodes: Iterable[RigNode]) -> dict[str, str]:
    """Process name to the token that it shows the API server, which in a rig is the user's name itself."""
    account = f"system:serviceaccount:{NAMESPACE}:hami-"
    tokens = {name: account + name for name in (WEBHOOK, SCHEDULER, REGISTRY)}
    tokens |= {agent_process(node.name): f"{account}{NODE_AGENT}@{node.name}" for node in nodes}
    return {**tokens, "kubelets": "system:node:rig", "kube-scheduler": "system:kube-scheduler"}


def service_environments(nodes: Iterable[RigNode], paths: ServicePaths) -> dict[str, tuple[str, dict[str, str]]]:
    """Process name to module and environment: webhook, scheduler, registry, and an agent per node.

    Variables of ports are 0 here, any free one; whoever starts a service again puts the port there that it had.
    """
    common = {
        "HAMI_NAMESPACE": NAMESPACE,
        "HAMI_LOG_LEVEL": paths.log_level,
        "HAMI_HEALTH_PORT": "0",
        "HAMI_GRACE_SECONDS": "3",
    }
    if paths.otlp_endpoint:
        common["HAMI_OTLP_ENDPOINT"] = paths.otlp_endpoint
    if paths.device_config:
        common["HAMI_DEVICE_CONFIG"] = str(paths.device_config)
    on_bus = {**common, "HAMI_NATS_URL": paths.nats_url}
    services = {
        WEBHOOK: ("hami_webhook.main", {**common, "HAMI_WEBHOOK_PORT": "0"}),
        SCHEDULER: (
            "hami_scheduler.main",
            {**on_bus, "HAMI_IDENTITY": SCHEDULER, "HAMI_EXTENDER_PORT": "0", "HAMI_API_PORT": "0", "HAMI_API_OPEN": "true"},
        ),
        REGISTRY: ("hami_registry.main", {**on_bus, "HAMI_IDENTITY": REGISTRY, "HAMI_API_PORT": "0", "HAMI_API_OPEN": "true"}),
    }
    for node in nodes:
        services[agent_process(node.name)] = ("hami_node_agent.main", {**on_bus, **_agent(node, paths)})
    return {name: (module, {**environ, "HAMI_KUBECONFIG": str(paths.kubeconfig(name))}) for name, (module, environ) in services.items()}


def _agent(node: RigNode, paths: ServicePaths) -> dict[str, str]:
    folder = NodeFolder(paths.folder / "nodes" / node.name)
    return {
        "HAMI_NODE_NAME": node.name,
        "HAMI_DEVICE_TYPE": str(node.devices["vendor"]),
        "HAMI_DEVICE_PROFILE": str(folder.device_profile),
        "HAMI_ALLOCATION_MODE": str(node.allocation_mode or "auto"),
        "HAMI_CONTAINERD_CONFIG": str(folder.root / "containerd.toml"),
        "HAMI_HOOK_PATH": str(folder.root / "hook"),
        "HAMI_SHIM_REQUIRED": "true" if paths.shim else "false",
        "HAMI_PLUGIN_FOLDER": str(folder.device_plugins),
        "HAMI_POD_RESOURCES_SOCKET": str(folder.pod_resources_socket),
        "HAMI_CDI_FOLDER": str(folder.cdi),
    }
