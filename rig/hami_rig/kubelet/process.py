"""Kubelets as a process: arguments, wiring, run. SIGHUP restarts the device managers of all nodes, as restarts of kubelet would."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hami_rig import profile
from hami_rig.kubelet import cards
from hami_rig.kubelet.kubelet import Fleet, Kubelet, NodeFolder
from hami_rig.profile import Profile, ProfileError
from hami_runtime import lifecycle, logs
from hami_runtime.clock import SystemClock
from hami_runtime.kube import http

GRACE_SECONDS = 3.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until a signal."""
    parser = argparse.ArgumentParser(
        prog="hami rig kubelet",
        description="Be the kubelets of all nodes of a profile: device plugins register with them, and pods that are bound to them start.",
        epilog="example: hami rig kubelet --nodes 3 --kubeconfig ./kubeconfig --folder ./nodes",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--profile", type=Path, help="the nodes, YAML; default: three nodes")
    which.add_argument("--nodes", type=int, help="the default profile with so many nodes")
    parser.add_argument("--kubeconfig", default=os.environ.get("KUBECONFIG", ""), help="default: $KUBECONFIG")
    parser.add_argument("--folder", type=Path, help="where each node has a folder with its sockets; default: a new temporary one")
    parser.add_argument("--log-level", default="info", choices=logs.LEVELS)
    options = parser.parse_args(arguments)
    logs.configure(options.log_level, "kubelet")
    try:
        nodes = profile.of_nodes(options.nodes) if options.nodes else profile.read(options.profile)
    except ProfileError as exc:
        sys.exit(f"hami rig kubelet: {exc}")
    folder = options.folder or Path(tempfile.mkdtemp(prefix="hami-kubelet-"))
    asyncio.run(run(nodes, options.kubeconfig, folder))


async def run(nodes: Profile, kubeconfig: str, folder: Path) -> None:
    """Connect and be the kubelets."""
    for node in nodes.expanded():
        place = NodeFolder(folder / node.name)
        if not place.device_profile.exists():
            await cards.write(place, node)
    async with http.connect(kubeconfig, user_agent="kubelet") as cluster:
        clock = SystemClock()
        kubelets = [
            Kubelet(cluster, clock, node.description, NodeFolder(folder / node.name), rng=random.Random())  # noqa: S311 - no secret
            for node in nodes.expanded()
        ]
        fleet = Fleet(cluster, clock, kubelets)
        restarted = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, restarted.set)

        async def restart(stop: asyncio.Event) -> None:
            while not await _either(restarted, stop):
                restarted.clear()
                await fleet.restart()

        async def announce(stop: asyncio.Event) -> None:
            await asyncio.gather(*(each.ready.wait() for each in kubelets))
            lifecycle.announce(os.environ.get("HAMI_READY_FILE", ""), {})
            await stop.wait()

        await lifecycle.serve(fleet.run, restart, announce, grace_seconds=GRACE_SECONDS)


async def _either(first: asyncio.Event, stop: asyncio.Event) -> bool:
    """Wait for one of both; whether it is ``stop``."""
    waits = [asyncio.ensure_future(each.wait()) for each in (first, stop)]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for each in waits:
        each.cancel()
    return stop.is_set()
