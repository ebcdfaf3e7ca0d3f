"""``python -m hami_rig.apiserver``: one development API server as a process of its own."""

import argparse
import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from hami_rig.apiserver.server import ApiServer
from hami_rig.apiserver.settings import ApiServerSettings


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(
        prog="python -m hami_rig.apiserver",
        description="A Kubernetes API server for development: in memory, without authorization. Never use it for anything else.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0 takes a free one (default: %(default)s)")
    parser.add_argument("--kubeconfig", type=Path, help="file to write a kubeconfig to")
    parser.add_argument("--nodes-folder", type=Path, help="folder of the kubelets' folders, for `kubectl logs`")
    given = parser.parse_args(arguments)
    settings = ApiServerSettings(host=given.host, port=given.port, nodes_folder=given.nodes_folder)
    asyncio.run(_run(settings, given.kubeconfig))


async def _run(settings: ApiServerSettings, kubeconfig_path: Path | None) -> None:
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    async with ApiServer(settings) as server:
        if kubeconfig_path is not None:
            await asyncio.to_thread(_write_private, kubeconfig_path, server.kubeconfig)
        print(json.dumps({"url": server.url}), flush=True)
        await stop.wait()


def _write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, all of it or nothing."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with contextlib.closing(os.fdopen(descriptor, "w")) as file:
        file.write(text)
    beside.replace(path)


if __name__ == "__main__":
    main()
