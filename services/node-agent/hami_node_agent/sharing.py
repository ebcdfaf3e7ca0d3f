"""How a node's cards are shared: slots per card, scaling, mode, which cards to leave out. Pure.

Comes from the cluster's device configuration, overridden per node by the reference's ``config.json`` (``nodeconfig``). A value that is there
overrides, also when it is zero or false; a key that is not there does not.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from hami_devices.config import MIG_ALLOWANCES, MigAllowance, NvidiaConfig
from hami_protocol.devices import SHARED_MODE
from hami_protocol.errors import ProtocolError

_MODES: Final = frozenset({"hami-core", "mig", "mps"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Sharing:
    """How the cards of one node are shared."""

    split_count: int = 10
    memory_scaling: float = 1.0
    core_scaling: float = 1.0
    mode: str = SHARED_MODE
    preconfigured_memory_mib: int = 0
    """For a card whose driver has no figure (unified memory); 0 leaves such a card out."""
    numa_topology: bool = False
    """Tell kubelet the NUMA node of each device."""
    excluded_uuids: frozenset[str] = field(default=frozenset())
    excluded_indexes: frozenset[int] = field(default=frozenset())
    prefer_granted: bool = False
    """Answer GetPreferredAllocation."""
    log_level: str = "1"
    """``LIBCUDA_LOG_LEVEL`` of the containers; empty sets none."""
    disable_core_limit: bool = False
    core_policy: str = "default"
    mig_allowances: tuple[MigAllowance, ...] = MIG_ALLOWANCES
    """Which MIG profiles are offered on which models, in mode ``mig``."""

    def __post_init__(self) -> None:
        if self.split_count < 1:
            raise ProtocolError(f"deviceSplitCount: {self.split_count} is not accepted; accepted: 1 or more")
        for name, value in (("deviceMemoryScaling", self.memory_scaling), ("deviceCoreScaling", self.core_scaling)):
            if not 0 < value <= 100:
                raise ProtocolError(f"{name}: {value} is not accepted; accepted: more than 0, at most 100")
        if self.mode not in _MODES:
            raise ProtocolError(f"operatingmode: {self.mode!r} is not accepted; accepted: {', '.join(sorted(_MODES))}")


def configured(config: NvidiaConfig) -> Sharing:
    """What the cluster's device configuration says."""
    return Sharing(
        split_count=config.shares_per_device,
        memory_scaling=config.memory_scaling,
        core_scaling=config.cores_scaling,
        preconfigured_memory_mib=config.fallback_memory_mib,
        numa_topology=config.numa_topology,
        log_level=config.shim_log_level,
        disable_core_limit=config.disable_core_limit,
        core_policy=config.core_policy or "default",
        mig_allowances=config.mig_allowances,
    )


def scaled(amount: int, scaling: float) -> int:
    """``amount`` times ``scaling``, truncated, without the error of binary fractions."""
    return amount if scaling == 1 else int(amount * Fraction(str(scaling)))


class _Filter(Struct, frozen=True, kw_only=True):
    uuid: frozenset[str] | None = None
    index: frozenset[Annotated[int, Meta(ge=0)]] | None = None


class _NodeEntry(Struct, frozen=True, kw_only=True):
    name: str = ""
    operatingmode: str | None = None
    devicesplitcount: int | None = None
    devicememoryscaling: float | None = None
    devicecorescaling: float | None = None
    preconfigureddevicememory: Annotated[int, Meta(ge=0)] | None = None
    libcudaloglevel: int | str | None = None
    enablenumatopology: bool | None = None
    filterdevices: _Filter | None = None
    enablegetpreferredallocation: bool | None = None


_OVERRIDES: Final = {
    "operatingmode": "mode",
    "devicesplitcount": "split_count",
    "devicememoryscaling": "memory_scaling",
    "devicecorescaling": "core_scaling",
    "preconfigureddevicememory": "preconfigured_memory_mib",
    "enablenumatopology": "numa_topology",
    "enablegetpreferredallocation": "prefer_granted",
}


def for_node(sharing: Sharing, text: bytes | str, node: str) -> Sharing:
    """``sharing`` with what ``config.json`` says of ``node``; all its entries of that name apply, in order.

    Raises:
        ProtocolError: the file cannot be read, or a value is not accepted.
    """
    try:
        lowered = _lower_keys(msgspec.json.decode(text))
        entries = msgspec.convert(lowered.get("nodeconfig") or [], list[_NodeEntry]) if isinstance(lowered, dict) else []
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as exc:
        raise ProtocolError(f"node configuration: {exc}") from exc
    for entry in entries:
        if entry.name == node:
            sharing = _overridden(sharing, entry)
    return sharing


def _overridden(sharing: Sharing, entry: _NodeEntry) -> Sharing:
    changes: dict[str, Any] = {ours: value for theirs, ours in _OVERRIDES.items() if (value := getattr(entry, theirs)) is not None}
    if entry.libcudaloglevel is not None:
        changes["log_level"] = str(entry.libcudaloglevel)
    if entry.filterdevices is not None:
        changes["excluded_uuids"] = entry.filterdevices.uuid or frozenset()
        changes["excluded_indexes"] = entry.filterdevices.index or frozenset()
    return replace(sharing, **changes)


def _lower_keys(value: object) -> object:
    """Keys match in any case, as in the reference's reader."""
    if isinstance(value, dict):
        return {str(key).lower(): _lower_keys(item) for key, item in value.items()}
    return [_lower_keys(item) for item in value] if isinstance(value, list) else value
