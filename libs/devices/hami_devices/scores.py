"""How full a device or a node is, as one number: 10 for each dimension (slots, cores, memory) that is wholly used.

A device is scored with the request added, a node without. A dimension of which there is nothing counts nothing. Two decisions of our own:

- The request counts on every device of its vendor. The reference adds it only where the device's model text equals the vendor's word,
  which on NVIDIA it never does; on cards of different sizes that ranks them wrongly.
- Scores are 64-bit floats, computed in the same order of operations here and in the scheduler's columns: equal inputs give equal bits, and
  ties end at the index and the UUID.
"""

from __future__ import annotations

from collections.abc import Iterable

from hami_devices.model import DeviceRequest, DeviceState, Weights

SCALE = 10.0


def device_score(state: DeviceState, weights: Weights, requests: Iterable[DeviceRequest]) -> float:
    """How full the device would be with one share of each of ``requests``; how many devices they ask for does not matter."""
    shares = memory = cores = 0
    total = state.device.memory_mib
    for request in requests:
        if request.vendor == state.vendor:
            shares += 1
            memory += request.memory_on(total)
            cores += request.cores
    device = state.device
    slots_part = weights.slots * part(shares + state.used_shares, device.shares)
    cores_part = weights.cores * part(cores + state.used_cores, device.cores)
    return SCALE * (slots_part + cores_part + weights.memory * part(memory + state.used_memory_mib, total))


def node_score(states: Iterable[DeviceState]) -> float:
    """How full the node's devices are, of all vendors, before anything is added."""
    shares = used_shares = cores = used_cores = memory = used_memory = 0
    for state in states:
        shares += state.device.shares
        used_shares += state.used_shares
        cores += state.device.cores
        used_cores += state.used_cores
        memory += state.device.memory_mib
        used_memory += state.used_memory_mib
    return SCALE * (part(used_shares, shares) + part(used_cores, cores) + part(used_memory, memory))


def part(used: int, total: int) -> float:
    """How much of one dimension is used; nothing of what there is nothing of."""
    return used / total if total else 0.0
