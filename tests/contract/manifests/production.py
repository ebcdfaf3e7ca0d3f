"""The production overlay's NATS on this machine: its own configuration files, with the paths, ports and names of here."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hami_runtime.bus import jetstream
from hami_runtime.bus.jetstream import JetStreamBus
from tests.certificates import Authority
from tests.contract.bus.conftest import NatsServer

KUSTOMIZE = Path(__file__).parents[3] / "deploy" / "kustomize"


class ProductionBus:
    """A server, and who has a certificate for it."""

    def __init__(self, server: NatsServer, authority: Authority) -> None:
        self.server = server
        self.authority = authority

    def issue(self, user: str) -> tuple[Path, Path]:
        """A certificate for a user, and its key."""
        return self.authority.issue(user, user)

    def tls(self, user: str | None) -> ssl.SSLContext:
        """TLS as a user, or without a certificate."""
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        if user is not None:
            context.load_cert_chain(*self.issue(user))
        return context

    @asynccontextmanager
    async def connect(self, user: str, **options: Any) -> AsyncIterator[JetStreamBus]:
        """A connection that is open."""
        async with jetstream.connect(self.server.url, name=user, tls=self.tls(user), **options) as bus:
            async with asyncio.timeout(20):
                await bus.wait_connected()
            yield bus


def configure(folder: Path, authority: Authority, *components: str, server: str = "hami-nats-0", given: Mapping[str, str] = {}) -> Path:
    """Write the files that the ConfigMap has with ``components`` on top of the base, and return the first.

    Args:
        folder: where to.
        authority: whose certificates are used.
        components: names below ``components``.
        server: the server's name.
        given: text to be replaced besides, and by what.
    """
    certificate, key = authority.issue(server, "hami-nats", server)
    here = {
        "$POD_NAME": server,
        "/etc/nats-tls/tls.crt": str(certificate),
        "/etc/nats-tls/tls.key": str(key),
        "/etc/nats-tls/ca.crt": str(authority.certificate),
        "/run/nats/nats.pid": str(folder / "nats.pid"),
        "store_dir: /data": "",  # the command line names it
        "0.0.0.0:8222": "127.0.0.1:-1",
        **given,
    }
    found: dict[str, str] = {}
    for layer in (KUSTOMIZE / "base" / "nats", *(KUSTOMIZE / "components" / name for name in components)):
        found |= {path.name: path.read_text() for path in layer.glob("*.conf")}
    whole = "".join(found.values())
    for text, replacement in here.items():
        assert text in whole, text
        found = {name: each.replace(text, replacement) for name, each in found.items()}
    for name, text in found.items():
        (folder / name).write_text(text)
    return folder / "nats.conf"


@asynccontextmanager
async def production_bus(folder: Path, *components: str, given: Mapping[str, str] = {}) -> AsyncIterator[ProductionBus]:
    """One server."""
    authority = Authority(folder)
    server = NatsServer(folder, "--config", str(configure(folder, authority, *components, given=given)))
    await server.start()
    try:
        yield ProductionBus(server, authority)
    finally:
        await server.kill()
