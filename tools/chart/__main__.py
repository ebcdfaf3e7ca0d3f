"""``python -m tools.chart`` writes ``deploy/chart/hami`` anew."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import yaml

from tools.chart import device_config, settings
from tools.chart.templates import name, template
from tools.chart.variants import COMPONENTS, FAMILIES, NEEDS, Key, Object, variants

ROOT: Final = Path(__file__).resolve().parents[2]
CHART: Final = ROOT / "deploy" / "chart" / "hami"
GENERATED: Final = "# Made by `make docs` from deploy/kustomize; change that.\n"
SYSTEM: Final = ("Namespace", "", "hami-system")
PRODUCTION: Final = COMPONENTS[: COMPONENTS.index("fake-devices")]
ABOUT: Final = {
    "components": "What is installed besides the services, as deploy/kustomize/components has it; values-production.yaml takes those of production.",
    "vendorPlugins": "Other vendors' own device plugins; they need components.vendorPlugins and components.admissionPolicies.",
    "vendorPluginImages": "Their images, which are their vendors'.",
    "images": "The services' images, PREFIX/scheduler:TAG and so on; the tag is the chart's version where it is empty.",
    "deviceConfig": "With components.deviceConfiguration: all that a device configuration takes but names of resources.",
    "networkPolicy": "Ports at which your API server listens, besides 443, 6443, 8443 and 16443, as {port: 7443}.",
    "nodeAgent": "env is added to the container's variables, here and below: any setting HAMI_*.",
    "authCallout": "With components.natsAuthCallout.",
    "registry": "The registry.",
    "scheduler": "The scheduler's extender. replicas: 0 is the number that the components have; several need components.highAvailability.",
    "kubeScheduler": "kube-scheduler beside it; its tag is the cluster's version where it is empty.",
    "webhook": "The webhook.",
    "nats": "storage is used with components.natsStorage; an empty className is the default class.",
}
SINGLE: Final = ("scheduler", "webhook", "registry")
"""Of these one runs, unless what several need is taken: certificates, budgets, a spread over nodes."""
SCHEMAS: Final[dict[str, Any]] = {
    "resources": {
        "type": "object",
        "additionalProperties": True,
        "properties": {"requests": {"type": "object"}, "limits": {"type": "object"}},
    },
    "env": {"type": "array", "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string", "minLength": 1}}}},
    "pullPolicy": {"enum": ["", "Always", "IfNotPresent", "Never"]},
    "pullSecrets": {
        "type": "array",
        "items": {"type": "object", "required": ["name"], "additionalProperties": False, "properties": {"name": {"type": "string"}}},
    },
    "nodeSelector": {"type": "object", "minProperties": 1, "additionalProperties": {"type": "string"}},
    "replicas": {"type": "integer", "minimum": 0, "maximum": 9},
    "apiServerPorts": {
        "type": "array",
        "items": {
            "type": "object",
            "required": ["port"],
            "additionalProperties": False,
            "properties": {"port": {"type": "integer", "minimum": 1, "maximum": 65535}, "protocol": {"const": "TCP"}},
        },
    },
    "size": {"type": "string", "pattern": "^[0-9.]+(Ki|Mi|Gi|Ti|Pi|Ei|k|M|G|T|P|E)?$"},
    "prefix": {"type": "string", "pattern": "^[^/].*[^/]$"},
}


def main() -> None:
    """Write it."""
    shutil.rmtree(CHART, ignore_errors=True)
    for path, text in files().items():
        whole = CHART / path
        whole.parent.mkdir(parents=True, exist_ok=True)
        whole.write_text(text)


def files() -> dict[str, str]:
    """Path below the chart and text of each file."""
    found = variants()
    values = values_of(found)
    parts: dict[str, list[str]] = defaultdict(list)
    for key, by_choice in found.items():
        made = {choice: None if body is None else settings.with_values(body) for choice, body in by_choice.items()}
        text = template(made)
        if key == SYSTEM:  # the release's own namespace is Helm's to make
            text = f'{{{{- if ne .Release.Namespace "{SYSTEM[2]}" }}}}\n{text}{{{{- end }}}}\n'
        parts[_file(key, by_choice.values())].append(text)
    templates = {f"templates/{file}.yaml": GENERATED + "".join(texts) for file, texts in sorted(parts.items())}
    return {
        "Chart.yaml": GENERATED + yaml.safe_dump(_chart(), sort_keys=False),
        "values.yaml": GENERATED
        + "".join(f"\n# {ABOUT[key]}\n{yaml.safe_dump({key: value}, sort_keys=False)}" for key, value in values.items()),
        "values-production.yaml": GENERATED + yaml.safe_dump({"components": {_short(each): True for each in PRODUCTION}}, sort_keys=False),
        "values-rig.yaml": GENERATED + yaml.safe_dump({"components": {_short("fake-devices"): True}}, sort_keys=False),
        "values.schema.json": json.dumps(_schema(values), indent=2) + "\n",
        "templates/NOTES.txt": NOTES,
        **templates,
    }


def values_of(found: dict[Key, dict[frozenset[str], Object | None]]) -> dict[str, Any]:
    """The chart's values: no component is taken, everything else is as the manifests have it."""
    bodies = [body for by_choice in found.values() for body in by_choice.values() if body is not None]
    components = {_short(each): False for each in COMPONENTS if "/" not in each}
    plugins = {_short(each): False for each in COMPONENTS if "/" in each}
    return {
        "components": components,
        "vendorPlugins": plugins,
        "vendorPluginImages": dict.fromkeys(FAMILIES, ""),
        **settings.defaults(bodies),
    }


