"""Node-agent process: settings, wiring, run. Decides nothing; ``agent`` and what it is made of do.

``hami-node-agent`` (or ``hami-node-agent run``) serves; ``hami-node-agent install-shim`` puts the shim on the host and ends;
``hami-node-agent clean-up`` removes what agents have left there and ends.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from hami_devices import config as device_config
from hami_devices import mig
from hami_devices.catalog import Catalog
from hami_devices.config import ConfigError, DeviceConfig
from hami_node_agent import clean_up, driver, health, modes, profile, shim_install
from hami_node_agent import sharing as sharings
from hami_node_agent.agent import AgentOptions, NodeAgent
from hami_node_agent.bus_certificate import BusCertificate
from hami_node_agent.cdi import DriverEdits
from hami_node_agent.granting import GrantPolicy
from hami_node_agent.handover import Handover
from hami_node_agent.hardware import Hardware, HardwareError, PhysicalDevice
from hami_node_agent.health import HealthRules
from hami_node_agent.host_processes import ProcProcesses
from hami_node_agent.hostfiles import RealFiles
from hami_node_agent.kubelet import KubeletConnection
from hami_node_agent.kubelet_records import LocalKubelet
from hami_node_agent.mig_hardware import FakeMig, MigHardware
from hami_node_agent.needs import HostPaths
from hami_node_agent.node_config import NodeConfig
from hami_node_agent.nvml import NvmlHardware
from hami_node_agent.nvml_library import NvmlLibrary
from hami_node_agent.nvml_mig import NvmlMig
from hami_node_agent.seat import Seat
from hami_node_agent.settings import Settings
from hami_node_agent.sharing import Sharing
from hami_protocol import subjects
from hami_protocol.devices import AllocationMode
from hami_protocol.errors import ProtocolError
from hami_runtime import lifecycle, logs
from hami_runtime.bus import jetstream
from hami_runtime.clock import Clock, SystemClock
from hami_runtime.http import HealthServer
from hami_runtime.kube import http
from hami_runtime.kube.cluster import NODES, Cluster, ClusterError
from hami_runtime.settings import from_command_line
from hami_runtime.telemetry import Telemetry

log = structlog.get_logger()
SERVICE: Final = "node-agent"
ABOUT: Final = """Serves one node's devices to kubelet, and gives each container what the scheduler granted it.

  hami-node-agent [run]          serve until stopped
  hami-node-agent install-shim   put HAMI_SHIM_SOURCE on the host, below HAMI_HOOK_PATH, and end
  hami-node-agent clean-up       remove what agents have left on the host, and end"""


def main() -> None:
    """The ``hami-node-agent`` command."""
    command, arguments = _command(sys.argv[1:])
    settings = from_command_line(Settings, program="hami-node-agent", about=ABOUT, arguments=arguments)
    logs.configure(settings.log_level, SERVICE)
    try:
        if command == "install-shim":
            shim_install.install(Path(settings.shim_source), HostPaths(hook=settings.hook_path), cdi_folder=Path(settings.cdi_folder))
            return
        if command == "clean-up":
            clean_up.clean_up(
                HostPaths(hook=settings.hook_path),
                cdi_folder=Path(settings.cdi_folder),
                plugin_folder=Path(settings.plugin_folder),
                device_type=settings.device_type,
            )
            return
        lifecycle.run(run(settings, os.environ))
    except (ConfigError, ProtocolError, HardwareError, shim_install.ShimError, clean_up.CleanUpError, OSError) as exc:
        log.error("node-agent ends", reason=str(exc))
        raise SystemExit(1) from exc


async def run(settings: Settings, environ: Mapping[str, str]) -> None:
    """Serve until stopped."""
    config = _device_config(settings)
    node_sharing = _sharing(settings, config)
    telemetry = Telemetry(SERVICE, settings.otlp_endpoint or None)
    clock = SystemClock()
    files = RealFiles()
    nvml = NvmlLibrary()
    hardware = _hardware(settings, nvml)
    paths = HostPaths(hook=settings.hook_path)
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(
            http.connect(settings.kubeconfig or None, settings.kube_context or None, user_agent="hami-node-agent", telemetry=telemetry)
        )
        certificate = BusCertificate(cluster, settings.nats_secret, clock) if settings.nats_secret else None
        bus = await stack.enter_async_context(
            jetstream.connect_process(
                settings,
                name=f"hami-node-agent-{settings.node_name}",
                tls=certificate.context if certificate else None,
                inbox=subjects.inbox(settings.node_name),
                looks_up_directly=True,
                telemetry=telemetry,
            )
        )
        agent = NodeAgent(
            AgentOptions(
                node=settings.node_name,
                mode=await _mode(settings, cluster),
                device_type=settings.device_type,
                register_format=settings.register_format,
                sharing=node_sharing,
                rules=_rules(settings, environ),
                probe_seconds=settings.probe_seconds,
                policy=GrantPolicy(
                    require_event=settings.require_grant_event,
                    wait_seconds=settings.grant_wait_seconds,
                    legacy_region=settings.legacy_region,
                ),
                paths=paths,
                cdi_folder=settings.cdi_folder,
                shim_required=settings.shim_required,
                monitor=settings.monitor,
                legacy_metrics=settings.legacy_metrics,
                pass_device_nodes=settings.pass_device_nodes,
            ),
            bus=bus,
            cluster=cluster,
            clock=clock,
            hardware=hardware,
            mig=await _mig(settings, hardware, nvml, node_sharing),
            kubelet=LocalKubelet(files, plugin_folder=settings.plugin_folder, pod_resources_socket=settings.pod_resources_socket),
            files=files,
            catalog=Catalog(config),
            driver=_driver(settings, lambda: agent.devices.inventory.devices),
            shim=shim_install.InstalledShim(paths),
            processes=ProcProcesses(),
            telemetry=telemetry,
        )
        connection = KubeletConnection(agent, clock, folder=Path(settings.plugin_folder), telemetry=telemetry)
        handover = Handover(
            agent, connection, Seat(Path(paths.journal).parent), clock, grace_seconds=settings.grace_seconds, telemetry=telemetry
        )
        health_server = HealthServer(handover.not_ready, telemetry=telemetry, host=settings.health_host, port=settings.health_port)
        async with health_server:
            lifecycle.announce(settings.ready_file, {"health": health_server.port})
            loops = (
                handover.run,
                connection.run,
                *([_node_config(settings, config, agent, clock, telemetry).run] if settings.node_config else []),
                *([certificate.run] if certificate else []),
            )
            await lifecycle.serve(*loops, grace_seconds=settings.grace_seconds + 1, farewell=handover.leave)


def _command(arguments: Sequence[str]) -> tuple[str, Sequence[str]]:
    if arguments and arguments[0] in {"run", "install-shim", "clean-up"}:
        return arguments[0], arguments[1:]
    return "run", arguments


def _device_config(settings: Settings) -> DeviceConfig:
    if not settings.device_config:
        return DeviceConfig()
    config, warnings = device_config.load(Path(settings.device_config).read_text())
    for warning in warnings:
        log.warning("device configuration", warning=warning)
    return config


def _sharing(settings: Settings, config: DeviceConfig) -> Sharing:
    found = sharings.configured(config.nvidia)
    return sharings.for_node(found, Path(settings.node_config).read_bytes(), settings.node_name) if settings.node_config else found


def _hardware(settings: Settings, nvml: NvmlLibrary) -> Hardware:
    if settings.device_profile:
        return profile.ProfileFile(Path(settings.device_profile), node=settings.node_name)
    return NvmlHardware(nvml, pair_scores=settings.pair_scores)


def _node_config(settings: Settings, config: DeviceConfig, agent: NodeAgent, clock: Clock, telemetry: Telemetry) -> NodeConfig:
    """What follows the per-node configuration."""
    return NodeConfig(
        Path(settings.node_config),
        node=settings.node_name,
        cluster_wide=sharings.configured(config.nvidia),
        devices=agent.devices,
        clock=clock,
        telemetry=telemetry,
    )


async def _mig(settings: Settings, hardware: Hardware, nvml: NvmlLibrary, node_sharing: Sharing) -> MigHardware | None:
    """What cuts cards into MIG instances: a profile's cards are cut in memory, real ones only on a node whose mode says so."""
    if settings.device_profile:
        return FakeMig({device.uuid: device.type for device in (await hardware.scan()).devices})
    return NvmlMig(nvml, allowances=node_sharing.mig_allowances) if node_sharing.mode == mig.MODE else None


