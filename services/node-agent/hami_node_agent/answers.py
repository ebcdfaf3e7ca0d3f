"""What the agent answers kubelet, as plain values: the gRPC shell makes messages of them, the simulation reads them directly."""

from __future__ import annotations

from dataclasses import dataclass, field

from hami_node_agent.needs import Bind


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The answer to Allocate for one container."""

    environment: dict[str, str] = field(default_factory=dict)
    mounts: tuple[Bind, ...] = ()
    device_nodes: tuple[str, ...] = ()
    cdi_devices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PluginOptions:
    """The one source of what RegisterRequest and GetDevicePluginOptions say."""

    pre_start_required: bool
    preferred_allocation: bool
