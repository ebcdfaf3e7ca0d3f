"""A machine without libFuzzer gets it from Debian where that may be done, and is told what to install where not."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "cshim" / "tools" / "fuzzer.sh"
CLANG = """#!/bin/sh
case "$1" in -dumpversion) echo 14.0.6; exit 0 ;; esac
test -e "$(dirname "$0")/installed-libclang-rt-14-dev"
"""
APT_GET = """#!/bin/sh
here=$(dirname "$0")
for word in "$@"; do
    case "$word" in
    clang) mv "$here/clang.deb" "$here/clang" ;;
    libclang-rt-*) : > "$here/installed-$word" ;;
    esac
done
echo "apt-get speaks on its output"
"""


def machine(tmp_path: Path, *, uid: int = 0, apt: bool = True, clang: bool = False) -> subprocess.CompletedProcess[str]:
    """Run the script where nothing but these programs is."""
    for name in ("sh", "cut", "dirname", "mv"):
        found = shutil.which(name)
        assert found
        (tmp_path / name).symlink_to(found)
    programs = {"id": f"#!/bin/sh\necho {uid}\n", "clang" if clang else "clang.deb": CLANG} | ({"apt-get": APT_GET} if apt else {})
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "CLANG"} | {"PATH": str(tmp_path)}
    return subprocess.run([str(tmp_path / "sh"), str(SCRIPT)], env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("clang", [False, True])
def test_it_is_installed_by_name_for_the_version_of_clang_that_came(tmp_path: Path, clang: bool) -> None:
    done = machine(tmp_path, clang=clang)
    assert (done.returncode, done.stdout) == (0, "clang\n")


@pytest.mark.parametrize(("uid", "apt"), [(1000, True), (0, False)])
def test_where_it_cannot_be_installed_it_says_what_is_needed(tmp_path: Path, uid: int, apt: bool) -> None:
    done = machine(tmp_path, uid=uid, apt=apt)
    assert done.returncode == 1
    assert not done.stdout
    assert "apt-get install clang libclang-rt-14-dev" in done.stderr
