"""The demo: a rig of three nodes, and the way of a few pods through it, step by step, for somebody who has never seen HAMi.

Each step shows something and checks it. What was shown is written to a JSON file as well; what does not hold ends the demo with the reason, what the
programs said last, and a non-zero exit status. Non-interactive, and under a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hami_protocol import assignment, events, keys, subjects
from hami_protocol.envelope import open_message
from hami_protocol.event_line import event_line
from hami_protocol.kubernetes import Node, Pod
from hami_rig import profile, project
from hami_rig.kubectl import KubectlFailed, kubectl
from hami_rig.processes import ProcessFailed
from hami_rig.supervisor import Rig
from hami_rig.watching import NeverSeen, PodHistory
from hami_runtime.bus import jetstream
from hami_runtime.bus.port import BusError, Delivery
from hami_runtime.kube import http
from hami_runtime.kube.cluster import NODES, Cluster, ClusterError

ALLOCATED = "hami.io/vgpu-devices-allocated"
TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"
SHOWN_POD_KEYS = (keys.BIND_PHASE, keys.BIND_TIME, keys.ASSIGNED_NODE, ALLOCATED, TO_ALLOCATE)
REGISTRATION = re.compile(r"(GPU-[0-9a-f-]{36},\d+,\d+,\d+,[^,:;]+,\d+,(true|false):)+")
HANDSHAKE = re.compile(r"Reported[ _]\d{4}-\d\d-\d\d \d\d:\d\d:\d\d.*|Requesting_\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
ASSIGNMENT = re.compile(r"(GPU-[0-9a-f-]{36},NVIDIA,\d+,\d+:;)+")
WAIT_SECONDS = 30.0
MIN_WIDTH = 110
"""Columns that a table needs to show a card's whole name."""
SHARES = ("share-a", "share-b", "share-c")


class DemoFailed(Exception):  # noqa: N818 - reads as the condition it names
    """Something that the demo shows does not hold."""


