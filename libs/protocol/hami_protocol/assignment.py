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


def alignment(entries: Entries, kinds: Sequence[ContainerKind], asking: Sequence[bool] | None = None) -> tuple[int, ...]:
    """Return for each of ``entries`` the place of the container that it belongs to.

    A record has an entry per container, empty ones included. The reference shortens it: v2.10 leaves out the entries of
    containers that ask for nothing, v2.7 those of init containers. Of these forms the first one counts in which exactly the
    containers that ask hold something; where none does, an entry's position is its container's.

    Args:
        entries: of one record.
        kinds: of the pod's containers, in the order of the annotation.
        asking: which containers ask for devices of the record's vendor; None where that is not known.

    Raises:
        RecordError: there are devices for more containers than the pod has.
    """
    count = max((place + 1 for place, entry in enumerate(entries) if entry), default=0)
    if count > len(kinds):
        raise RecordError(_RECORD, 0, f"devices for {count} containers; the pod has {len(kinds)}")
    by_position = tuple(range(min(len(entries), len(kinds))))
    if asking is None or len(entries) >= len(kinds):
        return by_position
    everywhere = [place for place, asks in enumerate(asking) if asks]
    apps = [place for place, kind in enumerate(kinds) if kind is ContainerKind.APP]
    asking_apps = [place for place in apps if asking[place]]
    forms = ((by_position, everywhere), (everywhere, everywhere), (apps, asking_apps), (asking_apps, asking_apps))
    for places, expected in forms:
        if len(places) == len(entries) and [place for place, entry in zip(places, entries, strict=True) if entry] == expected:
            return tuple(places)
    return by_position


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
        asking: which of them ask for this vendor, to align a record that the reference has shortened; see ``alignment``.

    Raises:
        RecordError: it cannot be read, or holds devices for more containers than the pod has.
    """
    entries = decode_entries(text)
    held = dict(zip(alignment(entries, [kind for _, kind in containers], asking), entries, strict=False))
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
