"""kubectl as a program: its output, or why it failed. `hami install` and `hami uninstall` use it, with the rights of the user's kubeconfig."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct

from hami_cli.exits import CommandError
from hami_runtime.kube.kubectl import program


class Ended(Struct, frozen=True, kw_only=True):
    """How a call of kubectl ended."""

    code: int
    out: str
    err: str


class Kubectl:
    """kubectl with one cluster's options."""

    def __init__(self, kubeconfig: str = "", context: str = "") -> None:
        self._command = [program(), *(["--kubeconfig", kubeconfig] if kubeconfig else []), *(["--context", context] if context else [])]

    async def ended(self, *arguments: str, given: str = "") -> Ended:
        """Run it with ``given`` as its standard input; the caller judges its exit code."""
        async with self._running(arguments, given) as process:
            assert process.stdout is not None  # noqa: S101 - it was asked for
            assert process.stderr is not None  # noqa: S101 - it was asked for
            out, err = await asyncio.gather(process.stdout.read(), process.stderr.read())
            code = await process.wait()
        return Ended(code=code, out=out.decode(errors="replace"), err=err.decode(errors="replace").strip())

    async def read(self, *arguments: str, given: str = "") -> str:
        """What it prints.

        Raises:
            CommandError: it failed, with its reason.
        """
        done = await self.ended(*arguments, given=given)
        if done.code:
            raise CommandError(f"kubectl {' '.join(arguments[:2])}: {done.err}")
        return done.out

    async def objects(self, *arguments: str) -> list[dict[str, Any]]:
        """The objects of ``kubectl get ARGUMENTS``; none where there is no such object.

        Raises:
            CommandError: it failed.
        """
        text = await self.read("get", *arguments, "--ignore-not-found", "--output=json")
        found = json.loads(text) if text.strip() else {"items": []}
        return list(found["items"]) if "items" in found else [found]

    async def lines(self, *arguments: str, given: str = "") -> AsyncIterator[str]:
        """The lines that it prints, each as soon as it is there.

        Raises:
            CommandError: it failed.
        """
        async with self._running(arguments, given) as process:
            assert process.stdout is not None  # noqa: S101 - it was asked for
            assert process.stderr is not None  # noqa: S101 - it was asked for
            errors = asyncio.create_task(process.stderr.read())
            async for line in process.stdout:
                yield line.decode(errors="replace").strip()
            err = (await errors).decode(errors="replace").strip()
            if await process.wait():
                raise CommandError(f"kubectl {' '.join(arguments[:2])}: {err}")
            if err:
                tell(err)

    @asynccontextmanager
    async def _running(self, arguments: Sequence[str], given: str) -> AsyncIterator[asyncio.subprocess.Process]:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except FileNotFoundError as exc:
            raise CommandError("kubectl is not here; install it, or this program with its rig: pip install 'hami[rig]'") from exc
        feeding = asyncio.create_task(_feed(process, given))
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            feeding.cancel()


async def _feed(process: asyncio.subprocess.Process, given: str) -> None:
    assert process.stdin is not None  # noqa: S101 - it was asked for
    process.stdin.write(given.encode())
    process.stdin.close()


def tell(text: str) -> None:
    """Report progress on standard error."""
    print(text, file=sys.stderr, flush=True)
