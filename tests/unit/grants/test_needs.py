"""What one container needs: environment and mounts of the reference's contract, and a grant that says the same."""

from __future__ import annotations

from typing import Any

import pytest

from hami_devices.config import NvidiaConfig
from hami_devices.vendors import nvidia
from hami_node_agent import grant_file
from hami_node_agent.needs import HostPaths, Needs, Shim, needs
from hami_node_agent.sharing import Sharing
from hami_protocol.devices import ContainerKind, ContainerShares, DeviceShare
from hami_protocol.errors import ProtocolError
from hami_protocol.kubernetes import Container, EnvVar
from tests.builders import a_container

VENDOR = nvidia.vendor(NvidiaConfig())
SHIM = Shim(host_path="/usr/local/vgpu/libvgpu.so.abc")


def what(
    *shares: tuple[str, int, int], container: Container | None = None, pod_uid: str = "testuid", name: str = "testcname", **fields: Any
) -> Needs:
    given = {"sharing": Sharing(), "whole_mib": {}, "paths": HostPaths(), "shim": SHIM, **fields}
    return needs(
        pod_uid=pod_uid,
        held=ContainerShares(
            container=name,
            kind=ContainerKind.APP,
            shares=tuple(DeviceShare(uuid=uuid, type="NVIDIA", memory_mib=mib, cores=cores) for uuid, mib, cores in shares),
        ),
        container=container or a_container(name),
        answer="c1",
        **{"vendor": VENDOR, **given},
    )


def test_the_environment_is_the_references() -> None:
    assert what(("GPU-a", 3000, 50), ("GPU-b", 2000, 50)).environment == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m",
        "CUDA_DEVICE_MEMORY_LIMIT_1": "2000m",
        "CUDA_DEVICE_SM_LIMIT": "50",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu/c1.cache",
        "LIBCUDA_LOG_LEVEL": "1",
    }


@pytest.mark.example("container selection 26")
def test_the_containers_files_are_named_after_pod_and_container_and_of_ours_it_can_write_the_region_alone() -> None:
    found = what(("GPU-a", 3000, 50))
    writable = [bind for bind in found.mounts if not bind.read_only]
    assert [(bind.host_path, bind.container_path) for bind in writable] == [
        ("/usr/local/vgpu/regions/testuid_testcname", "/usr/local/vgpu/region"),
    ]
    assert found.folders == ("/usr/local/vgpu/containers/testuid_testcname",)
    assert found.region_path == "/usr/local/vgpu/regions/testuid_testcname"
    assert grant_file.decode(found.grant).region_made


def test_a_container_of_an_earlier_agent_keeps_the_region_that_it_was_started_with() -> None:
    found = what(("GPU-a", 3000, 50), region="/usr/local/vgpu/c1.cache")
    writable = {bind.container_path for bind in found.mounts if not bind.read_only}
    assert writable == {"/usr/local/vgpu", "/tmp/vgpulock"}
    grant = grant_file.decode(found.grant)
    assert (found.region_path, grant.region_path, grant.region_made) == ("", "/usr/local/vgpu/c1.cache", False)


def test_shim_preload_and_grant_are_mounted_read_only_from_outside_that_folder() -> None:
    read_only = {bind.container_path: bind.host_path for bind in what(("GPU-a", 3000, 50)).mounts if bind.read_only}
    assert read_only == {
        "/usr/local/vgpu": "/usr/local/vgpu/containers/testuid_testcname",
        "/usr/local/vgpu/libvgpu.so": "/usr/local/vgpu/libvgpu.so.abc",
        "/etc/ld.so.preload": "/usr/local/vgpu/ld.so.preload",
        "/usr/local/vgpu/grant": "/usr/local/vgpu/grants/testuid_testcname",
    }


def test_the_grant_says_what_the_environment_says() -> None:
    grant = grant_file.decode(what(("GPU-a", 3000, 50), ("GPU-b", 2000, 0), container=a_container("testcname", priority="0")).grant)
    assert [(one.uuid, one.memory_limit_mib, one.sm_percent, one.whole) for one in grant.devices] == [
        ("GPU-a", 3000, 50, False),
        ("GPU-b", 2000, 0, False),
    ]
    assert (grant.pod_uid, grant.container, grant.priority, grant.region_path) == ("testuid", "testcname", 0, "/usr/local/vgpu/region")


