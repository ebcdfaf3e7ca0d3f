"""Free ports for programs that cannot choose one themselves."""

from __future__ import annotations

import socket

_given: set[int] = set()


def free() -> int:
    """A port of the loopback address that nobody listens on, and that was not given before."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port not in _given:
            _given.add(port)
            return port
