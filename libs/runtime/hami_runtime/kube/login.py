"""Where the API server is and who we are for it: a kubeconfig (tokens, client certificates, exec plugins) or a pod's service account.

Configuration and authentication are kubernetes-asyncio's. A service account's token is read again as kubelet rotates it; a kubeconfig is
read again when the API server knows its token no more.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import yaml
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.config import ConfigException
from kubernetes_asyncio.config.incluster_config import load_incluster_config
from kubernetes_asyncio.config.kube_config import load_kube_config
from msgspec import Struct

from hami_runtime.kube.cluster import ClusterError

_TOKEN = "BearerToken"  # noqa: S105 - the name that kubernetes-asyncio keeps it under
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_UNREADABLE = (ConfigException, OSError, ValueError, TypeError, AssertionError, AttributeError, yaml.YAMLError)
"""What kubernetes-asyncio raises on files that are no kubeconfig, and on plugins that fail."""


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
        proxy: URL of a proxy, None for none.
    """

    def __init__(self, configuration: Any, source: _Source) -> None:
        self.server = str(configuration.host).rstrip("/")
        self.tls = _tls(configuration) if self.server.startswith("https") else None
        self.server_name: str | None = configuration.tls_server_name or None
        self.proxy: str | None = configuration.proxy or None
        self._configuration = configuration
        self._source = source
        self._renewing = asyncio.Lock()

    async def authorization(self) -> str:
        """The value of the ``Authorization`` header, empty for none."""
        try:
            found = await self._configuration.get_api_key_with_prefix(_TOKEN)
        except _UNREADABLE as exc:
            raise ClusterError(f"our own token cannot be read: {exc}") from exc
        return str(found or "").strip()

    async def renew(self, refused: str) -> bool:
        """Look for another identity than ``refused``, which the API server does not accept (any more); whether there is one."""
        async with self._renewing:
            if await self.authorization() != refused:
                return True  # somebody else has renewed it meanwhile
            self._configuration = await _configured(self._source)
            return await self.authorization() != refused


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
    kubeconfig, service_account = source.kubeconfig, source.service_account
    configuration = type.__call__(Configuration)  # not a copy of the process-wide default
    try:
        if kubeconfig:
            await load_kube_config(
                config_file=kubeconfig, context=source.context or None, client_configuration=configuration, persist_config=False
            )
        else:
            token, ca = f"{service_account}/token", f"{service_account}/ca.crt"
            load: Any = load_incluster_config
            load(client_configuration=configuration, token_filename=token, cert_filename=ca)
    except _UNREADABLE as exc:
        where = f"kubeconfig {kubeconfig!r}" if kubeconfig else "no kubeconfig is set, and this is no pod with a service account"
        raise ClusterError(f"{where}: {exc or type(exc).__name__}") from exc
    return configuration


def _tls(configuration: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
