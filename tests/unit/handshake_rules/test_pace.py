"""When annotations are patched: the protocol's intervals, and never more than the budget."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest

from hami_devices.catalog import Catalog
from hami_protocol import keys
from hami_registry.commands import Outcome, PatchNode
from hami_registry.rules import Rules
from hami_registry.timetable import Budget
from hami_runtime.bursts import LONGEST_WAIT_SECONDS, Bursts

from .conftest import START, Driver, a_report, register_text
from .test_liveness import heartbeats


def test_reported_follows_every_registration_and_requesting_comes_every_15_seconds(driver: Driver) -> None:
    driver.node()
    driver.run(120, each_second=heartbeats(driver))
    assert driver.handshakes("Reported") == [pytest.approx(at, abs=0.01) for at in (0, 30, 60, 90, 120)]
    assert driver.handshakes("Requesting") == [pytest.approx(7.5 + 15 * n, abs=0.01) for n in range(8)]


def test_handshakes_have_the_forms_of_the_protocol(driver: Driver) -> None:
    driver.node()
    driver.report(a_report())
    driver.run(1)
    assert driver.annotations["n1"][keys.handshake("nvidia")] == "Reported 2026-01-01 00:00:00.000000000 +0000 UTC m=+0.000000000"
    driver.run(7)
    assert driver.annotations["n1"][keys.handshake("nvidia")] == "Requesting_2026-01-01 00:00:07"
    assert keys.LEGACY_HANDSHAKE not in driver.annotations["n1"]


def test_the_bare_handshake_is_written_too_where_it_is_asked_for() -> None:
    rules = Rules(Catalog().vendors, legacy_handshake=True)
    rules.take_over(0.0)
    driver = Driver(rules)
    driver.node()
    driver.report(a_report())
    driver.run(1)
    assert driver.annotations["n1"][keys.LEGACY_HANDSHAKE] == driver.annotations["n1"][keys.handshake("nvidia")]


def test_an_unavailable_node_keeps_its_last_handshake(driver: Driver) -> None:
    driver.node()
    driver.report(a_report())
    driver.run(600)
    assert driver.annotations["n1"][keys.handshake("nvidia")] == "Requesting_2026-01-01 00:00:52"


def test_the_record_is_patched_when_it_changes_and_only_then(driver: Driver) -> None:
    driver.node()
    driver.run(100, each_second=heartbeats(driver))
    assert [at for at, _ in driver.records()] == [0.0]
    assert register_text(driver) == "GPU-n1,10,24576,100,NVIDIA-A10,0,true:"
    driver.report(a_report(generation=2, memory_mib=20000))
    driver.run(1)
    assert driver.records()[1][1] == {keys.register("nvidia"): "GPU-n1,10,20000,100,NVIDIA-A10,0,true:", keys.generation("nvidia"): "2"}


def test_a_record_that_is_there_already_is_not_written_again(driver: Driver) -> None:
    driver.node(
        **{
            keys.register("nvidia"): "GPU-n1,10,24576,100,NVIDIA-A10,0,true:",
            keys.generation("nvidia"): "1",
            keys.ALLOCATION_MODE: "envvar",
        }
    )
    driver.report(a_report())
    driver.run(100)
    assert driver.records() == []


def test_a_record_that_somebody_removed_is_put_back(driver: Driver) -> None:
    driver.node()
    driver.report(a_report())
    driver.run(1)
    driver.annotations["n1"].pop(keys.register("nvidia"))
    driver.node()
    driver.run(3)
    assert register_text(driver) == "GPU-n1,10,24576,100,NVIDIA-A10,0,true:"


def test_pair_scores_stand_beside_the_record_and_go_when_they_are_withdrawn(driver: Driver) -> None:
    driver.node()
    driver.report(a_report(pair_scores={"GPU-1": {"GPU-2": 100}}))
    driver.run(1)
    assert driver.annotations["n1"][keys.NODE_PAIR_SCORES] == '[{"uuid":"GPU-1","score":{"GPU-2":100}}]'
    driver.report(a_report(generation=2))
    driver.run(1)
    assert keys.NODE_PAIR_SCORES not in driver.annotations["n1"]


def test_a_failed_patch_comes_again_later_and_later(driver: Driver) -> None:
    driver.node()
    driver.report(a_report())
    tried: list[float] = []

    def fail(command: object) -> Outcome:
        if isinstance(command, PatchNode) and command.word is None:
            tried.append(driver.now)
            return Outcome.RETRY
        return Outcome.DONE

    driver.outcome = fail
    driver.run(20, each_second=heartbeats(driver))
    gaps = [later - earlier for earlier, later in itertools.pairwise(tried)]
    assert len(tried) >= 4
    assert gaps == sorted(gaps)


class TestInABurstOfGrants:
    """While pods are placed fast, handshakes come a little later; records do not."""

    @pytest.fixture
    def placing(self) -> Bursts:
        return Bursts(10)

    @pytest.fixture
    def driver(self, placing: Bursts) -> Driver:
        rules = Rules(Catalog().vendors, placing=placing)
        rules.nodes_synced()
        rules.take_over(0.0)
        return Driver(rules)

    def grants(self, placing: Bursts, begin: float, end: float) -> None:
        """20 a second; they are told of all at once, since nobody looks at the time between."""
        for number in range(round((end - begin) * 20)):
            placing.happened(begin + number / 20)

    def test_a_handshake_that_is_due_waits_until_it_is_over(self, driver: Driver, placing: Bursts) -> None:
        driver.node()
        driver.run(28, each_second=heartbeats(driver))
        self.grants(placing, 27, 29)
        driver.report(a_report())
        driver.run(12)
        assert driver.handshakes("Reported") == [0.0, pytest.approx(29.45)]
        assert driver.handshakes("Requesting")[-1] == pytest.approx(37.5)

    def test_but_not_longer_than_said(self, driver: Driver, placing: Bursts) -> None:
        driver.node()

        def second(tick: int) -> None:
            heartbeats(driver)(tick)
            self.grants(placing, driver.now, driver.now + 1)

        driver.run(120, each_second=second)
        assert driver.handshakes("Requesting") == [pytest.approx(12.5 + (15 + LONGEST_WAIT_SECONDS) * n, abs=0.01) for n in range(6)]

    def test_a_record_is_written_at_once(self, driver: Driver, placing: Bursts) -> None:
        self.grants(placing, 0, 2)
        driver.node()
        driver.report(a_report())
        driver.run(1)
        assert [at for at, _ in driver.records()] == [0.0]
        assert driver.handshakes("Reported") == []

    def test_what_has_waited_is_written_within_the_budget(self, driver: Driver, placing: Bursts) -> None:
        self.grants(placing, 0, 3)
        for number in range(200):
            driver.node(f"n{number}", **{keys.register("nvidia"): "", keys.generation("nvidia"): "1"})
            driver.report(a_report(f"n{number}"))
        driver.run(30)
        written = [at for at, command in driver.log if isinstance(command, PatchNode)]
        assert all(later - earlier >= 1.0 for earlier, later in zip(written, written[50:], strict=False))
        first = [driver.handshakes("Reported", f"n{number}")[0] for number in range(200)]
        assert min(first) >= 3.0
        assert max(first) < 15.0


def test_the_budget_holds_in_every_window_of_a_second() -> None:
    budget = Budget(50)
    now, spent = 0.0, []
    for _ in range(500):
        now = budget.free_at(now)
        budget.spend(now)
        spent.append(now)
    assert all(spent[place + 50] - spent[place] >= 1.0 for place in range(450))


@pytest.mark.parametrize("nodes", [500, 2_000, 10_000])
def test_all_node_patches_together_stay_within_50_a_second_and_every_node_has_its_turn(nodes: int) -> None:
    rules = Rules(Catalog().vendors)
    rules.nodes_synced()
    rules.take_over(0.0)
    driver = Driver(rules)
    names = [f"n{place}" for place in range(nodes)]
    reports = [a_report(name) for name in names]
    for name in names:
        driver.node(name)
    patched: list[float] = []
    touched: set[str] = set()
    seconds = 90 if nodes == 500 else 450
    for second in range(seconds):
        driver.now = float(second)
        for report in reports[second % 30 :: 30]:
            driver.report(report)
        for tenth in range(10):
            driver.now = second + tenth / 10
            for command in rules.due(driver.now, START + timedelta(seconds=driver.now)):
                rules.settle(command, Outcome.DONE, driver.now, sequence=driver.sequence)
                if isinstance(command, PatchNode):
                    patched.append(driver.now)
                    touched.add(command.key.node) if command.word else None
    assert all(later - earlier >= 1.0 for earlier, later in zip(patched, patched[50:], strict=False))
    assert len(touched) == nodes
    assert all(view.alive for view in rules.inventory(driver.now, START))
