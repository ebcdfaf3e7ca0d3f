"""Free ports for programs that cannot choose one themselves, and the address at which others reach this machine."""

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


def own_address() -> str:
    """An address of this machine that is not loopback: no API server calls that, and runtimes speak TLS there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # nothing is sent
        return str(probe.getsockname()[0])
