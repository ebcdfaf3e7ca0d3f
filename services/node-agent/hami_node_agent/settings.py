"""Settings of the node-agent's process. ``--help`` prints them."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from hami_node_agent.health import XidClass
from hami_node_agent.xid_catalog import APPLICATION_XIDS, FATAL_XIDS
from hami_protocol.devices import RegisterFormat
from hami_runtime.settings import ProcessSettings


class Settings(ProcessSettings, frozen=True, kw_only=True):
    """Each field is ``HAMI_<FIELD>``."""

    node_name: Annotated[str, Meta(description="name of the node that the agent runs on", min_length=1)]
    nats_secret: Annotated[
        str,
        Meta(
            description="Secret with our certificate for NATS, as NAMESPACE/NAME; replaces HAMI_NATS_CA and such",
            pattern="^([^/]+/[^/]+)?$",
        ),
    ] = ""
    device_type: Annotated[str, Meta(description="which vendor's devices it serves, by the type in the annotation keys")] = "nvidia"
    device_config: Annotated[str, Meta(description="path of the cluster's device configuration; empty means its defaults")] = ""
    node_config: Annotated[str, Meta(description="path of the per-node configuration (config.json); empty means none")] = ""
    device_profile: Annotated[str, Meta(description="path of a profile of devices that do not exist; empty means real hardware")] = ""

    allocation_mode: Annotated[
        Literal["auto", "cdi", "envvar"], Meta(description="how pods are told apart; auto asks kubelet's and the runtime's versions")
    ] = "auto"
    containerd_config: Annotated[str, Meta(description="path of containerd's configuration, for auto")] = "/etc/containerd/config.toml"
    register_format: Annotated[RegisterFormat, Meta(description="form of the node's registration annotation")] = RegisterFormat.TEXT
    require_grant_event: Annotated[
        bool, Meta(description="with the bus up, serve only what the scheduler published; off beside the reference's scheduler")
    ] = True
    grant_wait_seconds: Annotated[float, Meta(description="how long to wait for a pod and its grant to arrive", ge=0, le=25)] = 8.0
    pass_device_nodes: Annotated[bool, Meta(description="envvar: name the cards' device nodes in the answer too")] = False
    pair_scores: Annotated[bool, Meta(description="measure how well each two cards are linked, for topology-aware placement")] = False

    hook_path: Annotated[str, Meta(description="folder on the host below which vgpu/ lies", pattern="^/")] = "/usr/local"
    shim_source: Annotated[str, Meta(description="the library that install-shim installs")] = "/opt/hami/lib/libvgpu.so"
    shim_required: Annotated[bool, Meta(description="serve nobody as long as the shim is not installed")] = True
    legacy_metrics: Annotated[bool, Meta(description="show what containers use under the reference's earlier names too")] = False
    legacy_region: Annotated[bool, Meta(description="have the shim write the reference's region beside its own, for other monitors")] = (
        False
    )
    monitor: Annotated[bool, Meta(description="read what containers use, publish and export it, enforce priorities")] = True
    plugin_folder: Annotated[str, Meta(description="kubelet's folder for device plugins", pattern="^/")] = "/var/lib/kubelet/device-plugins"
    pod_resources_socket: Annotated[str, Meta(description="kubelet's PodResources socket", pattern="^/")] = (
        "/var/lib/kubelet/pod-resources/kubelet.sock"
    )
    cdi_folder: Annotated[str, Meta(description="where CDI specs are written", pattern="^/")] = "/var/run/cdi"
    cdi_base_spec: Annotated[
        str, Meta(description="a spec that nvidia-ctk cdi generate wrote, to build on; empty: look for the driver")
    ] = ""
    cdi_hook_path: Annotated[str, Meta(description="nvidia-ctk or nvidia-cdi-hook on the host")] = "/usr/bin/nvidia-ctk"
    driver_root: Annotated[str, Meta(description="the driver's root on the host", pattern="^/")] = "/"
    driver_root_mount: Annotated[str, Meta(description="where that root is mounted in the agent", pattern="^/")] = "/driver-root"
    dev_root_mount: Annotated[str, Meta(description="where the root of device nodes is mounted; empty means the driver's root")] = ""

    application_xids: Annotated[frozenset[int], Meta(description="XIDs that take no card out: a program's own fault, or news")] = (
        APPLICATION_XIDS
    )
    fatal_xids: Annotated[frozenset[int], Meta(description="XIDs that take a card out")] = FATAL_XIDS
    unknown_xids: Annotated[XidClass, Meta(description="what an XID in neither list is")] = XidClass.FATAL
    probe_seconds: Annotated[float, Meta(description="how often a card that is out is tried", gt=0)] = 10.0
    probation_seconds: Annotated[float, Meta(description="how long a card must have been good before it is back", ge=0)] = 30.0
    good_probes: Annotated[int, Meta(description="how many good probes in a row it needs", ge=1)] = 3
