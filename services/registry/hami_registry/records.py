"""What a node's annotations must say for a report, and what they say where a vendor's own plugin writes them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from hami_devices.vendor import Vendor
from hami_protocol import keys, registration
from hami_protocol.devices import AllocationMode, RegisterFormat
from hami_protocol.errors import RecordError
from hami_protocol.events import DevicesReported
from hami_protocol.handshake import Deleted, Requesting, decode

MAX_TEXT_CHARACTERS: Final = 256 * 1024
"""What the API server lets all annotations of one object have together."""
_GENERATION_DIGITS: Final = 18


class NodeKeys(NamedTuple):
    """The annotations of a node that concern one device type. An empty key is one that the type does not have."""

    register: str
    generation: str
    handshake: str
    bare_handshake: str
    """An older key for the same, which is read where the other is missing."""
    pair_scores: str
    as_json: bool = False
    """Whether readers of this type's registration expect its JSON form."""


def keys_of(device_type: str, vendor: Vendor | None) -> NodeKeys:
    """Where a device type's records are; by the protocol's rule for a type that no vendor of ours has."""
    if vendor is None:
        return NodeKeys(keys.register(device_type), keys.generation(device_type), keys.handshake(device_type), "", "")
    bare = keys.LEGACY_HANDSHAKE if vendor.handshake_key == keys.handshake("nvidia") else ""
    return NodeKeys(
        vendor.register_key, keys.generation(device_type), vendor.handshake_key, bare, vendor.pair_scores_key, vendor.registers_json
    )


def annotations_of(report: DevicesReported, names: NodeKeys) -> dict[str, str | None]:
    """The record of what a node has, as annotations; None where there must be none."""
    more = any(device.mig_profiles or device.mode == "mig" or device.custom_info for device in report.devices)
    as_json = more or names.as_json or report.register_format is RegisterFormat.JSON
    wanted: dict[str, str | None] = {
        names.register: (registration.encode_json if as_json else registration.encode_text)(report.devices) or ":",
        names.generation: str(report.generation),
        keys.ALLOCATION_MODE: report.allocation_mode.value,
    }
    if names.pair_scores:
        wanted[names.pair_scores] = _pair_scores(report.pair_scores) if report.pair_scores is not None else None
    return wanted


def _pair_scores(scores: Mapping[str, Mapping[str, int]]) -> str:
    return msgspec.json.encode([{"uuid": uuid, "score": scores[uuid]} for uuid in scores]).decode()


def read_annotations(
    node: str, device_type: str, text: str, annotations: Mapping[str, str], *, third_party: bool = False
) -> DevicesReported:
    """What a node's annotations register. Without a generation of ours, a vendor's own plugin wrote them.

    Args:
        node: whose they are.
        device_type: of which devices.
        text: the registration.
        annotations: all of the node's.
        third_party: the registration is known not to be our agent's, whatever generation stands beside it.

    Raises:
        RecordError: the registration cannot be read.
    """
    if len(text) > MAX_TEXT_CHARACTERS:
        raise RecordError("device registration", MAX_TEXT_CHARACTERS, f"{len(text)} characters; accepted: {MAX_TEXT_CHARACTERS}")
    devices = registration.decode(text)
    generation = annotations.get(keys.generation(device_type), "")
    if third_party or not (generation.isascii() and generation.isdecimal() and len(generation) <= _GENERATION_DIGITS):
        return DevicesReported(node=node, device_type=device_type, generation=0, devices=devices, third_party=True)
    mode = AllocationMode.CDI if annotations.get(keys.ALLOCATION_MODE) == AllocationMode.CDI else AllocationMode.ENVVAR
    return DevicesReported(node=node, device_type=device_type, generation=int(generation), devices=devices, allocation_mode=mode)


def is_answer(handshake: str) -> bool:
    """Whether the node's side wrote this handshake. Plugins write anything but the words of the cluster's side."""
    try:
        return not isinstance(decode(handshake), Requesting | Deleted)
    except RecordError:
        return "Requesting" not in handshake


def seen_handshake(annotations: Mapping[str, str], names: NodeKeys) -> str:
    """The handshake that a node has, empty where it has none."""
    return annotations.get(names.handshake) or annotations.get(names.bare_handshake) or ""


def concerning(annotations: Mapping[str, str]) -> dict[str, str]:
    """Those of a node's annotations that the registry may read or write."""
    return {key: value for key, value in annotations.items() if "hami.io/" in key}
