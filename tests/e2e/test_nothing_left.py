"""Rigs run side by side, and whatever ends one, no process, socket or folder of it is left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hami_rig.kubectl import kubectl
from tests.e2e.conftest import World, a_pod, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

ONE_NODE = "nodes: [{name: alone, devices: {count: 1, device: {memory_mib: 8192, model: NVIDIA A10}}}]"
GONE_SECONDS = 15.0


def processes_of(folder: str) -> list[int]:
    """Processes that have the folder in their command line or environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            text = (path / "cmdline").read_bytes() + (path / "environ").read_bytes()
        except OSError:
            continue
        if folder.encode() in text:
            found.append(int(path.name))
    return found


def has_sockets(folder: Path) -> bool:
    """Whether there is a unix socket anywhere in the folder."""
    return any(path.is_socket() for path in folder.rglob("*"))


@asynccontextmanager
async def rig_up(profile: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, Any]]]:
    """`hami rig up` as a process, and where everything of it is."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hami_cli.main", "rig", "up", "--json", "--profile", str(profile),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(60):
            line = await process.stdout.readline()
        assert line, (await process.stderr.read()).decode()
        yield process, json.loads(line)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL], ids=lambda signum: signum.name)
async def test_a_second_rig_runs_beside_the_first_and_leaves_nothing(world: World, tmp_path: Path, signum: signal.Signals) -> None:
    profile = tmp_path / "one.yaml"
    profile.write_text(ONE_NODE)
    async with rig_up(profile) as (process, places):
        folder = Path(places["folder"])
        assert has_sockets(folder)
        assert len(processes_of(str(folder))) >= 8
        assert "alone" in await kubectl(Path(places["kubeconfig"]), "get", "nodes")
        assert "alone" not in await world.kubectl("get", "nodes")
        await apply_one_that_fits_and_one_that_does_not(places)
        assert "0/1 nodes fit" in await hami(places["kubeconfig"], "explain", "huge")
        assert "success     default/small on alone" in await hami(places["kubeconfig"], "events")
        process.send_signal(signum)
        status = await process.wait()
        assert status == (0 if signum is signal.SIGINT else -signal.SIGKILL)
        await eventually(lambda: not processes_of(str(folder)) and not folder.exists(), GONE_SECONDS)


async def hami(kubeconfig: str, *arguments: str) -> str:
    """The command line against a rig; KUBECONFIG alone leads to all of it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hami_cli.main", *arguments, stdout=asyncio.subprocess.PIPE, env={**os.environ, "KUBECONFIG": kubeconfig}
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode()


async def apply_one_that_fits_and_one_that_does_not(places: dict[str, Any]) -> None:
    path = Path(places["folder"]) / "pods.json"
    pods = [a_pod("small", mib=1024), a_pod("huge", mib=9000)]
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": pods}))
    kubeconfig = Path(places["kubeconfig"])
    await kubectl(kubeconfig, "apply", "-f", str(path))
    await kubectl(kubeconfig, "wait", "pod/small", "--for=jsonpath={.metadata.annotations.hami\\.io/bind-phase}=success", "--timeout=20s")


async def run_folder(folder: Path) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hami_cli.main", "rig", "run", str(folder), "--timeout", "20",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


async def test_a_folder_is_run_until_each_pod_is_where_it_should_be(tmp_path: Path) -> None:
    (tmp_path / "profile.yaml").write_text(ONE_NODE)
    pods = [
        a_pod("fits", mib=4096, annotations={"rig.hami.io/expect": "running"}),
        a_pod("does-not", mib=9000, annotations={"rig.hami.io/expect": "pending"}),
    ]
    (tmp_path / "pods.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": pods}))
    status, output = await run_folder(tmp_path)
    assert status == 0, output
    assert output.count("yes") == 2
