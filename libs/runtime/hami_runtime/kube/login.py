"""Where the API server is and who we are for it: a kubeconfig (tokens, client certificates, exec plugins) or a pod's service account.

A kubeconfig is kubernetes-asyncio's to read, and read again when the API server knows its token no more. That package makes a class for every
type of the API when it is imported, about 37 MiB, so that it is imported only where there is a kubeconfig. A service account is three files,
which are read here, its token again as kubelet rotates it.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from msgspec import Struct

from hami_runtime.kube.cluster import ClusterError

_TOKEN = "BearerToken"  # noqa: S105 - the name that kubernetes-asyncio keeps it under
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
TOKEN_SECONDS = 60.0
"""For how long a service account's token is used before its file is looked at again."""


def _unreadable() -> tuple[type[Exception], ...]:
    """What is raised on files that are no kubeconfig, and on plugins that fail."""
    config = sys.modules.get("kubernetes_asyncio.config")
    own = (config.ConfigException,) if config is not None else ()
    return (*own, OSError, ValueError, TypeError, AssertionError, AttributeError, yaml.YAMLError)


class _ServiceAccount:
    """A pod's own identity, with what ``Login`` reads of a configuration."""

    cert_file = key_file = tls_server_name = proxy = None
    verify_ssl = True

    def __init__(self, folder: str) -> None:
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "")
        if not host or not port:
            raise ValueError("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
        self.host = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        self.ssl_ca_cert = f"{folder}/ca.crt"
        if not Path(self.ssl_ca_cert).read_bytes().strip():
            raise ValueError(f"{self.ssl_ca_cert} is empty")
        self._token_path = Path(folder) / "token"
        self._token, self._read_at = self._read(), time.monotonic()

    def _read(self) -> str:
        token = self._token_path.read_text(encoding="utf-8").strip()
        if not token:
            raise ValueError(f"{self._token_path} is empty")
        return token

    async def get_api_key_with_prefix(self, _name: str) -> str:
        """The value of the ``Authorization`` header."""
        if time.monotonic() - self._read_at >= TOKEN_SECONDS:
            self._token, self._read_at = self._read(), time.monotonic()
        return f"Bearer {self._token}"


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

    def __init__(self, configuration: Any, source: _Source) -> None:
        self.server = str(configuration.host).rstrip("/")
        self.tls = _tls(configuration) if self.server.startswith("https") else None
        self.server_name: str | None = configuration.tls_server_name or None
        self.proxy: str | None = configuration.proxy or proxy_of(self.server)
        self._configuration = configuration
        self._source = source
        self._renewing = asyncio.Lock()

    async def authorization(self) -> str:
        """The value of the ``Authorization`` header, empty for none."""
        try:
            found = await self._configuration.get_api_key_with_prefix(_TOKEN)
        except _unreadable() as exc:
            raise ClusterError(f"our own token cannot be read: {exc}") from exc
        return str(found or "").strip()

    async def renew(self, refused: str) -> bool:
        """Look for another identity than ``refused``, which the API server does not accept (any more); whether there is one."""
        async with self._renewing:
            if await self.authorization() != refused:
                return True  # somebody else has renewed it meanwhile
            self._configuration = await _configured(self._source)
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
    source = _Source(kubeconfig=kubeconfig, context=context, service_account=service_account)
    configuration = await _configured(source)
    try:
        return Login(configuration, source)
    except (OSError, ssl.SSLError) as exc:
        raise ClusterError(f"{kubeconfig or 'service account'}: the certificates cannot be used: {exc}") from exc


async def _configured(source: _Source) -> Any:
    kubeconfig = source.kubeconfig
    try:
        return await _from_kubeconfig(kubeconfig, source.context) if kubeconfig else _ServiceAccount(source.service_account)
    except _unreadable() as exc:
        where = f"kubeconfig {kubeconfig!r}" if kubeconfig else "no kubeconfig is set, and this is no pod with a service account"
        raise ClusterError(f"{where}: {exc or type(exc).__name__}") from exc


async def _from_kubeconfig(kubeconfig: str, context: str | None) -> Any:
    from kubernetes_asyncio.client import Configuration
    from kubernetes_asyncio.config.kube_config import load_kube_config

    configuration = type.__call__(Configuration)  # not a copy of the process-wide default
    await load_kube_config(config_file=kubeconfig, context=context or None, client_configuration=configuration, persist_config=False)
    return configuration


def _tls(configuration: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
