"""Demands that several vendors share: what one share takes of one device. Pure."""

from __future__ import annotations

from hami_devices.model import DeviceRequest, DeviceState, Reason
from hami_devices.rules import Demand


def whole_device(state: DeviceState, request: DeviceRequest) -> Demand | Reason:
    """All memory and cores of a device that has no other share."""
    del request
    return Reason.EXCLUSIVE if state.used_shares else Demand(memory_mib=state.device.memory_mib, cores=state.device.cores)


def slot_only(state: DeviceState, request: DeviceRequest) -> Demand:
    """One slot and the requested cores, no memory."""
    del state
    return Demand(memory_mib=0, cores=request.cores)
