"""MIG instances of a pod, as text: a JSON list in ``hami.io/vgpu-mig-allocations``. The scheduler says where each is to lie; what it became on the
card is added once its agent has made it.

A share is told by the place of its container (init containers first) and its place among that container's devices. Ids of 0 are ids.
"""  # noqa: D205

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct, field

from hami_protocol.devices import MigInstance, Placement
from hami_protocol.errors import RecordError

_RECORD: Final = "MIG allocations"
MOST: Final = 1024

_Index = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class MigIdentity(Struct, frozen=True, kw_only=True):
    """What an instance is on its card."""

    uuid: str
    gpu_instance: int
    compute_instance: int


class MigAllocation(Struct, frozen=True, kw_only=True):
    """One instance that a pod holds."""

    container: int
    """Place of the container, init containers first."""
    device: int
    """Place among the container's devices."""
    gpu: str
    instance: MigInstance
    identity: MigIdentity | None = None
    """None until it has been made."""


class _Row(Struct, frozen=True, kw_only=True, omit_defaults=True):
    container_index: _Index = field(name="containerIndex")
    device_index: _Index = field(name="deviceIndex")
    gpu_uuid: Annotated[str, Meta(min_length=1, max_length=128)] = field(name="gpuUUID")
    profile: Annotated[str, Meta(min_length=1, max_length=64)]
    placement: Placement
    mig_uuid: str | None = field(name="migUUID", default=None)
    gpu_instance_id: _Index | None = field(name="gpuInstanceID", default=None)
    compute_instance_id: _Index | None = field(name="computeInstanceID", default=None)


_ROWS: Final = msgspec.json.Decoder(list[_Row])


def encode(allocations: tuple[MigAllocation, ...]) -> str:
    """The text of ``allocations``; empty for none."""
    if not allocations:
        return ""
    rows = [
        _Row(
            container_index=each.container,
            device_index=each.device,
            gpu_uuid=each.gpu,
            profile=each.instance.profile,
            placement=each.instance.placement,
            mig_uuid=each.identity.uuid if each.identity else None,
            gpu_instance_id=each.identity.gpu_instance if each.identity else None,
            compute_instance_id=each.identity.compute_instance if each.identity else None,
        )
        for each in allocations
    ]
    return msgspec.json.encode(rows).decode()


def decode(text: str) -> tuple[MigAllocation, ...]:
    """The instances in ``text``, which a tenant or another scheduler may have written.

    Raises:
        RecordError: no list of them, a share that has two, or an identity with parts missing.
    """
    if not text:
        return ()
    try:
        rows = _ROWS.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
        raise RecordError(_RECORD, 0, str(exc)) from exc
    if len(rows) > MOST:
        raise RecordError(_RECORD, 0, f"{len(rows)} instances; accepted: at most {MOST}")
    allocations = tuple(_allocation(place, row) for place, row in enumerate(rows))
    seen: set[tuple[int, int]] = set()
    for each in allocations:
        if (each.container, each.device) in seen:
            raise RecordError(_RECORD, 0, f"duplicate MIG allocation for container {each.container} device {each.device}")
        seen.add((each.container, each.device))
    return allocations


def _allocation(place: int, row: _Row) -> MigAllocation:
    parts = (row.mig_uuid or None, row.gpu_instance_id, row.compute_instance_id)
    identity = None
    if parts[0] is not None and parts[1] is not None and parts[2] is not None:
        identity = MigIdentity(uuid=parts[0], gpu_instance=parts[1], compute_instance=parts[2])
    elif any(part is not None for part in parts):
        raise RecordError(
            _RECORD, 0, f"MIG allocation {place} has partial runtime identity; accepted: all of migUUID and both ids, or none"
        )
    return MigAllocation(
        container=row.container_index,
        device=row.device_index,
        gpu=row.gpu_uuid,
        instance=MigInstance(profile=row.profile, placement=row.placement),
        identity=identity,
    )
