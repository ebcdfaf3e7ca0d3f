"""Whose word counts where two replicas speak of one pod: the table, and two replicas whose words cross in every order."""

import asyncio
import random
import re
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_devices.catalog import Catalog
from hami_protocol import subjects
from hami_protocol.devices import PodRef
from hami_protocol.envelope import Message, open_message, seal
from hami_protocol.events import AssignmentLapsed, Event, GrantEvent, PodAllocating, PodAssigned, PodReleased, ShareResized
from hami_runtime import virtual
from hami_runtime.bus.memory import MemoryBus
from hami_runtime.outbox import Outbox
from hami_runtime.virtual import VirtualClock
from hami_scheduler.allocations import GrantLog, Missing
from hami_scheduler.turns import Turns, left_to_the_next_leader, still_said
from tests.builders import a_ref

LETTERS: dict[type[Event], str] = {PodAssigned: "A", AssignmentLapsed: "L", PodAllocating: "G", ShareResized: "Z", PodReleased: "R"}
IN_ORDER = re.compile(r"[AL]*G?Z*R?")


def a_word(letter: str, pod: PodRef | None = None) -> GrantEvent:
    ref = pod or a_ref()
    match letter:
        case "A":
            return PodAssigned(pod=ref, node="n1", assignments=())
        case "L":
            return AssignmentLapsed(pod=ref, node="n1", reason="")
        case "G":
            return PodAllocating(pod=ref, node="n1", assignments=(), bind_time_seconds=1)
        case "Z":
            return ShareResized(pod=ref, node="n1", assignments=(), generation=1)
        case _:
            return PodReleased(pod=ref, node="n1")


def a_message(event: Event, event_id: str = "theirs") -> Message:
    return seal(event, event_id=event_id, source="/other", time="2026-01-01T00:00:00Z")


@pytest.mark.parametrize(
    ("ours", "behind"),
    [("A", "AL"), ("L", "A"), ("G", "AL"), ("Z", "ALGZ"), ("R", "ALGZ")],
    ids=["assigned", "lapsed", "grant", "resize", "release"],
)
def test_the_leader_says_what_still_says_something(ours: str, behind: str) -> None:
    said = [last for last in "ALGZR" if still_said(a_word(ours), a_word(last), leading=True, held=True)]
    assert "".join(said) == behind


@pytest.mark.parametrize("last", ["A", "L", "G", "Z", "R", ""])
@pytest.mark.parametrize("ours", ["A", "L", "G", "Z", "R"])
def test_who_leads_no_more_says_only_what_nobody_else_has_seen(ours: str, last: str) -> None:
    theirs = a_word(last) if last else None
    assert not still_said(a_word(ours), theirs, leading=False, held=False)
    of_a_pod_it_has_bound = still_said(a_word(ours), theirs, leading=False, held=True)
    assert of_a_pod_it_has_bound == (ours in "AG" and last in ("", "A", "L"))


@pytest.mark.parametrize("ours", ["A", "L", "G", "Z", "R"])
def test_a_word_on_another_pod_of_the_name_takes_nothing_from_ours(ours: str) -> None:
    assert all(still_said(a_word(ours), a_word(last, a_ref("p1", uid="other")), leading=True, held=True) for last in "ALGZR")


@given(st.sampled_from("ALGZR"), st.sampled_from("ALGZR"), st.booleans(), st.booleans())
def test_what_is_said_behind_another_word_is_in_order_whoever_says_it(ours: str, last: str, leading: bool, held: bool) -> None:
    if still_said(a_word(ours), a_word(last), leading=leading, held=held):
        assert IN_ORDER.fullmatch(last + ours)


def test_who_leads_no_more_keeps_grants_and_what_goes_before_them() -> None:
    first, second = a_ref("p1"), a_ref("p2")
    unsaid = [a_word("A", first), a_word("L", second), a_word("A", second), a_word("G", first), a_word("R", second)]
    left = left_to_the_next_leader(unsaid)
    assert left == [a_word("L", second), a_word("A", second)]


# Two replicas on one bus


