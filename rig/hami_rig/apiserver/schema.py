"""What the fields of every served kind are: read from the client library's models, so that no copy of the API is kept here.

Decides whether a body has the shape of its kind. ``decoded`` is the one way in for bodies: it drops nulls and unknown fields (and names
them), writes quantities canonically, and refuses a value of the wrong JSON type in the words of the server's decoder.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Literal

from kubernetes_asyncio.client import models
from msgspec import Struct

from hami_rig import quantities
from hami_runtime.kube.store_errors import ApiError
from hami_runtime.kube.store_objects import Object
from hami_runtime.kube.store_resources import EVENTS, Resource

__all__ = ["Field", "Type", "decoded", "root_type", "type_named"]

_TYPE = re.compile(r"(?:(list)\[|(dict)\(str, )?(\w+)[\])]?")
_VERSION = re.compile(r"^(Core|Admissionregistration)?V[0-9]+")
_SCALARS = {"str": "string", "datetime": "string", "int": "integer", "float": "number", "bool": "boolean"}
_QUANTITY_MAPS = frozenset(("limits", "requests", "capacity", "allocatable", "hard", "used", "overhead", "allocatedResources"))
_QUANTITIES = frozenset(("sizeLimit", "divisor"))

# Lists that a strategic merge patch merges, by owner and field: the key of their elements, or "" for lists of plain values.
_MERGE_KEYS: dict[tuple[str, str], str] = {
    ("V1ObjectMeta", "ownerReferences"): "uid",
    ("V1ObjectMeta", "finalizers"): "",
    ("V1PodSpec", "containers"): "name",
    ("V1PodSpec", "initContainers"): "name",
    ("V1PodSpec", "ephemeralContainers"): "name",
    ("V1PodSpec", "volumes"): "name",
    ("V1PodSpec", "imagePullSecrets"): "name",
    ("V1PodSpec", "hostAliases"): "ip",
    ("V1PodSpec", "topologySpreadConstraints"): "topologyKey",
    ("V1PodSpec", "schedulingGates"): "name",
    ("V1PodSpec", "resourceClaims"): "name",
    ("V1Container", "env"): "name",
    ("V1Container", "ports"): "containerPort",
    ("V1Container", "volumeMounts"): "mountPath",
    ("V1Container", "volumeDevices"): "devicePath",
    ("V1PodStatus", "conditions"): "type",
    ("V1PodStatus", "podIPs"): "ip",
    ("V1PodStatus", "hostIPs"): "ip",
    ("V1NodeSpec", "podCIDRs"): "",
    ("V1NodeStatus", "conditions"): "type",
    ("V1NodeStatus", "addresses"): "type",
    ("V1NamespaceStatus", "conditions"): "type",
    ("V1ServiceAccount", "secrets"): "name",
    ("V1PodDisruptionBudgetStatus", "conditions"): "type",
    ("V1ReplicaSetStatus", "conditions"): "type",
    ("V1MutatingWebhookConfiguration", "webhooks"): "name",
    ("V1MutatingWebhook", "matchConditions"): "name",
    ("V1ValidatingWebhookConfiguration", "webhooks"): "name",
    ("V1ValidatingWebhook", "matchConditions"): "name",
}
# Lists that server-side apply tells apart by other keys than the strategic one above, or owns as a whole.
_APPLY_KEYS: dict[tuple[str, str], tuple[str, ...]] = {
    ("V1Container", "ports"): ("containerPort", "protocol"),
    ("V1PodSpec", "topologySpreadConstraints"): ("topologyKey", "whenUnsatisfiable"),
    ("V1PodStatus", "hostIPs"): (),
}


class Field(Struct, frozen=True, kw_only=True):
    """One field of a type."""

    name: str
    """As JSON has it."""
    type: str
    """A scalar (``str``, ``int``, ``float``, ``bool``, ``datetime``), ``object`` for anything, or the name of a ``Type``."""
    shape: Literal["", "list", "map"]
    description: str
    merge_key: str | None
    """What strategic merge merges the list's elements by: None for a list that is replaced, empty for plain values."""
    apply_keys: tuple[str, ...]
    """What server-side apply tells the list's elements apart by; none for a list that is owned as a whole."""

    @property
    def nested(self) -> str | None:
        """The name of the type of its value or elements, if that has fields of its own."""
        return None if self.type in _SCALARS or self.type == "object" else self.type


class Type(Struct, frozen=True, kw_only=True):
    """One type of the API."""

    name: str
    fields: dict[str, Field]

    @property
    def go_name(self) -> str:
        """``PodSpec``: what messages and schemas call it."""
        return _VERSION.sub("", self.name)


