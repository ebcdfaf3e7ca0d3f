"""The agent's certificate for NATS, from a Secret in the namespace of NATS.

A pod mounts only Secrets of its own namespace, and the authority that signs certificates for NATS must not reach the agents' namespace. So the
agent reads its Secret through the API server, again every minute: cert-manager renews it long before it expires.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import ssl
from typing import Final

import structlog

from hami_runtime import pem_file
from hami_runtime.clock import Clock
from hami_runtime.isolation import Isolation
from hami_runtime.kube.cluster import SECRETS, Body, Cluster, ClusterError
from hami_runtime.lifecycle import sleep_until

log = structlog.get_logger()
REFRESH_SECONDS: Final = 60.0
RETRY_SECONDS: Final = 1.0
"""While there is no certificate: cert-manager may still be making it."""


class BusCertificate:
    """TLS to NATS with what a Secret of type ``kubernetes.io/tls`` has: certificate, key, and the authority of the servers."""

    def __init__(self, cluster: Cluster, secret: str, clock: Clock) -> None:
        """Read ``secret``, given as ``namespace/name``."""
        self._cluster = cluster
        self._isolation = Isolation("certificate for NATS", clock)
        self._namespace, _, self._name = secret.partition("/")
        self._context: ssl.SSLContext | None = None
        self._data: Body = {}
        self._reason = "it has not been read yet"

    def context(self) -> ssl.SSLContext:
        """The newest TLS context.

        Raises:
            OSError: there is none yet; the text says why.
        """
        if self._context is None:
            raise OSError(f"Secret {self._namespace}/{self._name}: {self._reason}")
        return self._context

    async def run(self, stop: asyncio.Event) -> None:
        """Keep the context current until ``stop``."""
        while not stop.is_set():
            with self._isolation.item(f"Secret {self._namespace}/{self._name}"):
                await self.refresh()
            await sleep_until(stop, REFRESH_SECONDS if self._context else RETRY_SECONDS)

    async def refresh(self) -> None:
        """Read the Secret once; where that fails, the earlier context stays."""
        try:
            data = (await self._cluster.get(SECRETS, self._name, namespace=self._namespace)).get("data") or {}
            if data != self._data:
                self._context, self._data = _context(data), data
        except (ClusterError, KeyError, binascii.Error, OSError) as exc:
            reason = f"no key {exc} in it" if isinstance(exc, KeyError) else str(exc)
            if reason != self._reason:
                log.warning("certificate for NATS not read", secret=f"{self._namespace}/{self._name}", reason=reason)
            self._reason = reason


def _context(data: Body) -> ssl.SSLContext:
    authority, certificate, key = (base64.b64decode(data[name], validate=True) for name in ("ca.crt", "tls.crt", "tls.key"))
    with pem_file.readable(authority) as path:
        context = ssl.create_default_context(cafile=path)
    with pem_file.readable(key + b"\n" + certificate) as path:
        context.load_cert_chain(path)
    return context
