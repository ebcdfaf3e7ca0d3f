"""From the Binding to a subscriber: how long after the scheduler said that a pod is bound does somebody who follows the log know it.

A rig of one node; the subscriber is this process, over NATS. Both clocks are this machine's, so the event's own time is the beginning.
``python -m benchmarks.bind_to_subscriber --pods 80``
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from datetime import UTC, datetime
from typing import Any

import msgspec

from benchmarks import _report
from hami_protocol import subjects
from hami_protocol.envelope import open_message
from hami_protocol.events import PodAllocating
from hami_rig import profile
from hami_rig.supervisor import Rig
from hami_runtime import logs
from hami_runtime.bus import jetstream
from hami_runtime.kube import http
from hami_runtime.kube.cluster import PODS

BETWEEN_SECONDS = 0.05
LONGEST_SECONDS = 120.0


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pods", type=int, default=80, help="one after the other; at most 80")
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    options = parser.parse_args()
    logs.configure("warning", "benchmark")
    asyncio.run(measure(options))


async def measure(options: argparse.Namespace) -> None:
    """Start a rig, create pods at a calm pace, and listen."""
    device = {"memory_mib": 81920, "model": "NVIDIA A100-SXM4-80GB"}
    group: dict[str, Any] = {"name": "node-1", "devices": {"count": 8, "device": device}, "pods": 1000}
    say = (lambda text: None) if options.json else (lambda text: print(text, file=sys.stderr))
    async with Rig(profile.parse(msgspec.json.encode({"nodes": [group]}).decode()), log_level="warning", say=say) as rig:
        listening = asyncio.create_task(listen(rig.nats_url, options.pods))
        async with http.connect(str(rig.kubeconfig)) as cluster:
            for number in range(options.pods):
                container = {"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4000}}}
                body = {"metadata": {"name": f"pod-{number}", "namespace": "default"}, "spec": {"containers": [container]}}
                await cluster.create(PODS, body, namespace="default")
                await asyncio.sleep(BETWEEN_SECONDS)
        samples = await listening
    _report.report("bind_to_subscriber", [_report.measurement("Binding to subscriber", samples, unit="ms")], as_json=options.json)


async def listen(nats_url: str, count: int) -> list[float]:
    """Milliseconds from each Binding until it was heard of."""
    samples: list[float] = []
    async with (
        asyncio.timeout(LONGEST_SECONDS),
        jetstream.connect(nats_url, name="benchmark") as bus,
        bus.consume(subjects.ALLOCATIONS, subjects=[subjects.ALL_GRANTS]) as deliveries,
    ):
        async for delivery in deliveries:
            now = datetime.now(UTC)
            if isinstance(open_message(delivery.message), PodAllocating):
                said = datetime.fromisoformat(delivery.message.headers["ce-time"])
                samples.append((now - said).total_seconds() * 1000)
            if len(samples) == count:
                break
    return samples


if __name__ == "__main__":
    main()
