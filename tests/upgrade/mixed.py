"""A rig whose services are of two versions: each process runs the code of this checkout, or of an older one, and changes at a restart."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

from hami_rig.processes import ManagedProcess
from hami_rig.profile import Profile
from hami_rig.service_settings import NODE_AGENT, REGISTRY, SCHEDULER, WEBHOOK
from tests.e2e.available import AvailableRig

SERVICES = (WEBHOOK, SCHEDULER, REGISTRY, NODE_AGENT)
PACKAGES = "libs/protocol:libs/devices:libs/runtime:services/scheduler:services/webhook:services/registry:services/node-agent"


class MixedRig(AvailableRig):
    """At the start every service is old but the second scheduler and the second registry.

    Args:
        profile: its nodes.
        old: the older checkout.
    """

    def __init__(self, profile: Profile, old: Path) -> None:
        super().__init__(profile)
        self._python_path = ":".join(str(old / package) for package in PACKAGES.split(":"))
        self._unknown: dict[str, dict[str, str]] = {}

    async def turn(self, *names: str, old: bool) -> None:
        """Start services again, in the other version."""
        for name in names:
            process = self.processes[name]
            if old:
                await self._make_old(name, process)
            else:
                process.environ = {key: value for key, value in process.environ.items() if key != "PYTHONPATH"} | self._unknown.pop(
                    name, {}
                )
            await self.restart(name)
            await self.able(name)

    async def _start_one(self, name: str) -> None:
        if name.startswith(SERVICES) and not name.endswith("-2"):
            await self._make_old(name, self.processes[name])
        await super()._start_one(name)

    async def _make_old(self, name: str, process: ManagedProcess) -> None:
        """Give it the older code, and of its settings those that the older code knows."""
        process.environ["PYTHONPATH"] = self._python_path
        at = await _said(["-c", "import hami_runtime; print(hami_runtime.__file__)"], process.environ)
        assert at.startswith(self._python_path.partition("/libs/")[0]), at
        shown = await _said([*process.command[1:], "--help"], process.environ)
        known = set(re.findall(r"^ +(HAMI_[A-Z0-9_]+)$", shown, re.MULTILINE))
        assert "HAMI_READY_FILE" in known, f"{name} of the older version does not say what it can be told"
        unknown = {key: value for key, value in process.environ.items() if key.startswith("HAMI_") and key not in known}
        self._unknown[name] = self._unknown.get(name, {}) | unknown
        process.environ = {key: value for key, value in process.environ.items() if key not in unknown}


async def _said(arguments: list[str], environ: dict[str, str]) -> str:
    """What a Python program prints."""
    program = await asyncio.create_subprocess_exec(sys.executable, *arguments, env=environ, stdout=asyncio.subprocess.PIPE)
    output, _ = await program.communicate()
    return output.decode()
