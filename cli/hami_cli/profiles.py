"""Nodes that could be added: a few usual ones by name, any other from a file. The only I/O is reading that file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from hami_protocol.simulation import MOST_NODES, NodeProfile, ProfileDevice


class ProfileError(ValueError):
    """A profile that cannot be used; the text says what was given and what is accepted."""


def _nvidia(name: str, model: str, memory_mib: int, count: int) -> NodeProfile:
    return NodeProfile(name=name, device=ProfileDevice(memory_mib=memory_mib, model=model), count=count)


USUAL: Final = {
    profile.name: profile
    for profile in (
        _nvidia("t4", "NVIDIA-Tesla T4", 15360, 4),
        _nvidia("v100", "NVIDIA-Tesla V100-SXM2-32GB", 32768, 8),
        _nvidia("a10", "NVIDIA-A10", 23028, 4),
        _nvidia("a100-40gb", "NVIDIA-A100-SXM4-40GB", 40960, 8),
        _nvidia("a100-80gb", "NVIDIA-A100-SXM4-80GB", 81920, 8),
        _nvidia("l40s", "NVIDIA-L40S", 46068, 8),
        _nvidia("h100", "NVIDIA-H100 80GB HBM3", 81559, 8),
        _nvidia("h200", "NVIDIA-H200", 143771, 8),
    )
}


def parse(given: str) -> NodeProfile:
    """The profile in ``PROFILE=N``: a usual one's name or a file, and how many such nodes.

    Raises:
        ProfileError: it is none.
    """
    source, separator, count = given.rpartition("=")
    if not separator or not source or not count.isascii() or not count.isdigit() or not 1 <= int(count) <= MOST_NODES:
        raise ProfileError(f"{given!r}; accepted: PROFILE=N, with N from 1 to {MOST_NODES}")
    return msgspec.structs.replace(_profile(source), nodes=int(count))


def _profile(source: str) -> NodeProfile:
    if source in USUAL:
        return USUAL[source]
    try:
        return msgspec.yaml.decode(Path(source).read_bytes(), type=NodeProfile)
    except OSError as exc:
        usual = ", ".join(USUAL)
        raise ProfileError(f"{source!r}: {exc.strerror}; accepted: {usual}, or a file with name, device, count, vendor") from exc
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise ProfileError(f"{source}: {exc}") from exc
