"""The environment that the node-agent gives a container with its shares. Limits are what was booked."""

from __future__ import annotations

from collections.abc import Sequence

from hami_protocol.devices import DeviceShare


def container_environment(
    shares: Sequence[DeviceShare],
    *,
    shared_cache: str,
    visible_devices: str | None = None,
    oversubscribe: bool = False,
    log_level: str = "",
    disable_core_limit: bool = False,
) -> dict[str, str]:
    """What one container of shared devices finds in its environment.

    Args:
        shares: what it holds, in the order of its assignment: the place of a share is the device's ordinal in the container.
        shared_cache: path inside the container of the file with its usage.
        visible_devices: for ``NVIDIA_VISIBLE_DEVICES``; None sets all UUIDs, each once.
        oversubscribe: whether the node registers more memory than its cards have.
        log_level: of the shim; empty sets none.
        disable_core_limit: whether cores are booked but not held to.

    Raises:
        ValueError: nothing is held, or a share of no memory, which would be read as no limit.
    """
    if not shares:
        raise ValueError("a container without shares gets no environment")
    for share in shares:
        if share.memory_mib <= 0:
            raise ValueError(f"a share of {share.memory_mib} MiB on {share.uuid} would be no limit")
    visible = ",".join(dict.fromkeys(share.uuid for share in shares)) if visible_devices is None else visible_devices
    environment = {"NVIDIA_VISIBLE_DEVICES": visible}
    environment.update({f"CUDA_DEVICE_MEMORY_LIMIT_{ordinal}": f"{share.memory_mib}m" for ordinal, share in enumerate(shares)})
    environment["CUDA_DEVICE_SM_LIMIT"] = str(shares[0].cores)
    environment["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = shared_cache
    if oversubscribe:
        environment["CUDA_OVERSUBSCRIBE"] = "true"
    if log_level:
        environment["LIBCUDA_LOG_LEVEL"] = log_level
    if disable_core_limit:
        environment["GPU_CORE_UTILIZATION_POLICY"] = "disable"
    return environment