def _rules(settings: Settings, environ: Mapping[str, str]) -> HealthRules:
    base = HealthRules(
        application=settings.application_xids,
        fatal=settings.fatal_xids,
        unknown=settings.unknown_xids,
        good_probes=settings.good_probes,
        probation_seconds=settings.probation_seconds,
    )
    return health.rules(disabled=environ.get("DP_DISABLE_HEALTHCHECKS", ""), enabled=environ.get("DP_ENABLE_HEALTHCHECKS", ""), base=base)


async def _mode(settings: Settings, cluster: Cluster) -> AllocationMode:
    """As set, or as the node's versions allow; asked until the API server answers."""
    if settings.allocation_mode != "auto":
        return AllocationMode(settings.allocation_mode)
    while True:
        try:
            node = await cluster.get(NODES, settings.node_name)
        except ClusterError as exc:
            log.warning("node cannot be read", node=settings.node_name, reason=str(exc))
            await asyncio.sleep(1.0)
            continue
        info = node.status.node_info
        mode, reason = modes.choose(
            info.kubelet_version if info else "", info.container_runtime_version if info else "", _text(settings.containerd_config)
        )
        log.info("allocation mode", mode=mode, reason=reason)
        return mode


def _driver(settings: Settings, devices: Callable[[], Sequence[PhysicalDevice]]) -> Callable[[], DriverEdits]:
    if settings.cdi_base_spec:
        path = Path(settings.cdi_base_spec)
        return driver.DriverSource(devices, partial(driver.from_base_spec, path), stamp=partial(driver.file_stamp, path))
    if settings.device_profile:
        return DriverEdits  # devices that do not exist have no driver
    mount = Path(settings.driver_root_mount)
    root = mount if mount.is_dir() else Path(settings.driver_root)

    def look(found: Sequence[PhysicalDevice]) -> DriverEdits:
        return driver.find(
            root,
            {device.uuid: device.paths for device in found},
            host_root=settings.driver_root,
            dev_root=Path(settings.dev_root_mount) if settings.dev_root_mount else None,
            hook=settings.cdi_hook_path,
        )

    return driver.DriverSource(devices, look, stamp=partial(driver.versions, root))


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError):
        return None


if __name__ == "__main__":
    main()
