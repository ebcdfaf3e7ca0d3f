"""The real kubectl against a rig."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from hami_runtime.kube.kubectl import program


class KubectlFailed(Exception):  # noqa: N818 - reads as the condition it names
    """kubectl ended with an error; the text is what it said."""


async def kubectl(kubeconfig: Path, *arguments: str, timeout_seconds: float = 30.0) -> str:
    """Run kubectl and return its output.

    Raises:
        KubectlFailed: it did not succeed, or not in time.
    """
    process = await asyncio.create_subprocess_exec(
        program(),
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "KUBECONFIG": str(kubeconfig)},
    )
    try:
        async with asyncio.timeout(timeout_seconds):
            output, errors = await process.communicate()
    except TimeoutError as exc:
        process.kill()
        await process.wait()
        raise KubectlFailed(f"kubectl {' '.join(arguments)}: no end after {timeout_seconds:.0f} s") from exc
    if process.returncode != 0:
        raise KubectlFailed(f"kubectl {' '.join(arguments)}: {errors.decode(errors='replace').strip()}")
    return output.decode(errors="replace")
