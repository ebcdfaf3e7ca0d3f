"""Installing the shim: never into a file that somebody maps, never half, twice without a change."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from hami_node_agent import shim_install
from hami_node_agent.needs import HostPaths, Shim
from hami_node_agent.shim_install import InstalledShim, ShimError

ONE, TWO = b"\x7fELF one", b"\x7fELF two"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "image" / "libvgpu.so"
    path.parent.mkdir()
    path.write_bytes(ONE)
    return path


@pytest.fixture
def paths(tmp_path: Path) -> HostPaths:
    return HostPaths(hook=str(tmp_path / "hook"))


def names(paths: HostPaths) -> list[str]:
    return sorted(path.name for path in Path(paths.vgpu).iterdir())


def test_the_library_has_a_name_made_from_its_content_and_preload_names_it_as_containers_see_it(source: Path, paths: HostPaths) -> None:
    version = shim_install.install(source, paths)
    assert names(paths) == ["ld.so.preload", "libvgpu.so", f"libvgpu.so.{version}"]
    assert Path(paths.preload).read_text() == "/usr/local/vgpu/libvgpu.so\n"
    assert InstalledShim(paths)() == Shim(host_path=f"{paths.vgpu}/libvgpu.so.{version}", version=version)


def test_an_upgrade_is_seen_while_the_agent_runs(source: Path, paths: HostPaths) -> None:
    installed = InstalledShim(paths)
    assert installed() == Shim()
    old = shim_install.install(source, paths)
    assert installed().version == old
    source.write_bytes(TWO)
    new = shim_install.install(source, paths)
    assert (installed().version, installed().host_path) == (new, f"{paths.vgpu}/libvgpu.so.{new}")


def test_installing_again_touches_nothing(source: Path, paths: HostPaths) -> None:
    shim_install.install(source, paths)
    before = {path: path.stat().st_ino for path in Path(paths.vgpu).iterdir()}
    shim_install.install(source, paths)
    assert {path: path.stat().st_ino for path in Path(paths.vgpu).iterdir()} == before


def test_a_version_that_a_process_maps_stays_as_it_is_until_it_is_let_go(source: Path, paths: HostPaths) -> None:
    old = shim_install.install(source, paths)
    with (Path(paths.vgpu) / f"libvgpu.so.{old}").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        source.write_bytes(TWO)
        new = shim_install.install(source, paths)
        assert {f"libvgpu.so.{old}", f"libvgpu.so.{new}"} <= set(names(paths))
        assert mapped[:] == ONE
    shim_install.install(source, paths)
    assert f"libvgpu.so.{old}" not in names(paths)


def test_a_version_that_a_spec_names_stays(source: Path, paths: HostPaths, tmp_path: Path) -> None:
    old = shim_install.install(source, paths)
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi" / "hami-x.json").write_text(f'"{paths.vgpu}/libvgpu.so.{old}"')
    source.write_bytes(TWO)
    shim_install.install(source, paths, proc=tmp_path / "no-proc", cdi_folder=tmp_path / "cdi")
    assert f"libvgpu.so.{old}" in names(paths)


@pytest.mark.parametrize("content", [None, b"", b"#!/bin/sh"], ids=["absent", "empty", "a script"])
def test_what_is_no_library_is_not_installed(source: Path, paths: HostPaths, content: bytes | None) -> None:
    if content is None:
        source.unlink()
    else:
        source.write_bytes(content)
    with pytest.raises(ShimError):
        shim_install.install(source, paths)
    assert InstalledShim(paths)() == Shim()


def test_a_licence_is_found_beside_it(source: Path, paths: HostPaths) -> None:
    shim_install.install(source, paths)
    (Path(paths.vgpu) / "license").touch()
    shim = InstalledShim(paths)()
    assert (shim.license, shim.validator) == (f"{paths.vgpu}/license", "")
