"""What a development API server can be told at its start."""

from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

__all__ = ["ApiServerSettings", "utc_now"]


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)


class ApiServerSettings(Struct, frozen=True, kw_only=True):
    """Settings of one server."""

    host: str = "127.0.0.1"
    port: int = 0
    """0 takes a free one."""
    token: str = ""
    """The administrator's bearer token. Without one nobody has to show any, and everybody is the administrator."""
    watch_history: int = 10_000
    """How many changes of each kind a watch can go back."""
    bookmark_seconds: float = 30.0
    """How often an idle watch that asked for bookmarks gets one."""
    nodes_folder: Path | None = None
    """Where the rig's kubelets keep what containers print, a folder for each node; None where there are no kubelets."""
