"""How the programs of a real cluster are built: each version in a folder of its own, and a build that failed leaves no group behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.harness import building

GO = """#!/bin/sh
case "$1" in env) echo go1.26.0; exit 0;; esac
while [ "$1" != -o ]; do shift; done
echo "$2" >> {log}
for program in {programs}; do echo built > "$2$program"; done
exit ${{FAILS:-0}}
"""


@pytest.fixture
def built_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for Go that makes every program at once, and the file that lists the folders it wrote into."""
    log, programs = tmp_path / "built-in", (*building.KUBERNETES.programs, *building.CONTAINERD.programs)
    (tmp_path / "go").write_text(GO.format(log=log, programs=" ".join(programs)))
    (tmp_path / "go").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv(building.BINARIES_VARIABLE, raising=False)
    monkeypatch.setattr(building, "CACHE", tmp_path / "kube")
    return log


def test_two_versions_that_are_built_at_once_do_not_write_into_each_others_folder(built_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for version in building.versions():
        monkeypatch.setenv(building.VERSION_VARIABLE, version)
        found.add((building.binaries() / "kubelet").resolve())
    assert len(found) == len(building.versions())
    written = [folder for folder in built_in.read_text().split() if "kubernetes-" in folder]
    assert len(set(written)) == len(building.versions()), written


def test_a_build_that_fails_is_made_again(built_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAILS", "1")
    with pytest.raises(building.CannotRun, match="exit status 1"):
        building.binaries()
    monkeypatch.delenv("FAILS")
    assert (building.binaries() / "kubelet").read_text() == "built\n"
