"""The chart's value ``deviceConfig``: what its schema accepts changes none of the manifests that the chart has ready made."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hami_devices.catalog import Catalog
from hami_devices.config import DeviceConfig
from tools import admission_policies, scheduler_configuration, webhook_configurations
from tools.chart import device_config


def another(schema: dict[str, Any], default: Any) -> Any:
    """A value that the schema accepts and that is not the default."""
    if "enum" in schema:
        return next(each for each in schema["enum"] if each != default)
    match schema.get("type"):
        case "boolean":
            return not default
        case "integer":
            return default + 1 if default < schema.get("maximum", default + 1) else default - 1
        case "number":
            return default + 1
        case "array":
            return []
    return f"{default}x"


def changes() -> list[tuple[str, str, Any]]:
    """Section, field and another value, for every field that may have one."""
    (value, definitions), found = device_config.schema(), []
    defaults = msgspec.to_builtins(DeviceConfig())
    for section, referred in value["properties"].items():
        fields = definitions[referred["$ref"].rpartition("/")[2]]["properties"]
        for name, schema in fields.items():
            if "const" not in schema:
                found.append((section, name, another(schema, defaults[section][name])))
    return found


def manifests(catalog: Catalog) -> tuple[str, str, str]:
    return scheduler_configuration.text(catalog.managed_resources), webhook_configurations.text(catalog), admission_policies.text(catalog)


@pytest.mark.parametrize(("section", "field", "value"), changes(), ids=lambda each: str(each)[:20])
def test_a_setting_that_is_accepted_leaves_the_manifests_as_they_are(section: str, field: str, value: Any) -> None:
    changed = msgspec.convert({section: {field: value}}, DeviceConfig)
    assert changed != DeviceConfig()
    assert manifests(Catalog(changed)) == manifests(Catalog())


def test_names_of_resources_stay_as_they_are() -> None:
    _, definitions = device_config.schema()
    assert definitions["NvidiaConfig"]["properties"]["resourceCountName"] == {"const": "nvidia.com/gpu"}
    assert "const" not in definitions["NvidiaConfig"]["properties"]["deviceSplitCount"]
