"""Events on the wire: recorded messages decode for ever, the documents in docs/protocol are current, hostile messages are refused."""

import json
from pathlib import Path
from typing import get_args

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_protocol import envelope, events, schemas, subjects
from hami_protocol.devices import PodRef
from hami_protocol.errors import EventError, ProtocolError

HERE = Path(__file__).parent
RECORDED = sorted(HERE.glob("*.json"))
DOCUMENTS = HERE.parents[2] / "docs" / "protocol"


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_a_recorded_message_still_decodes_to_what_it_says(path: Path) -> None:
    recorded = json.loads(path.read_text())
    message = envelope.Message(subject=recorded["subject"], data=json.dumps(recorded["body"]).encode(), headers=recorded["headers"])
    event = envelope.open_message(message)
    assert recorded["headers"]["ce-type"] == f"io.hami.v1.{type(event).__struct_config__.tag}"
    again = json.loads(msgspec.json.encode(event))
    assert _says(again, recorded["body"])


def _says(new: object, old: object) -> bool:
    """Whether ``new`` has all that ``old`` says; fields that came later may be there too, at any depth."""
    if isinstance(old, dict):
        return isinstance(new, dict) and all(key in new and _says(new[key], value) for key, value in old.items())
    if isinstance(old, list):
        return isinstance(new, list) and len(new) == len(old) and all(map(_says, new, old))
    return new == old


def test_every_event_has_a_recorded_message() -> None:
    recorded = {json.loads(path.read_text())["body"]["type"] for path in RECORDED}
    assert recorded == {kind.__struct_config__.tag for kind in get_args(events.Event)}


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_a_recorded_message_fulfils_the_schema(path: Path) -> None:
    jsonschema.validate(json.loads(path.read_text())["body"], schemas.event_schema())


@pytest.mark.parametrize("name", sorted(schemas.documents()))
def test_the_generated_documents_are_current(name: str) -> None:
    assert (DOCUMENTS / name).read_text() == schemas.documents()[name], "run `make docs`"


def test_an_old_message_without_newer_fields_is_read() -> None:
    body = b'{"type":"devices_reported","node":"n1","deviceType":"nvidia","generation":1,"devices":[]}'
    event = envelope.open_message(envelope.Message(subject="hami.v1.devices.n1.nvidia", data=body))
    assert isinstance(event, events.DevicesReported)
    assert event.allocation_mode == "envvar"


def test_a_newer_message_with_unknown_fields_is_read() -> None:
    body = b'{"type":"allocation_succeeded","node":"n1","pod":{"namespace":"d","name":"p","uid":"u"},"invented":{"later":1}}'
    envelope.open_message(envelope.Message(subject="hami.v1.allocations.n1.d.p.outcome", data=body))


def test_an_event_on_anothers_subject_is_refused() -> None:
    body = b'{"type":"allocation_succeeded","node":"n1","pod":{"namespace":"d","name":"p","uid":"u"}}'
    with pytest.raises(EventError, match="belongs on"):
        envelope.open_message(envelope.Message(subject="hami.v1.allocations.n2.d.p.outcome", data=body))


def test_an_agent_cannot_grant() -> None:
    pod = {"namespace": "d", "name": "p", "uid": "u"}
    body = json.dumps({"type": "pod_allocating", "node": "n1", "pod": pod, "assignments": [], "bindTimeSeconds": 1}).encode()
    with pytest.raises(EventError, match="belongs on"):
        envelope.open_message(envelope.Message(subject="hami.v1.allocations.n1.d.p.outcome", data=body))


def test_a_release_is_said_by_either_side() -> None:
    event = events.PodReleased(pod=PodRef(namespace="d", name="p.q", uid="u"), node="n.1", reason="Succeeded")
    by_scheduler = envelope.seal(event, event_id="1", source="/hami/scheduler", time="2024-01-10T04:06:57Z")
    by_agent = envelope.seal(event, event_id="2", source=subjects.agent_source("n.1"), time="2024-01-10T04:06:57Z")
    assert by_scheduler.subject == "hami.v1.allocations.n_1.d.p_q.grant"
    assert by_agent.subject == "hami.v1.allocations.n_1.d.p_q.outcome"
    assert envelope.open_message(by_scheduler) == envelope.open_message(by_agent) == event


@pytest.mark.parametrize("name", ["", "a b", "a*", "a>", "a_b", "a\n"])
def test_names_that_would_change_a_subject_are_refused(name: str) -> None:
    with pytest.raises(ProtocolError):
        subjects.devices(name, "nvidia")


def test_an_event_too_large_for_the_bus_is_refused() -> None:
    with pytest.raises(EventError, match="over the limit"):
        envelope.seal(
            events.AllocationFailed(pod=PodRef(namespace="d", name="p", uid="u"), node="n", reason="x" * 10**6),
            event_id="1",
            source="/s",
            time="t",
        )


@given(
    st.binary()
    | st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.dictionaries(st.text(), inner)).map(msgspec.json.encode)
)
def test_any_bytes_are_an_event_or_refused(data: bytes) -> None:
    with pytest.raises(EventError):
        envelope.open_message(envelope.Message(subject="hami.v1.usage.n1", data=data))
