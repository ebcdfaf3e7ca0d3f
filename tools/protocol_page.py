"""Make the page of the protocol from the AsyncAPI document: ``python -m tools.protocol_page > docs/protocol/README.md``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hami_protocol import schemas

HEADER = """\
# Protocol

Made by `make docs` from [asyncapi.json](asyncapi.json), which is made from the types that the services themselves use. Of the same types is
[event.schema.json](event.schema.json), one JSON Schema that every message's body fulfils. How to follow them is in
[Subscribing](../subscribe.md); the records on nodes and pods are those of HAMi, and where we write or read them otherwise is in
[Departures](../departures.md).
"""
Schema = Mapping[str, Any]


def document(api: Schema) -> str:
    """The page on ``api``, an AsyncAPI document."""
    schemas_of = api["components"]["schemas"]
    parts = [HEADER, "".join(_channels(api)), "## Messages\n", _said(_headers(schemas_of["Headers"]))]
    messages = api["components"]["messages"]
    payloads = {message["payload"]["$ref"].rpartition("/")[2] for message in messages.values()}
    for name, message in messages.items():
        parts.append(f"### {message['name']}\n\n{_said(message['summary'])}\n{_table(schemas_of[name])}")
    parts.append("## Types\n")
    parts += [
        f"### {name}\n\n{_said(schema.get('description', ''))}\n{_table(schema)}"
        for name, schema in schemas_of.items()
        if name not in payloads and name != "Headers"
    ]
    return "\n".join(parts)


def _channels(api: Schema) -> Iterator[str]:
    yield "## Subjects\n\n| subject | stream | messages |\n|---|---|---|\n"
    for channel in api["channels"].values():
        names = ", ".join(_link(api["components"]["messages"][name]["name"]) for name in channel["messages"])
        yield f"| `{channel['address']}` | {channel['description']} | {names} |\n"
    yield "\n"
    parameters = {name: each["description"] for channel in api["channels"].values() for name, each in channel["parameters"].items()}
    yield "".join(f"- `{{{name}}}`: {text}\n" for name, text in parameters.items())


def _headers(schema: Schema) -> str:
    names = ", ".join(f"`{name}`" for name in schema["properties"])
    return f"Headers of each: {names}. {schema['description']}"


def _table(schema: Schema) -> str:
    if "enum" in schema:
        return "One of " + ", ".join(f"`{each}`" for each in schema["enum"]) + ".\n"
    rows = ["| field | type | |\n|---|---|---|\n"]
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        rows.append(f"| `{name}` | {_type(field)} | {_default(field) if name not in required else 'always there'} |\n")
    return "".join(rows)


def _type(field: Schema) -> str:
    if "$ref" in field:
        return _link(field["$ref"].rpartition("/")[2])
    if "enum" in field:
        return ", ".join(f"`{each}`" for each in field["enum"])
    if "anyOf" in field:
        return " or ".join(_type(each) for each in field["anyOf"])
    kind: str = field.get("type", "any")
    if kind == "array":
        return f"list of {_type(field.get('items', {}))}"
    if kind == "object":
        values = field.get("additionalProperties")
        return f"object of {_type(values)}" if isinstance(values, Mapping) and values else "object"
    return kind + "".join(_bounds(field))


def _bounds(field: Schema) -> Iterator[str]:
    for key, sign in (("minimum", "≥"), ("maximum", "≤"), ("exclusiveMinimum", ">"), ("minLength", "longer than or as long as")):
        if key in field:
            yield f" {sign} {field[key]}"


def _default(field: Schema) -> str:
    value: Any = field.get("default")
    if isinstance(value, bool):
        return f"else {str(value).lower()}"
    if value in ("", None) or (isinstance(value, Sequence | Mapping) and not value):
        return "else nothing"
    return f"else `{value}`"


def _link(name: str) -> str:
    return f"[{name}](#{name.lower()})"


def _said(text: str) -> str:
    return text.replace("``", "`") + "\n" if text else ""


if __name__ == "__main__":
    print(document(schemas.asyncapi()), end="")
