"""Files: the device configuration, settings, kubelet's checkpoint, our grant files and regions, CDI specs, the journal, profiles."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from hami_devices import config
from hami_devices.catalog import Catalog
from hami_devices.config import ConfigError, NvidiaConfig
from hami_node_agent import cdi, checkpoint, grant_file, modes, profile, region, sharing
from hami_node_agent import shim_layout as layout
from hami_node_agent.api import deviceplugin_pb2 as api
from hami_node_agent.cdi import CdiError
from hami_node_agent.grant_file import Grant, GrantedDevice, GrantError
from hami_node_agent.hardware import HardwareError
from hami_node_agent.hostfiles import MemoryFiles
from hami_node_agent.journal import Journal
from hami_node_agent.nvml_mig import _paths
from hami_node_agent.region import RegionError
from hami_node_agent.settings import Settings as AgentSettings
from hami_protocol.errors import ProtocolError
from hami_registry.settings import Settings as RegistrySettings
from hami_runtime import settings
from hami_runtime.bus.credentials import CredentialsError, _from_creds
from hami_runtime.settings import SettingsError
from hami_scheduler.settings import Settings as SchedulerSettings
from hami_webhook.settings import Settings as WebhookSettings
from tests.fuzz.target import Target
from tests.fuzz.targets.records import text

ROOT = Path(__file__).parents[3]
CONFIGS = (
    (
        b"nvidia: {resourceCountName: nvidia.com/gpu, memoryFactor: 2, defaultMemory: 512, gpuCorePolicy: force, migProfileAllowlist: "
        b"[{models: [A30], profiles: [1g.6gb]}]}\n"
    ),
    (
        b"vnpus: {hamiVnpuCore: true, configs: [{chipName: 910A, commonWord: Ascend910A, resourceName: huawei.com/Ascend910A, "
        b"resourceMemoryName: huawei.com/Ascend910A-memory, memoryAllocatable: 32768, memoryCapacity: 32768, aiCore: 30, "
        b"templates: [{name: vir02, memory: 2184, aiCore: 2}]}]}\n"
    ),
    (
        b"iluvatars:\n- chipName: MR-V100\n  commonWord: MR-V100\n  resourceCountName: iluvatar.ai/MR-V100-vgpu\n"
        b"  resourceMemoryName: iluvatar.ai/MR-V100.vMem\n  resourceCoreName: iluvatar.ai/MR-V100.vCore\n"
    ),
    b"hygon: {resourceCountName: hygon.com/dcunum, memoryFactor: 1}\nmetax: {sgpuTopologyAware: true}\n",
)
ANSWER = api.ContainerAllocateResponse(envs={"A": "1"}, cdi_devices=[api.CDIDevice(name="hami.io/gpu=c1")])
CHECKPOINTS = tuple(
    json.dumps(
        {
            "Data": {
                "PodDeviceEntries": [
                    {
                        "PodUID": "u",
                        "ContainerName": "main",
                        "ResourceName": "nvidia.com/gpu",
                        "DeviceIDs": ids,
                        "AllocResp": base64.b64encode(ANSWER.SerializeToString()).decode(),
                    }
                ],
                "RegisteredDevices": {"nvidia.com/gpu": ["GPU-a-0"]},
            },
            "Checksum": 7,
        }
    ).encode()
    for ids in ({"-1": ["GPU-a-0"]}, {"0": ["x"], "1": None}, ["x", "y"])
)
GRANT = grant_file.encode(
    Grant(
        pod_uid="6445a14b-0000-0000-0000-000000000000",
        container="main",
        devices=(
            GrantedDevice(uuid="GPU-a", memory_limit_mib=3000, sm_percent=30),
            GrantedDevice(uuid="GPU-b", memory_limit_mib=0, sm_percent=0, whole=True),
        ),
        region_path="/usr/local/vgpu/region",
    )
)
SPEC = (
    b'{"cdiVersion":"0.5.0","kind":"hami.io/gpu","devices":[{"name":"c1","containerEdits":{"env":["A=1"],"deviceNodes":[{"path":"/dev/nvidia0"}],'
    b'"mounts":[{"hostPath":"/a","containerPath":"/b","options":["ro"]}],"hooks":[{"hookName":"createContainer","path":"/h","args":["x"]}]}}]}'
)
YAML_SPEC = (
    b"cdiVersion: 0.6.0\nkind: nvidia.com/gpu\ndevices:\n- name: '0'\n  containerEdits:\n    deviceNodes:\n    - path: /dev/nvidia0\n"
)
NODE_CONFIG = (
    b'{"nodeconfig":[{"name":"n1","operatingmode":"mig","devicesplitcount":5,"devicememoryscaling":1.5,"filterdevices":{"uuid":["GPU-a"],'
    b'"index":[0]},"enablenumatopology":true}]}'
)
JOURNAL = (
    b'{"generation":3,"reported":"x","pods":{"u":{"pod":{"namespace":"default","name":"p","uid":"u"}}},"calls":[{"name":"a","device_ids":["GPU-a-0"]}]'
    b',"instances":[["GPU-a",{"profile":"1g.5gb","placement":{"start":0,"size":1}}]]}'
)
SETTINGS = (AgentSettings, RegistrySettings, SchedulerSettings, WebhookSettings)
HEAD_BYTES = 4096
SECRET = base64.b32encode(bytes(range(36))).rstrip(b"=")


def _catalog(data: bytes) -> Any:
    """A configuration that is accepted makes a catalogue, or is refused then."""
    found, warnings = config.load(text(data))
    return len(Catalog(found).vendors), len(warnings)


def _environment(data: bytes) -> Any:
    environment = {}
    for line in text(data).splitlines():
        name, _, value = line.partition("=")
        environment[name] = value
    found = 0
    error: SettingsError | None = None
    for kind in SETTINGS:
        try:
            settings.load(kind, environment)  # type: ignore[type-var]
            found += 1
        except SettingsError as exc:
            error = exc
    if error is not None and not found:
        raise error
    return found


def _ours(name: str, *values: bytes) -> bytes:
    return b"\n".join((b"HAMI_NODE_NAME=n1", *(b"HAMI_" + name.encode() + b"=" + value for value in values)))


def _region(*, owners: int = 0) -> bytes:
    data = bytearray(layout.REGION.size)
    head = {"identity": layout.REGION_MAGIC, "version": layout.REGION_VERSION, "size": layout.REGION.size, "device_count": 1}
    for name, value in head.items():
        layout.write_uint(data, layout.REGION, name, value)
    layout.write_uint(data, layout.REGION, "slot_high_water", owners)
    layout.write_text(data, layout.REGION_DEVICE, "uuid", "GPU-a", base=layout.REGION.offset("devices"))
    for place in range(owners):
        slot = layout.REGION.offset("slots", place)
        layout.write_uint(data, layout.REGION_SLOT, "owner", (place + 5) | 99 << layout.REGION_PID_BITS, base=slot)
        layout.write_uint(data, layout.REGION_USE, "used", 5 << 44 | 2**20, base=slot + layout.REGION_SLOT.offset("use"))
    return bytes(data[:HEAD_BYTES])


def _decode_region(data: bytes) -> Any:
    whole = data if len(data) < 64 else data.ljust(layout.REGION.size, b"\0")
    found = region.decode(whole)
    assert all(device.used_bytes >= 0 for device in found.devices)
    return found, region.owners(whole)


def _decode_grant(data: bytes) -> Any:
    """As it is, and with a checksum that fits: what stands behind the checksum must not break anybody either."""
    errors = 0
    for torn in (False, True):
        try:
            grant_file.decode(data, torn=torn)
        except GrantError:
            errors += 1
    if len(data) >= layout.GRANT.size:
        mended = bytearray(data)
        layout.write_uint(mended, layout.GRANT, "checksum", grant_file._checksum(mended))
        return grant_file.decode(bytes(mended))
    return errors


def _minors(data: bytes) -> Any:
    class _File:
        def read_text(self) -> str:
            return data.decode()

    return _paths(_File(), 0, 1, 0)  # type: ignore[arg-type]


def _journal(data: bytes) -> Any:
    files = MemoryFiles()
    files.write("/journal", data)
    found = Journal(files, "/journal")
    return bool(found.damage), found.instances, len(found.pods)


TARGETS = (
    Target(name="device configuration", call=_catalog, refuses=(ConfigError,), seeds=CONFIGS, covers=("hami_devices.config.load",)),
    Target(
        name="settings",
        call=_environment,
        refuses=(SettingsError,),
        seeds=(
            _ours("LOG_LEVEL", b"debug"),
            _ours("HEALTH_PORT", b"8080"),
            _ours("GRACE_SECONDS", b"1.5"),
            _ours("APPLICATION_XIDS", b"[13,31]"),
            _ours("PLACEMENT", b"ranked"),
            _ours("EXEMPT_NAMESPACES", b'["kube-system"]'),
        ),
        covers=("hami_runtime.settings.load",),
    ),
    Target(
        name="kubelet's checkpoint", call=checkpoint.decode, refuses=(), seeds=CHECKPOINTS, covers=("hami_node_agent.checkpoint.decode",)
    ),
    Target(name="grant file", call=_decode_grant, refuses=(GrantError,), seeds=(GRANT,), covers=("hami_node_agent.grant_file.decode",)),
    Target(
        name="region",
        call=_decode_region,
        refuses=(RegionError,),
        seeds=(_region(), _region(owners=3), bytes(HEAD_BYTES)),
        covers=("hami_node_agent.region.decode",),
    ),
    Target(name="CDI spec", call=cdi.decode, refuses=(CdiError,), seeds=(SPEC, YAML_SPEC), covers=("hami_node_agent.cdi.decode",)),
    Target(
        name="node configuration",
        call=lambda data: sharing.for_node(sharing.configured(NvidiaConfig()), data, "n1"),
        refuses=(ProtocolError,),
        seeds=(NODE_CONFIG,),
    ),
    Target(name="journal", call=_journal, refuses=(), seeds=(JOURNAL, b"{}")),
    Target(
        name="device profile",
        call=profile.read,
        refuses=(HardwareError,),
        seeds=(b"devices:\n- {uuid: GPU-a, memory_mib: 24576, model: NVIDIA A10}\n", b"{count: 2, device: {memory_mib: 1, model: T4}}"),
        covers=("hami_node_agent.profile.read",),
    ),
    Target(
        name="versions of a node",
        call=lambda data: modes.choose("v1.31.2", text(data), text(data)),
        refuses=(),
        seeds=(b"containerd://1.7.24", b'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = true\n'),
    ),
    Target(
        name="MIG device nodes", call=_minors, refuses=(), seeds=(b"config 1\nmonitor 2\ngpu0/gi1/access 30\ngpu0/gi1/ci0/access 31\n",)
    ),
    Target(
        name="credentials of the bus",
        call=lambda data: _from_creds("c", text(data)),
        refuses=(CredentialsError,),
        seeds=(
            b"-----BEGIN NATS USER JWT-----\neyJ0.eyJ1.c2ln\n------END NATS USER JWT------\n\n-----BEGIN USER NKEY SEED-----\n"
            + SECRET
            + b"\n------END USER NKEY SEED------\n",
        ),
    ),
)