class Replica:
    """What is left of a scheduler when only its words are looked at: its outbox, its turns, and whether it leads."""

    def __init__(self, bus: MemoryBus, *, leading: bool, bound: bool, missing: Iterable[Missing] = ()) -> None:
        self.leading = leading
        self.log = GrantLog(Catalog())
        state = SimpleNamespace(entry=lambda uid: uid if bound else None)
        picture: Any = SimpleNamespace(grants=self.log, state=state)
        self.turns = Turns(picture, leading=lambda: self.leading, missing=lambda pod: missing)
        self.outbox = Outbox(bus, VirtualClock(), source="/test", turns=self.turns)

    def hear(self, bus: MemoryBus) -> None:
        """All that the bus has."""
        for sequence, message in enumerate(bus.kept(subjects.ALLOCATIONS), start=1):
            self.turns.heard(message.subject, sequence)

    async def speak(self) -> None:
        stop = asyncio.Event()
        stop.set()
        await self.outbox.run(stop)


def told(bus: MemoryBus) -> str:
    return "".join(LETTERS[type(open_message(message))] for message in bus.kept(subjects.ALLOCATIONS))


async def a_log(*letters: str) -> MemoryBus:
    bus = MemoryBus()
    await bus.ensure_streams([subjects.ALLOCATIONS])
    for letter in letters:
        await bus.publish(a_message(a_word(letter), event_id=f"before-{letter}"))
    return bus


@pytest.mark.parametrize(("grant_first", "said"), [(True, "AGR"), (False, "AL")])
def test_a_grant_and_a_lapse_that_cross_do_not_contradict_each_other(grant_first: bool, said: str) -> None:
    """The one that led has bound the pod, the one that leads sees it gone: whoever comes first, the log tells one story."""

    async def main() -> str:
        bus = await a_log("A")
        release = Missing(event=a_word("R"), event_id="u/released")
        led = Replica(bus, leading=False, bound=False)
        leads = Replica(bus, leading=True, bound=False, missing=[release] if grant_first else [])
        for each in (led, leads):
            each.hear(bus)
        led.outbox.put(a_word("G"), "u/allocating")
        leads.outbox.put(a_word("L"), "u/lapsed")
        for each in (led, leads) if grant_first else (leads, led):
            await each.speak()
        assert led.outbox.pending == leads.outbox.pending == 0
        return told(bus)

    assert virtual.run(main()) == said


def test_an_event_that_both_replicas_derive_from_one_binding_is_published_once() -> None:
    """The new leader has published the assignment that the former leader still holds, under the same id."""

    async def main() -> str:
        bus = await a_log()
        led, leads = Replica(bus, leading=False, bound=True), Replica(bus, leading=True, bound=True)
        led.outbox.put(a_word("A"), "u/assigned/1")
        led.outbox.put(a_word("G"), "u/allocating/1")
        leads.outbox.put(a_word("A"), "u/assigned/1")
        await leads.speak()
        await led.speak()
        return told(bus)

    assert virtual.run(main()) == "AG"


def test_a_grant_of_a_pod_that_runs_is_said_though_the_next_leader_has_let_it_lapse() -> None:
    """Its Binding took effect after the next leader had read the pods."""

    async def main() -> str:
        bus = await a_log("A")
        led, leads = Replica(bus, leading=False, bound=True), Replica(bus, leading=True, bound=False)
        for each in (led, leads):
            each.hear(bus)
        led.outbox.put(a_word("G"), "u/allocating")
        leads.outbox.put(a_word("L"), "u/lapsed")
        await leads.speak()
        await led.speak()
        return told(bus)

    assert virtual.run(main()) == "ALG"


def test_what_came_of_an_earlier_pod_of_the_name_is_said_before_the_later_one_is_assigned() -> None:
    async def main() -> list[tuple[str, str]]:
        bus = await a_log()
        release = Missing(event=a_word("R"), event_id="u/released")
        leads = Replica(bus, leading=True, bound=True, missing=[release])
        leads.outbox.put(a_word("A", a_ref("p1", uid="later")), "later/assigned")
        await bus.publish(a_message(a_word("G")))
        await leads.speak()
        events = [open_message(message) for message in bus.kept(subjects.ALLOCATIONS)]
        return [(LETTERS[type(event)], event.pod.uid) for event in events if isinstance(event, GrantEvent)]

    assert virtual.run(main()) == [("G", "uid-p1"), ("R", "uid-p1"), ("A", "later")]


