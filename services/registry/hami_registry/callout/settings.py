"""Settings of the auth callout, from ``HAMI_*`` variables."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from hami_runtime.settings import ProcessSettings


class Settings(ProcessSettings, frozen=True, kw_only=True):
    """Everything that can be set."""

    signing_key_file: Annotated[str, Meta(description="file with the seed of the key that users are signed with", min_length=1)]
    agent_account: Annotated[str, Meta(description="service account of the agents, in our own namespace", min_length=1)] = "hami-node-agent"
    bus_account: Annotated[str, Meta(description="NATS account that users are issued in", min_length=1)] = "HAMI"
    user_seconds: Annotated[float, Meta(description="how long an agent's user lives; it then shows its token anew", ge=1, le=24 * 3600)] = (
        1800.0
    )
