"""Which objects are refused, and in which words. Pure.

Checks names, labels, annotations, what a container must say, resources, and which fields of a pod may change; all causes are collected, as the
real server does. What it leaves out, a real server refuses too, so nothing may rely on its being let through.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hami_rig.quantities import amount
from hami_runtime.kube.store_errors import ApiError, Cause
from hami_runtime.kube.store_resources import (
    EVENTS,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    PODS,
    REPLICA_SETS,
    VALIDATING_WEBHOOKS,
    Resource,
)
from hami_runtime.kube.store_selectors import label_selector_matches

__all__ = ["check_created", "check_updated"]

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = f"{_LABEL}(\\.{_LABEL})*"
_QUALIFIED_NAME = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LABEL_VALUE = f"({_QUALIFIED_NAME})?"
_MUST_BE_SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an "
    f"alphanumeric character (e.g. 'example.com', regex used for validation is '{_SUBDOMAIN}')"
)
_MUST_BE_LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric "
    f"character (e.g. 'my-name',  or '123-abc', regex used for validation is '{_LABEL}')"
)
_MUST_BE_QUALIFIED = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character "
    f"(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{_QUALIFIED_NAME}')"
)
_MUST_BE_VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    f"alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '{_LABEL_VALUE}')"
)
_ANNOTATIONS_LIMIT_BYTES = 256 * 1024
_STANDARD_FINALIZERS = ("kubernetes", "orphan", "foregroundDeletion")
_STANDARD = frozenset(("cpu", "memory", "ephemeral-storage", "storage"))
_MUTABLE_POD_FIELDS = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,"
    "`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` "
    "(allow it to be set to 1 if it was previously negative)"
)


def check_created(resource: Resource, body: Mapping[str, Any]) -> None:
    """Refuse an object that may not be created.

    Raises:
        ApiError: 422 with every cause.
    """
    metadata = body.get("metadata") or {}
    causes = [*_name(resource, metadata), *_metadata(metadata)]
    if resource == PODS:
        causes += _pod(body.get("spec") or {})
    if resource == EVENTS:
        causes += _event(body)
    _refuse(resource, metadata.get("name") or "", [*causes, *_of_kind(resource, body)])


def check_updated(resource: Resource, current: Mapping[str, Any], body: Mapping[str, Any], *, subresource: str = "") -> None:
    """Refuse a version that may not follow ``current``.

    Raises:
        ApiError: 422 with every cause.
    """
    metadata = body.get("metadata") or {}
    causes = list(_metadata(metadata))
    if resource == PODS and not subresource:
        causes += _pod_change(current["spec"], body.get("spec") or {})
    _refuse(resource, current["metadata"]["name"], [*causes, *_of_kind(resource, body)])


def _refuse(resource: Resource, name: str, causes: list[Cause]) -> None:
    if causes:
        raise ApiError.invalid(resource, name, causes)


def _invalid(field: str, value: str, why: str) -> Cause:
    return Cause(field, "FieldValueInvalid", f'Invalid value: "{value}": {why}')


def _required(field: str, why: str = "") -> Cause:
    return Cause(field, "FieldValueRequired", f"Required value: {why}" if why else "Required value")


def _name(resource: Resource, metadata: Mapping[str, Any]) -> Iterator[Cause]:
    pattern, why, limit = (_LABEL, _MUST_BE_LABEL, 63) if resource == NAMESPACES else (_SUBDOMAIN, _MUST_BE_SUBDOMAIN, 253)
    name, prefix = metadata.get("name") or "", metadata.get("generateName") or ""
    if not name and not prefix:
        yield _required("metadata.name", "name or generateName is required")
    if name and resource != EVENTS:
        if len(name) > limit:
            yield _invalid("metadata.name", name, f"must be no more than {limit} characters")
        if not re.fullmatch(pattern, name):
            yield _invalid("metadata.name", name, why)
    if prefix and not re.fullmatch(pattern, f"{prefix}a"):
        yield _invalid("metadata.generateName", prefix, why)


def _metadata(metadata: Mapping[str, Any]) -> Iterator[Cause]:
    for key, value in (metadata.get("labels") or {}).items():
        yield from _qualified_name("metadata.labels", key)
        if len(value) > 63:
            yield _invalid("metadata.labels", value, "must be no more than 63 bytes")
        if not re.fullmatch(_LABEL_VALUE, value):
            yield _invalid("metadata.labels", value, _MUST_BE_VALUE)
    annotations = metadata.get("annotations") or {}
    for key in annotations:
        yield from _qualified_name("metadata.annotations", key, lower=True)
    if sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items()) > _ANNOTATIONS_LIMIT_BYTES:
        why = f"may not be more than {_ANNOTATIONS_LIMIT_BYTES} bytes"
        yield Cause("metadata.annotations", "FieldValueTooLong", f"Too long: {why}")
    yield from _references(metadata)


def _references(metadata: Mapping[str, Any]) -> Iterator[Cause]:
    for index, reference in enumerate(metadata.get("ownerReferences") or ()):
        for member in ("apiVersion", "kind", "name", "uid"):
            if not reference.get(member):
                yield _required(f"metadata.ownerReferences[{index}].{member}", "must not be empty")
    for index, finalizer in enumerate(metadata.get("finalizers") or ()):
        if "/" not in finalizer and finalizer not in _STANDARD_FINALIZERS:
            why = "name is neither a standard finalizer name nor is it fully qualified"
            yield _invalid(f"metadata.finalizers[{index}]", finalizer, why)


def _event(event: Mapping[str, Any]) -> Iterator[Cause]:
    about, own = (event.get("involvedObject") or {}).get("namespace") or "", event["metadata"].get("namespace")
    if own != about and not (not about and own in ("default", "kube-system")):
        yield _invalid("involvedObject.namespace", about, "does not match event.namespace")


def _qualified_name(field: str, key: str, *, lower: bool = False) -> Iterator[Cause]:
    prefix, slash, name = key.rpartition("/")
    if slash and not re.fullmatch(_SUBDOMAIN, prefix.lower() if lower else prefix):
        yield _invalid(field, key, f"prefix part {_MUST_BE_SUBDOMAIN}")
    if len(name) > 63:
        yield _invalid(field, key, "name part must be no more than 63 bytes")
    if not re.fullmatch(_QUALIFIED_NAME, name):
        yield _invalid(field, key, _MUST_BE_QUALIFIED)


def _of_kind(resource: Resource, body: Mapping[str, Any]) -> Iterator[Cause]:
    if resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
        for index, webhook in enumerate(body.get("webhooks") or ()):
            yield from _webhook(f"webhooks[{index}]", webhook)
    elif resource == REPLICA_SETS:
        yield from _replica_set(body.get("spec") or {})


def _replica_set(spec: Mapping[str, Any]) -> Iterator[Cause]:
    template = spec.get("template") or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    if not spec.get("selector"):
        yield _required("spec.selector")
    elif not label_selector_matches(spec["selector"], labels):
        yield _invalid("spec.template.metadata.labels", str(labels), "`selector` does not match template `labels`")
    for cause in _pod(template.get("spec") or {}):
        yield Cause(f"spec.template.{cause.field}", cause.reason, cause.message)
    policy = (template.get("spec") or {}).get("restartPolicy", "Always")
    if policy != "Always":
        why = f'Unsupported value: "{policy}": supported values: "Always"'
        yield Cause("spec.template.spec.restartPolicy", "FieldValueNotSupported", why)


def _webhook(path: str, webhook: Mapping[str, Any]) -> Iterator[Cause]:
    if webhook.get("sideEffects") not in ("None", "NoneOnDryRun"):
        given = webhook.get("sideEffects")
        why = f'Unsupported value: "{given}": supported values: "None", "NoneOnDryRun"' if given else "Required value: must specify one of"
        yield Cause(f"{path}.sideEffects", "FieldValueNotSupported" if given else "FieldValueRequired", why)
    if "v1" not in (webhook.get("admissionReviewVersions") or ()):
        yield Cause(f"{path}.admissionReviewVersions", "FieldValueInvalid", "Invalid value: must include at least one of v1, v1beta1")
    if not (webhook.get("clientConfig") or {}).get("url"):
        yield _required(f"{path}.clientConfig", "a development server calls webhooks by url only: there is no network of services here")


# Pods


def _pod(spec: Mapping[str, Any]) -> Iterator[Cause]:
    containers = spec.get("containers") or ()
    if not containers:
        yield _required("spec.containers")
    names: set[str] = set()
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(kind) or ()):
            path = f"spec.{kind}[{index}]"
            yield from _container(path, container)
            name = container.get("name")
            if name in names:
                yield Cause(f"{path}.name", "FieldValueDuplicate", f'Duplicate value: "{name}"')
            names.add(name)


def _container(path: str, container: Mapping[str, Any]) -> Iterator[Cause]:
    name = container.get("name")
    if not name:
        yield _required(f"{path}.name")
    elif not re.fullmatch(_LABEL, name):
        yield _invalid(f"{path}.name", name, _MUST_BE_LABEL)
    if not container.get("image"):
        yield _required(f"{path}.image")
    yield from _resources(f"{path}.resources", container.get("resources") or {})


def _resources(path: str, resources: Mapping[str, Any]) -> Iterator[Cause]:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for kind, amounts in (("limits", limits), ("requests", requests)):
        for name, text in amounts.items():
            yield from _amount(f"{path}.{kind}[{name}]", name, text)
    for name, text in requests.items():
        if name not in limits:
            if not _is_overcommitable(name):
                yield _required(f"{path}.limits", "Limit must be set for non overcommitable resources")
        elif not _is_overcommitable(name) and amount(text) != amount(limits[name]):
            yield _invalid(f"{path}.requests", text, f"must be equal to {name} limit of {limits[name]}")
        elif amount(text) > amount(limits[name]):
            yield _invalid(f"{path}.requests", text, f"must be less than or equal to {name} limit of {limits[name]}")


def _amount(field: str, name: str, text: str) -> Iterator[Cause]:
    if not _is_standard(name) and "/" not in name:
        yield _invalid(field, name, "must be a standard resource type or fully qualified")
        yield _invalid(field, name, "must be a standard resource for containers")
    elif amount(text) < 0:
        yield _invalid(field, text, "must be greater than or equal to 0")
    elif not _is_overcommitable(name) and amount(text).denominator != 1:
        yield _invalid(field, text, "must be an integer")


def _is_standard(name: str) -> bool:
    return name in _STANDARD or name.startswith("hugepages-")


def _is_overcommitable(name: str) -> bool:
    return name in _STANDARD or (name.startswith("kubernetes.io/") and not name.startswith("hugepages-"))


def _pod_change(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Cause]:
    if _fixed(before) != _fixed(after):
        yield Cause("spec", "FieldValueForbidden", f"Forbidden: {_MUTABLE_POD_FIELDS}")
    if not _extends(before.get("tolerations") or (), after.get("tolerations") or ()):
        why = "existing toleration can not be modified except its tolerationSeconds"
        yield Cause("spec.tolerations", "FieldValueForbidden", f"Forbidden: {why}")
    gates = [each["name"] for each in before.get("schedulingGates") or ()]
    for index, gate in enumerate(after.get("schedulingGates") or ()):
        if gate.get("name") not in gates:
            path = f"spec.schedulingGates[{index}].name"
            yield Cause(path, "FieldValueForbidden", "Forbidden: only deletion is allowed, but found new scheduling gate")


def _fixed(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a pod's spec that never changes."""
    free = {"tolerations", "activeDeadlineSeconds", "terminationGracePeriodSeconds", "schedulingGates"}
    result = {key: value for key, value in spec.items() if key not in free}
    for kind in ("containers", "initContainers"):
        result[kind] = [{**each, "image": ""} for each in spec.get(kind) or ()]
    return result


def _extends(before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]) -> bool:
    def identity(toleration: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(toleration.get(key) for key in ("key", "operator", "value", "effect"))

    return {identity(each) for each in before} <= {identity(each) for each in after}
