"""When verdicts are put into words: right after the answer, or after a burst of pods that were placed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from hami_protocol.devices import PodRef
from hami_protocol.events import Event, PodPlaced, PodRefused
from hami_runtime import virtual
from hami_runtime.bursts import LONGEST_WAIT_SECONDS
from hami_runtime.telemetry import Telemetry, current_traceparent
from hami_runtime.virtual import VirtualClock
from hami_scheduler.placement import Placement, Refusal
from hami_scheduler.placement.outcomes import Figures
from hami_scheduler.verdicts import BURST_PER_SECOND, SAID_AT_ONCE, Verdicts


class World:
    """Verdicts, and what was said of them when."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.said: list[tuple[float, Event, str]] = []
        self.recorded: list[str] = []
        self.turns: list[int] = [0]
        """How many were said before others had their turn."""
        self.verdicts = Verdicts(
            self._say,
            lambda _about, _type, reason, _message: self.recorded.append(reason),
            self.clock,
        )

    def _say(self, event: Event, _event_id: str) -> None:
        self.said.append((self.clock.monotonic(), event, current_traceparent()))
        self.turns[-1] += 1
        if self.turns[-1] == 1:
            asyncio.get_running_loop().call_soon(lambda turns: turns.append(0), self.turns)

    def place(self, number: int, node: str = "n1") -> None:
        placement = Placement(node=node, assignments=(), charges=(), running_charges=(), score=1.0)
        self.verdicts.placed(a_pod(number), placement, node_count=3)

    def refuse(self, number: int) -> None:
        refusal = Refusal(failed={}, unresolvable={}, reasons={"CardInsufficientMemory": 3}, reckon=lambda: Figures("no card has room"))
        self.verdicts.refused(a_pod(number), refusal, node_count=3)

    async def burst(self, count: int, every_seconds: float = 0.02) -> None:
        for number in range(count):
            self.place(number)
            await asyncio.sleep(every_seconds)

    def names(self) -> list[str]:
        return [event.pod.name for _, event, _ in self.said if isinstance(event, PodPlaced | PodRefused)]


def a_pod(number: int) -> PodRef:
    return PodRef(namespace="ns", name=f"p{number}", uid=f"u{number}")


def play(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await scenario(World())

    virtual.run(main())


def test_a_verdict_is_said_after_the_answer_and_at_once() -> None:
    async def scenario(world: World) -> None:
        world.place(1)
        assert world.said == []
        await asyncio.sleep(0)
        assert world.names() == ["p1"]
        assert world.recorded == ["FilteringSucceed"]

    play(scenario)


def test_in_a_burst_it_is_said_when_that_is_over_in_order_and_with_the_time_of_the_decision() -> None:
    async def scenario(world: World) -> None:
        await world.burst(100)
        early = len(world.said)
        assert early <= BURST_PER_SECOND + 1
        await asyncio.sleep(1.0)
        assert world.names() == [f"p{number}" for number in range(100)]
        verdict = world.verdicts.of(a_pod(50))
        assert verdict is not None
        assert verdict.time == "2026-01-01T00:00:01.000+00:00"

    play(scenario)


def test_no_verdict_waits_longer_than_said() -> None:
    async def scenario(world: World) -> None:
        await world.burst(600)
        waited = [when - 0.02 * int(event.pod.name[1:]) for when, event, _ in world.said if isinstance(event, PodPlaced)]
        assert LONGEST_WAIT_SECONDS - 0.001 <= max(waited) <= LONGEST_WAIT_SECONDS + 0.021
        assert len(waited) >= 600 - (LONGEST_WAIT_SECONDS + 0.1) / 0.02

    play(scenario)


def test_many_that_have_waited_are_said_some_at_a_time() -> None:
    async def scenario(world: World) -> None:
        await world.burst(100)
        turns = world.turns = [0]
        await asyncio.sleep(1.0)
        assert sum(turns) == 100 - BURST_PER_SECOND
        assert max(turns) == SAID_AT_ONCE

    play(scenario)


def test_a_refusal_is_said_at_once_behind_what_was_not_said() -> None:
    async def scenario(world: World) -> None:
        await world.burst(30)
        world.refuse(29)
        await asyncio.sleep(0)
        assert world.names() == [*(f"p{number}" for number in range(30)), "p29"]
        assert isinstance(world.said[-1][1], PodRefused)
        assert world.recorded[-1] == "FilteringFailed"
        assert [each.pod.name for each in world.verdicts.refusals()] == ["p29"]

    play(scenario)


def test_who_asks_about_a_pod_is_told_in_a_burst_too() -> None:
    async def scenario(world: World) -> None:
        await world.burst(30)
        said = len(world.said)
        verdict = world.verdicts.of(a_pod(29))
        assert verdict is not None
        assert isinstance(verdict.verdict, PodPlaced)
        assert len(world.said) == said + 1
        await asyncio.sleep(2)
        assert len(world.said) == 30

    play(scenario)


def test_of_a_pod_that_has_gone_the_last_word_is_said_and_then_forgotten() -> None:
    async def scenario(world: World) -> None:
        await world.burst(30)
        world.verdicts.forget("u29")
        assert world.names()[-1] == "p29"
        assert world.verdicts.of(a_pod(29)) is None

    play(scenario)


def test_a_verdict_that_waits_stays_in_its_requests_trace() -> None:
    async def scenario(world: World) -> None:
        telemetry = Telemetry("test")
        await world.burst(30)
        with telemetry.span("filter", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"):
            world.place(30)
        await asyncio.sleep(2)
        assert "0af7651916cd43dd8448eb211c80319c" in world.said[-1][2]
        assert all("0af7651916cd43dd8448eb211c80319c" not in trace for _, _, trace in world.said[:-1])

    play(scenario)
