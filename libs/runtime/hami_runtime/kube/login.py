"""Where the API server is and who we are for it: a kubeconfig (tokens, client certificates, exec plugins) or a pod's service account.

What files say is read by us, a token's file again as somebody rotates it. Plugins and auth providers are kubernetes-asyncio's to ask. That package
makes a class for every type of the API when it is imported, about 37 MiB, so that it is imported only where somebody must be asked.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
import urllib.request
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from urllib.parse import urlsplit

import yaml
from msgspec import Struct

from hami_runtime import pem_file
from hami_runtime.kube.cluster import ClusterError
from hami_runtime.kube.kubeconfig import Account, Pem, TokenFile, from_files

TOKEN_HEADER = "X-Hami-Token"  # noqa: S105 - a header's name
"""Where a service's proxy takes ``Authorization`` for itself, the token that the service reviews."""
_TOKEN = "BearerToken"  # noqa: S105 - the name that kubernetes-asyncio keeps it under
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


def _unreadable() -> tuple[type[Exception], ...]:
    """What is raised on files that are no kubeconfig, and on plugins that fail."""
    config = sys.modules.get("kubernetes_asyncio.config")
    own = (config.ConfigException,) if config is not None else ()
    return (*own, OSError, ValueError, TypeError, AssertionError, AttributeError, yaml.YAMLError)


class _Source(Struct, frozen=True, kw_only=True):
    kubeconfig: str | None
    context: str | None
    service_account: str


class Login:
    """An API server's address and our identity there.

    Attributes:
        server: its URL, without a final slash.
        tls: how to speak to it, None where it is plain HTTP.
        server_name: the name that its certificate must have, None for that of the URL.
        proxy: URL of a proxy, None for none: the kubeconfig's, else what ``HTTPS_PROXY``, ``HTTP_PROXY`` and ``NO_PROXY`` say at the start.
    """

    def __init__(self, account: Account, source: _Source) -> None:
        self.server = account.server.rstrip("/")
        self.tls = _tls(account) if self.server.startswith("https") else None
        self.server_name = account.server_name or None
        self.proxy = account.proxy or proxy_of(self.server)
        self._account = account
        self._source = source
        self._renewing = asyncio.Lock()

    async def authorization(self) -> str:
        """The value of the ``Authorization`` header, empty for none."""
        try:
            return await self._account.authorization()
        except _unreadable() as exc:
            raise ClusterError(f"our own token cannot be read: {exc}") from exc

    async def renew(self, refused: str) -> bool:
        """Look for another identity than ``refused``, which the API server does not accept (any more); whether there is one."""
        async with self._renewing:
            if await self.authorization() != refused:
                return True  # somebody else has renewed it meanwhile
            self._account = await _account_of(self._source)
            return await self.authorization() != refused


def proxy_of(server: str) -> str | None:
    """The proxy that the environment names for ``server``. Read once: to ask for it at every request costs more than the request."""
    url = urlsplit(server)
    return None if urllib.request.proxy_bypass(url.netloc) else urllib.request.getproxies().get(url.scheme)


async def login(kubeconfig: str | None, context: str | None = None, *, service_account: str = SERVICE_ACCOUNT) -> Login:
    """Read a kubeconfig, or where none is named the service account of the pod that we run in, from its folder.

    Raises:
        ClusterError: there is no usable configuration; the message says where it was looked for.
    """
    source = _Source(kubeconfig=kubeconfig, context=context or None, service_account=service_account)
    account = await _account_of(source)
    try:
        return Login(account, source)
    except (OSError, ssl.SSLError) as exc:
        raise ClusterError(f"{kubeconfig or 'service account'}: the certificates cannot be used: {exc}") from exc


async def _account_of(source: _Source) -> Account:
    path = source.kubeconfig
    try:
        if not path:
            return _of_service_account(source.service_account)
        return from_files(path, source.context) or await _asked_for(path, source.context)
    except _unreadable() as exc:
        where = f"kubeconfig {path!r}" if path else "no kubeconfig is set, and this is no pod with a service account"
        reason = exc.strerror.lower() if isinstance(exc, OSError) and exc.strerror else str(exc) or type(exc).__name__
        raise ClusterError(f"{where}: {reason}") from exc


def _of_service_account(folder: str) -> Account:
    """A pod's own identity."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise ValueError("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
    authority = Path(folder) / "ca.crt"
    if not authority.read_bytes().strip():
        raise ValueError(f"{authority} is empty")
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return Account(server=server, authority=authority, authorization=TokenFile(Path(folder) / "token").authorization)


async def _asked_for(path: str, context: str | None) -> Account:
    """An identity that a plugin or an auth provider gives."""
    from kubernetes_asyncio.client import Configuration
    from kubernetes_asyncio.config.kube_config import load_kube_config

    found = type.__call__(Configuration)  # not a copy of the process-wide default
    await load_kube_config(config_file=path, context=context, client_configuration=found, persist_config=False)

    async def authorization() -> str:
        return str(await found.get_api_key_with_prefix(_TOKEN) or "").strip()

    return Account(
        server=str(found.host),
        authorization=authorization,
        authority=Path(found.ssl_ca_cert) if found.ssl_ca_cert else None,
        certificate=Path(found.cert_file) if found.cert_file else None,
        key=Path(found.key_file) if found.key_file else None,
        verify=bool(found.verify_ssl),
        server_name=found.tls_server_name or "",
        proxy=found.proxy or "",
    )


def _tls(account: Account) -> ssl.SSLContext:
    with ExitStack() as stack:
        authority = stack.enter_context(_as_file(account.authority)) if account.authority else None
        context = ssl.create_default_context(cafile=authority)
        if account.certificate:
            key = stack.enter_context(_as_file(account.key)) if account.key else None
            context.load_cert_chain(stack.enter_context(_as_file(account.certificate)), keyfile=key)
    if not account.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _as_file(pem: Pem) -> AbstractContextManager[Path | str]:
    """Where OpenSSL finds it, which loads certificates and keys from files only."""
    return nullcontext(pem) if isinstance(pem, Path) else pem_file.readable(pem)
