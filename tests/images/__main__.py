"""Builds the images and tests them: ``python -m tests.images [pytest's arguments]``, which `make images-test` does."""

from __future__ import annotations

import subprocess
import sys

from tests.images import tools


def main() -> int:
    """Make the machine ready, and run; 1 where it cannot be made ready, with the reason."""
    tools.install_packages()
    if reason := tools.lacking():
        print(f"Images cannot be tested here: {reason}.", file=sys.stderr)
        return 1
    arguments = sys.argv[1:] or ["-q", "tests/images"]
    return subprocess.run([sys.executable, "-m", "pytest", "-m", "images", *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