def _short(component: str) -> str:
    return name(component).partition(".")[2]


def _file(key: Key, bodies: Any) -> str:
    """The file of an object: its component's, else its kind's."""
    body = next(each for each in bodies if each is not None)
    return (body["metadata"].get("labels") or {}).get("app.kubernetes.io/component") or key[0].lower()


def _chart() -> dict[str, Any]:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return {
        "apiVersion": "v2",
        "name": "hami",
        "description": "GPU sharing for Kubernetes pods",
        "type": "application",
        "version": version,
        "appVersion": version,
        "kubeVersion": ">=1.30.0-0",
    }


def _schema(values: dict[str, Any]) -> dict[str, Any]:
    """JSON Schema of the values: nothing else is accepted, and a component only with those that it builds upon."""
    rules = []
    for component, needed in NEEDS.items():
        taken = _at(name(component), {"const": True}, required=True)
        rules.append({"if": taken, "then": {"allOf": [_at(name(each), {"const": True}, required=True) for each in needed]}})
    for service in SINGLE:
        several = _at(f"{service}.replicas", {"minimum": 2}, required=True)
        rules.append({"if": several, "then": _at(name("high-availability"), {"const": True}, required=True)})
    whole = _of(values)
    whole["properties"]["deviceConfig"], definitions = device_config.schema()
    return {"$schema": "http://json-schema.org/draft-07/schema#", **whole, "allOf": rules, "$defs": definitions}


def _at(path: str, schema: dict[str, Any], *, required: bool) -> dict[str, Any]:
    for part in reversed(path.split(".")):
        schema = {"properties": {part: schema}, **({"required": [part]} if required else {})}
    return schema


def _of(value: Any, field: str = "") -> dict[str, Any]:
    if field in SCHEMAS:
        return SCHEMAS[field]
    if isinstance(value, dict):
        return {"type": "object", "additionalProperties": False, "properties": {key: _of(each, key) for key, each in value.items()}}
    if isinstance(value, bool):
        return {"type": "boolean"}
    return {"type": "string"}


NOTES: Final = """\
HAMi {{ .Chart.AppVersion }} is installed in hami-system, its agents in hami-node-agent.

  kubectl label node NODE gpu=on       nodes that have cards
  hami doctor                          looks it over
{{- if eq .Release.Namespace "hami-system" }}

The release's namespace was made by Helm, without Pod Security:
  kubectl label namespace hami-system pod-security.kubernetes.io/enforce=restricted
{{- end }}

After `helm uninstall`, `hami uninstall` removes records and files from the nodes.
"""


if __name__ == "__main__":
    main()
