"""What one call of ``hami`` costs in processor time, beside ``kubectl version --client``, in pairs on the same machine.

``python -m benchmarks.command_line --pairs 10``
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks import _report

CALLS = {
    "hami --version": ["--version"],
    "hami --help": ["--help"],
    "hami top --help": ["top", "--help"],
    "hami explain, refused": ["explain", "p", "--url", "http://127.0.0.1:1"],
}


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    options = parser.parse_args()
    folder = Path(sys.executable).parent
    kubectl = shutil.which("kubectl", path=f"{folder}{os.pathsep}{os.environ['PATH']}")
    if kubectl is None:
        raise SystemExit("kubectl is not on the path")
    measurements = []
    for name, arguments in CALLS.items():
        ours, theirs = [], []
        for _ in range(options.pairs):
            ours.append(cpu_seconds([str(folder / "hami"), *arguments]))
            theirs.append(cpu_seconds([kubectl, "version", "--client"]))
        measurements += [
            _report.measurement(f"{name}, CPU", ours, unit="s"),
            _report.measurement(f"kubectl version --client beside {name}, CPU", theirs, unit="s"),
        ]
    _report.report("command_line", measurements, as_json=options.json)


def cpu_seconds(command: list[str]) -> float:
    """The processor time that ``command`` and its children took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)


if __name__ == "__main__":
    main()
