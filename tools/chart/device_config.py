"""The schema of the chart's value ``deviceConfig``: a device configuration that changes none of the manifests that were made without it. Pure.

kube-scheduler's configuration, the webhooks' conditions and the admission policies name resources, and the chart has them ready made. A property
test changes every field that is accepted here, and makes these manifests again.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from hami_devices.config import DeviceConfig

FIXED: Final = frozenset({"overwriteEnv"})
"""Fields besides names of resources that the webhooks' conditions depend on."""
LISTS: Final = frozenset({"vnpus", "iluvatars"})
"""Sections that define devices of their own, with names."""


def schema() -> tuple[dict[str, Any], dict[str, Any]]:
    """The value's schema, and the definitions that it refers to as ``#/$defs/NAME``."""
    _, definitions = msgspec.json.schema_components([DeviceConfig], ref_template="#/$defs/{name}")
    sections = {name: {"$ref": each["$ref"]} for name, each in definitions["DeviceConfig"]["properties"].items() if name not in LISTS}
    used = {each["$ref"].rpartition("/")[2] for each in sections.values()}
    found = {name: _section(definitions[name]) for name in sorted(used)}
    referred = {"MigAllowance": definitions["MigAllowance"]}
    return {"type": "object", "additionalProperties": False, "minProperties": 1, "properties": sections}, found | referred


def _section(definition: dict[str, Any]) -> dict[str, Any]:
    properties = {}
    for name, each in definition["properties"].items():
        accepted = {"const": each["default"]} if name in FIXED or "resource" in name.lower() else each
        properties[name] = {key: value for key, value in accepted.items() if key != "default"}
    return {"type": "object", "additionalProperties": False, "properties": properties}
