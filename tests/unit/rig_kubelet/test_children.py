"""A child that is to become a container's program is nothing else before: no thread of ours speaks into its log."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import asyncio, os, time
import hami_rig.kubelet.kubelet
import grpc.aio

def count() -> None:
    time.sleep(0.02)
    os.write(1, f"{len(os.listdir('/proc/self/task'))} ".encode())

async def main() -> None:
    server = grpc.aio.server()
    server.add_insecure_port("unix:" + os.environ["SOCKET"])
    await server.start()
    async with grpc.aio.insecure_channel("unix:" + os.environ["SOCKET"]) as channel:
        await channel.channel_ready()
        for _ in range(5):
            child = await asyncio.create_subprocess_exec("/bin/true", preexec_fn=count)
            await child.wait()
    await server.stop(None)

asyncio.run(main())
"""


def test_grpc_starts_no_thread_in_it(tmp_path: Path) -> None:
    environ = {"SOCKET": str(tmp_path / "s"), "PATH": "/usr/bin:/bin"}
    said = subprocess.run([sys.executable, "-c", SCRIPT], env=environ, capture_output=True, text=True, check=True, timeout=60)
    assert (said.stdout.split(), said.stderr) == (["1"] * 5, "")
