"""The node lock's value."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_protocol import nodelock
from hami_protocol.errors import RecordError

MOMENT = datetime(2024, 1, 10, 4, 6, 57, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "lock"),
    [
        ("2024-01-10T04:06:57Z,default,pod-1", nodelock.NodeLock(time=MOMENT, namespace="default", pod="pod-1")),
        ("2024-01-10T12:06:57+08:00,default,pod-1", nodelock.NodeLock(time=MOMENT, namespace="default", pod="pod-1")),
        ("2024-01-10T04:06:57Z", nodelock.NodeLock(time=MOMENT)),
        ("2024-01-10T04:06:57", nodelock.NodeLock(time=MOMENT)),
    ],
)
def test_both_forms_are_read(text: str, lock: nodelock.NodeLock) -> None:
    assert nodelock.decode(text) == lock


@pytest.mark.example("node lock")
@pytest.mark.parametrize("text", [pytest.param("lock", id="node lock 79"), "", "a,b", "2024-01-10T04:06:57Z,a,b,c", "x,y,z"])
def test_what_is_no_lock_is_refused(text: str) -> None:
    with pytest.raises(RecordError, match="node lock"):
        nodelock.decode(text)


@given(st.datetimes(min_value=datetime(1970, 1, 1)), st.sampled_from([("", ""), ("default", "p")]))  # noqa: DTZ001 - hypothesis wants naive bounds
def test_reading_undoes_writing(moment: datetime, holder: tuple[str, str]) -> None:
    lock = nodelock.NodeLock(time=moment.replace(tzinfo=UTC, microsecond=0), namespace=holder[0], pod=holder[1])
    assert nodelock.decode(nodelock.encode(lock)) == lock


@given(st.text())
def test_any_text_is_a_lock_or_refused(text: str) -> None:
    try:
        nodelock.decode(text)
    except RecordError:
        return
