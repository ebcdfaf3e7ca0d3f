"""What is found below a driver's root, on a tree as a distribution lays it out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from hami_node_agent import cdi, driver
from hami_node_agent.hardware import PhysicalDevice

LIBRARIES = "usr/lib/x86_64-linux-gnu"
VERSION = "550.54.15"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for path in (
        *(f"{LIBRARIES}/{name}.so.{VERSION}" for name in ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler", "libnvidia-opticalflow")),
        f"{LIBRARIES}/libunrelated.so.1",
        "usr/bin/nvidia-smi",
        "dev/nvidiactl",
        "dev/nvidia-uvm",
        "dev/nvidia0",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    (tmp_path / LIBRARIES / "libcuda.so.1").symlink_to(f"libcuda.so.{VERSION}")
    return tmp_path


def test_libraries_of_the_drivers_version_and_programs_are_mounted_read_only_from_the_hosts_root(root: Path) -> None:
    edits = driver.find(root, {}, host_root="/run/nvidia/driver").common
    assert [mount.container_path for mount in edits.mounts] == [
        f"/{LIBRARIES}/libcuda.so.{VERSION}",
        f"/{LIBRARIES}/libnvidia-ml.so.{VERSION}",
        f"/{LIBRARIES}/libnvidia-opticalflow.so.{VERSION}",
        f"/{LIBRARIES}/libnvidia-ptxjitcompiler.so.{VERSION}",
        "/usr/bin/nvidia-smi",
    ]
    for mount in edits.mounts:
        assert mount.host_path == f"/run/nvidia/driver{mount.container_path}"
        assert "ro" in mount.options


def test_control_nodes_that_are_there_go_to_all_and_cards_to_those_who_hold_them(root: Path) -> None:
    found = driver.find(root, {"GPU-a": ("/dev/nvidia0",), "GPU-b": ("/dev/nvidia1",)})
    assert [node.path for node in found.common.device_nodes] == ["/dev/nvidiactl", "/dev/nvidia-uvm"]
    assert [node.path for node in found.for_devices(["GPU-a"]).device_nodes] == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0"]


@pytest.mark.parametrize(
    ("hook", "first"),
    [("/usr/bin/nvidia-ctk", ("nvidia-ctk", "hook")), ("/usr/bin/nvidia-cdi-hook", ("nvidia-cdi-hook",))],
)
def test_hooks_make_the_links_that_programs_open_and_then_the_linkers_cache(root: Path, hook: str, first: tuple[str, ...]) -> None:
    links, cache = driver.find(root, {}, hook=hook).common.hooks
    assert (links.hook_name, links.path, cache.hook_name) == ("createContainer", hook, "createContainer")
    assert links.args[: len(first) + 1] == (*first, "create-symlinks")
    assert f"libcuda.so.1::/{LIBRARIES}/libcuda.so" in links.args
    assert cache.args == (*first, "update-ldcache", "--folder", f"/{LIBRARIES}")


def test_a_root_without_a_driver_is_an_error_that_says_where_was_looked(tmp_path: Path) -> None:
    with pytest.raises(cdi.CdiError, match=r"usr/lib64.*HAMI_DRIVER_ROOT"):
        driver.find(tmp_path, {})


def test_the_driver_is_looked_for_again_only_when_cards_or_driver_change(root: Path) -> None:
    looks: list[tuple[int, tuple[str, ...]]] = []
    devices = [(PhysicalDevice(uuid="GPU-a", index=0, type="t", memory_mib=1),)]

    def look(found: Sequence[PhysicalDevice]) -> cdi.DriverEdits:
        looks.append((len(found), driver.versions(root)))
        return cdi.DriverEdits()

    source = driver.DriverSource(lambda: devices[0], look, stamp=lambda: driver.versions(root))
    source()
    source()
    devices[0] = (*devices[0], PhysicalDevice(uuid="GPU-b", index=1, type="t", memory_mib=1))
    source()
    (root / LIBRARIES / f"libcuda.so.{VERSION}").rename(root / LIBRARIES / "libcuda.so.570.1")
    source()
    source()
    assert looks == [(1, (f"libcuda.so.{VERSION}",)), (2, (f"libcuda.so.{VERSION}",)), (2, ("libcuda.so.570.1",))]


def test_a_base_spec_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(cdi.CdiError, match=r"nvidia\.yaml"):
        driver.from_base_spec(tmp_path / "nvidia.yaml", ())
