import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from hami_runtime.kube.store import ObjectStore


class ManualClock:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.moment

    def advance(self, seconds: float) -> None:
        self.moment += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: Callable[[], datetime]) -> ObjectStore:
    return ObjectStore(now=clock, rng=random.Random(1))
