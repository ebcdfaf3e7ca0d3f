"""One run: a storm of users, faults and deaths, decided by the seed; then calm, in which everything must come right, and stay right.

After every step of the storm, and at every write in between, the watchdog's invariants hold. In the calm, within 30 s: every pod that fits runs and
says so, what does not fit is refused with the ledger exact, no lock is left, and everything that was to be said has been said once, in order.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import structlog

from hami_protocol import keys, registration, subjects
from hami_protocol.envelope import MESSAGE_ID, open_message
from hami_protocol.events import AssignmentLapsed, LivenessChanged, PodAllocating, PodAssigned, PodReleased
from hami_protocol.pods import is_terminal
from hami_runtime.kube.store_resources import NODES
from hami_runtime.virtual import VirtualLoop
from hami_scheduler.placement import Phase, Placement
from hami_scheduler.placement.ledger import InvariantError
from hami_scheduler.service import Scheduler
from tests.simulation import shapes
from tests.simulation.faults import Gone, Killed
from tests.simulation.town import CATALOG, Town
from tests.simulation.watchdog import GRANTS_IN_ORDER, Seen

STUCK_SECONDS = 30.0
TURNS_AT_ONCE = 50_000
MOST_PODS = 30
MOST_WAITING = 5
"""So many wait at once: whoever waits is judged again at every change, which is most of a run's work."""


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
        _quiet_logs(lines if with_log else None, raised),
        _no_garbage_collection(),
        asyncio.Runner(loop_factory=_Loop) as runner,
    ):
        return runner.run(_play(seed, lines if with_log else None, raised))


class _Loop(VirtualLoop):
    """A virtual loop that notices when somebody is busy without any time going by, and then lets it go by, so that the run comes to an end.

    Attributes:
        spinning: who was busy; empty while all is well.
    """

    def __init__(self) -> None:
        super().__init__()
        self.spinning = ""
        self._turns = 0
        self._since = -1.0

    def _run_once(self) -> None:
        if self.time() > self._since:
            self._since, self._turns = self.time(), 0
        self._turns += 1
        if self._turns > TURNS_AT_ONCE:
            self.spinning = self.spinning or f"{TURNS_AT_ONCE} turns of the loop at {self.time():.3f} s, of {_awaiting(self)}"
            self._jump(0.1)
        super()._run_once()  # type: ignore[misc]  # of asyncio's, under every loop of it


def _awaiting(loop: asyncio.AbstractEventLoop) -> str:
    """What the tasks that are ready wait in."""
    found: Counter[str] = Counter()
    for handle in loop._ready:  # type: ignore[attr-defined]
        task = getattr(handle._callback, "__self__", None)
        if isinstance(task, asyncio.Task):
            names: list[str] = []
            coroutine: Any = task.get_coro()
            while coroutine is not None and hasattr(coroutine, "cr_code"):
                names.append(coroutine.cr_code.co_qualname)
                coroutine = coroutine.cr_await
            found[" > ".join(names)] += 1
    return str(found)


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
        digest=_digest(town),
        log=tuple(_log(town, lines)) if lines is not None else (),
    )


