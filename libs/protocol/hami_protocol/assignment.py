"""What a pod holds, as text: ``uuid,type,memory,cores:`` per device, ``;`` after each container, init containers first.

The same text is the log of what was allocated and the list of what is still to be handed out, where the entry of a container that has its
devices is emptied to a bare ``;``. An entry per ``;``: encoder and decoder are inverse, and emptying does not lengthen the text.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from hami_protocol._text import shown, whole
from hami_protocol.devices import ContainerKind, ContainerShares, DeviceShare, VendorAssignment
from hami_protocol.errors import RecordError

_RECORD: Final = "pod assignment"
_FIELDS: Final = 4

Entries = tuple[tuple[DeviceShare, ...], ...]


def encode(assignment: VendorAssignment) -> str:
    """The text of ``assignment``, a bare ``;`` for a container that holds nothing of this vendor."""
    return encode_entries(tuple(container.shares for container in assignment.containers))


def encode_entries(entries: Entries) -> str:
    """The text of ``entries``."""
    return "".join("".join(f"{s.uuid},{s.type},{s.memory_mib},{s.cores}:" for s in shares) + ";" for shares in entries)


def decode_entries(text: str) -> Entries:
    """The entries of ``text``, one per container.

    Raises:
        RecordError: a device has fewer than four fields, or a number that is none.
    """
    entries: list[tuple[DeviceShare, ...]] = []
    position = 0
    pieces = text.split(";")
    if not pieces[-1]:
        pieces.pop()
    for piece in pieces:
        entries.append(_decode_entry(piece, position))
        position += len(piece) + 1
    return tuple(entries)


def _decode_entry(entry: str, position: int) -> tuple[DeviceShare, ...]:
    shares: list[DeviceShare] = []
    for device in entry.split(":"):
        if device:
            fields = device.split(",")
            if len(fields) < _FIELDS or not fields[0]:
                raise RecordError(_RECORD, position, f"{shown(device)} is no device; accepted: uuid,type,memory,cores")
            at_memory = position + len(fields[0]) + len(fields[1]) + 2
            shares.append(
                DeviceShare(
                    uuid=fields[0],
                    type=sys.intern(fields[1]),
                    memory_mib=whole(_RECORD, "memory", fields[2], at_memory),
                    cores=whole(_RECORD, "cores", fields[3], at_memory + len(fields[2]) + 1),
                )
            )
        position += len(device) + 1
    return tuple(shares)


def decode(
    text: str,
    vendor: str,
    containers: Sequence[tuple[str, ContainerKind]],
    *,
    asking: Sequence[bool] | None = None,
) -> VendorAssignment:
    """What the pod with these ``containers`` (name and kind, init containers first) holds of ``vendor``.

    Args:
        text: the annotation.
        vendor: the vendor's common word.
        containers: every container of the pod, in the order of the annotation.
        asking: which of them ask for this vendor. The reference leaves out the entries of containers that ask for nothing (scheduler trap
            T1): where the text is shorter than the pod, its entries go to the containers that ask, in order.

    Raises:
        RecordError: it cannot be read, or holds devices for more containers than the pod has.
    """
    entries = list(decode_entries(text))
    while len(entries) > len(containers) and not entries[-1]:
        entries.pop()
    if len(entries) > len(containers):
        raise RecordError(_RECORD, 0, f"devices for {len(entries)} containers; the pod has {len(containers)}")
    places = list(range(len(entries)))
    if asking is not None and len(entries) < len(containers):
        wanting = [place for place, wants in enumerate(asking) if wants]
        if len(wanting) == len(entries):
            places = wanting
    held = dict(zip(places, entries, strict=True))
    return VendorAssignment(
        vendor=vendor,
        containers=tuple(
            ContainerShares(container=name, kind=kind, shares=held.get(place, ())) for place, (name, kind) in enumerate(containers)
        ),
    )


def served(text: str, index: int) -> str:
    """``text`` after container ``index`` has its devices: that entry emptied, all others as they were.

    Raises:
        RecordError: the text cannot be read, or has no such entry.
    """
    entries = list(decode_entries(text))
    if not 0 <= index < len(entries):
        raise RecordError(_RECORD, len(text), f"no entry for container {index}; there are {len(entries)}")
    entries[index] = ()
    return encode_entries(tuple(entries))


def all_served(text: str) -> bool:
    """Whether no container is still to get devices.

    Raises:
        RecordError: the text cannot be read.
    """
    return not any(decode_entries(text))
