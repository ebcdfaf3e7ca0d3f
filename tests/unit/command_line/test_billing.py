"""GPU hours per namespace: exact, whatever is delivered twice and wherever the program dies."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_protocol import events
from hami_protocol.devices import ContainerKind, ContainerShares, DeviceShare, VendorAssignment
from hami_protocol.envelope import Message, seal
from tests.builders import a_ref

PROGRAM = Path(__file__).parents[3] / "examples/subscribers/bill_gpu_hours.py"
HOUR = 3600


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bill_gpu_hours", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


billing = _load()


def an_assignment(cores: int = 0, mib: int = 1000, *, kind: ContainerKind = ContainerKind.APP) -> VendorAssignment:
    share = DeviceShare(uuid="GPU-a", type="NVIDIA", memory_mib=mib, cores=cores)
    return VendorAssignment(vendor="NVIDIA", containers=(ContainerShares(container="main", kind=kind, shares=(share,)),))


def said(event: events.Event, hour: float, *, event_id: str = "") -> Message:
    time = billing.datetime.fromtimestamp(hour * HOUR, tz=billing.datetime.fromisoformat("2026-01-01T00:00:00Z").tzinfo).isoformat()
    return seal(event, event_id=event_id or f"{type(event).__name__}/{event.pod.uid}/{hour}", source="/s", time=time)  # type: ignore[union-attr]


def granted(pod: str, hour: float, *, namespace: str = "team", cores: int = 50) -> Message:
    ref = a_ref(pod, namespace=namespace)
    return said(events.PodAllocating(pod=ref, node="n1", assignments=(an_assignment(cores),), bind_time_seconds=0), hour)


def released(pod: str, hour: float, *, namespace: str = "team") -> Message:
    return said(events.PodReleased(pod=a_ref(pod, namespace=namespace), node="n1"), hour)


LOG = [
    granted("a", 0),
    granted("b", 1, namespace="other", cores=100),
    said(events.AllocationSucceeded(pod=a_ref("a", namespace="team"), node="n1"), 1),
    said(events.ShareResizeApplied(pod=a_ref("a", namespace="team"), node="n1", assignments=(an_assignment(25),), generation=1), 2),
    released("a", 6),
    granted("c", 6),
    said(events.AllocationFailed(pod=a_ref("c", namespace="team"), node="n1", reason="x"), 7),
    Message(subject="hami.v1.allocations.n1.team.a.grant", data=b"torn"),
]
EXPECTED = {"team": 2 * 0.5 + 4 * 0.25 + 1 * 0.5, "other": 9.0}
"""Ten hours after the beginning."""


@contextmanager
def a_ledger(path: Path) -> Iterator[ModuleType]:
    ledger = billing.Ledger(str(path))
    try:
        yield ledger
    finally:
        ledger.close()


def test_hours_are_of_cards_and_what_is_held_counts_until_now(tmp_path: Path) -> None:
    with a_ledger(tmp_path / "bill.db") as ledger:
        for sequence, message in enumerate(LOG, 1):
            ledger.count(message, sequence)
        assert ledger.bill(10 * HOUR) == pytest.approx(EXPECTED)
        assert ledger.sequence == len(LOG)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, len(LOG)), max_size=6))
def test_nothing_is_counted_twice_wherever_it_begins_again(tmp_path_factory: pytest.TempPathFactory, deaths: list[int]) -> None:
    path = tmp_path_factory.mktemp("bill") / "bill.db"
    for death in [*deaths, len(LOG)]:
        with a_ledger(path) as ledger:
            begin = max(ledger.sequence - 2, 0)  # the bus says some of it again
            for sequence in range(begin, max(death, begin)):
                ledger.count(LOG[sequence], sequence + 1)
    with a_ledger(path) as ledger:
        assert ledger.bill(10 * HOUR) == pytest.approx(EXPECTED)


def test_what_is_not_committed_is_neither_counted_nor_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with a_ledger(tmp_path / "bill.db") as ledger:

        def dies(_message: Message) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(ledger, "_apply", dies)
        with pytest.raises(KeyboardInterrupt):
            ledger.count(LOG[0], 1)
        assert (ledger.sequence, ledger.bill(10 * HOUR)) == (0, {})
        monkeypatch.undo()
        ledger.count(LOG[0], 1)
        assert ledger.bill(2 * HOUR) == {"team": 1.0}


@pytest.mark.parametrize(
    ("assignment", "card_mib", "cards"),
    [
        (an_assignment(25), 0, 0.25),
        (an_assignment(0, 8192), 32768, 0.25),
        (an_assignment(0, 8192), 0, 1.0),
        (an_assignment(0, 99999), 32768, 1.0),
        (an_assignment(50, kind=ContainerKind.INIT), 0, 0.0),
    ],
)
def test_a_share_counts_as_the_part_of_the_card_that_it_takes(assignment: VendorAssignment, card_mib: int, cards: float) -> None:
    assert billing.cards([assignment], card_mib) == cards