class _Story:
    """What happens, in order."""

    def __init__(self, town: Town) -> None:
        self.town = town
        self.chance = town.chance
        self.created = 0
        self._outages: set[asyncio.Task[None]] = set()

    async def tell(self) -> None:
        """Storm, calm, ordinary life, and the end of all pods."""
        for part in (self._storm, self._calm, self._ordinary_life, self._end):
            await part()
            if self._wrong():
                return

    async def _storm(self) -> None:
        await asyncio.sleep(self.chance.choice([0.0, 1.0, 15.0]))
        for _ in range(self.chance.choice([10, 20, 40])):
            await self._act()
            await asyncio.sleep(self.chance.choice([0.0, 0.0, 0.01, 0.2, 1.0, 4.0]))
            if self._wrong():
                return

    async def _calm(self) -> None:
        self._heal()
        await self._settled("after the storm")

    async def _ordinary_life(self) -> None:
        town = self.town
        failed = {uid for kubelet in town.kubelets.values() for uid in (*kubelet.rejected, *kubelet.swapped)}
        for number in range(3):
            await town.create(shapes.small_pod(f"calm-{number}"))
        await self._settled("in ordinary life")
        _check_log(town)
        town.watchdog.check_running()
        for kubelet in town.kubelets.values():
            for uid, why in (kubelet.rejected | kubelet.swapped).items():
                if uid not in failed:
                    town.watchdog.violated(f"kubelet refused pod {uid} in ordinary life: {why}")

    async def _end(self) -> None:
        for seen in tuple(self.town.watchdog.pods.values()):
            await self.town.delete(seen.pod.metadata.name, grace_seconds=2)
        await self._settled("after the last pod")
        _check_log(self.town)

    def _wrong(self) -> bool:
        loop = asyncio.get_running_loop()
        if isinstance(loop, _Loop) and loop.spinning:
            self.town.watchdog.violated(loop.spinning)
        for supervisor in self.town.supervisors.values():
            if supervisor.ended:
                self.town.watchdog.violated(supervisor.ended)
        for process, scheduler in self.town.schedulers.values():
            if process.alive:
                scheduler.picture.state.validate()
        return bool(self.town.watchdog.violations)

    # The storm

    async def _act(self) -> None:
        town, chance = self.town, self.chance
        match chance.choices(range(10), weights=(30, 5, 8, 4, 14, 5, 5, 4, 4, 3))[0]:
            case 0:
                await self._arrive(1)
            case 1:
                await self._arrive(chance.choice([3, 8]))
            case 2:
                await self._delete()
            case 3:
                await self._recreate()
            case 4:
                self._kill()
            case 5:
                self._outage(chance.choice([0.5, 5.0, 20.0]), "the bus", town.bus.down, town.bus.up)
            case 6:
                self._outage(chance.choice([0.5, 5.0, 20.0]), "the API server", town.api_down, town.api_up)
            case 7:
                self._cut_off()
            case 8:
                town.faults.tell("all watches break")
                town.break_watches()
            case _:
                self._skew_or_sicken()

    async def _arrive(self, count: int) -> None:
        for _ in range(count):
            waiting = sum(not seen.node and not is_terminal(seen.pod) for seen in self.town.watchdog.pods.values())
            if waiting >= MOST_WAITING or self.created >= MOST_PODS:
                return
            self.created += 1
            await self.town.create(shapes.pod(self.chance, f"p{self.created}"))

    def _someone(self) -> Seen | None:
        found = list(self.town.watchdog.pods.values())
        return self.chance.choice(found) if found else None

    async def _delete(self) -> None:
        if (seen := self._someone()) is not None:
            await self.town.delete(seen.pod.metadata.name, grace_seconds=self.chance.choice([None, None, 0, 1]))

    async def _recreate(self) -> None:
        """A namesake follows at once, as a StatefulSet's does."""
        if (seen := self._someone()) is not None:
            name = seen.pod.metadata.name
            await self.town.delete(name, grace_seconds=0)
            await self.town.create(shapes.pod(self.chance, name))

    def _kill(self) -> None:
        supervisor = self.chance.choice(list(self.town.supervisors.values()))
        supervisor.longest_pause_seconds = self.chance.choice([0.0, 3.0, 3.0, 20.0])
        if supervisor.process is not None and self.chance.random() < 0.7:
            supervisor.process.light_fuse(self.chance.randrange(12))
        else:
            supervisor.kill()

    def _outage(self, seconds: float, what: str, down: Any, up: Any) -> None:
        self.town.faults.tell(f"{what} is away for {seconds} s")
        down()
        self._later(seconds, up)

    def _cut_off(self) -> None:
        town, supervisor = self.town, self.chance.choice(list(self.town.supervisors.values()))
        process = supervisor.process
        if process is None:
            return
        api, bus = self.chance.choice([(True, False), (False, True), (True, True)])
        seconds = self.chance.choice([1.0, 8.0, 25.0])
        town.faults.tell(f"{process.name} is cut off from {'the API server ' * api}{'the bus' * bus} for {seconds} s")
        town.cut_off(process, api=api, bus=bus)
        self._later(seconds, lambda: town.link(process))

    def _later(self, seconds: float, undo: Any) -> None:
        async def later() -> None:
            await asyncio.sleep(seconds)
            undo()

        task = asyncio.ensure_future(later())
        self._outages.add(task)
        task.add_done_callback(self._outages.discard)

    def _skew_or_sicken(self) -> None:
        town, chance = self.town, self.chance
        if chance.random() < 0.5:
            supervisor = chance.choice(list(town.supervisors.values()))
            supervisor.clock.skew = timedelta(seconds=chance.choice([-3600, -600, -30, 0, 30, 600, 3600]))
            town.faults.tell(f"{supervisor.name}'s clock is off by {supervisor.clock.skew}")
            return
        node = chance.choice(town.nodes)
        card = chance.choice(node.profile.devices)
        if chance.random() < 0.5:
            town.hardware[node.name].raise_xid(card.uuid or "", chance.choice([13, 79]))
        else:
            town.sicken(node.name, card.uuid or "", healthy=False)
            self._later(chance.choice([1.0, 20.0]), lambda: town.sicken(node.name, card.uuid or "", healthy=True))

    # The calm

    def _heal(self) -> None:
        town = self.town
        for outage in self._outages:
            outage.cancel()
        town.faults.active = False
        town.bus.up()
        town.api_up()
        for supervisor in town.supervisors.values():
            if supervisor.process is not None:
                town.link(supervisor.process)
                supervisor.process.light_fuse(10**12)
        for node in town.nodes:
            town.hardware[node.name].become(node.profile)
        town.faults.tell("the storm is over")

    async def _settled(self, when: str) -> None:
        """Wait until nothing is left to be done; a violation if that takes too long from when everybody has been started again."""
        loop = asyncio.get_running_loop()
        while not all(supervisor.alive for supervisor in self.town.supervisors.values()):  # noqa: ASYNC110 - of many
            await asyncio.sleep(1.0)
        deadline = loop.time() + STUCK_SECONDS
        while (unsettled := _unsettled(self.town)) is not None:
            if loop.time() >= deadline:
                self.town.watchdog.violated(f"{STUCK_SECONDS:.0f} s {when}: {unsettled}")
                return
            await asyncio.sleep(1.0)
        self.town.faults.tell(f"settled {when}")