def test_a_whole_card_is_one_of_which_all_memory_and_all_cores_are_granted() -> None:
    whole = {"GPU-a": 24576}

    def is_whole(mib: int, cores: int) -> bool:
        return grant_file.decode(what(("GPU-a", mib, cores), whole_mib=whole).grant).devices[0].whole

    assert is_whole(24576, 100)
    assert not is_whole(24575, 100)
    assert not is_whole(24576, 99)


@pytest.mark.example("container selection 17")
@pytest.mark.parametrize(
    ("value", "allowed", "share", "preloaded"),
    [
        ("true", True, (24576, 100), False),
        ("1", True, (24576, 100), False),
        ("yes", True, (24576, 100), True),
        ("0", True, (24576, 100), True),
        ("true", False, (24576, 100), True),
        ("true", True, (3000, 50), True),
        ("true", True, (24576, 99), True),
        ("true", True, (24575, 100), True),
    ],
)
@pytest.mark.departs("CUDA_DISABLE_CONTROL is ignored unless the device configuration allows it, and then only with whole cards")
def test_a_container_switches_its_limits_off_only_where_that_is_allowed_and_its_cards_are_whole(
    value: str, allowed: bool, share: tuple[int, int], preloaded: bool
) -> None:
    container = Container(name="testcname", env=(EnvVar(name="CUDA_DISABLE_CONTROL", value=value),))
    spec = nvidia.vendor(NvidiaConfig(allow_disable_control=allowed))
    found = what(("GPU-a", *share), container=container, vendor=spec, whole_mib={"GPU-a": 24576})
    assert ("/etc/ld.so.preload" in {bind.container_path for bind in found.mounts}) is preloaded


def test_without_an_installed_shim_nothing_of_it_is_mounted() -> None:
    paths = {bind.container_path for bind in what(("GPU-a", 3000, 50), shim=Shim()).mounts}
    assert paths == {"/usr/local/vgpu", "/usr/local/vgpu/grant", "/usr/local/vgpu/region"}


def test_a_licence_on_the_host_is_mounted_with_its_validator() -> None:
    shim = Shim(host_path="/l", license="/usr/local/vgpu/license", validator="/usr/local/vgpu/vgpuvalidator")
    paths = {bind.container_path for bind in what(("GPU-a", 3000, 50), shim=shim).mounts}
    assert {"/tmp/license", "/usr/bin/vgpuvalidator"} <= paths


def test_oversubscription_and_a_disabled_core_limit_are_said() -> None:
    environment = what(("GPU-a", 3000, 50), sharing=Sharing(memory_scaling=1.5, disable_core_limit=True)).environment
    assert environment["CUDA_OVERSUBSCRIBE"] == "true"
    assert environment["GPU_CORE_UTILIZATION_POLICY"] == "disable"


@pytest.mark.parametrize(
    ("shares", "fields"),
    [
        ([("GPU-a", 0, 50)], {}),
        ([], {}),
        ([("GPU-a", 100, 50)], {"pod_uid": "../../etc"}),
        ([("GPU-a", 100, 50)], {"name": "a/b"}),
        ([("GPU-a", 100, 50)], {"name": "a_b"}),
        ([("GPU-a", 100, 50)], {"container": a_container("testcname", priority="-1")}),
        ([("GPU-a", 100, 50)], {"container": a_container("testcname", priority="1e400")}),
        ([("GPU-a", 100, 50)] * 17, {}),
    ],
    ids=["no memory", "no share", "path in uid", "path in name", "underscore", "negative priority", "huge priority", "17 devices"],
)
def test_what_cannot_be_limited_is_refused_with_the_one_error(shares: list[tuple[str, int, int]], fields: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        what(*shares, **fields)


def test_the_references_region_lies_where_its_monitor_looks_and_ours_where_it_does_not() -> None:
    found = what(("GPU-a", 3000, 50), legacy_region=True)
    assert found.environment["HAMI_LEGACY_REGION"] == "true"
    assert found.environment["CUDA_DEVICE_MEMORY_SHARED_CACHE"] == "/usr/local/vgpu/c1.cache"
    assert grant_file.decode(found.grant).region_path == "/usr/local/vgpu/region"
    assert {bind.container_path for bind in found.mounts if not bind.read_only} >= {"/usr/local/vgpu", "/usr/local/vgpu/region"}
    plain = what(("GPU-a", 3000, 50))
    assert "HAMI_LEGACY_REGION" not in plain.environment
    assert grant_file.decode(plain.grant).region_path == "/usr/local/vgpu/region"
