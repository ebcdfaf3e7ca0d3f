"""Settings of the registry, from ``HAMI_*`` variables."""

from __future__ import annotations

import os
import socket
from typing import Annotated

from msgspec import Meta

from hami_runtime.settings import ApiSettings


class Settings(ApiSettings, frozen=True, kw_only=True):
    """Everything that can be set."""

    web: Annotated[bool, Meta(description="serve the web page too, beside /v1/inventory")] = True
    device_config: Annotated[str, Meta(description="path of the device configuration (the reference's YAML); empty means its defaults")] = (
        ""
    )
    outcomes_anew: Annotated[
        bool, Meta(description="read the log of grants from its beginning: once, after the API server was restored from a backup")
    ] = False
    legacy_handshake: Annotated[bool, Meta(description="also write the bare annotation hami.io/node-handshake")] = False

    @property
    def replica(self) -> str:
        """The name of this replica, which no other has."""
        return self.identity or f"{socket.gethostname()}-{os.getpid()}"