def _unsettled(town: Town) -> str | None:
    """What is not yet as it must come to be; None where all is well."""
    scheduler = town.leader
    if scheduler is None:
        return "no scheduler leads"
    for seen in town.watchdog.pods.values():
        if (why := _pod_unsettled(town, scheduler, seen)) is not None:
            return f"{seen.pod.metadata.name} {why}"
    if (why := _ledger_differs(town, scheduler)) is not None:
        return why
    for node in town.nodes:
        if (why := _node_unsettled(town, node.name)) is not None:
            return f"{node.name} {why}"
    if (why := _untold(town)) is not None:
        return why
    pending = {name: agent.outbox.pending for name, agent in town.agents.items() if agent.outbox.pending}
    if pending or scheduler._outbox.pending:
        return f"not said yet: {pending}, by the scheduler {scheduler._outbox.pending}"
    return None


def _pod_unsettled(town: Town, scheduler: Scheduler, seen: Seen) -> str | None:
    pod = seen.pod
    if is_terminal(pod):
        return None
    if pod.metadata.deletion_timestamp is not None:
        return "is still being deleted"
    if seen.node:
        if pod.metadata.uid in town.kubelets[seen.node].swapped:  # it must never start, and its node must not wait for it
            return None if seen.phase in {"success", "failed"} else f"was answered for another pod, and its phase is {seen.phase!r}"
        if seen.allocated and seen.phase != "success":
            return f"is on {seen.node} and its phase is {seen.phase!r}"
        return None if pod.status.phase == "Running" else f"is on {seen.node} and is {pod.status.phase}: {pod.status.container_statuses}"
    if pod.metadata.uid in town.watchdog.hopeless:
        return None
    request = CATALOG.read_pod(pod)
    if not request.asks:
        return "asks for nothing and is not bound"
    names = [node.name for node in town.nodes]
    found = scheduler.picture.state.judge(request, names, uid=pod.metadata.uid)
    return f"fits on {found.node} and is not bound" if isinstance(found, Placement) else None


def _ledger_differs(town: Town, scheduler: Scheduler) -> str | None:
    """The ledger is exactly what the API objects add up to."""
    state = scheduler.picture.state
    state.validate()
    entered = {entry.pod.uid: entry for entry in state.entries()}
    if loose := [entry for entry in entered.values() if entry.phase not in {Phase.BOUND, Phase.SHRUNK}]:
        return f"{loose[0].pod} is only {loose[0].phase} in the ledger"
    charged = {uid for uid, seen in town.watchdog.pods.items() if seen.charge is not None}
    if charged != entered.keys():
        return f"the ledger has {sorted(entered)}, the API server {sorted(charged)}"
    for node in town.nodes:
        for held in state.devices(node.name):
            used = (held.used_shares, held.used_memory_mib, held.used_cores)
            truth = town.watchdog.used.get((node.name, held.device.uuid), (0, 0, 0))
            if used != truth:
                return f"{held.device.uuid}: the ledger has {used} in use, the API server {truth}"
    return None


def _node_unsettled(town: Town, name: str) -> str | None:
    annotations = town.store.get(NODES, name).body["metadata"].get("annotations") or {}
    if keys.NODE_LOCK in annotations:
        return f"is locked: {annotations[keys.NODE_LOCK]}"
    devices = town.agents[name].devices.registered
    registered = annotations.get(keys.register("nvidia"))
    if registered is None or registration.decode(registered) != devices:
        return f"registers {registered}"
    known = town.kubelets[name].ledger.resources.get(shapes.GPU)
    if known is None or known.unhealthy or not all(device.healthy for device in devices):
        return f"has sick cards, or kubelet thinks so: {known}"
    kept = [open_message(message) for message in town.bus.kept(subjects.DEVICES)]
    alive = [event.alive for event in kept if isinstance(event, LivenessChanged) and event.node == name]
    return None if alive == [True] else f"is alive: {alive}"


