"""What is on the bus is in the ledger once, whatever comes twice, late, or not from whom it should."""

from __future__ import annotations

import pytest

from hami_billing.store import Store
from hami_protocol import subjects
from hami_protocol.envelope import Message
from hami_protocol.events import Event, LivenessChanged, PodReleased
from tests.contract.billing.conftest import MIB, Ledger, a_pod, granted, reported, resized, shares


async def test_a_pod_is_billed_from_its_grant_to_its_release(ledger: Ledger) -> None:
    await ledger.publish(reported("GPU-0"), 0)
    await ledger.publish(granted(a_pod("a")), 100)
    await ledger.publish(PodReleased(pod=a_pod("a"), node="n1"), 200)
    await ledger.take_all()
    assert ledger.seconds(0, 400) == {"a": 25, "idle": 375}


async def test_a_resize_splits_the_hold(ledger: Ledger) -> None:
    await ledger.publish(reported("GPU-0"), 0)
    await ledger.publish(granted(a_pod("a")), 0)
    await ledger.publish(resized(a_pod("a"), shares(memory_mib=MIB // 2), 1), 100)
    await ledger.publish(resized(a_pod("a"), shares(memory_mib=MIB), 1), 150)  # of the same generation: it comes twice
    await ledger.take_all()
    assert ledger.seconds(0, 200) == {"a": 75, "idle": 125}


async def test_what_is_delivered_again_changes_nothing(ledger: Ledger) -> None:
    await ledger.publish(reported("GPU-0"), 0)
    for second in (0, 10):
        await ledger.publish(granted(a_pod("a")), second)
    for second in (100, 150):
        await ledger.publish(PodReleased(pod=a_pod("a"), node="n1"), second)
    await ledger.publish(granted(a_pod("a")), 160)
    for _ in range(2):
        await ledger.take_all()
        assert ledger.seconds(0, 200) == {"a": 25, "idle": 175}


async def test_the_agent_of_another_node_ends_nothing(ledger: Ledger) -> None:
    await ledger.publish(reported("GPU-0"), 0)
    await ledger.publish(PodReleased(pod=a_pod("a"), node="n2"), 0)
    await ledger.publish(granted(a_pod("a")), 10)
    await ledger.publish(PodReleased(pod=a_pod("a"), node="n2"), 20)
    await ledger.publish(resized(a_pod("a"), shares(memory_mib=1, cores=1), 1, node="n2"), 20)
    await ledger.take_all()
    assert ledger.seconds(0, 110) == {"a": 25, "idle": 85}


async def test_a_log_that_lost_its_tail_is_read_again(ledger: Ledger) -> None:
    await ledger.publish(reported("GPU-0"), 0)
    await ledger.publish(granted(a_pod("a")), 0)
    await ledger.publish(granted(a_pod("b")), 0)
    await ledger.take_all()
    ledger.bus.lose_tail(subjects.ALLOCATIONS, 1)
    await ledger.publish(PodReleased(pod=a_pod("a"), node="n1"), 100)
    await ledger.publish(granted(a_pod("b")), 0)
    await ledger.take_all()
    assert ledger.seconds(0, 100) == {"a": 25, "b": 25, "idle": 50}


async def test_a_ledger_that_is_lost_is_made_anew_from_the_log(ledger: Ledger) -> None:
    await ledger.publish(reported("GPU-0"), 50)
    await ledger.publish(granted(a_pod("a")), 0)
    await ledger.publish(PodReleased(pod=a_pod("a"), node="n1"), 40)
    await ledger.take_all()
    before = ledger.seconds(0, 100)
    ledger.url += "-new"
    await ledger.take_all()
    assert ledger.seconds(0, 100) == before == {"a": 10, "idle": 90}


async def test_cards_come_and_go_and_are_sick(ledger: Ledger) -> None:
    await ledger.publish(reported("GPU-0", "GPU-1"), 0)
    await ledger.take_all()
    await ledger.publish(reported("GPU-0"), 100)
    await ledger.take_all()
    await ledger.publish(reported("GPU-0", healthy=False), 200)
    await ledger.take_all()
    await ledger.publish(reported("GPU-0"), 300)
    await ledger.take_all()
    await ledger.publish(LivenessChanged(node="n1", device_type="nvidia", alive=False, reason=""), 350)
    await ledger.take_all()
    assert ledger.seconds(0, 400) == {"idle": 100 + 100 + 100 + 50, "unallocatable": 100 + 50}


@pytest.mark.parametrize("data", [b"", b"{}", b"[" * 100_000, b'{"type":"pod_released"}'])
async def test_what_cannot_be_read_holds_up_nothing(ledger: Ledger, data: bytes) -> None:
    await ledger.bus.publish(Message(subject=subjects.grant("n1", "team", "x"), data=data))
    await ledger.publish(reported("GPU-0"), 0)
    await ledger.publish(granted(a_pod("a")), 0)
    await ledger.take_all()
    assert ledger.seconds(0, 100) == {"a": 25, "idle": 75}


async def test_an_event_that_can_never_be_written_holds_up_no_other(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    take = Store.take

    def taking(self: Store, stream: str, events: list[tuple[int, Event | None, int]]) -> None:
        if any(event is not None and getattr(getattr(event, "pod", None), "name", "") == "poison" for _, event, _ in events):
            raise RecursionError
        take(self, stream, events)

    monkeypatch.setattr(Store, "take", taking)
    await ledger.publish(reported("GPU-0"), 0)
    for name in ("a", "poison", "b"):
        await ledger.publish(granted(a_pod(name)), 0)
    await ledger.take_all()
    assert ledger.seconds(0, 100) == {"a": 25, "b": 25, "idle": 50}
