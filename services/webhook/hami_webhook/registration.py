"""The configuration objects that make the API server call the webhook, as they must be, and what is missing from those that are there. Pure.

Only pods that name a resource of ours, or an assignment, are sent (``matchConditions``, Kubernetes 1.28 and later; older servers send all).
So ``failurePolicy: Fail`` holds up nobody else's pods while no replica answers, and nobody's at all in kube-system.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from hami_protocol import keys

MUTATING_NAME: Final = "vgpu.hami.io"
VALIDATING_NAME: Final = "validate.vgpu.hami.io"
Side = Literal["Mutating", "Validating"]
_TIMEOUT_SECONDS: Final = 10


class Endpoint(Struct, frozen=True, kw_only=True):
    """Where the API server reaches us: a Service in the cluster, or a URL."""

    url: str = ""
    service: str = ""
    namespace: str = ""
    port: int = 443

    def client_config(self, path: str, authorities: bytes) -> dict[str, Any]:
        """The ``clientConfig`` for ``path``."""
        where: dict[str, Any] = {"url": self.url.rstrip("/") + path}
        if not self.url:
            where = {"service": {"name": self.service, "namespace": self.namespace, "path": path, "port": self.port}}
        return {**where, "caBundle": base64.b64encode(authorities).decode()}

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the certificate must be for."""
        if self.url:
            host = self.url.split("://", 1)[-1].split("/", 1)[0]
            return (host.rsplit(":", 1)[0].strip("[]"),)
        base = f"{self.service}.{self.namespace}"
        return (f"{base}.svc", f"{base}.svc.cluster.local", base, self.service)


def configuration(
    kind: Side,
    endpoint: Endpoint,
    authorities: bytes,
    *,
    resources: Sequence[str],
    system_keys: Iterable[str],
    trusted_users: Iterable[str],
    failure_policy: str,
    all_pods: bool,
) -> dict[str, Any]:
    """The configuration object, complete.

    Args:
        kind: which of the two.
        endpoint: where we are.
        authorities: the caBundle, as PEM.
        resources: names of our resources.
        system_keys: annotations that only our services write.
        trusted_users: whose writes need no judging: what they bind and record is never held up by us.
        failure_policy: ``Fail`` or ``Ignore``.
        all_pods: pods that ask for nothing of ours are to be sent too, since the device configuration changes them.
    """
    mutating = kind == "Mutating"
    name = MUTATING_NAME if mutating else VALIDATING_NAME
    exempt = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]}
    opted_out = {"key": keys.WEBHOOK, "operator": "NotIn", "values": [keys.WEBHOOK_IGNORE]}
    rules = [_rule("pods", ["CREATE"] if mutating else ["CREATE", "UPDATE"])]
    if not mutating:
        rules.append(_rule("pods/binding", ["CREATE"]))
    webhook: dict[str, Any] = {
        "name": name,
        "clientConfig": endpoint.client_config("/webhook" if mutating else "/validate", authorities),
        "rules": rules,
        "failurePolicy": failure_policy,
        "matchPolicy": "Equivalent",
        "sideEffects": "None",
        "timeoutSeconds": _TIMEOUT_SECONDS,
        "admissionReviewVersions": ["v1", "v1beta1"],
        "namespaceSelector": {"matchExpressions": [exempt, opted_out] if mutating else [exempt]},
    }
    if mutating:
        webhook["reinvocationPolicy"] = "IfNeeded"
        rules.append(_rule("pods/ephemeralcontainers", ["UPDATE"]))
    conditions = []
    if not (mutating and all_pods):
        conditions.append({"name": "concerns-hami", "expression": match_expression(resources, system_keys)})
    if not mutating:
        trusted = _cel_list(sorted(trusted_users))
        conditions.append({"name": "not-by-hami", "expression": f"!(request.userInfo.username in {trusted})"})
    if conditions:
        webhook["matchConditions"] = conditions
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{kind}WebhookConfiguration",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": "hami", "app.kubernetes.io/component": "webhook"}},
        "webhooks": [webhook],
    }


def _rule(resource: str, operations: list[str]) -> dict[str, Any]:
    return {"apiGroups": [""], "apiVersions": ["v1"], "resources": [resource], "operations": operations, "scope": "*"}


def match_expression(resources: Sequence[str], system_keys: Iterable[str]) -> str:
    """CEL that is true for a pod or Binding that names a resource of ours, as it should or in an annotation, or an assignment."""
    named = _cel_list(resources)
    annotated = _cel_list([*resources, *sorted(system_keys)])

    def asks(path: str) -> str:
        lists = " || ".join(f"(has(c.resources.{part}) && c.resources.{part}.exists(r, r in {named}))" for part in ("limits", "requests"))
        return f"(has(object.spec) && has(object.spec.{path}) && object.spec.{path}.exists(c, has(c.resources) && ({lists})))"

    def marked(version: str) -> str:
        metadata = f"{version}.metadata"
        annotations = f"(has({metadata}.annotations) && {metadata}.annotations.exists(k, k in {annotated}))"
        labels = f"(has({metadata}.labels) && '{keys.ASSIGNED_NODE}' in {metadata}.labels)"
        return f"({version} != null && has({version}.metadata) && ({annotations} || {labels}))"

    pod = " || ".join(asks(path) for path in ("containers", "initContainers"))
    return f"(request.kind.kind == 'Pod' && ({pod})) || {marked('object')} || {marked('oldObject')}"


def _cel_list(texts: Iterable[str]) -> str:
    return msgspec.json.encode(list(texts)).decode().replace('"', "'")


def trusted_by(found: dict[str, Any], wanted: dict[str, Any]) -> bytes:
    """The caBundle that ``found`` has for the webhook of ``wanted``, as PEM; empty where there is none that can be read."""
    name = wanted["webhooks"][0]["name"]
    for webhook in found.get("webhooks") or ():
        if webhook.get("name") == name:
            try:
                return base64.b64decode((webhook.get("clientConfig") or {}).get("caBundle") or "", validate=True)
            except (binascii.Error, ValueError):
                return b""
    return b""


def trusting(wanted: dict[str, Any], authorities: bytes) -> dict[str, Any]:
    """``wanted`` with this caBundle."""
    (webhook,) = wanted["webhooks"]
    client = {**webhook["clientConfig"], "caBundle": base64.b64encode(authorities).decode()}
    return {**wanted, "webhooks": [{**webhook, "clientConfig": client}]}


def trust_patch(found: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any] | None:
    """The merge patch that brings the trust and address of ``found`` up to date; None where they are.

    What an operator changed in the rest of the object is left alone.
    """
    target = wanted["webhooks"][0]
    webhooks = [dict(each) for each in found.get("webhooks") or ()]
    changed = False
    for webhook in webhooks:
        if webhook.get("name") == target["name"] and not _reaches(webhook.get("clientConfig") or {}, target["clientConfig"]):
            webhook["clientConfig"] = target["clientConfig"]
            changed = True
    if not any(webhook.get("name") == target["name"] for webhook in webhooks):
        webhooks.append(target)
        changed = True
    return {"webhooks": webhooks} if changed else None


def _reaches(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether ``found`` is ``wanted``, defaults of the API server aside."""
    service = {"port": 443, **(found.get("service") or {})} if found.get("service") else None
    return (found.get("url"), service, found.get("caBundle")) == (wanted.get("url"), wanted.get("service"), wanted["caBundle"])
