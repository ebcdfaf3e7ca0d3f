"""What can be tested of the web page here: its JavaScript's own tests where there is a Node.js, and the page in Chromium where there is one.

Chromium is installed by its Debian name where we may; what is missing is said. ``python -m tests.web [pytest's arguments]``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.web.conftest import PROGRAMS, chromium

OURS = Path(__file__).parent / "page"


def main() -> int:
    """Run what there is; 0 where nothing of it failed."""
    failed = 0
    if node := shutil.which("node"):
        failed |= subprocess.run([node, "--test", *sorted(str(path) for path in OURS.glob("*.test.mjs"))], check=False).returncode
    else:
        print("skipped: the page's JavaScript without a browser: Node.js (`node`) is not installed")
    if chromium() is None:
        _install()
    if chromium() is None:
        print(f"skipped: the page in a browser: none of {', '.join(PROGRAMS)} is installed, and HAMI_TEST_CHROMIUM names none")
        return failed
    arguments = sys.argv[1:] or ["-q"]
    return failed | subprocess.run([sys.executable, "-m", "pytest", "-m", "web", *arguments, "tests/web"], check=False).returncode


def _install() -> None:
    """Debian's Chromium, where we are root on a Debian."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    environ = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-qq", "--no-install-recommends", "chromium"]):
        if subprocess.run(command, env=environ, check=False, stdout=subprocess.DEVNULL).returncode:
            print(f"`{' '.join(command)}` failed")
            return


if __name__ == "__main__":
    sys.exit(main())
