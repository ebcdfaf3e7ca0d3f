"""Installs HAMi on one-node clusters: ``python -m tests.install [pytest's arguments]``, which `make install-test` does."""

from __future__ import annotations

import asyncio
import sys

from tests.cluster.harness import building
from tests.images import tools
from tests.install.harness import images
from tests.lanes import Lane, Lanes

LANES = Lanes("install", tuple(Lane(name, (f"tests/install/test_{name}.py",)) for name in ("production", "rig", "restarts")), steps=True)


def main() -> int:
    """Make the machine ready, build what is missing, and run; 1 where this machine cannot, with the reason."""
    building.install_packages()
    tools.install_packages()
    if reason := building.lacking(building.ADDONS) or tools.lacking():
        print(f"The installation cannot be tested here: {reason}.", file=sys.stderr)
        return 1
    try:
        building.binaries(building.ADDONS)
        for version in ("", images.NEWER):
            images.ours(version=version)
    except (building.CannotRun, tools.ToolError) as exc:
        print(f"The installation cannot be tested here: {exc}.", file=sys.stderr)
        return 1
    return asyncio.run(LANES.run(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
