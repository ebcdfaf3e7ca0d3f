"""Whatever ends the harness, nothing of a cluster is left: no program, no container, no mount, no folder."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from pathlib import Path

import pytest

from tests.cluster.harness import building, janitor

pytestmark = pytest.mark.asyncio
SECONDS = 120.0
A_NODE_WITH_A_POD = """
import asyncio
from tests.cluster.harness import images
from tests.cluster.harness.control_plane import ControlPlane
from tests.cluster.harness.installation import write_images
from tests.cluster.harness.node import Node

POD = "/api/v1/namespaces/default/pods"
CONTAINER = {"name": "main", "image": images.BUSYBOX, "imagePullPolicy": "Never", "command": ["sleep", "100000"]}
SPEC = {"nodeName": "n1", "hostNetwork": True, "automountServiceAccountToken": False, "containers": [CONTAINER]}

async def main():
    async with ControlPlane(nodes=["n1"]) as plane, plane.session() as session:
        write_images(plane.folder / "images")
        node = Node(plane, "n1")
        try:
            await node.start()
            async with session.post(POD, json={"metadata": {"name": "one"}, "spec": SPEC}) as answer:
                assert answer.status == 201, await answer.text()
            phase = ""
            while phase != "Running":
                await asyncio.sleep(0.1)
                async with session.get(f"{POD}/one") as answer:
                    phase = (await answer.json())["status"].get("phase", "")
            print(plane.folder, flush=True)
            await asyncio.Event().wait()
        finally:
            await node.stop()

asyncio.run(main())
"""


def programs(folder: Path) -> list[str]:
    """Command lines of what was started for ``folder``."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in found if str(folder) in line]


def left(folder: Path, containers: set[str]) -> list[str]:
    """Whatever there still is."""
    parents = [hierarchy / "k8s.io" for hierarchy in (janitor.CGROUPS, *janitor.CGROUPS.iterdir())]
    cgroups = [str(parent / name) for parent in parents for name in containers if (parent / name).exists()]
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(folder) in line]
    return [*programs(folder), *cgroups, *mounts, *([str(folder)] if folder.exists() else [])]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "killed"])
async def test_nothing_is_left_of_a_node_with_a_pod(signum: signal.Signals) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", A_NODE_WITH_A_POD, cwd=building.ROOT, stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(SECONDS):
            folder = Path((await process.stdout.readline()).decode().strip())
        containers = janitor.containers(folder)
        assert len(containers) == 2, "the pod's sandbox and its container"
        assert len(programs(folder)) > 5
        process.send_signal(signum)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SECONDS):
                await process.wait()
                while left(folder, containers):  # noqa: ASYNC110 - the janitor tells nobody when it is done
                    await asyncio.sleep(0.1)
        assert left(folder, containers) == []
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
