"""JSON Schemas of the events, and the AsyncAPI 3 document of the bus, made from the Structs and the streams. Never written by hand.

JSON Schema 2020-12; AsyncAPI 3.0. ``python -m hami_protocol.schemas FOLDER`` writes them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final, get_args

import msgspec

from hami_protocol import events, subjects

SCHEMA_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_REFERENCE: Final = "#/components/schemas/{name}"

CHANNELS: Final[tuple[tuple[str, str, subjects.StreamSpec, Any, str], ...]] = (
    ("devices", "hami.v1.devices.{node}.{deviceType}", subjects.DEVICES, events.DevicesReported, "node-agent, registry"),
    ("liveness", "hami.v1.liveness.{node}.{deviceType}", subjects.DEVICES, events.LivenessChanged, "registry"),
    ("grants", "hami.v1.allocations.{node}.{namespace}.{pod}.grant", subjects.ALLOCATIONS, events.GrantEvent, "scheduler"),
    ("outcomes", "hami.v1.allocations.{node}.{namespace}.{pod}.outcome", subjects.ALLOCATIONS, events.OutcomeEvent, "node-agent"),
    ("verdicts", "hami.v1.verdicts.{namespace}.{pod}", subjects.VERDICTS, events.VerdictEvent, "scheduler"),
    ("usage", "hami.v1.usage.{node}", subjects.USAGE, events.NodeUsage, "node-agent"),
)
"""Name, address, stream, events, and who publishes."""

_PARAMETERS: Final = {
    "node": "name of the node, `_` for `.`",
    "deviceType": "the `<type>` of `hami.io/node-<type>-register`, as `nvidia`",
    "namespace": "namespace of the pod",
    "pod": "name of the pod, `_` for `.`",
}


def _types(union: Any) -> tuple[type[msgspec.Struct], ...]:
    return get_args(union) or (union,)


def components() -> dict[str, Any]:
    """The JSON Schema of every Struct that an event holds, by its name."""
    _, schemas = msgspec.json.schema_components(_types(events.Event), ref_template=_REFERENCE)
    return dict(sorted(schemas.items()))


def event_schema() -> dict[str, Any]:
    """One self-contained JSON Schema that every event body fulfils."""
    return {"$schema": SCHEMA_DIALECT, "$id": "urn:hami:v1:event", "title": "HAMi event", **msgspec.json.schema(events.Event)}


def asyncapi(version: str = "1.0.0") -> dict[str, Any]:
    """The AsyncAPI 3 document: streams, subjects, messages and headers."""
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    for name, address, stream, union, publisher in CHANNELS:
        parameters = {key: {"description": text} for key, text in _PARAMETERS.items() if "{" + key + "}" in address}
        channels[name] = {
            "address": address,
            "description": f"Stream {stream.name}: {stream.description}. Published by: {publisher}.",
            "parameters": parameters,
            "messages": {kind.__name__: {"$ref": f"#/components/messages/{kind.__name__}"} for kind in _types(union)},
        }
        operations[f"follow{name.capitalize()}"] = {
            "action": "receive",
            "channel": {"$ref": f"#/channels/{name}"},
            "summary": f"Follow {name}.",
        }
    messages = {
        kind.__name__: {
            "name": str(kind.__struct_config__.tag),
            "title": kind.__name__,
            "summary": (kind.__doc__ or "").strip(),
            "contentType": "application/json",
            "headers": {"$ref": "#/components/schemas/Headers"},
            "payload": {"$ref": f"#/components/schemas/{kind.__name__}"},
        }
        for kind in _types(events.Event)
    }
    headers = {
        "type": "object",
        "description": "CloudEvents 1.0 attributes (NATS binding, binary mode), W3C trace context, and JetStream's id for de-duplication.",
        "required": ["ce-specversion", "ce-type", "ce-source", "ce-id", "ce-time"],
        "properties": {
            "ce-specversion": {"const": "1.0"},
            "ce-type": {"type": "string", "description": "`io.hami.v1.` and the body's `type`"},
            "ce-source": {"type": "string", "format": "uri-reference"},
            "ce-id": {"type": "string", "description": "of what happened; with the subject, what a reader counts once"},
            "ce-time": {"type": "string", "format": "date-time"},
            "Nats-Msg-Id": {"type": "string", "description": "of this message of this publisher, for the stream's de-duplication alone"},
            "traceparent": {"type": "string"},
        },
    }
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "HAMi events",
            "version": version,
            "description": "Device registrations, grants and their outcomes, verdicts and usage. Delivered at least once, in order per stream.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {"nats": {"host": "localhost:4222", "protocol": "nats", "description": "NATS with JetStream"}},
        "channels": channels,
        "operations": operations,
        "components": {"messages": messages, "schemas": {"Headers": headers, **components()}},
    }


def documents() -> dict[str, str]:
    """Every generated file, by its name, as it must stand in ``docs/protocol``."""

    def text(document: dict[str, Any]) -> str:
        return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"

    return {"event.schema.json": text(event_schema()), "asyncapi.json": text(asyncapi())}


def write(folder: Path) -> None:
    """Write every document into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in documents().items():
        (folder / name).write_text(content)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
