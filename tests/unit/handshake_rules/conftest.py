"""A registry's rules driven by hand: time is a number, and every command is carried out at once unless a test says otherwise."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

import pytest

from hami_devices.catalog import Catalog
from hami_devices.registrations import DeviceRecord
from hami_protocol import keys
from hami_protocol.devices import RegisteredDevice
from hami_protocol.events import DevicesReported, LivenessChanged
from hami_registry.commands import Command, Key, Outcome, PatchNode, Publish
from hami_registry.rules import NodeSeen, Rules

START = datetime(2026, 1, 1, tzinfo=UTC)


def a_report(node: str = "n1", *, generation: int = 1, memory_mib: int = 24576, **fields: object) -> DevicesReported:
    device = RegisteredDevice(uuid=f"GPU-{node}", shares=10, memory_mib=memory_mib, cores=100, type="NVIDIA-A10")
    return DevicesReported(node=node, device_type="nvidia", generation=generation, devices=(device,), **fields)  # type: ignore[arg-type]


class Driver:
    """What the shell does, without it: ``log`` has (second, command) of everything carried out."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.now = 0.0
        self.sequence = 0
        self.version = 0
        self.annotations: dict[str, dict[str, str]] = defaultdict(dict)
        self.log: list[tuple[float, Command]] = []
        self.outcome: Callable[[Command], Outcome] = lambda _: Outcome.DONE

    def node(
        self,
        name: str = "n1",
        *,
        allocatable: Iterable[str] = (),
        own: Mapping[str, DeviceRecord] = MappingProxyType({}),
        **annotations: str,
    ) -> None:
        self.version += 1
        self.annotations[name].update(annotations)
        seen = NodeSeen(
            name=name, version=str(self.version), annotations=self.annotations[name], allocatable=frozenset(allocatable), own=own
        )
        self.rules.node_seen(seen, self.now)

    def report(self, event: DevicesReported) -> None:
        self.sequence += 1
        self.rules.reported(event, str(self.sequence), self.now)

    def run(self, seconds: float, *, each_second: Callable[[int], None] | None = None) -> None:
        """Let time pass, second by second, and carry out what comes due."""
        end = self.now + seconds
        tick = 0
        while True:
            if each_second is not None and self.now == int(self.now):
                each_second(tick)
                tick += 1
            self.step()
            if self.now >= end:
                return
            due = self.rules.next_due(self.now)
            later = min(end, float(int(self.now) + 1))
            self.now = later if due is None else min(later, max(due, self.now + 1e-3))

    def step(self) -> list[Command]:
        commands = self.rules.due(self.now, START + timedelta(seconds=self.now))
        for command in commands:
            outcome = self.outcome(command)
            if outcome is Outcome.DONE:
                self.log.append((self.now, command))
                self._apply(command)
            self.rules.settle(command, outcome, self.now, sequence=self.sequence)
        return commands

    def _apply(self, command: Command) -> None:
        if isinstance(command, PatchNode):
            for key, value in command.annotations.items():
                if value is None:
                    self.annotations[command.key.node].pop(key, None)
                else:
                    self.annotations[command.key.node][key] = value
        elif isinstance(command, Publish):
            self.sequence += 1

    def handshakes(self, word: str, node: str = "n1") -> list[float]:
        return [at for at, command in self.log if isinstance(command, PatchNode) and command.word == word and command.key.node == node]

    def records(self, node: str = "n1") -> list[tuple[float, dict[str, str | None]]]:
        return [
            (at, command.annotations)
            for at, command in self.log
            if isinstance(command, PatchNode) and command.word is None and command.key.node == node
        ]

    def verdicts(self, node: str = "n1") -> list[tuple[float, bool]]:
        return [
            (at, command.event.alive)
            for at, command in self.log
            if isinstance(command, Publish) and isinstance(command.event, LivenessChanged) and command.event.node == node
        ]

    def alive(self, node: str = "n1") -> bool:
        return next(view.alive for view in self.rules.inventory(self.now, START) if Key(view.node, view.device_type) == Key(node, "nvidia"))


@pytest.fixture
def driver() -> Driver:
    rules = Rules(Catalog().vendors)
    rules.nodes_synced()
    rules.take_over(0.0)
    return Driver(rules)


def register_text(driver: Driver, node: str = "n1") -> str:
    return driver.annotations[node][keys.register("nvidia")]
