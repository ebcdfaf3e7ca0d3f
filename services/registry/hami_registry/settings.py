"""Settings of the registry, from ``HAMI_*`` variables."""

from __future__ import annotations

import os
import socket
from typing import Annotated

from msgspec import Meta

from hami_runtime.settings import ProcessSettings


class Settings(ProcessSettings, frozen=True, kw_only=True):
    """Everything that can be set."""

    api_host: Annotated[str, Meta(description="address of /v1/inventory and of the web page")] = "127.0.0.1"
    api_port: Annotated[int, Meta(description="its port; 0 means any free one", ge=0, le=65535)] = 0
    api_open: Annotated[bool, Meta(description="answer /v1 without a token; only on a loopback address")] = False
    api_tls: Annotated[
        bool, Meta(description="serve /v1 over TLS, with a certificate of its own making; for the API server's service proxy")
    ] = False
    web: Annotated[bool, Meta(description="serve the web page too, beside /v1/inventory")] = True
    device_config: Annotated[str, Meta(description="path of the device configuration (the reference's YAML); empty means its defaults")] = (
        ""
    )
    outcomes_anew: Annotated[
        bool, Meta(description="read the log of grants from its beginning: once, after the API server was restored from a backup")
    ] = False
    legacy_handshake: Annotated[bool, Meta(description="also write the bare annotation hami.io/node-handshake")] = False

    def __post_init__(self) -> None:
        """Refuse what would be unsafe."""
        loopback = self.api_host in {"localhost", "::1"} or self.api_host.startswith("127.")
        if self.api_open and not loopback:
            raise ValueError(f"HAMI_API_OPEN: true with HAMI_API_HOST {self.api_host!r}; accepted: a loopback address, or false")

    @property
    def replica(self) -> str:
        """The name of this replica, which no other has."""
        return self.identity or f"{socket.gethostname()}-{os.getpid()}"
