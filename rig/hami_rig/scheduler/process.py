"""The stand-in as a process: arguments, wiring, run. Decides nothing."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp

from hami_rig.scheduler import configuration
from hami_rig.scheduler.configuration import ConfigurationError, SchedulerConfiguration
from hami_rig.scheduler.extender import Extender, HttpTransport
from hami_rig.scheduler.stand_in import KubeScheduler
from hami_runtime import lifecycle, logs
from hami_runtime.clock import SystemClock
from hami_runtime.kube import http

GRACE_SECONDS = 3.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until a signal."""
    parser = argparse.ArgumentParser(
        prog="hami rig kube-scheduler",
        description="Schedule pods as kube-scheduler does, with the extender that the configuration names.",
        epilog="example: hami rig kube-scheduler --config deploy/kube-scheduler.yaml --kubeconfig ./kubeconfig",
    )
    parser.add_argument("--config", type=Path, required=True, help="a KubeSchedulerConfiguration, YAML")
    parser.add_argument("--kubeconfig", default=os.environ.get("KUBECONFIG", ""), help="default: $KUBECONFIG")
    parser.add_argument("--log-level", default="info", choices=logs.LEVELS)
    options = parser.parse_args(arguments)
    logs.configure(options.log_level, "kube-scheduler")
    try:
        config = configuration.load(options.config.read_text())
    except (OSError, ConfigurationError) as exc:
        sys.exit(f"hami rig kube-scheduler: {options.config}: {exc}")
    lifecycle.run(run(config, options.kubeconfig))


async def run(config: SchedulerConfiguration, kubeconfig: str) -> None:
    """Connect and schedule."""
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(http.connect(kubeconfig, user_agent="kube-scheduler"))
        extender = None
        if config.extenders:
            session = await stack.enter_async_context(aiohttp.ClientSession())
            extender = Extender(config.extenders[0], HttpTransport(session, config.extenders[0].url_prefix))
        scheduler = KubeScheduler(cluster, SystemClock(), config, extender, rng=random.Random())  # noqa: S311 - order of nodes, not a secret

        async def announce(stop: asyncio.Event) -> None:
            lifecycle.announce(os.environ.get("HAMI_READY_FILE", ""), {})
            await stop.wait()

        await lifecycle.serve(scheduler.run, announce, grace_seconds=GRACE_SECONDS)
