"""Which annotations of pods and nodes are records of the system, and which service writes each. Pure.

The one list: the admission policies of the API server are made from it, so that nobody else changes a record, and so that each of our services
can change nothing but its records. What the webhook refuses is the same set of keys (``Catalog.system_pod_keys``).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from hami_devices.catalog import Catalog
from hami_devices.vendor import Vendor
from hami_protocol import keys


class Writer(StrEnum):
    """A service that writes records, by the name of its service account."""

    SCHEDULER = "hami-scheduler"
    REGISTRY = "hami-registry"


ADOPTED_SCHEDULERS: Final = frozenset({"volcano"})
"""Those that may be adopted, where HAMI_ADOPTED_SCHEDULERS names them: the registry writes the assignment onto their bound pods, once."""

SYSTEM_POD_LABELS: Final = frozenset({keys.ASSIGNED_NODE})
"""Labels of pods that only the scheduler writes, with the Binding."""


def binding_keys(catalog: Catalog) -> frozenset[str]:
    """What the scheduler writes onto a pod, inside the Binding: the whole assignment."""
    return catalog.system_pod_keys


def pod_keys(catalog: Catalog) -> dict[Writer, frozenset[str]]:
    """Who changes which of a pod's records after it was bound: how it went, what was handed out, and other sizes once the agent has applied them."""
    handed_out = {vendor.to_allocate_key for vendor in catalog.vendors if vendor.to_allocate_key}
    written = {keys.BIND_PHASE, keys.MIG_ALLOCATIONS, keys.RESIZE_GENERATION, *handed_out, *assignment_keys(catalog)}
    return {Writer.SCHEDULER: frozenset(), Writer.REGISTRY: frozenset(written)}


def assignment_keys(catalog: Catalog) -> frozenset[str]:
    """Which cards a pod has, and how much of each: after the Binding it may be more or less of them, never others."""
    return frozenset(vendor.allocated_key for vendor in catalog.vendors)


def node_keys(catalog: Catalog) -> dict[Writer, frozenset[str]]:
    """Who changes which of a node's records."""
    recorded = {key for vendor in catalog.vendors for key in vendor_node_keys(vendor)}
    registry = {keys.ALLOCATION_MODE, keys.LEGACY_HANDSHAKE, keys.NODE_LOCK, *recorded}
    locks = {vendor.own_lock.key for vendor in catalog.vendors if vendor.own_lock is not None}
    return {Writer.SCHEDULER: frozenset({keys.NODE_LOCK, *locks}), Writer.REGISTRY: frozenset(registry)}


def system_node_keys(catalog: Catalog) -> frozenset[str]:
    """Annotations of nodes that only our services write, and a vendor's own plugin its own. Cordons are people's to write."""
    return frozenset().union(*node_keys(catalog).values())


def vendor_node_keys(vendor: Vendor) -> frozenset[str]:
    """Of a node's records, those of one vendor: its own plugin, where it is not ours, writes them itself, and releases the node's lock."""
    generation = keys.generation(vendor.device_type)
    lock = vendor.own_lock.key if vendor.own_lock is not None else ""
    wanted = (vendor.register_key, vendor.own_key, vendor.handshake_key, vendor.pair_scores_key, generation, keys.NODE_LOCK, lock)
    return frozenset(key for key in wanted if key)


def vendor_pod_keys(vendor: Vendor) -> frozenset[str]:
    """Of a pod's records, those that a vendor's own plugin writes: what it has handed out, the phase, and nothing of other vendors."""
    return frozenset({*vendor.system_keys, keys.BIND_PHASE})