def root_type(resource: Resource) -> Type:
    """The type of the kind's objects."""
    return type_named("CoreV1Event" if resource == EVENTS else f"V1{resource.kind}")


@cache
def type_named(name: str) -> Type:
    """The type that the client library calls ``name``."""
    model = getattr(models, name)
    return Type(name=name, fields={field.name: field for field in _fields(name, model)})


def _fields(owner: str, model: Any) -> Iterator[Field]:
    for attribute, declared in model.openapi_types.items():
        name = model.attribute_map[attribute]
        found = _TYPE.fullmatch(declared)
        if found is None:
            raise TypeError(f"{owner}.{name} has type {declared}, which is not one of the forms known here")
        shape: Literal["", "list", "map"] = "list" if found[1] else "map" if found[2] else ""
        key = _MERGE_KEYS.get((owner, name))
        apply_keys = _APPLY_KEYS.get((owner, name), (key,) if key else ())
        yield Field(
            name=name,
            type=found[3],
            shape=shape,
            description=_description(model, attribute),
            merge_key=key,
            apply_keys=apply_keys,
        )


def _description(model: Any, attribute: str) -> str:
    lines = [line.strip() for line in (getattr(model, attribute).__doc__ or "").split("\n")]
    return lines[2].removesuffix("# noqa: E501").strip() if len(lines) > 2 else ""


def decoded(root: Type, body: Any) -> tuple[Object, list[str]]:
    """Return the body as its type has it, and the paths of the fields that the type does not have.

    Raises:
        ApiError: 400 if a value has the wrong JSON type or a quantity cannot be read.
    """
    unknown: list[str] = []
    kind = root.go_name
    version = body.get("apiVersion", "v1") if isinstance(body, Mapping) else "v1"
    try:
        return _struct(root, body, "", kind, unknown), unknown
    except (TypeError, ValueError) as refused:
        raise ApiError.bad_request(f'{kind} in version "{version}" cannot be handled as a {kind}: {refused}') from refused


def _struct(struct: Type, value: Any, path: str, owner: str, unknown: list[str]) -> Object:
    if not isinstance(value, Mapping):
        raise TypeError(_mismatch(value, path, owner, f"v1.{struct.go_name}"))
    result: Object = {}
    for name, each in value.items():
        if each is None:
            continue
        field = struct.fields.get(name)
        where = f"{path}.{name}" if path else str(name)
        if field is None:
            unknown.append(where)
            continue
        read = _field(field, each, where, struct.go_name, unknown)
        if read or not field.shape:  # an empty list or map is the same as none
            result[name] = read
    return result


def _field(field: Field, value: Any, path: str, owner: str, unknown: list[str]) -> Any:
    match field.shape:
        case "list":
            if not isinstance(value, list):
                raise TypeError(_mismatch(value, path, owner, f"[]{_go_type(field)}"))
            return [_value(field, each, f"{path}[{index}]", owner, unknown) for index, each in enumerate(value)]
        case "map":
            if not isinstance(value, Mapping):
                raise TypeError(_mismatch(value, path, owner, f"map[string]{_go_type(field)}"))
            if field.name in _QUANTITY_MAPS and field.type == "str":
                return {key: _quantity(each) for key, each in value.items() if each is not None} | {
                    key: "0" for key, each in value.items() if each is None
                }
            return {key: _value(field, each, path, owner, unknown) for key, each in value.items() if each is not None}
        case _:
            return _quantity(value) if field.name in _QUANTITIES else _value(field, value, path, owner, unknown)


def _value(field: Field, value: Any, path: str, owner: str, unknown: list[str]) -> Any:
    if field.nested:
        return _struct(type_named(field.nested), value, path, owner, unknown)
    expected: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,)}
    if field.type == "object":
        return value
    wanted = expected.get(field.type, (str,))
    if not isinstance(value, wanted) or (isinstance(value, bool) and field.type != "bool"):
        raise TypeError(_mismatch(value, path, owner, _go_type(field)))
    return value


def _quantity(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(quantities.REFUSAL)
    return quantities.canonical(str(value))


def _go_type(field: Field) -> str:
    if field.nested:
        return f"v1.{type_named(field.nested).go_name}"
    return {"int": "int64", "float": "float64", "bool": "bool"}.get(field.type, "string")


def _mismatch(value: Any, path: str, owner: str, wanted: str) -> str:
    if isinstance(value, bool):
        found = "bool"
    elif isinstance(value, int | float):
        found = "number"
    else:
        found = "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"
    without_indices = re.sub(r"\[[0-9]+\]", "", path)
    return f"json: cannot unmarshal {found} into Go struct field {owner}.{without_indices} of type {wanted}"
