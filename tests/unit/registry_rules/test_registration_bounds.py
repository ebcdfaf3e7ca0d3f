"""What one node's agent can make the registry keep and write."""

from __future__ import annotations

from datetime import UTC, datetime

from hami_devices.catalog import Catalog
from hami_protocol.devices import RegisteredDevice
from hami_protocol.events import DevicesReported
from hami_registry.commands import Command, Outcome, PatchNode, RaiseAlarm
from hami_registry.rules import MOST_DEVICES, NodeSeen, Rules

UTC_NOW = datetime(2026, 1, 1, tzinfo=UTC)


def a_report(device_type: str = "nvidia", *, devices: int = 1, generation: int = 1, name: str = "A10") -> DevicesReported:
    listed = tuple(RegisteredDevice(uuid=f"GPU-{n}", shares=10, memory_mib=1000, cores=100, type=name) for n in range(devices))
    return DevicesReported(node="n1", device_type=device_type, generation=generation, devices=listed)


def leading() -> Rules:
    rules = Rules(Catalog().vendors)
    rules.node_seen(NodeSeen(name="n1", version="1", annotations={}, allocatable=frozenset()), 0.0)
    rules.nodes_synced()
    rules.take_over(0.0)
    return rules


def due(rules: Rules, now: float) -> list[Command]:
    return rules.due(now, UTC_NOW)


def test_device_types_that_nobody_has_are_refused_and_told_once() -> None:
    rules = leading()
    for number in range(3000):
        rules.reported(a_report(f"invented-{number % 5}"), f"m{number}", 1.0)
    found = due(rules, 2.0)
    assert [type(each) for each in found] == [RaiseAlarm] * 5
    assert all("accepted: nvidia" in each.message for each in found if isinstance(each, RaiseAlarm))
    assert due(rules, 100.0) == []
    assert rules.inventory(100.0, UTC_NOW) == ()


def test_too_many_devices_or_a_record_that_is_too_large_is_refused_and_what_was_there_stays() -> None:
    rules = leading()
    rules.reported(a_report(), "first", 1.0)
    for number, report in enumerate(
        (a_report(devices=MOST_DEVICES + 1, generation=2), a_report(devices=1000, generation=3, name="A" * 200))
    ):
        rules.reported(report, f"m{number}", 2.0)
    (view,) = rules.inventory(3.0, UTC_NOW)
    assert (view.generation, len(view.devices)) == (1, 1)
    assert len([each for each in due(rules, 3.0) if isinstance(each, RaiseAlarm)]) == 1


def test_a_node_whose_record_the_api_server_refuses_is_tried_ever_more_rarely() -> None:
    rules = leading()
    tried: list[float] = []
    for second in range(1, 3601):
        now = float(second)
        if second % 20 == 1:  # each report with another content
            rules.reported(a_report(generation=second), f"m{second}", now)
        for command in due(rules, now):
            record = isinstance(command, PatchNode) and command.word is None
            if record:
                tried.append(now)
            rules.settle(command, Outcome.RETRY if record else Outcome.DONE, now)
    assert len(tried) < 3600 / 20 / 2
    rules.reported(a_report(generation=9999), "good", 3700.0)
