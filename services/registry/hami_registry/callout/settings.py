"""Settings of the auth callout, from ``HAMI_*`` variables."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from hami_runtime.kube import accounts
from hami_runtime.settings import ProcessSettings


class Settings(ProcessSettings, frozen=True, kw_only=True):
    """Everything that can be set."""

    signing_key_file: Annotated[str, Meta(description="file with the seed of the key that users are signed with", min_length=1)]
    agent_namespace: Annotated[str, Meta(description="namespace of the agents", min_length=1)] = accounts.AGENT_NAMESPACE
    agent_account: Annotated[str, Meta(description="their service account there", min_length=1)] = accounts.AGENT
    bus_account: Annotated[str, Meta(description="NATS account that users are issued in", min_length=1)] = "AGENTS"
    device_types: Annotated[
        frozenset[str],
        Meta(description="device types that agents may report besides the built-in ones, as a device configuration adds them"),
    ] = frozenset()
    user_seconds: Annotated[float, Meta(description="how long an agent's user lives; it then shows its token anew", ge=1, le=24 * 3600)] = (
        1800.0
    )
