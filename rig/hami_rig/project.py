"""Files of the project that are not part of the package: its examples, and the shim once it is built."""

from __future__ import annotations

import asyncio
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


async def build_shim() -> str:
    """Build the shim and what stands in for a driver, where they are missing and their sources are here; return why they are missing still."""
    if find(SHIM) is not None:
        return ""
    sources = find("cshim/Makefile")
    if sources is None:
        return f"{SHIM} is missing, and its sources are not here"
    try:
        making = await asyncio.create_subprocess_exec(
            "make",
            "--no-print-directory",
            "-C",
            str(sources.parent),
            "all",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    except OSError as exc:
        return f"{SHIM} is missing and needs make and a C compiler: {exc}"
    output, _ = await making.communicate()
    lines = output.decode(errors="replace").strip().splitlines()
    return f"{SHIM} could not be built: {lines[-1] if lines else 'make says nothing'}" if making.returncode or find(SHIM) is None else ""
