"""Make the page of vendors from their specs: ``python tools/vendor_pages.py > docs/vendors.md``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from hami_devices.catalog import Catalog
from hami_devices.config_sections import ASCENDS
from hami_devices.vendor import Vendor
from hami_devices.vendors import (
    amd,
    ascend,
    biren,
    cambricon,
    enflame,
    hygon,
    iluvatar,
    kunlun,
    metax,
    metax_sgpu,
    mthreads,
    neuron,
    nvidia,
    vastai,
)

ROOT = Path(__file__).resolve().parents[1]
PODS = ROOT / "examples" / "all-vendors" / "pods.yaml"
HEADER = """# Vendors

Made by `make docs` from the specs in `libs/devices/hami_devices/vendors/`. Resource names are the defaults; each can be renamed in the device
configuration, and an empty count resource switches its vendor off. All amounts are read in one way: a bare number is in the resource's own
unit, a binary suffix (`16Gi`) is in bytes, and what cannot be read is refused with its field. `hami rig run examples/all-vendors` starts a node
of each vendor and places a pod of each.

"""
FAMILIES: tuple[tuple[str, ModuleType, tuple[str, ...]], ...] = (
    ("NVIDIA", nvidia, ("NVIDIA",)),
    ("Cambricon MLU", cambricon, ("MLU",)),
    ("Hygon DCU", hygon, ("DCU",)),
    ("MetaX GPU", metax, ("Metax-GPU",)),
    ("MetaX sGPU", metax_sgpu, ("Metax-SGPU",)),
    ("Enflame GCU, whole and in slices", enflame, ("GCU", "Enflame")),
    ("Kunlunxin XPU, whole and in slices", kunlun, ("kunlun", "XPU")),
    ("AWS Neuron", neuron, ("AWSNeuron",)),
    ("Huawei Ascend", ascend, ()),
    ("Iluvatar", iluvatar, ()),
    ("Moore Threads", mthreads, ("Mthreads",)),
    ("AMD", amd, ("AMD",)),
    ("Biren", biren, ("Biren",)),
    ("Vastai", vastai, ("Vastai",)),
)


def members(catalog: Catalog) -> Iterator[tuple[str, ModuleType, list[Vendor]]]:
    """Each family with its vendors, every vendor in one."""
    named = {name for _, _, names in FAMILIES for name in names}
    chips = [vendor for vendor in catalog.vendors if vendor.name not in named]
    for title, module, names in FAMILIES:
        if title == "Huawei Ascend":
            yield title, module, [vendor for vendor in chips if vendor.name.startswith("Ascend")]
        elif title == "Iluvatar":
            yield title, module, [vendor for vendor in chips if not vendor.name.startswith("Ascend")]
        else:
            yield title, module, [catalog.vendor(name) for name in names]


def document() -> str:
    """The whole page."""
    catalog = Catalog()
    examples = list(yaml.safe_load_all(PODS.read_text()))
    families = list(members(catalog))
    parts = [HEADER, _index(families)]
    for title, module, vendors in families:
        parts += [f"## {title}\n\n{_text(module)}\n\n"]
        shown = vendors if len(vendors) < 3 else vendors[:1]  # chips differ in their names alone
        if len(vendors) > len(shown):
            chips = ", ".join(f"`{each.name}`" for each in vendors)
            parts.append(f"One vendor per chip of the configuration: {chips}. The names below are the first one's.\n\n")
        if module is ascend:
            parts.append(_templates())
        parts += [_section(vendor, examples, title_needed=len(shown) > 1) for vendor in shown]
    return "".join(parts).rstrip() + "\n"


def _index(families: list[tuple[str, ModuleType, list[Vendor]]]) -> str:
    rows = []
    for title, _, vendors in families:
        anchor = title.lower().replace(",", "").replace(" ", "-")
        resources = "<br>".join(f"`{vendor.count_resource}`" for vendor in vendors)
        sources = "<br>".join(_source(vendor) for vendor in (vendors if len(vendors) < 3 else vendors[:1]))
        rows.append(f"| [{title}](#{anchor}) | {resources} | {sources} |\n")
    return "| vendor | asked with | a node's devices come from |\n|---|---|---|\n" + "".join(rows) + "\n"


def _text(source: Any) -> str:
    """A docstring in one paragraph per paragraph, without what it says of errors."""
    text = inspect.getdoc(source) or ""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n") if not part.startswith(("Raises:", "Args:"))).replace(
        "``", "`"
    )


def _source(vendor: Vendor) -> str:
    places = [f"`{key}`" for key in (vendor.register_key, vendor.own_key) if key]
    if vendor.read_capacity is not None:
        places.append("the node's capacity")
    return ", else ".join(places)


def _templates() -> str:
    rows = []
    for chip in ASCENDS:
        templates = ", ".join(f"{template.name} ({template.memory_mib})" for template in chip.templates)
        rows.append(f"| `{chip.common_word}` | {chip.memory_allocatable_mib} | {templates} |\n")
    return "| chip | whole, MiB | templates (MiB) |\n|---|---|---|\n" + "".join(rows) + "\n"


def _section(vendor: Vendor, examples: list[dict[str, Any]], *, title_needed: bool) -> str:
    lines = [f"### {vendor.name}\n\n"] if title_needed else []
    lines += ["| | |\n|---|---|\n", *(f"| {what} | {said} |\n" for what, said in _rows(vendor) if said), "\n"]
    found = next((limits for body in examples if vendor.count_resource in (limits := _limits(body))), None)
    if found is not None:
        lines.append("```yaml\nlimits: {" + ", ".join(f"{name}: {amount}" for name, amount in found.items()) + "}\n```\n\n")
    return "".join(lines)


def _limits(body: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = body["spec"]["containers"][0]["resources"]["limits"]
    return found


def _rows(vendor: Vendor) -> Iterator[tuple[str, str]]:
    unit = "MiB" if vendor.memory_unit_mib == 1 else f"units of {vendor.memory_unit_mib} MiB"
    yield "devices", f"`{vendor.count_resource}`"
    yield "memory", vendor.memory_resource and f"`{vendor.memory_resource}`, {unit}"
    yield "memory, percent", vendor.memory_percent_resource and f"`{vendor.memory_percent_resource}`"
    own = ", percent as quotas count them too; booked in the card's own units" if vendor.books_own_units else ""
    yield "cores", vendor.cores_resource and f"`{vendor.cores_resource}`{own}"
    yield "cores where nothing is said", _defaults(vendor)
    keys = vendor.selector_keys
    yield "models", _keys(keys.use_types, keys.avoid_types)
    yield "UUIDs", _keys(keys.use_uuids, keys.avoid_uuids, keys.use_uuids_too, keys.avoid_uuids_too)
    yield "modes, NUMA", _keys(keys.modes, keys.numa_bind)
    yield "registered in", _source(vendor)
    yield "handshake", _keys(vendor.handshake_key)
    yield "assignment", _keys(*vendor.assignment_keys)
    yield "for the device plugin", _keys(*vendor.written_keys)
    yield "read as", _function(vendor.read)
    yield "the webhook", _function(vendor.mutate)
    yield "a share takes", _function(vendor.rules.demand)
    yield "chosen", _function(vendor.rules.pick)
    yield "a better node", _function(vendor.rules.bonus)
    yield "containers of one pod", "get different devices" if vendor.rules.apart else ""
    yield "waits for the node's lock", "" if vendor.locks_nodes else "never, unless our agent serves the node"
    if vendor.own_lock is not None:
        lock = vendor.own_lock
        yield "locked by its own", f"`{lock.key}`, for {lock.expiry_seconds:g} s at most, unless our agent serves the node"


def _defaults(vendor: Vendor) -> str:
    if not vendor.cores_resource or not (vendor.default_cores or vendor.whole_device_cores):
        return ""
    return f"{vendor.whole_device_cores} for whole devices, else {vendor.default_cores}"


def _keys(*names: str) -> str:
    return ", ".join(f"`{name}`" for name in names if name)


def _function(function: Callable[..., Any] | None) -> str:
    inner = function.func if isinstance(function, partial) else function
    text = "" if inner is None or inner.__name__ == "<lambda>" else _text(inner)
    return text.split("\n\n")[0].replace("|", "/")


if __name__ == "__main__":
    print(document(), end="")
