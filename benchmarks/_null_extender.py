"""The ceiling for any extender: filter answers the next node at once, bind posts the Binding. It thinks nothing and remembers nothing.

``python -m benchmarks._null_extender --kubeconfig PATH --ready-file PATH``
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import itertools
import ssl
from pathlib import Path

import aiohttp
import msgspec
from aiohttp import web

from hami_runtime import lifecycle
from hami_runtime.http import serve_app

MAX_BODY_BYTES = 64 * 2**20
_turn = itertools.count()


def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--ready-file", required=True)
    options = parser.parse_args()
    lifecycle.run(serve(msgspec.yaml.decode(options.kubeconfig.read_bytes()), options.ready_file))


async def serve(kubeconfig: dict[str, list[dict[str, dict[str, str]]]], ready_file: str) -> None:
    """Answer kube-scheduler."""
    cluster, user = kubeconfig["clusters"][0]["cluster"], kubeconfig["users"][0]["user"]
    trust = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    headers = {"Authorization": f"Bearer {user['token']}"}
    async with aiohttp.ClientSession(cluster["server"], headers=headers, connector=aiohttp.TCPConnector(ssl=trust, limit=100)) as session:

        async def bind(request: web.Request) -> web.Response:
            asked = msgspec.json.decode(await request.read())
            metadata = {"name": asked["PodName"], "uid": asked["PodUID"]}
            body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": {"kind": "Node", "name": asked["Node"]}}
            path = f"/api/v1/namespaces/{asked['PodNamespace']}/pods/{asked['PodName']}/binding"
            async with session.post(path, json=body) as answer:
                text = await answer.text()
                return web.json_response({"Error": "" if answer.status == 201 else text})

        application = web.Application(client_max_size=MAX_BODY_BYTES)
        application.router.add_post("/filter", choose)
        application.router.add_post("/bind", bind)
        async with serve_app(application, "127.0.0.1", 0) as port:
            lifecycle.announce(ready_file, {"extender": port})
            await lifecycle.serve(_wait, grace_seconds=1)


async def choose(request: web.Request) -> web.Response:
    """The node whose turn it is."""
    names = msgspec.json.decode(await request.read())["NodeNames"]
    return web.json_response({"NodeNames": [names[next(_turn) % len(names)]], "Error": ""})


async def _wait(stop: asyncio.Event) -> None:
    await stop.wait()


if __name__ == "__main__":
    main()