class Demo:
    """One run."""

    def __init__(self, rig: Rig, cluster: Cluster, examples: Path, console: Console) -> None:
        self._rig = rig
        self._cluster = cluster
        self._examples = examples
        self._console = console
        self._history = PodHistory()
        self._step = 0
        self.facts: dict[str, Any] = {}

    async def run(self) -> None:
        """Tell the whole story.

        Raises:
            DemoFailed, NeverSeen, KubectlFailed, ClusterError, BusError: something does not hold.
        """
        following = asyncio.create_task(self._history.follow(self._cluster))
        try:
            await self._nodes()
            await self._first_share()
            await self._limit_holds()
            await self._three_shares()
            await self._too_big()
            await self._replay()
            await self._release()
            await self._handshake()
        finally:
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError, ClusterError):
                await following
        self._summary()

    async def _nodes(self) -> None:
        self._title(
            "Three nodes report their cards", "Each node's agent says on the bus what it has; the registry writes it onto the Node."
        )
        name = self._rig.nodes[0].name
        node = await self._node_when(name, lambda each: keys.handshake("nvidia") in each.metadata.annotations)
        annotations = node.metadata.annotations
        registration, shake = annotations[keys.register("nvidia")], annotations[keys.handshake("nvidia")]
        self._show(f"node {name}, annotations", {keys.handshake("nvidia"): shake, keys.register("nvidia"): registration})
        self._check(REGISTRATION.fullmatch(registration), "the registration is `uuid,count,memory,cores,type,numa,health:` for each card")
        self._check(
            HANDSHAKE.fullmatch(shake), "the handshake is `Reported <time>`, or `Requesting_<time>` while the registry waits for a report"
        )
        await self._kubectl("get", "nodes", "-L", "gpu")
        gpus = (node.status.allocatable or {}).get("nvidia.com/gpu")
        self._console.print(f"   kubelet counts [bold]nvidia.com/gpu: {gpus}[/] on {name}: ten shares of each of its cards")
        self.facts["node"] = {"name": name, "register": registration, "handshake": shake, "allocatable": gpus}

    async def _first_share(self) -> None:
        self._title("A pod asks for 3000 MiB of one card", "Nothing in its image changes; the limits are all there is to write.")
        await self._apply("first-share.yaml")
        created = await self._seen("first-share", lambda pod: not pod.spec.node_name, "created")
        self._check(not set(created.metadata.annotations) & set(SHOWN_POD_KEYS), "before scheduling there is no assignment")
        self._console.print(f"   admitted: the webhook set [bold]schedulerName: {created.spec.scheduler_name}[/]; no assignment yet")
        bound = await self._seen("first-share", lambda pod: bool(pod.spec.node_name), "bound")
        self._show("after the Binding, which carries the assignment", self._of(bound))
        self._check(bound.metadata.annotations.get(keys.BIND_PHASE) == "allocating", "bind-phase is `allocating` at the Binding")
        for key in (ALLOCATED, TO_ALLOCATE):
            self._check(ASSIGNMENT.fullmatch(bound.metadata.annotations.get(key, "")), f"{key} is `uuid,NVIDIA,MiB,cores:;`")
        done = await self._seen("first-share", lambda pod: pod.metadata.annotations.get(keys.BIND_PHASE) == "success", "allocated")
        self._show("after Allocate: nothing left to allocate", self._of(done))
        self._check(done.metadata.annotations[TO_ALLOCATE] == ";", "devices-to-allocate is emptied to `;`")
        await self._seen("first-share", _runs, "running")
        given = self._given(done)
        self._show("what the container was started with", _shown(given))
        limit = given["env"].get("CUDA_DEVICE_MEMORY_LIMIT_0")
        self._check(limit == "3000m", "the container's limit is the 3000 MiB that were booked")
        self.facts["first_share"] = {
            "before": self._of(created),
            "bound": self._of(bound),
            "allocated": self._of(done),
            "given": given,
        }

    async def _limit_holds(self) -> None:
        if project.find(project.SHIM) is None:
            self._console.print("\n   [dim]The shim is not built, so no program is held to its share here: make build/cshim/libvgpu.so[/]")
            return
        self._title(
            "The limit holds",
            "A real process, the real shim, a driver that is fake: 2000 MiB in pieces of 100, in a container that was given 1000.",
        )
        await self._apply("enforced.yaml")
        pod = await self._seen("enforced", _runs, "running")
        said = await self._said(pod)
        self._console.print(f"   the program says: {escape(said)}", highlight=False)
        result = json.loads(said)
        self._check(result["allocated_mib"] <= 1000 < result["asked_mib"], "the program got no more than the 1000 MiB that were booked")
        self._check(result["total_mib"] == 1000, "and takes its share for the whole card")
        self.facts["enforced"] = result

    async def _said(self, pod: Pod) -> str:
        """The first line of JSON that the pod's program has printed."""
        path = self._rig.node_folder(pod.spec.node_name).containers / pod.metadata.uid / "main.log"
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while True:
                    for line in path.read_text().splitlines() if path.exists() else ():
                        if line.startswith("{"):
                            return line
                    await asyncio.sleep(0.05)
        except TimeoutError as exc:
            raise DemoFailed(f"the program in {pod.metadata.name} has said nothing after {WAIT_SECONDS:.0f} s") from exc

    async def _three_shares(self) -> None:
        self._title(
            "Three pods share one card", "8 GiB and a quarter of the compute each; `binpack` fills a card before it opens the next."
        )
        await self._apply("three-shares.yaml")
        for name in SHARES:
            await self._seen(name, lambda pod: _runs(pod) and pod.metadata.annotations.get(keys.BIND_PHASE) == "success", "running")
        rows = [self._row(self._history.of(name)[-1]) for name in SHARES]
        table = Table("pod", "node", "card", "MiB", "cores %", box=None, pad_edge=False, padding=(0, 3, 0, 0))
        for row in rows:
            table.add_row(row["pod"], row["node"], row["card"], str(row["memory_mib"]), str(row["cores"]))
        self._console.print(table)
        self._check(len({row["card"] for row in rows}) == 1, "all three are on the same card")
        self.facts["three_shares"] = rows

    async def _too_big(self) -> None:
        self._title("One that fits nowhere says why", "48 GiB of one card, where every card has 32 GiB.")
        await self._apply("too-big.yaml")
        refused = await self._seen("too-big", lambda pod: _scheduled_reason(pod) == "Unschedulable", "refused")
        condition = next(each for each in refused.status.conditions or () if each.type == "PodScheduled")
        self._show("its condition PodScheduled", {"reason": condition.reason, "message": condition.message})
        explanation = await self._explain("too-big")
        self._show("hami explain too-big", {"summary": explanation["summary"], "reasons": explanation["reasons"]})
        self._check(explanation["summary"], "there is an explanation")
        said = await kubectl(self._rig.kubeconfig, "get", "events", "--field-selector", "involvedObject.name=too-big", "-o", "json")
        notes = sorted({f"{item['reason']}: {item['message']}" for item in json.loads(said)["items"]})
        for note in notes:
            self._console.print(f"   event  {escape(note)}")
        self._check(notes, "there is an Event that says why")
        self.facts["too_big"] = {"condition": condition.message, "explanation": explanation, "events": notes}

    async def _replay(self) -> None:
        self._title(
            "The log of what was granted, from its beginning",
            "Anyone can follow it: nats sub 'hami.v1.allocations.>', hami events, ten lines of Python.",
        )
        log = []
        async with self._events() as deliveries:
            async for delivery in deliveries:
                event = open_message(delivery.message)
                log.append({"sequence": delivery.sequence, "event": msgspec.to_builtins(event)})
                self._console.print(f"   {delivery.sequence:>3}  {escape(event_line(event))}", highlight=False)
                if delivery.pending == 0:
                    break
        succeeded = {entry["event"]["pod"]["name"] for entry in log if entry["event"]["type"] == "allocation_succeeded"}
        self._check(succeeded >= {"first-share", *SHARES}, "every pod's grant and its success are in the log")
        self.facts["log"] = log

    async def _release(self) -> None:
        self._title("A deleted pod gives its share back", "")
        await self._kubectl("delete", "pod", "share-c", "--wait=false")
        async with self._events() as deliveries:
            async for delivery in deliveries:
                event = open_message(delivery.message)
                if isinstance(event, events.PodReleased) and event.pod.name == "share-c":
                    self._console.print(f"   {delivery.sequence:>3}  {escape(event_line(event))}", highlight=False)
                    break
        self.facts["released"] = "share-c"

    async def _handshake(self) -> None:
        self._title(
            "The registry asks each node whether it is still there", "Every 15 s; a node that has not answered for 60 s gets no new pods."
        )
        key = keys.handshake("nvidia")
        node = await self._node_when(self._rig.nodes[0].name, lambda each: each.metadata.annotations[key].startswith("Requesting_"))
        self._show(f"node {node.metadata.name}, annotation", {key: node.metadata.annotations[key]})
        self._check(HANDSHAKE.fullmatch(node.metadata.annotations[key]), "the handshake is `Requesting_<time>`")
        self.facts["node"]["requesting"] = node.metadata.annotations[key]

    def _summary(self) -> None:
        table = Table(
            "pod", "phase", "node", "card", "MiB", "cores %", title="What is where", title_justify="left", title_style="bold", box=None
        )
        rows = []
        for name in ("first-share", "share-a", "share-b", "too-big"):
            pod = self._history.of(name)[-1]
            row = {"phase": pod.status.phase, **(self._row(pod) if pod.spec.node_name else {"pod": name})}
            rows.append(row)
            table.add_row(*(str(row.get(column, "-")) for column in ("pod", "phase", "node", "card", "memory_mib", "cores")))
        self._console.print()
        self._console.print(table)
        self.facts["pods"] = rows

    @asynccontextmanager
    async def _events(self) -> AsyncIterator[AsyncIterator[Delivery]]:
        """The log of allocations, from its beginning."""
        async with (
            asyncio.timeout(WAIT_SECONDS),
            jetstream.connect(self._rig.nats_url, name="hami-demo") as bus,
            bus.consume(subjects.ALLOCATIONS, subjects=[subjects.ALL_ALLOCATIONS]) as deliveries,
        ):
            yield deliveries

    async def _explain(self, pod: str) -> dict[str, Any]:
        url = f"{self._rig.scheduler_url}/v1/explain/default/{pod}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            content = await answer.read()
            if answer.status != 200:
                raise DemoFailed(f"GET {url} answered {answer.status}: {content.decode(errors='replace')[:500]}")
            explanation: dict[str, Any] = msgspec.json.decode(content)
            return explanation

    async def _node_when(self, name: str, holds: Callable[[Node], bool]) -> Node:
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while True:
                    node = await self._cluster.get(NODES, name)
                    if holds(node):
                        return node
                    await asyncio.sleep(0.1)
        except TimeoutError as exc:
            raise DemoFailed(f"node {name} has not registered after {WAIT_SECONDS:.0f} s") from exc

    async def _seen(self, name: str, holds: Callable[[Pod], bool], what: str) -> Pod:
        return await self._history.seen(name, holds, what=what, timeout_seconds=WAIT_SECONDS)

    async def _apply(self, file: str) -> None:
        await self._kubectl("apply", "-f", str(self._examples / file), shown=f"apply -f examples/{file}")

    async def _kubectl(self, *arguments: str, shown: str = "") -> None:
        self._console.print(f"   [dim]$ kubectl {shown or ' '.join(arguments)}[/]")
        output = await kubectl(self._rig.kubeconfig, *arguments)
        for line in output.splitlines():
            self._console.print(f"   {escape(line)}", highlight=False)

    def _given(self, pod: Pod) -> dict[str, Any]:
        path = self._rig.node_folder(pod.spec.node_name).containers / pod.metadata.uid / "main.json"
        given: dict[str, Any] = json.loads(path.read_text())["given"]
        return given

    def _row(self, pod: Pod) -> dict[str, Any]:
        ((share, *_), *_) = assignment.decode_entries(pod.metadata.annotations[ALLOCATED])
        return {
            "pod": pod.metadata.name,
            "node": pod.spec.node_name,
            "card": share.uuid,
            "memory_mib": share.memory_mib,
            "cores": share.cores,
        }

    def _of(self, pod: Pod) -> dict[str, str]:
        return {key: pod.metadata.annotations[key] for key in SHOWN_POD_KEYS if key in pod.metadata.annotations}

    def _title(self, title: str, text: str) -> None:
        self._step += 1
        self._console.print(f"\n[bold cyan]{self._step}. {title}[/]")
        if text:
            self._console.print(f"   {escape(text)}", style="italic")

    def _show(self, title: str, values: dict[str, Any]) -> None:
        self._console.print(f"   [bold]{title}[/]")
        for key, value in values.items():
            self._console.print(f"     [green]{escape(key)}[/]: {escape(str(value))}", highlight=False, soft_wrap=True)

    def _check(self, holds: object, what: str) -> None:
        if not holds:
            raise DemoFailed(f"this does not hold: {what}")
        self._console.print(f"   [green]✓[/] {escape(what)}", highlight=False)


