"""The handshake in all its spellings."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_protocol import handshake
from hami_protocol.errors import RecordError

NOON = datetime(2024, 1, 10, 4, 6, 57, tzinfo=UTC)


@pytest.mark.example("annotations of nodes")
@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        pytest.param(
            "Reported 2024-01-23 04:30:04.434037031 +0000 UTC m=+1104711.777756895",
            handshake.Reported(time=datetime(2024, 1, 23, 4, 30, 4, 434037, tzinfo=UTC), monotonic_seconds=1104711.777756895),
            id="annotations of nodes reported",
        ),
        pytest.param("Requesting_2024.01.10 04:06:57", handshake.Requesting(time=NOON), id="annotations of nodes requesting"),
        pytest.param("Requesting_2024-01-10 04:06:57", handshake.Requesting(time=NOON), id="dashes"),
        pytest.param("Reported_2024-01-10 04:06:57", handshake.Reported(time=NOON), id="underscore"),
        pytest.param("Reported 2024-01-10 04:06:57", handshake.Reported(time=NOON), id="blank"),
        pytest.param("Reported", handshake.Reported(), id="no time"),
        pytest.param("Requesting", handshake.Requesting(), id="handshake 1"),
        pytest.param("Requesting_yesterday", handshake.Requesting(), id="handshake 2"),
        pytest.param("Requesting_2024-13-40 99:00:00", handshake.Requesting(), id="a time that cannot be"),
        pytest.param("Deleted_2024.01.10 04:06:57", handshake.Deleted(time=NOON), id="what older schedulers left"),
    ],
)
def test_every_spelling_is_read(text: str, meaning: handshake.Handshake) -> None:
    assert handshake.decode(text) == meaning


def test_what_is_written_has_the_protocols_form() -> None:
    moment = datetime(2024, 1, 23, 4, 30, 4, 434037, tzinfo=UTC)
    assert handshake.encode(handshake.Requesting(time=NOON)) == "Requesting_2024-01-10 04:06:57"
    assert (
        handshake.encode(handshake.Reported(time=moment, monotonic_seconds=1104711.777756895))
        == "Reported 2024-01-23 04:30:04.434037000 +0000 UTC m=+1104711.777756895"
    )
    assert handshake.encode(handshake.Reported(time=moment)) == "Reported 2024-01-23 04:30:04.434037000 +0000 UTC"


@pytest.mark.parametrize("text", ["", "reported", "Hello", "Requesting\n2024", "ReportedX"])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(RecordError, match="handshake"):
        handshake.decode(text)


@given(st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(9999, 1, 1)))  # noqa: DTZ001 - hypothesis wants naive bounds
def test_reading_undoes_writing(moment: datetime) -> None:
    aware = moment.replace(tzinfo=UTC)
    reported = handshake.Reported(time=aware)
    assert handshake.decode(handshake.encode(reported)) == reported
    requesting = handshake.Requesting(time=aware.replace(microsecond=0))
    assert handshake.decode(handshake.encode(requesting)) == requesting


@given(st.text() | st.text().map(lambda tail: "Reported_" + tail))
def test_any_text_is_a_handshake_or_refused(text: str) -> None:
    try:
        handshake.decode(text)
    except RecordError:
        return
