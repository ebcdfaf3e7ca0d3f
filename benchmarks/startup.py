"""From the start of the scheduler's process to ready, against an API server that holds a full cluster, and the memory that it takes then.

The API server is the development one, in this process: its time to write out the lists is in the figure.
``python -m benchmarks.startup --nodes 10000 --cards 8 --pods 40000``
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import aiohttp
import msgspec

from benchmarks import _report, _world
from hami_rig.apiserver import ApiServer
from hami_runtime import lifecycle
from hami_runtime.kube.store_resources import NODES, PODS

LONGEST_SECONDS = 120.0
LOOK_SECONDS = 0.02


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--cards", type=int, default=8)
    parser.add_argument("--pods", type=int, default=40_000)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    options = parser.parse_args()
    lifecycle.run(measure(options))


async def measure(options: argparse.Namespace) -> None:
    """Start the scheduler some times, one after the other."""
    async with ApiServer() as server:
        for node in _world.nodes(options.nodes, options.cards):
            server.store.create(NODES, body(node))
        for pod in _world.placed_pods(options.pods, options.nodes, options.cards):
            server.store.create(PODS, body(pod), "default")
        found = [await start(server) for _ in range(options.starts)]
    where = f"{options.nodes} nodes x {options.cards} cards, {options.pods} pods"
    _report.report(
        "startup",
        [
            _report.measurement(f"start to ready, {where}", [each.seconds for each in found], unit="s"),
            _report.measurement(f"scheduler memory, {where}", [each.memory_mib for each in found], unit="MiB"),
        ],
        as_json=options.json,
    )


class Started(NamedTuple):
    """What a start took."""

    seconds: float
    processor_seconds: float
    memory_mib: float
    """Resident, once it is ready."""


async def start(server: ApiServer, *, longest_seconds: float = LONGEST_SECONDS) -> Started:
    """Start the scheduler once, and stop it when it is ready."""
    with tempfile.TemporaryDirectory() as folder:
        kubeconfig, ready_file = Path(folder, "kubeconfig"), Path(folder, "ports")
        kubeconfig.write_text(server.kubeconfig)  # noqa: ASYNC240 - nothing else goes on in this process
        environ = {key: value for key, value in os.environ.items() if not key.startswith("HAMI_")}
        environ |= {
            "HAMI_KUBECONFIG": str(kubeconfig),
            "HAMI_READY_FILE": str(ready_file),
            "HAMI_NATS_URL": "nats://127.0.0.1:9",
            "HAMI_LOG_LEVEL": "error",
        }
        started = time.perf_counter()
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", "from hami_scheduler.main import main; main()", env=environ)
        try:
            async with asyncio.timeout(longest_seconds), aiohttp.ClientSession() as session:
                while not await _ready(session, ready_file):  # noqa: ASYNC110 - another process's readiness
                    await asyncio.sleep(LOOK_SECONDS)
            return Started(time.perf_counter() - started, _processor_seconds(process.pid), _resident_mib(process.pid))
        finally:
            process.terminate()
            await process.wait()


async def _ready(session: aiohttp.ClientSession, ready_file: Path) -> bool:
    port = _health_port(ready_file)
    if not port:
        return False
    async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
        return answer.status == 200


def _health_port(ready_file: Path) -> int:
    return msgspec.json.decode(ready_file.read_bytes(), type=dict[str, int])["health"] if ready_file.exists() else 0


def _processor_seconds(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def body(item: object) -> dict[str, object]:
    """An object as it is created."""
    made: dict[str, object] = msgspec.to_builtins(item)
    metadata = made["metadata"]
    assert isinstance(metadata, dict)
    for name in ("uid", "resourceVersion"):
        metadata.pop(name, None)
    return made


if __name__ == "__main__":
    main()
