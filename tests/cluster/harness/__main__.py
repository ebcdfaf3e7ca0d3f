"""Makes this machine ready for the tests that need a real Kubernetes, or says why it cannot be: ``python -m tests.cluster.harness [--check]``.

Debian packages that are missing are installed where that is possible; Kubernetes, etcd and containerd are built, once for each version.
``--check`` only looks.
"""

from __future__ import annotations

import sys

from tests.cluster.harness import building


def main(arguments: list[str]) -> int:
    """Prepare; the exit code is 1 where the machine cannot run them."""
    if "--check" not in arguments:
        building.install_packages()
    if reason := building.lacking():
        print(f"The tests on a real Kubernetes cannot run here: {reason}.", file=sys.stderr)
        return 1
    if "--check" not in arguments:
        try:
            building.binaries()
        except building.CannotRun as exc:
            print(f"The tests on a real Kubernetes cannot run here: {exc}.", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
