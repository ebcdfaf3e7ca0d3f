"""Files of the project that are not part of the package: its examples, and the shim once it is built."""

from __future__ import annotations

from pathlib import Path

import hami_rig

SHIM = "build/cshim/libvgpu.so"
FAKE_DRIVER = "build/cshim/fake"
EXAMPLES = "examples"


def find(relative: str) -> Path | None:
    """``relative`` to the current folder, or to the sources that this package runs from; None where it is in neither."""
    for root in (Path.cwd(), Path(hami_rig.__file__).resolve().parents[2]):
        if (root / relative).exists():
            return root / relative
    return None
