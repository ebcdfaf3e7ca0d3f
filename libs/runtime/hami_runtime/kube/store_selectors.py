"""Which objects a list or a watch is about: namespace, label selector, field selector. Pure.

A selector is parsed once into a ``Selection``; ``Selection.matches`` is then cheap. A selector that cannot be read, or a field that the
API server does not index for the kind, is a 400, never a selector that matches everything.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from hami_protocol.selectors import LabelRequirement, LabelSelector
from hami_runtime.kube.store_errors import ApiError
from hami_runtime.kube.store_resources import EVENTS, PODS, Resource

__all__ = ["EVERYTHING", "Selection", "label_selector_matches"]

_Object = Mapping[str, Any]

_EVENT_FIELDS = tuple(
    f"involvedObject.{name}" for name in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
)
_FIELDS: dict[Resource, tuple[str, ...]] = {
    PODS: ("spec.nodeName", "status.phase"),
    EVENTS: (*_EVENT_FIELDS, "reason", "type"),
}

_SET = re.compile(r"^(?P<key>[^\s!=<>()]+)\s+(?P<operator>in|notin)\s+\((?P<values>[^()]*)\)$")
_COMPARISON = re.compile(r"^(?P<key>[^\s!=<>(),]+)\s*(?P<operator>==|=|!=)\s*(?P<value>[^\s!=<>(),]*)$")
_PRESENCE = re.compile(r"^(?P<absent>!?)\s*(?P<key>[^\s!=<>(),]+)$")
_COMMA_OUTSIDE_BRACKETS = re.compile(r",(?![^()]*\))")


class Selection(Struct, frozen=True, kw_only=True):
    """A parsed selection; ``Selection()`` selects everything."""

    namespace: str = ""
    """Empty means all namespaces."""
    labels: tuple[LabelRequirement, ...] = ()
    fields: tuple[LabelRequirement, ...] = ()

    @classmethod
    def parse(cls, resource: Resource, namespace: str = "", labels: str = "", fields: str = "") -> "Selection":
        """Read the selectors of a request.

        Raises:
            ApiError: 400 when a selector cannot be read or names a field that cannot be selected on.
        """
        return cls(namespace=namespace, labels=_parse(labels, allow_sets=True), fields=_parse_fields(resource, fields))

    def matches(self, body: _Object) -> bool:
        """Whether the object is selected."""
        metadata = body["metadata"]
        if self.namespace and metadata.get("namespace") != self.namespace:
            return False
        if self.labels:
            labels = metadata.get("labels") or {}
            if not all(requirement.admits(labels) for requirement in self.labels):
                return False
        return all(requirement.admits({requirement.key: _field(body, requirement.key)}) for requirement in self.fields)

    def exact(self, field: str) -> str | None:
        """The one value that ``field`` must have, if the selection says so; lets a caller look it up rather than search."""
        for requirement in self.fields:
            if requirement.key == field and requirement.operator == "In" and requirement.values:
                return requirement.values[0]
        return None


EVERYTHING = Selection()


def label_selector_matches(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Whether ``labels`` match a LabelSelector object (``matchLabels``, ``matchExpressions``); None matches nothing, empty everything."""
    return selector is not None and msgspec.convert(selector, LabelSelector).selects(labels)


def _parse(text: str, *, allow_sets: bool) -> tuple[LabelRequirement, ...]:
    requirements = []
    for part in _COMMA_OUTSIDE_BRACKETS.split(text) if text.strip() else ():
        requirement = _requirement(part.strip(), allow_sets=allow_sets)
        if requirement is None:
            raise ApiError.bad_request(f'unable to parse requirement: cannot read "{part.strip()}" in "{text}"')
        requirements.append(requirement)
    return tuple(requirements)


def _requirement(part: str, *, allow_sets: bool) -> LabelRequirement | None:
    if found := _COMPARISON.match(part):
        return LabelRequirement(key=found["key"], operator="NotIn" if found["operator"] == "!=" else "In", values=(found["value"],))
    if not allow_sets:
        return None
    if found := _SET.match(part):
        values = tuple(value.strip() for value in found["values"].split(","))
        return LabelRequirement(key=found["key"], operator="In" if found["operator"] == "in" else "NotIn", values=values)
    if found := _PRESENCE.match(part):
        return LabelRequirement(key=found["key"], operator="DoesNotExist" if found["absent"] else "Exists")
    return None


def _parse_fields(resource: Resource, text: str) -> tuple[LabelRequirement, ...]:
    requirements = _parse(text, allow_sets=False)
    known = ("metadata.name", "metadata.namespace", *_FIELDS.get(resource, ()))
    for requirement in requirements:
        if requirement.key not in known:
            raise ApiError.bad_request(f"field label not supported: {requirement.key}")
    return requirements


def _field(body: _Object, path: str) -> str:
    """The text that a field selector compares: an absent field is empty."""
    value: Any = body
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return "" if value is None else str(value)
