"""``hami resize`` on a pod whose program runs under the real shim: it feels its new share at once, and keeps what it has."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest

from hami_protocol import assignment, subjects
from hami_protocol.envelope import open_message
from hami_protocol.events import NodeUsage
from hami_rig.supervisor import Rig
from hami_runtime.bus import jetstream
from tests.e2e.conftest import World, a_pod, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

ALLOCATED = "hami.io/vgpu-devices-allocated"
HOLD_500_AND_TRY_1000_MORE = (
    "said=$(mktemp); vgpu-alloc --mib 500 --hold-seconds -1 >$said & until [ -s $said ]; do sleep 0.05; done; rm $said; "
    "while :; do vgpu-alloc --mib 1000; echo; sleep 0.1; done"
)


async def hami_resize(world: World, *arguments: str) -> tuple[int, str]:
    """Exit code and all that the command says."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "hami_cli.main",
        "resize",
        *arguments,
        "--url",
        world.rig.scheduler_url,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


@pytest.mark.parametrize("pool", ["locked", "cdi"])
async def test_a_running_program_feels_its_new_share(world: World, pool: str) -> None:
    manifest = a_pod("elastic", mib=1000, pool=pool, annotations={"rig.hami.io/process": "true"})
    manifest["spec"]["containers"][0]["command"] = ["sh", "-c", HOLD_500_AND_TRY_1000_MORE]
    await world.apply(manifest)
    (pod,) = await world.running("elastic")
    log = world.rig.node_folder(pool).containers / pod.metadata.uid / "main.log"

    def tries() -> list[dict[str, int]]:
        lines = [line for line in log.read_text().splitlines() if line.startswith("{") and line.endswith("}")] if log.exists() else []
        return [said for line in lines if (said := json.loads(line))["asked_mib"] == 1000]

    async def tried(result: int, total_mib: int) -> None:
        """Return once the program has been told so again."""
        seen = len(tries())
        await eventually(lambda: any((said["result"], said["total_mib"]) == (result, total_mib) for said in tries()[seen:]), 15)

    await tried(2, 1000)
    before = await world.pod("elastic")
    code, said = await hami_resize(world, "elastic", "--memory-mib", "2000")
    assert code == 0, said
    assert "resized" in said
    await tried(0, 2000)
    grown = await world.until("elastic", lambda found: ",2000," in found.metadata.annotations[ALLOCATED])
    ((share,),) = assignment.decode_entries(grown.metadata.annotations[ALLOCATED])
    assert share.memory_mib == 2000

    code, said = await hami_resize(world, "elastic", "--memory-mib", "400")
    assert code == 1
    assert "MiB were asked for; accepted: at least" in said
    code, said = await hami_resize(world, "elastic", "--memory-mib", "40000")
    assert code == 1
    assert "for this pod, 40000 MiB were asked for" in said
    await tried(0, 2000)
    assert (await world.pod("elastic")).status.container_statuses == before.status.container_statuses  # nothing was restarted
    assert await uses(world.rig, pool, "elastic") >= 500


async def uses(rig: Rig, node: str, pod: str) -> int:
    """MiB that the node's agent has measured of a pod."""
    async with asyncio.timeout(20), jetstream.connect(rig.nats_url, name="test") as bus:
        await bus.wait_connected()
        while True:
            message = await bus.last(subjects.USAGE, subjects.usage(node))
            event = open_message(message) if message is not None else None
            if isinstance(event, NodeUsage):
                found = [one.devices[0].memory_used_mib for one in event.containers if one.pod.name == pod]
                if found and found[0]:
                    return found[0]
            await asyncio.sleep(0.5)
