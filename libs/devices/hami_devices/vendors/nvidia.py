"""NVIDIA: cards that are shared by the shim. The spec, made from the device configuration."""

from __future__ import annotations

from hami_devices.config import NvidiaConfig
from hami_devices.vendor import SelectorKeys, Vendor
from hami_protocol import keys

NAME = "NVIDIA"
DEVICE_TYPE = "nvidia"


def vendor(config: NvidiaConfig) -> Vendor:
    """NVIDIA's spec under ``config``."""
    return Vendor(
        name=NAME,
        device_type=DEVICE_TYPE,
        count_resource=config.count_resource,
        memory_resource=config.memory_resource,
        memory_percent_resource=config.memory_percent_resource,
        cores_resource=config.cores_resource,
        priority_resource=config.priority_resource,
        register_key=keys.register(DEVICE_TYPE),
        handshake_key=keys.handshake(DEVICE_TYPE),
        pair_scores_key=keys.NODE_PAIR_SCORES,
        allocated_key="hami.io/vgpu-devices-allocated",
        to_allocate_key="hami.io/vgpu-devices-to-allocate",
        selector_keys=SelectorKeys(
            use_types="nvidia.com/use-gputype",
            avoid_types="nvidia.com/nouse-gputype",
            use_uuids="nvidia.com/use-gpuuuid",
            avoid_uuids="nvidia.com/nouse-gpuuuid",
            modes="nvidia.com/vgpu-mode",
            numa_bind="nvidia.com/numa-bind",
        ),
        memory_unit_mib=max(config.memory_factor, 1),
        default_count=config.default_count,
        default_memory_mib=config.default_memory_mib,
        default_cores=config.default_cores,
        whole_device_cores=100,
        sets_default_cores=True,
        shim=True,
        runtime_class=config.runtime_class,
        priority_env="CUDA_TASK_PRIORITY",
        device_env=() if config.core_policy in ("", "default") else (("GPU_CORE_UTILIZATION_POLICY", config.core_policy),),
        visible_env="NVIDIA_VISIBLE_DEVICES",
        disable_env="CUDA_DISABLE_CONTROL" if config.allow_disable_control else "",
        idle_env=(("NVIDIA_VISIBLE_DEVICES", "none"),) if config.overwrite_env else (),
    )