def _untold(town: Town) -> str | None:
    """What the log of allocations still says wrongly of a pod, taken as a whole: whether it holds something."""
    last: dict[str, str] = {}
    granted: set[str] = set()
    for event in _allocations(town):
        if (letter := _LETTERS.get(type(event))) is not None:
            last[event.pod.uid] = letter
            if letter == "G":
                granted.add(event.pod.uid)
    for uid, letter in last.items():
        seen = town.watchdog.pods.get(uid)
        if letter not in ("LR" if seen is None or seen.charge is None else "G"):
            return f"the log's last word on {uid} ({seen and seen.pod.metadata.name}) is {letter}"
    for uid, seen in town.watchdog.pods.items():
        if seen.charge is not None and uid not in granted:
            return f"{seen.pod.metadata.name} ({uid}) holds {seen.allocated}, and its grant was never said"
    return None


def _check_log(town: Town) -> None:
    """Everything has been said once, and by the scheduler in order."""
    messages = town.bus.kept(subjects.ALLOCATIONS)
    ids = [message.headers[MESSAGE_ID] for message in messages]
    if len(set(ids)) != len(ids):
        town.watchdog.violated(f"said twice: {sorted(each for each in set(ids) if ids.count(each) > 1)}")
    told: dict[str, str] = {}
    answered: set[str] = set()
    for message, event in zip(messages, _allocations(town), strict=True):
        if message.subject.endswith(".grant"):
            told[event.pod.uid] = told.get(event.pod.uid, "") + _LETTERS[type(event)]
            if isinstance(event, PodAllocating) and event.pod.uid in answered:
                town.watchdog.violated(f"{event.pod}: granted behind the outcome")
        else:
            answered.add(event.pod.uid)
    for uid, letters in told.items():
        if not GRANTS_IN_ORDER.fullmatch(letters):
            town.watchdog.violated(f"{uid}: assigned, lapsed, granted, released in the order {letters}")


def _allocations(town: Town) -> list[Any]:
    return [open_message(message) for message in town.bus.kept(subjects.ALLOCATIONS)]


_LETTERS: dict[type, str] = {PodAssigned: "A", AssignmentLapsed: "L", PodAllocating: "G", PodReleased: "R"}


# The record


def _digest(town: Town) -> str:
    digest = hashlib.sha256()
    for line in town.faults.told:
        digest.update(line.encode())
    for _, change in town.changes:
        digest.update(change.now.json)
    for stream in subjects.STREAMS:
        for message in town.bus.kept(stream):
            digest.update(f"{message.subject} {message.headers.get(MESSAGE_ID)}".encode() + message.data)
    return digest.hexdigest()


def _log(town: Town, lines: list[str]) -> Iterator[str]:
    entries = [*town.faults.told, *lines]
    for time, change in town.changes:
        if change.resource.plural in ("leases", "events"):
            continue
        metadata = change.now.body["metadata"]
        annotations = {key: value for key, value in (metadata.get("annotations") or {}).items() if "hami.io/" in key}
        status, spec = change.now.body.get("status") or {}, change.now.body.get("spec") or {}
        about = {
            "uid": metadata["uid"][:8],
            "rv": metadata["resourceVersion"],
            "node": spec.get("nodeName"),
            "phase": status.get("phase"),
            "deleted": metadata.get("deletionTimestamp"),
            **annotations,
        }
        told = " ".join(f"{key}={value}" for key, value in about.items() if value)
        entries.append(f"{time:9.3f} {change.type} {change.resource.plural}/{metadata['name']} {told}")
    return iter(sorted(entries, key=lambda line: float(line[:9])))


@contextmanager
def _quiet_logs(lines: list[str] | None, raised: list[str]) -> Iterator[None]:
    """Keep what the services log, or drop it before it costs anything; what they did not expect goes to ``raised``."""

    def keep(_logger: object, level: str, event: dict[str, Any]) -> Any:
        traceback = ""
        if event.get("exc_info"):
            traceback = str(structlog.processors.ExceptionRenderer()(None, "", dict(event)).get("exception", ""))
            raised.append(f"{event['event']}: {traceback.splitlines()[-1]}")
        if lines is not None:
            now = f"{asyncio.get_running_loop().time():9.3f}"
            about = " ".join(f"{key}={value}" for key, value in event.items() if key not in {"event", "exc_info"})
            lines.extend(f"{now}   {line}" for line in (f"{level}: {event['event']} {about}", *traceback.splitlines()))
        raise structlog.DropEvent

    before = structlog.get_config()
    level = logging.ERROR if lines is None else logging.DEBUG
    structlog.configure(processors=[keep], wrapper_class=structlog.make_filtering_bound_logger(level))
    try:
        yield
    finally:
        structlog.configure(**before)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Collected between runs: in the middle it would close generators at moments that differ from process to process."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
