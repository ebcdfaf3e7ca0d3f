"""What the server tells clients about itself: versions, groups, resources, and OpenAPI documents made from ``schema``. Pure.

Of OpenAPI there is what kubectl reads: the schemas, which kind is at which path, and whether the server itself checks fields and runs dry.
Documents are made once, when somebody first asks.
"""

from functools import cache
from typing import Any

import msgspec

from hami_rig.apiserver.schema import Field, Type, type_named
from hami_rig.apiserver.served import REVIEWS, VERBS, served_groups
from hami_runtime.kube.store_resources import Resource

__all__ = ["aggregated", "described", "is_served_group"]

_VERSION = {
    "major": "1",
    "minor": "37",
    "gitVersion": "v1.37.2+hami-development-server",
    "gitCommit": "",
    "gitTreeState": "",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "",
}
OPENAPI_V2_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
OPENAPI_V2 = b"\x0a\x032.0"
"""An OpenAPI 2 document without definitions, in protobuf: field 1 is the version. What it does not describe, kubectl does not check."""
_FOREIGN_KINDS = {"Eviction": "policy"}


def described(path: str) -> bytes | None:
    """Return the JSON document at a path that describes the server, or None if there is none."""
    match [part for part in path.split("/") if part]:
        case ["version"]:
            return msgspec.json.encode(_VERSION)
        case ["openapi", "v3"]:
            documents = [f"apis/{group}/v1" if group else "api/v1" for group, resources in served_groups().items() if resources]
            return msgspec.json.encode({"paths": {each: {"serverRelativeURL": f"/openapi/v3/{each}"} for each in documents}})
        case ["openapi", "v3", *group] if (name := _group(group)) is not None:
            return _openapi_document(name)
        case [*group] if (name := _group(group)) is not None:
            return msgspec.json.encode(_resource_list(name))
        case _:
            return None


def is_served_group(path: str) -> bool:
    """Whether a path is within a group and version that is served."""
    parts = [part for part in path.split("/") if part]
    return _group(parts[:2]) is not None or _group(parts[:3]) is not None


def _group(parts: list[str]) -> str | None:
    """The served group that ``api/v1`` or ``apis/GROUP/v1`` names."""
    match parts:
        case ["api", "v1"]:
            return ""
        case ["apis", group, "v1"] if group in served_groups():
            return group
        case _:
            return None


@cache
def _resource_list(group: str) -> dict[str, Any]:
    """The answer to ``/api/v1`` or ``/apis/GROUP/v1``."""
    resources: list[dict[str, Any]] = []
    for served in served_groups()[group]:
        resource = served.resource
        entry: dict[str, Any] = {
            "name": resource.plural,
            "singularName": resource.kind.lower(),
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": list(VERBS),
        }
        if resource.short_names:
            entry["shortNames"] = list(resource.short_names)
        resources.append(entry)
        for name, (kind, verbs) in served.subresources.items():
            entry = {"name": f"{resource.plural}/{name}", "singularName": "", "namespaced": resource.namespaced, "kind": kind}
            if group_of := _FOREIGN_KINDS.get(kind):  # kubectl drain looks for the group
                entry |= {"group": group_of, "version": "v1"}
            resources.append({**entry, "verbs": list(verbs)})
    for review in REVIEWS.values():
        if review.group == group:
            entry = {"name": review.plural, "singularName": review.kind.lower(), "namespaced": False, "kind": review.kind}
            resources.append({**entry, "verbs": ["create"]})
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/v1" if group else "v1",
        "resources": resources,
    }


@cache
def aggregated(core: bool) -> dict[str, Any]:
    """The answer to ``/api`` or ``/apis`` for clients that want everything at once."""
    items = []
    for group in served_groups():
        if bool(group) != core:
            metadata = {"name": group} if group else {}
            resources = _aggregated_resources(group)
            items.append({"metadata": metadata, "versions": [{"version": "v1", "resources": resources, "freshness": "Current"}]})
    return {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}


def _aggregated_resources(group: str) -> list[dict[str, Any]]:
    resources: dict[str, dict[str, Any]] = {}
    for entry in _resource_list(group)["resources"]:
        name, _, subresource = entry["name"].partition("/")
        kind = {"group": entry.get("group", group), "version": "v1", "kind": entry["kind"]}
        if subresource:
            described = {"subresource": subresource, "responseKind": kind, "verbs": entry["verbs"]}
            resources[name].setdefault("subresources", []).append(described)
            continue
        resources[name] = {
            "resource": name,
            "responseKind": kind,
            "scope": "Namespaced" if entry["namespaced"] else "Cluster",
            "singularResource": entry["singularName"],
            "verbs": entry["verbs"],
            **({"shortNames": entry["shortNames"]} if "shortNames" in entry else {}),
        }
    return list(resources.values())


@cache
def _openapi_document(group: str) -> bytes | None:
    """The OpenAPI 3 document of a group's v1, as JSON; None if there is no such group."""
    resources = served_groups().get(group)
    if not resources:
        return None
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for served in resources:
        kind = {"group": group, "version": served.resource.version, "kind": served.resource.kind}
        name = _describe(served.type, schemas)
        schemas[name] = {**schemas[name], "x-kubernetes-group-version-kind": [kind]}
        paths |= _paths(served.resource, kind)
    document = {
        "openapi": "3.0.0",
        "info": {"title": "HAMi development API server", "version": _VERSION["gitVersion"]},
        "paths": paths,
        "components": {"schemas": schemas},
    }
    return msgspec.json.encode(document)


def _paths(resource: Resource, kind: dict[str, str]) -> dict[str, Any]:
    root = f"/apis/{resource.group_version}" if resource.group else "/api/v1"
    collection = f"{root}/namespaces/{{namespace}}" if resource.namespaced else root
    collection = f"{collection}/{resource.plural}"
    parameters = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in ("dryRun", "fieldValidation")]
    return {
        collection: {"get": {"x-kubernetes-group-version-kind": kind}},
        f"{collection}/{{name}}": {"patch": {"x-kubernetes-group-version-kind": kind, "parameters": parameters}},
    }


def _describe(described: Type, schemas: dict[str, Any]) -> str:
    """Add the type's schema, and those it refers to; return its name."""
    name = f"io.k8s.api.v1.{described.go_name}"
    if name not in schemas:
        schemas[name] = {}
        schemas[name] = {"type": "object", "properties": {field.name: _property(field, schemas) for field in described.fields.values()}}
    return name


def _property(field: Field, schemas: dict[str, Any]) -> dict[str, Any]:
    described = {"description": field.description} if field.description else {}
    if field.nested:
        reference = {"$ref": f"#/components/schemas/{_describe(type_named(field.nested), schemas)}"}
        value: dict[str, Any] = reference if field.shape else {"allOf": [reference], "default": {}}
    elif field.type == "object":
        value = {}
    else:
        scalar = {"str": "string", "datetime": "string", "int": "integer", "float": "number", "bool": "boolean"}[field.type]
        value = {"type": scalar, **({"format": "date-time"} if field.type == "datetime" else {})}
    if field.shape == "list":
        merging: dict[str, Any] = {}
        if field.merge_key is not None:
            merging = {"x-kubernetes-patch-strategy": "merge"}
            if field.merge_key:
                merging["x-kubernetes-patch-merge-key"] = field.merge_key
        return {**described, "type": "array", "items": value, **merging}
    if field.shape == "map":
        return {**described, "type": "object", "additionalProperties": value}
    return {**described, **value}
