"""Server-side apply: who owns which field, what an applied document changes, and where two owners disagree. Pure.

Ownership is kept in ``metadata.managedFields`` from the first apply on: an object that was never applied has no owners yet, and what it
holds then counts as owned by ``before-first-apply``. Fields are paths in the notation of ``fieldsV1``; a list that is keyed is owned element
by element, any other list as a whole.

Invariants: an apply changes a field that somebody else owns only when forced; what its manager applied before and no longer does is removed
unless somebody else owns it too.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec

from hami_rig.apiserver.schema import Field, Type, type_named
from hami_runtime.kube.store_errors import ApiError
from hami_runtime.kube.store_objects import Object, timestamp, with_metadata
from hami_runtime.kube.store_resources import Resource

__all__ = ["applied", "written_by_update"]

Path = tuple[str, ...]
_BEFORE_FIRST_APPLY = "before-first-apply"
_UNOWNED = frozenset(
    ("managedFields", "creationTimestamp", "uid", "resourceVersion", "generation", "name", "namespace", "generateName", "deletionTimestamp")
)


def applied(
    resource: Resource,
    root: Type,
    current: Mapping[str, Any] | None,
    wanted: Mapping[str, Any],
    *,
    manager: str,
    force: bool,
    now: datetime,
) -> Object:
    """Return the object after ``manager`` has applied ``wanted`` to it; ``current`` is None if it does not exist yet.

    Raises:
        ApiError: 409 with a cause per field if other managers own fields that would change, unless ``force``.
    """
    ours = set(_paths(root, wanted))
    owners = _owners(root, current)
    others = {key: fields for key, fields in owners.items() if key != (manager, "Apply")}
    live = dict(current or {})
    values = {path: _value(live, path) for path in ours}
    changed = {path for path in ours if values[path] != _value(wanted, path)}
    conflicts = {key: sorted(fields & changed) for key, fields in others.items() if fields & changed}
    if conflicts and not force:
        raise _conflict(conflicts, resource)
    result: Object = _merged(root, live, {key: each for key, each in wanted.items() if key != "status" or not resource.has_status})
    owned_elsewhere = set().union(*others.values()) if others else set()
    for path in sorted(owners.get((manager, "Apply"), set()) - ours - owned_elsewhere, key=lambda each: (each[-1] == ".", -len(each))):
        result = _without(result, path)
    remaining = {key: fields - changed for key, fields in others.items()}
    return _with_owners(result, {**remaining, (manager, "Apply"): ours}, current, resource, now)


def written_by_update(
    resource: Resource, root: Type, current: Mapping[str, Any], updated: Mapping[str, Any], *, manager: str, now: datetime
) -> Object:
    """Return ``updated`` with the ownership that a write other than an apply leaves behind; as it is if nobody ever applied."""
    if not current["metadata"].get("managedFields"):
        return dict(updated)
    before, after = set(_paths(root, current)), set(_paths(root, updated))
    changed = {path for path in after if path not in before or _value(current, path) != _value(updated, path)}
    owners = {key: (fields & after) - changed for key, fields in _owners(root, current).items()}
    if changed:
        key = (manager, "Update")
        owners[key] = owners.get(key, set()) | changed
    return _with_owners(dict(updated), owners, current, resource, now)


def _conflict(conflicts: Mapping[tuple[str, str], list[Path]], resource: Resource) -> ApiError:
    causes = []
    for (manager, operation), paths in sorted(conflicts.items()):
        using = f" using {resource.group_version}" if operation == "Update" else ""
        causes += [
            {"reason": "FieldManagerConflict", "message": f'conflict with "{manager}"{using}', "field": _readable(path)} for path in paths
        ]
    if len(causes) == 1:
        message = f"Apply failed with 1 conflict: {causes[0]['message']}: {causes[0]['field']}"
    else:
        by_manager: dict[str, list[str]] = {}
        for cause in causes:
            by_manager.setdefault(cause["message"].replace("conflict with", "conflicts with"), []).append(cause["field"])
        listed = "\n".join(f"{who}:\n" + "\n".join(f"- {field}" for field in fields) for who, fields in by_manager.items())
        message = f"Apply failed with {len(causes)} conflicts: {listed}"
    return ApiError(409, "Conflict", message, {"causes": causes})


def _readable(path: Path) -> str:
    text = ""
    for part in path:
        if part.startswith("f:"):
            text += f".{part[2:]}"
        elif part.startswith("k:"):
            keys = msgspec.json.decode(part[2:])
            text += "[" + ",".join(f"{name}={msgspec.json.encode(value).decode()}" for name, value in keys.items()) + "]"
        elif part.startswith("v:"):
            text += f"[={part[2:]}]"
    return text


# Paths


def _paths(root: Type, body: Mapping[str, Any]) -> Iterator[Path]:
    """The fields of a document that can be owned."""
    for name, value in body.items():
        if name in {"apiVersion", "kind"} or value is None:
            continue
        if name == "metadata":
            kept = {key: each for key, each in value.items() if key not in _UNOWNED}
            if kept:
                yield from _value_paths(root.fields[name], kept, ("f:metadata",))
        elif field := root.fields.get(name):
            yield from _value_paths(field, value, (f"f:{name}",))


def _value_paths(field: Field, value: Any, path: Path) -> Iterator[Path]:
    if field.shape == "list":
        if field.merge_key == "":
            yield from ((*path, f"v:{_text(each)}") for each in value)
        elif field.apply_keys and field.nested:
            for each in value:
                element = (*path, _element(field, each))
                yield (*element, ".")
                yield from _struct_paths(type_named(field.nested), each, element)
        else:
            yield path
    elif field.shape == "map" and isinstance(value, Mapping) and value:
        yield from ((*path, f"f:{key}") for key in value)
    elif field.nested and isinstance(value, Mapping) and value:
        yield from _struct_paths(type_named(field.nested), value, path)
    else:
        yield path


def _struct_paths(struct: Type, value: Mapping[str, Any], path: Path) -> Iterator[Path]:
    for name, each in value.items():
        if each is not None and (field := struct.fields.get(name)):
            yield from _value_paths(field, each, (*path, f"f:{name}"))


def _element(field: Field, value: Mapping[str, Any]) -> str:
    defaults = {"protocol": "TCP"}
    keys = {key: value.get(key, defaults.get(key)) for key in sorted(field.apply_keys)}
    return f"k:{_text({key: each for key, each in keys.items() if each is not None})}"


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _find(elements: Any, part: str) -> int | None:
    """The index of the list element that a ``k:`` or ``v:`` part names."""
    if not isinstance(elements, list):
        return None
    wanted = msgspec.json.decode(part[2:])
    for index, each in enumerate(elements):
        if part.startswith("v:") and each == wanted:
            return index
        if part.startswith("k:") and all(each.get(key, value if key == "protocol" else None) == value for key, value in wanted.items()):
            return index
    return None


def _value(body: Any, path: Path) -> Any:
    for part in path:
        if part == ".":
            return True
        if part.startswith("f:"):
            body = body.get(part[2:]) if isinstance(body, Mapping) else None
        else:
            index = _find(body, part)
            body = body[index] if index is not None else None
        if body is None:
            return None
    return body


def _without(body: Any, path: Path) -> Any:
    """The document without one field; what becomes empty on the way is removed with it."""
    part, rest = path[0], path[1:]
    if part.startswith("f:"):
        name = part[2:]
        if not isinstance(body, Mapping) or name not in body:
            return body
        inner = _without(body[name], rest) if rest else None
        result = {key: each for key, each in body.items() if key != name}
        return result if inner in (None, {}, []) else {**result, name: inner}
    index = _find(body, part)
    if index is None:
        return body
    removed = not rest or rest == (".",)
    inner = None if removed else _without(body[index], rest)
    return [*body[:index], *([] if removed else [inner]), *body[index + 1 :]]


# Merging


def _merged(struct: Type | None, live: Mapping[str, Any], wanted: Mapping[str, Any]) -> Object:
    result = dict(live)
    for name, value in wanted.items():
        field = struct.fields.get(name) if struct else None
        before = result.get(name)
        nested = type_named(field.nested) if field and field.nested else None
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            result[name] = _merged(nested if field and field.shape == "" else None, before, value)
        elif field and field.merge_key == "" and isinstance(before, list):
            result[name] = [*before, *(each for each in value if each not in before)]
        elif field and field.shape == "list" and field.apply_keys and isinstance(before, list):
            elements = list(before)
            for each in value:
                index = _find(elements, _element(field, each))
                if index is None:
                    elements.append(each)
                else:
                    elements[index] = _merged(nested, elements[index], each)
            result[name] = elements
        else:
            result[name] = value
    return result


# managedFields


def _owners(root: Type, body: Mapping[str, Any] | None) -> dict[tuple[str, str], set[Path]]:
    if body is None:
        return {}
    entries = body["metadata"].get("managedFields")
    if not entries:
        return {(_BEFORE_FIRST_APPLY, "Update"): {path for path in _paths(root, body) if path[0] != "f:status"}}
    return {(each["manager"], each["operation"]): set(_unfolded(each.get("fieldsV1") or {}, ())) for each in entries}


def _unfolded(fields: Mapping[str, Any], path: Path) -> Iterator[Path]:
    for part, inner in fields.items():
        if inner:
            yield from _unfolded(inner, (*path, part))
        else:
            yield (*path, part)


def _with_owners(
    body: Mapping[str, Any],
    owners: Mapping[tuple[str, str], set[Path]],
    current: Mapping[str, Any] | None,
    resource: Resource,
    now: datetime,
) -> Object:
    previous = {(each["manager"], each["operation"]): each for each in ((current or {}).get("metadata") or {}).get("managedFields") or ()}
    entries = []
    for (manager, operation), paths in owners.items():
        if not paths:
            continue
        folded: Object = {}
        for path in sorted(paths):
            inner = folded
            for part in path:
                inner = inner.setdefault(part, {})
        entry = previous.get((manager, operation))
        if entry is None or entry.get("fieldsV1") != folded:
            entry = {
                "manager": manager,
                "operation": operation,
                "apiVersion": resource.group_version,
                "time": timestamp(now),
                "fieldsType": "FieldsV1",
                "fieldsV1": folded,
            }
        entries.append(entry)
    return with_metadata({"metadata": {}, **body}, managedFields=entries or None)
