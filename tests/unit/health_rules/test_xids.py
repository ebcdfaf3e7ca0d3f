"""Which XID takes a card out, and how it comes back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node_agent import health, xid_catalog
from hami_node_agent.health import HealthBook, HealthRules, XidClass

QUICK = HealthRules(good_probes=2, probation_seconds=10)


def skipped(rules: HealthRules, xid: int) -> bool:
    return not rules.watch or rules.classify(xid) is XidClass.APPLICATION


@pytest.mark.parametrize("xid", [8, 11, 13, 31, 43, 45, 63, 68, 94, 154])
def test_an_applications_fault_takes_no_card_out_and_is_remembered(xid: int) -> None:
    book = HealthBook(QUICK)
    assert not book.fault("GPU-a", xid, now=0, time="t")
    assert book.out == {}
    assert [incident.what for incident in book.history("GPU-a")] == [f"XID {xid} (application)"]


@pytest.mark.parametrize("xid", [48, 79, 74, 95, 109, 119, 140, 999])
def test_a_fatal_or_unknown_fault_takes_the_card_out(xid: int) -> None:
    book = HealthBook(QUICK)
    assert book.fault("GPU-a", xid, now=0, time="t")
    assert book.out == {"GPU-a": f"XID {xid}"}


def test_every_row_of_the_catalogue_has_one_action_and_one_source() -> None:
    assert xid_catalog.CATALOG.keys().isdisjoint(xid_catalog.OURS)
    assert xid_catalog.APPLICATION_XIDS.isdisjoint(xid_catalog.FATAL_XIDS)
    assert all(reason for _, reason in xid_catalog.OURS.values())
    assert {xid for xid, action in xid_catalog.CATALOG.items() if action is xid_catalog.Action.RESET_GPU} <= xid_catalog.FATAL_XIDS
    assert xid_catalog.action(999) is None


def test_what_the_driver_says_of_the_card_takes_it_out_whatever_the_xid() -> None:
    book = HealthBook(QUICK)
    assert not book.fault("GPU-a", 154, now=0, time="t")
    assert book.fault("GPU-a", 154, now=1, time="t", failure="the driver asks for a reset of the card")
    assert book.out == {"GPU-a": "XID 154: the driver asks for a reset of the card"}


def test_what_an_unknown_xid_is_is_configuration() -> None:
    assert not HealthBook(HealthRules(unknown=XidClass.APPLICATION)).fault("GPU-a", 999, now=0, time="t")


def test_a_card_is_back_after_enough_good_probes_over_the_probation_and_not_before() -> None:
    book = HealthBook(QUICK)
    book.fault("GPU-a", 79, now=0, time="t")
    assert not book.probed("GPU-a", "", now=1, time="t")
    assert not book.probed("GPU-a", "", now=9, time="t")  # enough probes, too early
    assert book.probed("GPU-a", "", now=10, time="t")
    assert book.out == {}
    assert book.history("GPU-a")[-1].what == "back after 3 good probes"


@pytest.mark.parametrize("again", ["probe", "xid"])
def test_a_failed_probe_or_another_fault_starts_the_probation_again(again: str) -> None:
    book = HealthBook(QUICK)
    book.fault("GPU-a", 79, now=0, time="t")
    book.probed("GPU-a", "", now=9, time="t")
    if again == "probe":
        assert not book.probed("GPU-a", "gone", now=10, time="t")
    else:
        assert not book.fault("GPU-a", 48, now=10, time="t")  # it is out already
    assert not book.probed("GPU-a", "", now=11, time="t")
    assert not book.probed("GPU-a", "", now=19, time="t")
    assert book.probed("GPU-a", "", now=20, time="t")


def test_a_restart_forgets_neither_a_card_that_is_out_nor_what_happened() -> None:
    book = HealthBook(QUICK)
    book.fault("GPU-a", 79, now=1000, time="t")
    again = HealthBook(QUICK, book.record())
    assert (again.out, again.history()) == (book.out, book.history())
    again.probed("GPU-a", "", now=3, time="t")
    assert again.probed("GPU-a", "", now=12, time="t")


# The reference's two variables.
@pytest.mark.departs("109 takes a card out: NVIDIA's catalogue asks for a reset after it, where the reference skips it")
@pytest.mark.example("XIDs 42")
@pytest.mark.parametrize(
    ("xid", "is_skipped"), [(13, True), (31, True), (43, True), (45, True), (68, True), (109, False), (48, False), (555, False)]
)
def test_nothing_disabled(xid: int, is_skipped: bool) -> None:
    assert skipped(health.rules(), xid) is is_skipped


@pytest.mark.example("XIDs 43")
@pytest.mark.parametrize("disabled", ["all", "xids", "13, XIDS"])
def test_all_disabled(disabled: str) -> None:
    rules = health.rules(disabled=disabled)
    assert all(skipped(rules, xid) for xid in (13, 79, 555))
    assert not rules.watch


@pytest.mark.example("XIDs 44")
def test_all_enabled() -> None:
    assert not any(skipped(health.rules(enabled="all"), xid) for xid in (13, 79, 555))


@pytest.mark.example("XIDs 45")
def test_enabled_wins_over_disabled() -> None:
    rules = health.rules(disabled="11", enabled="11")
    assert not skipped(rules, 11)
    assert skipped(rules, 13)


@pytest.mark.example("XIDs 46")
@pytest.mark.parametrize(("disabled", "added"), [("68,not-an-int,67", {67, 68}), ("-68", set[int]()), ("68  ", {68}), (",68", {68})])
def test_what_is_no_number_is_ignored(disabled: str, added: set[int]) -> None:
    assert health.rules(disabled=disabled).application == xid_catalog.APPLICATION_XIDS | added


@pytest.mark.departs("the reference switches everything off here, against its own documentation")
def test_all_disabled_but_one_watches_that_one() -> None:
    rules = health.rules(disabled="all", enabled="79")
    assert not skipped(rules, 79)
    assert skipped(rules, 48)


@given(st.text(max_size=40), st.text(max_size=40), st.integers(0, 2**31))
def test_any_text_makes_rules(disabled: str, enabled: str, xid: int) -> None:
    assert health.rules(disabled=disabled, enabled=enabled).classify(xid) in XidClass


@given(st.lists(st.tuples(st.sampled_from(["fault", "good", "bad"]), st.integers(1, 20))))
def test_a_card_is_out_from_a_fatal_fault_until_its_probation_is_over(steps: list[tuple[str, int]]) -> None:
    book, now, good, since = HealthBook(QUICK), 0, 0, None
    for what, passed in steps:
        now += passed
        if what == "fault":
            book.fault("GPU-a", 79, now=now, time="t")
            good, since = 0, now
        elif since is not None:
            book.probed("GPU-a", "" if what == "good" else "gone", now=now, time="t")
            good, since = (good + 1, since) if what == "good" else (0, now)
            if good >= QUICK.good_probes and now - since >= QUICK.probation_seconds:
                since = None
        assert ("GPU-a" in book.out) == (since is not None)
