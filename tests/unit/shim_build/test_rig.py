"""What a rig does where the shim is not built: it builds it, or says on what it prints that nothing holds programs to their shares."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hami_cli.rig import _exports
from hami_rig import project


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout without a shim."""
    monkeypatch.setattr(project, "find", lambda relative: tmp_path / relative if (tmp_path / relative).exists() else None)
    (tmp_path / "cshim").mkdir()
    return tmp_path


async def test_a_shim_that_is_missing_is_built(sources: Path) -> None:
    (sources / "cshim" / "Makefile").write_text("all:\n\t@mkdir -p ../build/cshim && touch ../build/cshim/libvgpu.so\n")
    assert await project.build_shim() == ""
    assert (sources / project.SHIM).exists()
    (sources / "cshim" / "Makefile").write_text("all:\n\t@false\n")
    assert await project.build_shim() == "", "it is there already"


async def test_a_shim_that_cannot_be_built_is_told_of_with_the_reason(sources: Path) -> None:
    (sources / "cshim" / "Makefile").write_text("all:\n\t@echo no such compiler && false\n")
    assert "could not be built" in await project.build_shim()
    (sources / "cshim" / "Makefile").unlink()
    assert "its sources are not here" in await project.build_shim()


def test_what_the_rig_prints_names_what_does_not_hold() -> None:
    rig = cast("Any", SimpleNamespace(kubeconfig="k", nats_url="n", registry_url="r", folder="f"))
    assert "held to its share" not in _exports(rig)
    assert _exports(rig, "no compiler").splitlines()[-1] == "# No program is held to its share here: no compiler"