async def run(output: Path, *, examples: Path | None = None, console: Console | None = None) -> int:
    """Run the demo; the exit status."""
    console = console or Console(soft_wrap=True, width=max(Console().width, MIN_WIDTH))
    started = time.monotonic()
    facts: dict[str, Any] = {}
    rig: Rig | None = None
    tails: dict[str, str] = {}
    problem = ""
    console.print("[bold]HAMi in Python[/]: pods share accelerators, on a cluster that is only processes on this machine.")
    try:
        folder = examples or examples_folder()
        rig = Rig(
            profile.read(),
            say=lambda text: console.print(f"   [dim]{time.monotonic() - started:5.1f} s[/]  {escape(text)}", highlight=False),
        )
        async with rig, http.connect(str(rig.kubeconfig)) as cluster:
            demo = Demo(rig, cluster, folder, console)
            try:
                await demo.run()
            finally:
                facts = demo.facts
                tails = {name: process.log_tail() for name, process in rig.processes.items()}
    except (DemoFailed, NeverSeen, KubectlFailed, ClusterError, BusError, ProcessFailed, TimeoutError) as exc:
        problem = str(exc) or type(exc).__name__
    seconds = round(time.monotonic() - started, 1)
    _write(output, {"ok": not problem, "problem": problem, "seconds": seconds, **facts})
    if problem:
        for name, tail in tails.items():
            console.print(f"\n[bold]{name}[/] said last:\n{escape(tail)}", highlight=False)
        console.print(f"\n[bold red]The demo failed:[/] {escape(problem)}", highlight=False)
        return 1
    console.print(
        f"\n[bold green]Done[/] in {seconds} s. The same facts are in {output}. Next: .venv/bin/hami rig up, and docs/first-pod.md."
    )
    return 0


def _write(output: Path, facts: dict[str, Any]) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(facts, indent=2) + "\n")


def examples_folder() -> Path:
    """The project's ``examples``.

    Raises:
        DemoFailed: they are not there.
    """
    folder = project.find(project.EXAMPLES)
    if folder is None:
        raise DemoFailed("the folder examples is not found; start the demo in the project's folder, or name it with --examples")
    return folder


def _runs(pod: Pod) -> bool:
    return pod.status.phase == "Running"


def _scheduled_reason(pod: Pod) -> str:
    return next((each.reason or "" for each in pod.status.conditions or () if each.type == "PodScheduled"), "")


def _shown(given: dict[str, Any]) -> dict[str, str]:
    shown = {name: value for name, value in sorted(given["env"].items()) if name.startswith(("CUDA_", "NVIDIA_", "GPU_", "HAMI_"))}
    for mount in given["mounts"]:
        shown[f"mount {mount['containerPath']}"] = f"{mount['hostPath']} ({','.join(mount.get('options') or ())})"
    return shown
