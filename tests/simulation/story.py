"""One run: a storm of users, faults and deaths, decided by the seed; then calm, in which everything must come right, and stay right.

After every step of the storm, and at every write in between, the watchdog's invariants hold. In the calm, within
``STUCK_SECONDS``: every pod that fits runs and its phase is ``success``, what does not fit is refused with the ledger exact,
no lock is left, and everything was published once, in order.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from hami_scheduler.placement.ledger import RESERVATION_SECONDS, InvariantError
from tests.simulation import replay, shapes
from tests.simulation.faults import Gone, Killed
from tests.simulation.settled import check_log, unsettled
from tests.simulation.storm import Storm
from tests.simulation.town import Town

STUCK_SECONDS = RESERVATION_SECONDS + 5.0
"""A reservation that filter made in the last moment of the storm, for a pod that is gone, lapses in that time."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run went."""

    seed: int
    violations: tuple[str, ...]
    seconds: float
    """Of virtual time."""
    digest: str
    """Of everything that happened; equal for equal runs."""
    log: tuple[str, ...] = field(default=(), repr=False)


def run(seed: int, *, with_log: bool = False) -> Outcome:
    """Play the story of ``seed`` in virtual time."""
    lines: list[str] = []
    raised: list[str] = []
    with (
        replay.captured_logs(lines if with_log else None, raised),
        replay.no_garbage_collection(),
        asyncio.Runner(loop_factory=replay.WatchfulLoop) as runner,
    ):
        return runner.run(_play(seed, lines if with_log else None, raised))


async def _play(seed: int, lines: list[str] | None, raised: list[str]) -> Outcome:
    town = Town(seed)
    await town.build()

    def unnoticed(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        failure = context.get("exception")
        if not isinstance(failure, Killed | Gone):
            town.watchdog.violated(f"{context['message']}: {failure!r}")

    asyncio.get_running_loop().set_exception_handler(unnoticed)
    running = asyncio.ensure_future(town.run())
    story = _Story(town)
    try:
        await story.tell()
    except InvariantError as exc:
        town.watchdog.violated(f"the ledger contradicts itself: {exc}")
    finally:
        running.cancel()
        failures = await asyncio.gather(running, return_exceptions=True)
    if not isinstance(failures[0], asyncio.CancelledError):
        town.watchdog.violated(f"the town ended by itself: {failures[0]!r}")
    return Outcome(
        seed=seed,
        violations=(*town.watchdog.violations, *raised),
        seconds=asyncio.get_running_loop().time(),
        digest=replay.digest(town),
        log=tuple(replay.log(town, lines)) if lines is not None else (),
    )


class _Story:
    """What happens, in order."""

    def __init__(self, town: Town) -> None:
        self.town = town
        self.chance = town.chance
        self.storm = Storm(town)

    async def tell(self) -> None:
        """Storm, calm, ordinary life, and the end of all pods."""
        for part in (self._storm, self._calm, self._ordinary_life, self._end):
            await part()
            if self._wrong():
                return

    async def _storm(self) -> None:
        await asyncio.sleep(self.chance.choice([0.0, 1.0, 15.0]))
        for _ in range(self.chance.choice([10, 20, 40])):
            await self.storm.act()
            await asyncio.sleep(self.chance.choice([0.0, 0.0, 0.01, 0.2, 1.0, 4.0]))
            if self._wrong():
                return

    async def _calm(self) -> None:
        self.storm.heal()
        await self._settled("after the storm")

    async def _ordinary_life(self) -> None:
        town = self.town
        failed = {uid for kubelet in town.kubelets.values() for uid in (*kubelet.rejected, *kubelet.swapped)}
        for number in range(3):
            await town.create(shapes.small_pod(f"calm-{number}"))
        await self._settled("in ordinary life")
        check_log(town)
        town.watchdog.check_running()
        for kubelet in town.kubelets.values():
            for uid, why in (kubelet.rejected | kubelet.swapped).items():
                if uid not in failed:
                    town.watchdog.violated(f"kubelet refused pod {uid} in ordinary life: {why}")

    async def _end(self) -> None:
        for seen in tuple(self.town.watchdog.pods.values()):
            await self.town.delete(seen.pod.metadata.name, grace_seconds=2)
        await self._settled("after the last pod")
        check_log(self.town)

    def _wrong(self) -> bool:
        loop = asyncio.get_running_loop()
        if isinstance(loop, replay.WatchfulLoop) and loop.spinning:
            self.town.watchdog.violated(loop.spinning)
        for supervisor in self.town.supervisors.values():
            if supervisor.ended:
                self.town.watchdog.violated(supervisor.ended)
        for process, scheduler in self.town.schedulers.values():
            if process.alive:
                scheduler.picture.state.validate()
        return bool(self.town.watchdog.violations)

    async def _settled(self, when: str) -> None:
        """Wait until nothing is left to be done; a violation if that takes too long from when everybody has been started again."""
        loop = asyncio.get_running_loop()
        while not all(supervisor.alive for supervisor in self.town.supervisors.values()):  # noqa: ASYNC110 - of many
            await asyncio.sleep(1.0)
        deadline = loop.time() + STUCK_SECONDS
        while (found := unsettled(self.town)) is not None:
            if loop.time() >= deadline:
                self.town.watchdog.violated(f"{STUCK_SECONDS:.0f} s {when}: {found}")
                return
            await asyncio.sleep(1.0)
        self.town.faults.tell(f"settled {when}")
