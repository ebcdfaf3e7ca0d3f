"""When a node counts as unavailable, and how it comes back (HAMi#1839, HAMi#1430)."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_devices.catalog import Catalog
from hami_devices.registrations import device_record
from hami_protocol import keys
from hami_protocol.events import DevicesReported, LivenessChanged
from hami_protocol.kubernetes import Node, NodeStatus, ObjectMeta
from hami_registry.commands import Key, Outcome, Publish, PurgeNode, RaiseAlarm
from hami_registry.rules import Rules

from .conftest import START, Driver, a_report, register_text

HEARTBEAT = 30


def heartbeats(driver: Driver, *nodes: str):  # type: ignore[no-untyped-def]  # a callback
    def beat(second: int) -> None:
        if second % HEARTBEAT == 0:
            for node in nodes or ("n1",):
                driver.report(a_report(node))

    return beat


def test_a_node_that_registers_every_30_seconds_stays_alive(driver: Driver) -> None:
    driver.node()
    driver.run(600, each_second=heartbeats(driver))
    assert driver.verdicts() == [(0.0, True)]


def test_it_is_unavailable_60_seconds_after_the_last_registration_and_not_before(driver: Driver) -> None:
    driver.node()
    driver.report(a_report())
    driver.run(59.9)
    assert driver.alive()
    driver.run(0.2)
    assert not driver.alive()
    assert driver.verdicts() == [(0.0, True), (pytest.approx(60.0, abs=0.01), False)]


def test_one_heartbeat_brings_it_back_without_anybody_touching_annotations(driver: Driver) -> None:
    driver.node(**{keys.handshake("nvidia"): "Deleted_2024.01.10 04:06:57"})
    driver.report(a_report())
    driver.run(180)
    assert not driver.alive()
    driver.report(a_report())
    driver.run(1)
    assert driver.alive()
    assert driver.annotations["n1"][keys.handshake("nvidia")].startswith("Reported 2026-01-01 00:03:00.")


def test_inventory_outlives_liveness(driver: Driver) -> None:
    driver.node()
    driver.report(a_report())
    driver.run(120)
    (view,) = driver.rules.inventory(driver.now, START)
    assert not view.alive
    assert [device.uuid for device in view.devices] == ["GPU-n1"]


def test_a_message_seen_twice_is_no_sign_of_life(driver: Driver) -> None:
    driver.node()
    driver.report(a_report())
    driver.run(50)
    driver.rules.reported(a_report(), "1", driver.now)
    driver.run(11)
    assert not driver.alive()


@pytest.mark.parametrize("source", ["bus", "api-server"])
def test_nobody_expires_while_the_registry_is_cut_off_and_everyone_has_a_fresh_minute_after(driver: Driver, source: str) -> None:
    driver.node()
    driver.report(a_report())
    driver.run(30)
    driver.rules.source_lost(source)
    driver.run(3600)
    assert driver.alive()
    driver.rules.source_back(source, driver.now)
    driver.run(59)
    assert driver.alive()
    driver.run(2)
    assert not driver.alive()


def test_being_back_on_one_side_only_is_still_being_cut_off(driver: Driver) -> None:
    driver.node()
    driver.report(a_report())
    driver.rules.source_lost("bus")
    driver.rules.source_lost("api-server")
    driver.rules.source_back("bus", driver.now)
    driver.run(200)
    assert driver.alive()


def test_a_verdict_that_did_not_reach_the_bus_is_said_again_with_the_same_id(driver: Driver) -> None:
    driver.node()
    driver.report(a_report())
    seen: list[str] = []

    def down(command: object) -> Outcome:
        if isinstance(command, Publish):
            seen.append(command.event_id)
            return Outcome.RETRY if len(seen) < 4 else Outcome.DONE
        return Outcome.DONE

    driver.outcome = down
    driver.run(20)
    assert len(seen) == 4
    assert len(set(seen)) == 1


def test_going_away_and_coming_back_have_ids_of_their_own(driver: Driver) -> None:
    driver.node()
    for _ in range(3):
        driver.report(a_report())
        driver.run(90)
    ids = [command.event_id for _, command in driver.log if isinstance(command, Publish)]
    assert len(ids) == len(set(ids)) == 6


def test_a_bus_that_has_lost_everything_is_told_again(driver: Driver) -> None:
    driver.node()
    driver.node("n2", **{keys.register("nvidia"): TestThirdPartyPlugins.TEXT})
    driver.report(a_report())
    driver.run(1)
    before = [command for _, command in driver.log if isinstance(command, Publish)]
    driver.sequence = 0
    driver.rules.bus_restarted(driver.now)
    driver.run(1)
    again = [command for _, command in driver.log if isinstance(command, Publish)][len(before) :]
    assert sorted(str(command.event) for command in again) == sorted(str(command.event) for command in before)
    driver.run(40)
    driver.report(a_report())
    driver.run(40)
    assert driver.alive()


def test_a_deleted_node_is_purged_from_the_bus_and_forgotten(driver: Driver) -> None:
    driver.node()
    driver.report(a_report())
    driver.run(5)
    driver.rules.node_gone("n1", driver.now)
    driver.run(1)
    assert [command for _, command in driver.log if isinstance(command, PurgeNode)] == [PurgeNode(node="n1", device_types=("nvidia",))]
    assert driver.rules.inventory(driver.now, START) == ()


def test_what_the_bus_keeps_of_a_node_that_was_deleted_while_nobody_looked_is_purged_too(driver: Driver) -> None:
    driver.report(a_report("gone"))
    driver.run(61)
    assert [command.node for _, command in driver.log if isinstance(command, PurgeNode)] == ["gone"]


def test_a_purge_is_called_off_when_the_node_is_back(driver: Driver) -> None:
    driver.node()
    driver.report(a_report())
    driver.run(1)
    driver.rules.node_gone("n1", driver.now)
    driver.node()
    driver.run(5)
    assert not [command for _, command in driver.log if isinstance(command, PurgeNode)]


class TestFollowers:
    def follower(self) -> Driver:
        rules = Rules(Catalog().vendors)
        rules.nodes_synced()
        return Driver(rules)

    def test_a_follower_takes_the_leaders_verdict_and_keeps_it_when_it_leads(self) -> None:
        driver = self.follower()
        driver.node()
        driver.report(a_report())
        driver.rules.verdict_seen(LivenessChanged(node="n1", device_type="nvidia", alive=False, reason="silent"), 2, 0.0)
        driver.rules.take_over(0.0)
        driver.run(10)
        assert not driver.alive()
        assert driver.verdicts() == []

    def test_a_verdict_older_than_the_last_registration_does_not_count(self) -> None:
        driver = self.follower()
        driver.node()
        driver.rules.verdict_seen(LivenessChanged(node="n1", device_type="nvidia", alive=False, reason="silent"), 1, 0.0)
        driver.sequence = 1
        driver.report(a_report())
        driver.rules.take_over(0.0)
        driver.run(1)
        assert driver.alive()
        assert driver.verdicts() == [(0.0, True)]

    def test_a_new_leader_gives_everyone_a_fresh_minute(self) -> None:
        driver = self.follower()
        driver.node()
        driver.report(a_report())
        driver.now = 500.0
        driver.rules.take_over(500.0)
        driver.run(59)
        assert driver.alive()
        driver.run(2)
        assert not driver.alive()

    def test_a_late_verdict_of_the_leader_before_is_contradicted(self, driver: Driver) -> None:
        driver.node()
        driver.report(a_report())
        driver.run(1)
        driver.sequence += 1
        driver.rules.verdict_seen(LivenessChanged(node="n1", device_type="nvidia", alive=False, reason="late"), driver.sequence, driver.now)
        driver.run(1)
        assert driver.alive()
        assert [alive for _, alive in driver.verdicts()] == [True, True]


class TestThirdPartyPlugins:
    TEXT = "GPU-1,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true:"

    def plugin(self, driver: Driver, handshake: str = "", **kwargs: object) -> None:
        annotations = {keys.register("nvidia"): self.TEXT}
        if handshake:
            annotations[keys.handshake("nvidia")] = handshake
        driver.node(**kwargs, **annotations)  # type: ignore[arg-type]

    def test_its_devices_are_brought_to_the_bus_once(self, driver: Driver) -> None:
        self.plugin(driver)
        driver.run(5)
        self.plugin(driver)
        driver.run(5)
        published = [command.event for _, command in driver.log if isinstance(command, Publish)]
        (report,) = [event for event in published if isinstance(event, DevicesReported)]
        assert report.third_party
        assert report.devices[0].memory_mib == 32768

    def test_its_own_record_is_left_as_it_is(self, driver: Driver) -> None:
        self.plugin(driver)
        driver.run(50)
        assert driver.records() == []

    def test_it_is_asked_every_15_seconds(self, driver: Driver) -> None:
        self.plugin(driver)
        driver.run(50)
        assert driver.handshakes("Requesting") == [pytest.approx(at, abs=0.01) for at in (15, 30, 45)]
        assert driver.handshakes("Reported") == []

    def test_answers_keep_it_alive_and_silence_does_not(self, driver: Driver) -> None:
        def answer(second: int) -> None:
            if second % 30 == 0:
                self.plugin(driver, f"Reported 2026-01-01 00:00:{second % 60:02d}.000000000 +0000 UTC m=+{second}.0")

        driver.run(300, each_second=answer)
        assert driver.alive()
        driver.run(61)
        assert not driver.alive()

    def test_our_own_question_is_no_answer(self, driver: Driver) -> None:
        self.plugin(driver)

        def echo(second: int) -> None:
            driver.node()

        driver.run(61, each_second=echo)
        assert not driver.alive()

    def test_a_plugin_that_never_answers_lives_as_long_as_kubelet_has_its_devices(self, driver: Driver) -> None:
        self.plugin(driver, allocatable=["nvidia"])
        driver.run(300)
        assert driver.alive()
        self.plugin(driver)
        driver.run(1)
        assert not driver.alive()
        self.plugin(driver, allocatable=["nvidia"])
        driver.run(1)
        assert driver.alive()

    def test_a_record_that_cannot_be_read_raises_an_alarm_once_and_publishes_nothing(self, driver: Driver) -> None:
        for _ in range(3):
            driver.node(**{keys.register("nvidia"): "garbage:"})
            driver.run(5)
        (alarm,) = [command for _, command in driver.log]
        assert alarm.reason == "UnreadableRegistration"  # type: ignore[union-attr]
        assert "hami.io/node-nvidia-register" in alarm.message  # type: ignore[union-attr]
        assert driver.rules.inventory(driver.now, START) == ()

    def test_devices_that_only_the_capacity_counts_are_brought_to_the_bus_and_live_as_long_as_kubelet_has_them(
        self, driver: Driver
    ) -> None:
        node = Node(metadata=ObjectMeta(name="n1"), status=NodeStatus(capacity={"enflame.com/gcu": "2"}))
        said = device_record(Catalog().vendor("GCU"), node)
        assert said is not None
        driver.node(own={"gcu": said}, allocatable=["gcu"])
        driver.run(300)
        (view,) = driver.rules.inventory(driver.now, START)
        assert (view.device_type, view.alive, view.third_party) == ("gcu", True, True)
        assert [device.uuid for device in view.devices] == ["n1-GCU-0", "n1-GCU-1"]
        assert driver.records() == []
        driver.node()
        driver.run(61)
        assert not driver.rules.inventory(driver.now, START)[0].alive

    def test_a_vendor_s_own_list_that_cannot_be_read_raises_an_alarm(self, driver: Driver) -> None:
        node = Node(metadata=ObjectMeta(name="n1", annotations={"metax-tech.com/node-gpu-devices": "{"}))
        said = device_record(Catalog().vendor("Metax-SGPU"), node)
        assert said is not None
        driver.node(own={"metax-sgpu": said})
        driver.run(5)
        (alarm,) = [command for _, command in driver.log]
        assert "what the node says of its metax-sgpu devices cannot be read" in alarm.message  # type: ignore[union-attr]

    def test_our_agent_takes_over_from_it_and_it_from_our_agent(self, driver: Driver) -> None:
        self.plugin(driver)
        driver.run(1)
        driver.report(a_report(generation=7))
        driver.run(1)
        assert driver.annotations["n1"][keys.generation("nvidia")] == "7"
        driver.run(90)
        assert not driver.alive()
        self.plugin(driver)
        driver.run(1)
        assert driver.alive()
        driver.run(3)
        assert driver.annotations["n1"][keys.register("nvidia")] == self.TEXT
        assert keys.generation("nvidia") not in driver.annotations["n1"]


def test_a_record_of_our_agent_whose_report_the_bus_has_lost_still_expires(driver: Driver) -> None:
    driver.node(**{keys.register("nvidia"): TestThirdPartyPlugins.TEXT, keys.generation("nvidia"): "4"})
    driver.run(1)
    (view,) = driver.rules.inventory(driver.now, START)
    assert (view.generation, view.third_party) == (4, False)
    driver.run(61)
    assert not driver.alive()


@given(st.lists(st.sampled_from(["report", "node", "gone", "lost", "back", "verdict", "lead", "follow", "pass", "long"]), max_size=60))
def test_whatever_happens_a_node_that_has_just_registered_is_alive_and_one_is_never_expired_early(steps: list[str]) -> None:  # noqa: C901 - a step each
    rules = Rules(Catalog().vendors)
    rules.nodes_synced()
    driver = Driver(rules)
    last = 0.0
    for step in steps:
        match step:
            case "report":
                driver.report(a_report())
                last = driver.now
                assert driver.alive()
            case "node":
                driver.node()
            case "gone":
                rules.node_gone("n1", driver.now)
            case "lost":
                rules.source_lost("bus")
            case "back":
                rules.source_back("bus", driver.now)
            case "verdict" if not rules._leading:
                driver.sequence += 1
                rules.verdict_seen(LivenessChanged(node="n1", device_type="nvidia", alive=False, reason=""), driver.sequence, driver.now)
            case "lead":
                rules.take_over(driver.now)
            case "follow":
                rules.step_down()
            case "pass" | "long":
                before = {view.node: view.alive for view in rules.inventory(driver.now, START)}
                driver.run(7 if step == "pass" else 64)
                after = {view.node: view.alive for view in rules.inventory(driver.now, START)}
                if before.get("n1") and "n1" in after and not after["n1"]:
                    assert driver.now - last >= 60


def test_keys_are_ordered_by_node_then_type() -> None:
    assert Key("a", "nvidia") < Key("b", "mlu") < Key("b", "nvidia")


def test_a_report_with_an_id_that_no_record_can_carry_is_written_nowhere_and_said_once(driver: Driver) -> None:
    good = a_report()
    bad = msgspec.structs.replace(good, generation=2, devices=(msgspec.structs.replace(good.devices[0], uuid="0000:3b:00.0"),))
    driver.node()
    for _ in range(3):
        driver.report(bad)
        driver.run(1)
    assert [command.reason for _, command in driver.log if isinstance(command, RaiseAlarm)] == ["UnreadableRegistration"]
    assert keys.register("nvidia") not in driver.annotations["n1"]
    driver.report(msgspec.structs.replace(good, generation=3))
    driver.run(1)
    assert register_text(driver).startswith("GPU-n1,")
