"""The heartbeats of many agents from one process: every node reports its cards on the bus, spread evenly over the protocol's interval.

``python -m benchmarks._heartbeats --nats URL --nodes 1000 --cards 8``
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from datetime import UTC, datetime

from benchmarks import _world
from hami_protocol import registration
from hami_protocol.devices import AllocationMode
from hami_protocol.envelope import seal
from hami_protocol.events import DevicesReported
from hami_runtime import lifecycle
from hami_runtime.bus import jetstream

INTERVAL_SECONDS = 30.0
GENERATION = 1
WIDTH = 32


def main() -> None:
    """Report until stopped."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nats", required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--cards", type=int, default=8)
    options = parser.parse_args()
    lifecycle.run(report(options.nats, options.nodes, options.cards))


async def report(url: str, nodes: int, cards: int) -> None:
    """Publish, round after round."""
    reports = []
    for node in _world.nodes(nodes, cards):
        devices = registration.decode(next(value for key, value in node.metadata.annotations.items() if key.endswith("-register")))
        mode = AllocationMode.CDI
        reports.append(
            DevicesReported(node=node.metadata.name, device_type="nvidia", generation=GENERATION, devices=devices, allocation_mode=mode)
        )
    async with jetstream.connect(url, name="agents") as bus:
        await bus.wait_connected()
        begin = time.monotonic()
        for count, (round_, event) in enumerate((number, each) for number in itertools.count() for each in reports):
            due = begin + count * INTERVAL_SECONDS / nodes
            if (wait := due - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
            await bus.publish(seal(event, event_id=f"{event.node}-{round_}", source="/hami/node-agent/benchmark", time=now))


if __name__ == "__main__":
    main()
