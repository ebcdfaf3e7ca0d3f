"""Strategic merge patches and JSON patches on objects. Pure.

A strategic merge patch is a merge patch that knows the kind: lists of named things are merged by name instead of replaced, and
``$patch``, ``$retainKeys``, ``$setElementOrder/…`` and ``$deleteFromPrimitiveList/…`` say what a plain document cannot. Invariant: arguments
are never modified.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jsonpatch

from hami_rig.apiserver.schema import Field, Type, type_named
from hami_runtime.kube.store_errors import ApiError
from hami_runtime.kube.store_objects import Object, copied

__all__ = ["json_patched", "strategically_merged"]

_ORDER = "$setElementOrder/"
_REMOVE = "$deleteFromPrimitiveList/"


def json_patched(target: Mapping[str, Any], operations: Any) -> Object:
    """Return ``target`` after an RFC 6902 patch.

    Raises:
        ApiError: 400 if it is no such patch, 422 if an operation does not apply.
    """
    if not isinstance(operations, list):
        raise ApiError.bad_request("error decoding patch: json: cannot unmarshal object into Go value of type jsonpatch.Patch")
    try:
        result = jsonpatch.apply_patch(target, operations)
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException, TypeError, ValueError, KeyError, IndexError) as refused:
        raise ApiError(422, "Invalid", "the server rejected our request due to an error in our request", {}) from refused
    if not isinstance(result, dict):
        raise ApiError(422, "Invalid", "the server rejected our request due to an error in our request", {})
    return result


def strategically_merged(root: Type, target: Mapping[str, Any], patch: Mapping[str, Any]) -> Object:
    """Return ``target``, an object of type ``root``, after a strategic merge patch.

    Raises:
        ApiError: 400 if a directive is unknown, or an element of a merged list lacks its key.
    """
    return _merged(root, target, patch)


def _merged(struct: Type | None, target: Mapping[str, Any], patch: Mapping[str, Any]) -> Object:
    directive = patch.get("$patch", "merge")
    if directive == "delete":
        return {}
    given = {key: value for key, value in patch.items() if not key.startswith("$")}
    if directive == "replace":
        return {key: _plain(value) for key, value in given.items() if value is not None}
    if directive != "merge":
        raise ApiError.bad_request(f"Unrecognized patch type: {directive} in the patch")
    kept = patch.get("$retainKeys")
    result: Object = {key: value for key, value in target.items() if kept is None or key in kept}
    for name in (key.removeprefix(_REMOVE) for key in patch if key.startswith(_REMOVE)):
        removed = patch[_REMOVE + name]
        result[name] = [each for each in result.get(name) or () if each not in removed]
    for name, value in given.items():
        if value is None:
            result.pop(name, None)
        else:
            field = struct.fields.get(name) if struct else None
            result[name] = _merged_value(field, result.get(name), value, patch.get(_ORDER + name))
    for name in (key.removeprefix(_ORDER) for key in patch if key.startswith(_ORDER)):
        field = struct.fields.get(name) if struct else None
        if name not in given and field and field.merge_key is not None and name in result:
            result[name] = _ordered(field.merge_key, result[name], result[name], patch[_ORDER + name])
    return result


def _merged_value(field: Field | None, before: Any, value: Any, order: Sequence[Any] | None) -> Any:
    nested = type_named(field.nested) if field and field.nested else None
    if isinstance(value, Mapping):
        return _merged(nested if field and field.shape == "" else None, before if isinstance(before, Mapping) else {}, value)
    if isinstance(value, list) and field and field.merge_key is not None:
        return _merged_list(nested, field.merge_key, before or [], value, order)
    return _plain(value)


def _merged_list(element: Type | None, key: str, target: Sequence[Any], patch: Sequence[Any], order: Sequence[Any] | None) -> list[Any]:
    if key == "":
        return _ordered(key, [*target, *(each for each in patch if each not in target)], target, patch if order is None else order)
    if not all(isinstance(each, Mapping) for each in patch):
        raise ApiError.bad_request(f"map: the elements of a list that is merged by {key} must be objects")
    if any(each.get("$patch") == "replace" for each in patch):
        return [_plain(each) for each in patch if each.get("$patch") != "replace"]
    result = list(target)
    for each in patch:
        if key not in each:
            raise ApiError.bad_request(f"map: {dict(each)} does not contain declared merge key: {key}")
        index = next((i for i, existing in enumerate(result) if existing.get(key) == each[key]), None)
        if each.get("$patch") == "delete":
            if index is not None:
                del result[index]
        elif index is None:
            result.append(_merged(element, {}, each))
        else:
            result[index] = _merged(element, result[index], each)
    return _ordered(key, result, target, patch if order is None else order)


def _ordered(key: str, elements: Sequence[Any], before: Sequence[Any], order: Sequence[Any]) -> list[Any]:
    """The elements as the server orders them: the client's in its order, merged with the others in theirs.

    Of two that could come next, one that only the server knows goes first if it stood before the client's one; so what is new goes first.
    """

    def identity(each: Any) -> Any:
        return each.get(key) if key and isinstance(each, Mapping) else each

    wanted, stood = [identity(each) for each in order], [identity(each) for each in before]
    clients = sorted((each for each in elements if identity(each) in wanted), key=lambda each: wanted.index(identity(each)))
    others = [each for each in elements if identity(each) not in wanted]
    result: list[Any] = []
    while clients and others:
        other, mine = identity(others[0]), identity(clients[0])
        first = others if other in stood and mine in stood and stood.index(other) < stood.index(mine) else clients
        result.append(first.pop(0))
    return [*result, *clients, *others]


def _plain(value: Any) -> Any:
    """A value without patch directives and nulls."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items() if each is not None and not key.startswith("$")}
    if isinstance(value, list):
        return [_plain(each) for each in value if not (isinstance(each, Mapping) and each.get("$patch") == "delete")]
    return copied(value)
