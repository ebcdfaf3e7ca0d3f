"""A message of the bus as CloudEvents words it in JSON, and back: nothing of it is lost, whatever it is."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_protocol import cloud_events
from hami_protocol.envelope import Message, open_message, seal
from hami_protocol.errors import EventError
from hami_protocol.events import AllocationFailed
from tests.builders import a_ref

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
EVENT = AllocationFailed(pod=a_ref("p1"), node="n1", reason='it said "no"\nand went')


def a_message() -> Message:
    return seal(EVENT, event_id="e/1", source="/hami/node-agent/n1", time="2026-01-01T00:00:00.123Z", traceparent=TRACE)


def test_it_is_one_line_of_json_with_the_body_as_json_in_it() -> None:
    line = cloud_events.encode(a_message())
    assert b"\n" not in line
    found = json.loads(line)
    assert found.pop("data") == json.loads(a_message().data)
    assert found == {
        "specversion": "1.0",
        "id": "e/1",
        "source": "/hami/node-agent/n1",
        "type": "io.hami.v1.allocation_failed",
        "time": "2026-01-01T00:00:00.123Z",
        "subject": "hami.v1.allocations.n1.default.p1.outcome",
        "datacontenttype": "application/json",
        "traceparent": TRACE,
    }


def test_what_comes_back_is_the_message() -> None:
    assert cloud_events.decode(cloud_events.encode(a_message())) == a_message()
    assert open_message(cloud_events.decode(cloud_events.encode(a_message()))) == EVENT
    assert cloud_events.decode_batch(cloud_events.encode_batch([a_message(), a_message()])) == (a_message(), a_message())
    assert cloud_events.decode_batch(cloud_events.encode_batch([])) == ()


@given(st.binary() | st.sampled_from([b"{}", b'{"a":\n1}', b"[1]", b"\r", b'"\\u0000"', b"[" * 5000]))
def test_a_body_that_is_anything_comes_back_as_it_was(data: bytes) -> None:
    message = Message(subject="hami.v1.verdicts.a.b", data=data)
    line = cloud_events.encode(message)
    assert b"\n" not in line
    assert b"\r" not in line
    assert cloud_events.decode(line) == message


@given(st.binary())
def test_whatever_comes_is_a_message_or_refused(content: bytes) -> None:
    for decode in (cloud_events.decode, cloud_events.decode_batch):
        with suppress(EventError):
            decode(content)


@pytest.mark.parametrize("line", [b'{"data_base64": "!"}', b'{"data_base64": 7}', b"[]", b"", b'{"subject": 1}'])
def test_what_is_no_event_says_so(line: bytes) -> None:
    with pytest.raises(EventError):
        cloud_events.decode(line)
