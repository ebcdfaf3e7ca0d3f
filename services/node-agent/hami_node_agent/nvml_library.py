"""NVML itself (``pynvml``, loaded only here): one init per process, whoever asks; every call in a worker thread, since a sick card can hang it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from hami_node_agent.hardware import HardwareError

T = TypeVar("T")


class NvmlLibrary:
    """The driver's library, loaded and started when it is first asked."""

    def __init__(self, module: Any = None) -> None:
        """``module``: in place of ``pynvml``; for tests."""
        self._module = module
        self._started = False
        # Two threads: a wait for events must not keep a scan waiting.
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="nvml")

    async def call(self, work: Callable[[], T]) -> T:
        """``work`` in a worker thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def started(self) -> Any:
        """The module, ready to be called. In a worker thread.

        Raises:
            HardwareError: it is not installed, or the driver cannot be reached.
        """
        if self._module is None:
            try:
                import pynvml
            except ImportError as exc:
                raise HardwareError("pynvml is not installed; install nvidia-ml-py, or set HAMI_DEVICE_PROFILE") from exc
            self._module = pynvml
        if not self._started:
            try:
                self._module.nvmlInit()
            except self._module.NVMLError as exc:
                raise HardwareError(f"nvml init failed: {exc}; is the driver's library visible to the agent?") from exc
            self._started = True
        return self._module


def text(value: str | bytes) -> str:
    """What NVML answers as text, in whichever form this version of ``pynvml`` gives it."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
