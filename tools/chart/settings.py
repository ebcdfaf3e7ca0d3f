"""What users of the chart set besides components: each value stands in the manifests in the place of what they have. Pure."""

from __future__ import annotations

import copy
import re
from typing import Any, Final

import yaml

from hami_cli.installation import WAITED_FOR
from tools.chart.templates import Inline, Tree, With
from tools.chart.variants import FAMILIES, Object

_HASHED: Final = re.compile(r"hami-device-config-[a-z0-9]{10}")
OURS: Final = re.compile(r"hami/(?P<service>[a-z-]+):(?P<tag>\S+)")
_CONTAINERS: Final = {
    ("hami-scheduler", "extender"): "scheduler",
    ("hami-scheduler", "kube-scheduler"): "kubeScheduler",
    ("hami-webhook", "webhook"): "webhook",
    ("hami-registry", "registry"): "registry",
    ("hami-node-agent", "node-agent"): "nodeAgent",
    ("hami-auth-callout", "auth-callout"): "authCallout",
    ("hami-nats", "nats"): "nats",
}
"""Workload and container to the values that it has."""
REPLICATED: Final = {
    "hami-scheduler": "scheduler",
    "hami-webhook": "webhook",
    "hami-registry": "registry",
    "hami-auth-callout": "authCallout",
}
"""Workloads of which users may want several, and their values."""
API_SERVER_POLICY: Final = "api-server"
DEVICE_CONFIG: Final = "hami-device-config"
"""The ConfigMap of a device configuration; its name ends with a digest of what it holds, so that pods start anew when that changes."""
WITHOUT_ENV: Final = frozenset({"kubeScheduler", "nats"})


def defaults(objects: list[Object]) -> dict[str, Any]:
    """The values of the chart that are not components: the images, resources and volumes of ``objects``."""
    values: dict[str, Any] = {
        "images": {"prefix": "hami", "tag": "", "pullPolicy": "", "pullSecrets": []},
        "networkPolicy": {"apiServerPorts": []},
        "deviceConfig": _device_config(objects),
    }
    for body in objects:
        for container in _pod(body).get("containers", ()):
            if (value := _CONTAINERS.get((body["metadata"]["name"], container["name"]))) is not None:
                values[value] = values.get(value, {}) | _of_container(value, container)
            if container["name"] == "reloader":
                values["nats"]["reloaderImage"] = container["image"]
        if (value := REPLICATED.get(body["metadata"]["name"])) is not None and _pod(body):
            values[value]["replicas"] = 0
        for claim in (body.get("spec") or {}).get("volumeClaimTemplates") or ():
            values["nats"]["storage"] = {"size": claim["spec"]["resources"]["requests"]["storage"], "className": ""}
        if body["metadata"]["name"] == "hami-node-agent" and (spec := _pod(body)):
            values["nodeAgent"] |= {"nodeSelector": spec["nodeSelector"], "runtimeClassName": ""}
    return values


def _of_container(value: str, container: Object) -> dict[str, Any]:
    found: dict[str, Any] = {"resources": container["resources"]}
    if value == "kubeScheduler":
        found |= {"image": container["image"].rpartition(":")[0], "tag": ""}
    elif value == "nats":
        found["image"] = container["image"]
    else:
        found["env"] = []
    return found


def with_values(body: Object) -> Object:
    """``body`` with expressions where users set something."""
    changed = _named_by_content(copy.deepcopy(body))
    name, spec = body["metadata"]["name"], _pod(changed)
    if not spec:
        return _without_pods(changed, body["kind"], name)
    if (replicated := REPLICATED.get(name)) is not None:
        changed["spec"]["replicas"] = Inline(f".Values.{replicated}.replicas | default {body['spec']['replicas']}")
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        container["image"] = Inline(_image(container["image"]))
        if OURS.match(str(_image_of(body, container["name"]))):
            _insert(container, "image", "imagePullPolicy", With(".Values.images.pullPolicy"))
        if (value := _CONTAINERS.get((name, container["name"]))) is not None:
            container["resources"] = Tree(f".Values.{value}.resources")
            if value not in WITHOUT_ENV:
                container["env"] = [*container["env"], With(f".Values.{value}.env")]
    spec["imagePullSecrets"] = With(".Values.images.pullSecrets")
    if name == "hami-node-agent":
        spec["nodeSelector"] = Tree(".Values.nodeAgent.nodeSelector")
        spec["runtimeClassName"] = With(".Values.nodeAgent.runtimeClassName")
    for claim in changed["spec"].get("volumeClaimTemplates") or ():
        claim["spec"]["resources"]["requests"]["storage"] = Inline(".Values.nats.storage.size | quote")
        claim["spec"]["storageClassName"] = With(".Values.nats.storage.className")
    return changed


def _without_pods(body: Object, kind: str, name: str) -> Object:
    if kind == "NetworkPolicy" and name == API_SERVER_POLICY:
        (rule,) = body["spec"]["egress"]
        rule["ports"].append(With(".Values.networkPolicy.apiServerPorts"))
    if kind == "ConfigMap" and name.startswith(DEVICE_CONFIG):
        (file,) = body["data"]
        body["data"] = {file: Inline('printf "%s\\n" (toYaml .Values.deviceConfig) | quote')}
    return body


def _device_config(objects: list[Object]) -> Any:
    """The content of the first device configuration."""
    texts = [text for body in objects if body["metadata"]["name"].startswith(DEVICE_CONFIG) for text in body["data"].values()]
    return yaml.safe_load(texts[0])


def _named_by_content(value: Any) -> Any:
    """``value`` with a name by content wherever a device configuration is named."""
    if isinstance(value, dict):
        return {key: _named_by_content(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_named_by_content(inner) for inner in value]
    if isinstance(value, str) and _HASHED.fullmatch(value):
        return Inline(f'printf "{DEVICE_CONFIG}-%s" (toYaml .Values.deviceConfig | sha256sum | trunc 10)')
    return value


def _pod(body: Object) -> Object:
    """The spec of a workload's pods; empty for other objects."""
    if body["kind"] not in WAITED_FOR:
        return {}
    found: Object = body["spec"]["template"]["spec"]
    return found


def _image_of(body: Object, container: str) -> str:
    spec = _pod(body)
    return next(each["image"] for each in (*spec.get("initContainers", ()), *spec["containers"]) if each["name"] == container)


def _image(image: str) -> str:
    if ours := OURS.fullmatch(image):
        return f'printf "%s/{ours["service"]}:%s" .Values.images.prefix (.Values.images.tag | default .Chart.AppVersion) | quote'
    if "kube-scheduler" in image:
        version = '(regexReplaceAll "[-+].*" .Capabilities.KubeVersion.Version "")'
        return f'printf "%s:%s" .Values.kubeScheduler.image (.Values.kubeScheduler.tag | default {version}) | quote'
    if "reloader" in image:
        return ".Values.nats.reloaderImage | quote"
    if image.startswith("nats:"):
        return ".Values.nats.image | quote"
    family = next(each for each in FAMILIES if image.startswith(f"hami-{each}-plugin"))
    return (
        f'required "vendorPluginImages.{family}: the image of its vendor\'s plugin" (index .Values.vendorPluginImages "{family}") | quote'
    )


def _insert(body: Object, behind: str, key: str, value: Any) -> None:
    """Put a field behind another one."""
    items = list(body.items())
    body.clear()
    for each, inner in items:
        body[each] = inner
        if each == behind:
            body[key] = value
