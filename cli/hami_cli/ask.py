"""Asks the scheduler's ``/v1`` over HTTP, and says in plain words what it answers instead of an answer.

Its place is a URL, or ``service://NAMESPACE/NAME:PORT``: then through the API server's service proxy, with the kubeconfig's login. The proxy takes
``Authorization`` for itself, so that the token that the service reviews goes in a header of its own: the user's, or else the kubeconfig's.
"""

from __future__ import annotations

import re
import ssl
from typing import NamedTuple

import aiohttp
import msgspec

from hami_cli.exits import CommandError
from hami_cli.places import SCHEDULER_URL, kubeconfig_path, place
from hami_runtime.kube.login import login
from hami_runtime.kube.readers import TOKEN_HEADER

SERVICE = "service://"
_SERVICE = re.compile(SERVICE + r"(?P<namespace>[a-z0-9-]{1,63})/(?P<name>[a-z0-9-]{1,63}):(?P<port>[a-z0-9-]{1,63})")
TIMEOUT_SECONDS = 70.0
"""Longer than the scheduler itself takes for its longest answer."""


class Scheduler(NamedTuple):
    """Where the scheduler is, and who asks it."""

    url: str
    token: str
    kubeconfig: str
    context: str


def scheduler(url: str, token: str, kubeconfig: str, context: str) -> Scheduler:
    """The scheduler, as the user said; where he said nothing that of the rig, or of the cluster."""
    return Scheduler(place("scheduler_url", url, SCHEDULER_URL), token, kubeconfig, context)


class _Way(NamedTuple):
    base: str
    headers: dict[str, str]
    tls: ssl.SSLContext | bool = True
    server_name: str | None = None
    proxy: str | None = None


async def get(asked: Scheduler, path: str) -> bytes:
    """The body of the answer to a GET.

    Raises:
        CommandError: it is an error; the text says which.
    """
    return await _asked("GET", asked, path, None)


async def post(asked: Scheduler, path: str, body: bytes) -> bytes:
    """The body of the answer to a POST of JSON.

    Raises:
        CommandError: it is an error; the text says which.
    """
    return await _asked("POST", asked, path, body)


async def _asked(method: str, asked: Scheduler, path: str, body: bytes | None) -> bytes:
    url = asked.url
    way = await _through_api_server(asked) if url.startswith(SERVICE) else _straight(asked)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS, connect=10)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.request(
                method,
                way.base + path,
                headers={"Content-Type": "application/json"} | way.headers,
                data=body,
                ssl=way.tls,
                server_hostname=way.server_name,
                proxy=way.proxy,
            ) as answer,
        ):
            content = await answer.read()
    except (aiohttp.ClientError, TimeoutError, ValueError) as exc:
        raise CommandError(f"{url}: {str(exc) or type(exc).__name__}") from exc
    if not answer.ok:
        raise CommandError(f"{url}: {answer.status}: {_reason(content)}")
    return content


def _straight(asked: Scheduler) -> _Way:
    return _Way(asked.url.rstrip("/"), {"Authorization": f"Bearer {asked.token}"} if asked.token else {})


async def _through_api_server(asked: Scheduler) -> _Way:
    """The API server's proxy to the service, which speaks TLS of its own making to it.

    Raises:
        CommandError: the place names no service.
        ClusterError: there is no kubeconfig to go by.
    """
    match = _SERVICE.fullmatch(asked.url)
    if match is None:
        raise CommandError(f"--url {asked.url}: no service; accepted: {SERVICE}NAMESPACE/NAME:PORT, or a URL")
    account = await login(kubeconfig_path(asked.kubeconfig), asked.context or None)
    authorization = await account.authorization()
    token = asked.token or authorization.removeprefix("Bearer ")
    headers = {"Authorization": authorization} if authorization else {}
    return _Way(
        f"{account.server}/api/v1/namespaces/{match['namespace']}/services/https:{match['name']}:{match['port']}/proxy",
        headers | ({TOKEN_HEADER: token} if token else {}),
        account.tls or True,
        account.server_name,
        account.proxy,
    )


def _reason(content: bytes) -> str:
    try:
        return str(msgspec.json.decode(content, type=dict[str, str])["error"])
    except (msgspec.DecodeError, KeyError):
        return content.decode(errors="replace")[:500]
