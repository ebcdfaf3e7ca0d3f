"""How objects are shown to one client: as they are, or as a table. Pure."""

from collections.abc import Callable, Sequence
from datetime import datetime
from enum import Enum

import msgspec
from msgspec import Struct

from hami_rig.apiserver.served import Served
from hami_rig.apiserver.tables import table
from hami_runtime.kube.store import Stored, WatchEvent
from hami_runtime.kube.store_objects import Object

__all__ = ["Form", "Rendering", "form_of"]


class Form(Enum):
    """What the client asked for in ``Accept``."""

    OBJECT = "object"
    TABLE = "table"


def form_of(accept: str) -> Form | None:
    """Return the first form in an ``Accept`` header that is served, or None if none is."""
    for each in accept.split(",") if accept.strip() else ("*/*",):
        kind, *parameters = (part.strip() for part in each.split(";"))
        if kind not in ("application/json", "application/*", "*/*"):
            continue
        wanted = dict(parameter.split("=", 1) for parameter in parameters if "=" in parameter)
        match wanted.get("as"):
            case None:
                return Form.OBJECT
            case "Table" if wanted.get("v") == "v1":
                return Form.TABLE
    return None


class Rendering(Struct, frozen=True, kw_only=True):
    """Turns stored objects of one resource into what one client reads."""

    served: Served
    form: Form
    now: Callable[[], datetime]
    include: str = "Metadata"
    """What a table's rows carry."""

    def one(self, stored: Stored) -> bytes:
        """One object."""
        match self.form:
            case Form.OBJECT:
                return stored.json
            case Form.TABLE:
                return msgspec.json.encode(self._table([stored], stored.revision))

    def many(self, items: Sequence[Stored], revision: int) -> bytes:
        """A list, as of ``revision``."""
        if self.form is Form.TABLE:
            return msgspec.json.encode(self._table(items, revision))
        head: Object = {
            "kind": f"{self.served.resource.kind}List",
            "apiVersion": self.served.resource.group_version,
            "metadata": {"resourceVersion": str(revision)},
        }
        return msgspec.json.encode(head)[:-1] + b',"items":[' + b",".join(map(self.one, items)) + b"]}"

    def event(self, event: WatchEvent) -> bytes:
        """One line of a watch."""
        return b'{"type":"' + event.type.encode() + b'","object":' + self.one(event.stored) + b"}\n"

    def bookmark(self, revision: int, *, initial_events_end: bool = False) -> bytes:
        """The line that tells how far a watch has come."""
        metadata: Object = {"resourceVersion": str(revision)}
        if initial_events_end:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        body: Object = {"kind": self.served.resource.kind, "apiVersion": self.served.resource.group_version, "metadata": metadata}
        return b'{"type":"BOOKMARK","object":' + msgspec.json.encode(body) + b"}\n"

    def _table(self, items: Sequence[Stored], revision: int) -> Object:
        return table(self.served.resource, (each.body for each in items), self.now(), revision=revision, include=self.include)
