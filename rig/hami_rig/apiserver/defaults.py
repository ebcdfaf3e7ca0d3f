"""What the API server fills in where a body is silent, per kind. Pure.

Only what this project's parts and a reader of ``kubectl get -o yaml`` rely on: pods completely enough that their spec equals what a real
server stores, and webhook configurations. Invariant: defaulting twice is defaulting once.
"""

import base64
from collections.abc import Callable, Mapping
from typing import Any

from hami_runtime.kube.store_objects import Object
from hami_runtime.kube.store_resources import (
    MUTATING_WEBHOOKS,
    POD_DISRUPTION_BUDGETS,
    PODS,
    PRIORITY_CLASSES,
    REPLICA_SETS,
    SECRETS,
    VALIDATING_WEBHOOKS,
    Resource,
)

__all__ = ["defaulted"]

_TOLERATED_SECONDS = 300
_FILE_MODE = 0o644
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")


def defaulted(resource: Resource, body: Mapping[str, Any]) -> Object:
    """Return the body with the kind's defaults."""
    fill = _DEFAULTS.get(resource)
    return fill(dict(body)) if fill else dict(body)


def _pod(body: Object) -> Object:
    spec = {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "securityContext": {},
        "schedulerName": "default-scheduler",
        "enableServiceLinks": True,
        **(body.get("spec") or {}),
    }
    for name in ("containers", "initContainers"):
        if name in spec:
            spec[name] = [_container(each) for each in spec[name]]
    if "volumes" in spec:
        spec["volumes"] = [_volume(each) for each in spec["volumes"]]
    if "serviceAccountName" in spec:  # the older name of the same
        spec["serviceAccount"] = spec["serviceAccountName"]
    return {**body, "spec": spec}


def _container(container: Mapping[str, Any]) -> Object:
    image = container.get("image", "")
    tagged = ":" in image.rsplit("/", 1)[-1] and not image.endswith(":latest")
    result: Object = {
        "resources": {},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        **({"imagePullPolicy": "IfNotPresent" if tagged or "@" in image else "Always"} if image else {}),
        **container,
    }
    resources = result["resources"]
    if limits := resources.get("limits"):
        result["resources"] = {**resources, "requests": {**limits, **(resources.get("requests") or {})}}
    if "ports" in result:
        result["ports"] = [{"protocol": "TCP", **each} for each in result["ports"]]
    if "env" in result:
        result["env"] = [_variable(each) for each in result["env"]]
    for name in _PROBES:
        if name in result:
            result[name] = _probe(result[name])
    return result


def _variable(variable: Mapping[str, Any]) -> Object:
    source = variable.get("valueFrom") or {}
    if "fieldRef" not in source:
        return dict(variable)
    return {**variable, "valueFrom": {**source, "fieldRef": {"apiVersion": "v1", **source["fieldRef"]}}}


def _probe(probe: Mapping[str, Any]) -> Object:
    result: Object = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3, **probe}
    if "httpGet" in result:
        result["httpGet"] = {"path": "/", "scheme": "HTTP", **result["httpGet"]}
    return result


def _volume(volume: Mapping[str, Any]) -> Object:
    result = dict(volume)
    if set(result) == {"name"}:
        result["emptyDir"] = {}
    for name in ("configMap", "secret", "downwardAPI", "projected"):
        if name in result:
            result[name] = {"defaultMode": _FILE_MODE, **result[name]}
    if "hostPath" in result:
        result["hostPath"] = {"type": "", **result["hostPath"]}
    return result


def _webhooks(body: Object) -> Object:
    mutating = {"reinvocationPolicy": "Never"} if body.get("kind") == MUTATING_WEBHOOKS.kind else {}
    webhooks = [
        {
            "failurePolicy": "Fail",
            "matchPolicy": "Equivalent",
            "namespaceSelector": {},
            "objectSelector": {},
            "timeoutSeconds": 10,
            **mutating,
            **each,
            "rules": [{"scope": "*", **rule} for rule in each.get("rules") or ()],
        }
        for each in body.get("webhooks") or ()
    ]
    return {**body, "webhooks": webhooks} if webhooks else body


def _priority_class(body: Object) -> Object:
    return {"preemptionPolicy": "PreemptLowerPriority", **body}


def _secret(body: Object) -> Object:
    plain = {key: base64.b64encode(value.encode()).decode() for key, value in (body.get("stringData") or {}).items()}
    data = {**(body.get("data") or {}), **plain}
    kept = {key: value for key, value in body.items() if key != "stringData"}
    return {**kept, "type": body.get("type") or "Opaque", **({"data": data} if data else {})}


def _budget(body: Object) -> Object:
    spec = body.get("spec") or {}
    return body if "maxUnavailable" in spec or "minAvailable" in spec else {**body, "spec": {"minAvailable": 1, **spec}}


def _replica_set(body: Object) -> Object:
    spec = body.get("spec") or {}
    return {**body, "spec": {"replicas": 1, **spec, "template": _pod(spec.get("template") or {})}}


def default_tolerations(pod: Mapping[str, Any]) -> Object:
    """Return the pod with the tolerations that let it outlive a short failure of its node."""
    spec = pod["spec"]
    tolerations = list(spec.get("tolerations") or ())
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(each.get("key") in (key, None) and each.get("effect") in ("NoExecute", None) for each in tolerations):
            tolerations.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _TOLERATED_SECONDS})
    return {**pod, "spec": {**spec, "tolerations": tolerations}}


_DEFAULTS: dict[Resource, Callable[[Object], Object]] = {
    PODS: _pod,
    MUTATING_WEBHOOKS: _webhooks,
    VALIDATING_WEBHOOKS: _webhooks,
    PRIORITY_CLASSES: _priority_class,
    SECRETS: _secret,
    POD_DISRUPTION_BUDGETS: _budget,
    REPLICA_SETS: _replica_set,
}
