"""Time on cards is divided so that it adds up, whoever held what."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from hami_billing.core.bill import Division, Remainder, Rule, Window, divide
from hami_billing.core.values import HOUR, Card, Hold

MIB = 16_384


def a_card(card: str = "GPU-0", began: int = 0, ended: int | None = None, **others: object) -> Card:
    settings = {"node": "n1", "device_type": "nvidia", "model": "A100", "memory_mib": MIB, "cores": 100, "slots": 10, **others}
    return Card(card=card, began=began, ended=ended, **settings)  # type: ignore[arg-type]


def a_hold(uid: str, memory_mib: int = 0, cores: int = 0, **others: object) -> Hold:
    settings = {"began": 0, "card": "GPU-0", "slots": 1, "node": "n1", "vendor": "NVIDIA", **others}
    return Hold(uid=uid, namespace="team", pod=uid, memory_mib=memory_mib, cores=cores, **settings)  # type: ignore[arg-type]


def units(division: Division) -> dict[str, int]:
    found: Counter[str] = Counter()
    for piece in division.pieces:
        found[piece.hold.uid if piece.hold else str(piece.remainder)] += piece.units
    return dict(found)


def test_four_quarter_shares_are_one_card_hour() -> None:
    holds = [a_hold(uid, MIB // 4, 25) for uid in "abcd"]
    assert units(divide([a_card()], holds, Window(0, HOUR))) == dict.fromkeys("abcd", HOUR // 4)


def test_the_larger_fraction_counts_and_the_rest_is_idle() -> None:
    division = divide([a_card()], [a_hold("a", MIB // 2, 10), a_hold("b", MIB // 8, 25)], Window(0, HOUR))
    assert units(division) == {"a": HOUR // 2, "b": HOUR // 4, "idle": HOUR // 4}


@pytest.mark.parametrize(("rule", "expected"), [(Rule.MEMORY, HOUR // 2), (Rule.CORES, HOUR // 10)])
def test_another_rule(rule: Rule, expected: int) -> None:
    assert units(divide([a_card()], [a_hold("a", MIB // 2, 10)], Window(0, HOUR), rule=rule))["a"] == expected


def test_parts_of_more_than_a_card_are_reduced_in_proportion() -> None:
    division = divide([a_card()], [a_hold("memory", MIB, 0), a_hold("cores", 0, 100)], Window(0, HOUR))
    assert units(division) == {"memory": HOUR // 2, "cores": HOUR // 2}


@pytest.mark.parametrize(
    ("card", "hold"),
    [
        (a_card(slots=1), a_hold("a", MIB // 2, 50)),
        (a_card(healthy=False), a_hold("a", MIB // 2, 50)),
        (a_card(registers=False), a_hold("a", MIB // 2, 50)),
        (a_card(memory_mib=0), a_hold("a", 0, 50)),
    ],
    ids=["slots", "sick", "away", "memory"],
)
def test_what_no_pod_can_get_is_unallocatable(card: Card, hold: Hold) -> None:
    assert units(divide([card], [hold], Window(0, HOUR))) == {"a": HOUR // 2, "unallocatable": HOUR // 2}


def test_a_card_that_was_held_before_it_was_seen_existed_then() -> None:
    division = divide([a_card(began=HOUR)], [a_hold("a", MIB, 100, began=0)], Window(0, 2 * HOUR))
    assert units(division) == {"a": 2 * HOUR}


def test_a_hold_of_a_card_that_is_not_registered_is_named() -> None:
    division = divide([a_card(ended=HOUR)], [a_hold("a", MIB, 100), a_hold("b", 1, card="GPU-unknown")], Window(0, 3 * HOUR))
    assert (units(division), division.uncounted) == ({"a": HOUR}, {"GPU-0": 2 * HOUR, "GPU-unknown": 3 * HOUR})


@pytest.mark.parametrize("seed", range(200))
def test_rows_sum_to_the_time_for_which_the_cards_existed(seed: int) -> None:
    chance = random.Random(seed)
    cards, holds, existed = [], [], 0
    window = Window(chance.randrange(1000), chance.randrange(1000, 5000))
    for number in range(chance.randrange(1, 4)):
        began, name = chance.randrange(2000), f"GPU-{number}"
        for _ in range(chance.randrange(1, 4)):
            ended = began + chance.randrange(1, 1500)
            size = {"memory_mib": chance.choice([0, 7, MIB]), "cores": chance.choice([0, 100, 33]), "slots": chance.randrange(1, 6)}
            cards.append(a_card(name, began, ended, healthy=chance.random() < 0.8, **size))
            began = ended
        for pod in range(chance.randrange(8)):
            since = chance.randrange(cards[-1].began if len(cards) == 1 else 4000)
            mine = [card for card in cards if card.card == name]
            since = max(since, min(card.began for card in mine))
            until = chance.choice([None, since + chance.randrange(1, 2000)])
            holds.append(a_hold(f"{name}-{pod}", chance.randrange(MIB + 1), chance.randrange(101), began=since, ended=until, card=name))
        existed += sum(
            max(0, min(card.ended or window.end, window.end) - max(card.began, window.begin)) for card in cards if card.card == name
        )
    for rule in Rule:
        division = divide(cards, holds, window, rule=rule)
        assert sum(piece.units for piece in division.pieces) == existed
        assert all(piece.units >= 0 for piece in division.pieces)
        assert {piece.remainder for piece in division.pieces} <= {None, *Remainder}
