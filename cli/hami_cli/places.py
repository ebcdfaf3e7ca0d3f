"""Where the services are, when nobody says: a rig writes it beside its kubeconfig, so that ``KUBECONFIG`` alone leads to all of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

FILE_NAME = "rig.json"


def place(key: str, given: str, default: str, *, environ: Mapping[str, str] | None = None) -> str:
    """What the user gave, else what the rig of ``KUBECONFIG`` says of ``key``, else ``default``."""
    if given:
        return given
    kubeconfig = (os.environ if environ is None else environ).get("KUBECONFIG", "")
    try:
        places = msgspec.json.decode((Path(kubeconfig).parent / FILE_NAME).read_bytes(), type=dict[str, str | int])
    except (OSError, msgspec.DecodeError):
        return default
    return str(places.get(key, default))
