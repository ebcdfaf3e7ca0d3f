"""One item's failure is its own: logged once, counted, tried again after a pause that grows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hami_runtime import isolation
from hami_runtime.isolation import Isolation
from hami_runtime.telemetry import Telemetry


class Time:
    """A clock by hand."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def utc(self) -> None:
        raise AssertionError

    def advance(self, seconds: float) -> None:
        self.now += seconds


class Lines:
    """A logger that keeps its lines."""

    def __init__(self) -> None:
        self.errors: list[dict[str, Any]] = []

    def error(self, _event: str, **values: Any) -> None:
        self.errors.append(values)

    def debug(self, _event: str, **values: Any) -> None:
        pass


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    lines = Lines()
    monkeypatch.setattr(isolation, "log", lines)
    return lines


def deep(level: int = 0) -> int:
    return deep(level + 1)


def fail(kept: Isolation, name: str, error: BaseException) -> None:
    with kept.item(name):
        raise error


@pytest.mark.parametrize(
    "error", [ValueError("x"), RecursionError("r"), MemoryError(), OSError(28, "No space left on device"), AssertionError()]
)
def test_whatever_one_item_raises_the_next_is_handled(error: Exception) -> None:
    kept, handled = Isolation("test", Time()), []  # type: ignore[arg-type]
    for name in ("bad", "good"):
        with kept.item(name):
            if name == "bad":
                raise error
            handled.append(name)
    assert handled == ["good"]
    assert kept.failing == ("bad",)


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(1), GeneratorExit()])
def test_what_ends_a_process_or_a_task_passes(error: BaseException) -> None:
    with pytest.raises(type(error)):
        fail(Isolation("test", Time()), "x", error)  # type: ignore[arg-type]


def test_a_failure_is_logged_once_and_counted_each_time(lines: Lines) -> None:
    telemetry = Telemetry("test")
    kept = Isolation("sweep", Time(), telemetry)  # type: ignore[arg-type]
    for _ in range(5):
        with kept.item("default/p"):
            deep()
    (line,) = lines.errors
    assert line["item"] == "default/p"
    assert line["loop"] == "sweep"
    assert line["error"].startswith("RecursionError")
    assert len(line["where"]) < 1000
    assert 'hami_item_failures_total{loop="sweep"} 5.0' in telemetry.prometheus_text().decode()
    telemetry.close()


def test_another_error_of_the_same_item_is_logged_and_so_is_the_same_after_a_success(lines: Lines) -> None:
    kept = Isolation("test", Time())  # type: ignore[arg-type]
    fail(kept, "x", ValueError("a"))
    fail(kept, "x", ValueError("b"))
    with kept.item("x"):
        pass
    fail(kept, "x", ValueError("b"))
    assert [line["error"] for line in lines.errors] == ["ValueError: a", "ValueError: b", "ValueError: b"]


def test_the_pause_doubles_up_to_its_limit_and_ends_with_a_success() -> None:
    time = Time()
    kept = Isolation("test", time)  # type: ignore[arg-type]
    pauses = []
    for _ in range(12):
        fail(kept, "x", ValueError("a"))
        assert not kept.due("x")
        pauses.append(kept.pause_seconds("x"))
        time.advance(pauses[-1])
        assert kept.due("x")
    assert pauses[:4] == [1, 2, 4, 8]
    assert pauses[-1] == isolation.LONGEST_PAUSE_SECONDS
    with kept.item("x"):
        pass
    assert kept.failing == ()
    assert kept.due("y")


def test_failures_are_bounded_in_number_and_in_length(lines: Lines) -> None:
    kept = Isolation("test", Time())  # type: ignore[arg-type]
    for number in range(isolation.REMEMBERED + 50):
        fail(kept, str(number), ValueError("x" * 10_000_000 if number == 0 else "x"))
    assert len(kept.failing) == isolation.REMEMBERED
    assert len(lines.errors[0]["error"]) < 1000
