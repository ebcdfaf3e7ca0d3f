"""What docker-compose.yml starts, each service's exact command and environment, places a pod."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
import yaml

from hami_protocol import keys
from hami_protocol.kubernetes import Pod
from hami_rig.kubectl import kubectl
from tests import debian
from tests.e2e.compose import composed
from tests.e2e.compose.composed import Composed

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[3]
NOT_STARTED = {"grafana"}
"""No registry of packages has Grafana: that its files fit the others is looked at in test_file.py."""
TRIES = 300


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Composed]:
    folder = tmp_path_factory.mktemp("compose")
    services = composed.read(ROOT, folder, network=random.randrange(1, 255))
    programs = {**services.programs, "prometheus": debian.program("prometheus", "prometheus")}
    services = replace(services, programs=programs)
    try:
        await services.up(name for name in services.services if name not in NOT_STARTED)
        yield services
    finally:
        await services.down()


async def test_a_pod_is_placed_on_a_node_of_each_mode(running: Composed) -> None:
    kubeconfig = Path(running.environment("shell")["KUBECONFIG"])
    for name, node in (("cdi", "node-a"), ("envvar", "node-b")):
        manifest = yaml.safe_load((ROOT / "examples" / "first-share.yaml").read_text())
        manifest["metadata"]["name"] = name
        manifest["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
        path = running.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(manifest))
        await kubectl(kubeconfig, "apply", "-f", str(path))
        for _ in range(TRIES):
            pod = msgspec.json.decode(await kubectl(kubeconfig, "get", "pod", name, "-o", "json"), type=Pod)
            if pod.status.phase == "Running" and pod.metadata.annotations.get(keys.BIND_PHASE) == "success":
                break
            await asyncio.sleep(0.1)
        assert pod.spec.node_name == node
        assert pod.metadata.annotations.get(keys.BIND_PHASE) == "success", pod


async def test_every_service_goes_on(running: Composed) -> None:
    assert not [process.obituary() for process in running.processes.values() if not process.pid]
    for name, service in running.services.items():
        if name not in NOT_STARTED and "healthcheck" in service:
            await running.healthy(name)


async def test_the_shell_finds_everything(running: Composed) -> None:
    environ = {**os.environ, **running.environment("shell"), "COLUMNS": "200"}
    hami = running.programs["hami"]
    url = ["--url", f"http://{running.address('shell')}:8080"]  # the default is this machine's own loopback
    for command in (["top"], ["events"], ["explain", "cdi", *url]):
        process = await asyncio.create_subprocess_exec(
            hami, *command, env=environ, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        said, _ = await process.communicate()
        assert process.returncode == 0, said.decode()
        assert "cdi" in said.decode() or "node-a" in said.decode()