class Counting(MemoryBus):
    """Counts what it is asked to keep."""

    attempts = 0

    async def publish(self, message: Message, *, expected_last: int | None = None, timeout_seconds: float = 5.0) -> int:
        self.attempts += 1
        return await super().publish(message, expected_last=expected_last, timeout_seconds=timeout_seconds)


def test_a_word_that_is_said_again_does_not_make_us_forget_what_followed_it() -> None:
    async def main() -> tuple[int, str]:
        bus = Counting()
        await bus.ensure_streams([subjects.ALLOCATIONS])
        leads = Replica(bus, leading=True, bound=True)
        for letter, event_id in (("A", "1"), ("G", "2")):
            leads.outbox.put(a_word(letter), event_id)
        await leads.speak()
        for letter, event_id in (("A", "1"), ("R", "3")):
            leads.outbox.put(a_word(letter), event_id)
        await leads.speak()
        return bus.attempts, told(bus)

    assert virtual.run(main()) == (4, "AGR")


def test_what_is_known_costs_no_refusal_and_what_is_not_known_one() -> None:
    async def main() -> list[int]:
        bus = Counting()
        await bus.ensure_streams([subjects.ALLOCATIONS])
        leads = Replica(bus, leading=True, bound=True)
        attempts = []
        for letters in ("AG", "R"):
            for letter in letters:
                leads.outbox.put(a_word(letter), letter)
            await leads.speak()
            attempts.append(bus.attempts)
        follows = Replica(bus, leading=True, bound=True)  # it has not read the log
        follows.outbox.put(a_word("A", a_ref("p1", uid="later")), "later")
        await follows.speak()
        return [*attempts, bus.attempts]

    assert virtual.run(main()) == [2, 3, 5]


def test_a_subject_is_forgotten_when_there_are_too_many() -> None:
    picture: Any = SimpleNamespace()
    turns = Turns(picture, leading=lambda: True, missing=lambda pod: (), capacity=2)
    places = [subjects.grant("n1", "default", name) for name in ("a", "b", "c")]
    for sequence, place in enumerate(places, start=1):
        turns.heard(place, sequence)
    turns.heard(places[2], 1)  # late: it changes nothing
    assert [turns.taken_into_account(place) for place in places] == [0, 2, 3]
    assert turns.taken_into_account(subjects.verdict("default", "a")) is None


LIFE = ["A", "AL", "ALA", "AG", "AGR", "ALAG", "ALAGR", "AAG"]


@given(
    st.sampled_from(LIFE),
    st.sampled_from(["", "L", "AL", "A", "G", "AG", "GR", "AGR", "R", "LAG"]),
    st.integers(0, 4),
    st.booleans(),
    st.integers(0, 2**16),
)
def test_whatever_two_replicas_say_of_a_pod_and_in_whatever_order_it_arrives_the_log_is_in_order(
    led_says: str, leads_says: str, known: int, bound: bool, seed: int
) -> None:
    """The one that led had said ``known`` words when the bus went away; the one that leads speaks knowing those, and both are heard in turn."""

    async def main() -> str:
        chance = random.Random(seed)
        bus = await a_log()
        led, leads = Replica(bus, leading=True, bound=bound), Replica(bus, leading=True, bound=bound)
        words = list(enumerate(led_says))
        for place, letter in words[:known]:
            led.outbox.put(a_word(letter), f"led/{place}")
        await led.speak()
        leads.hear(bus)
        for place, letter in words[known:]:
            led.outbox.put(a_word(letter), f"led/{place}")
        led.leading = False
        led.outbox.withdraw(left_to_the_next_leader)
        if IN_ORDER.fullmatch(led_says[:known] + leads_says):  # what it says fits what it knows
            for place, letter in enumerate(leads_says):
                leads.outbox.put(a_word(letter), f"leads/{place}")
        async with asyncio.TaskGroup() as group:
            stop = asyncio.Event()
            for each in chance.sample([led, leads], 2):
                group.create_task(each.outbox.run(stop))
                await asyncio.sleep(chance.choice([0.0, 0.0, 1.0]))
            await asyncio.sleep(60.0)
            stop.set()
        return told(bus)

    assert IN_ORDER.fullmatch(virtual.run(main()))
