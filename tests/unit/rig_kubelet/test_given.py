"""What a container is started with: its own environment, the plugin's answer, and what CDI specs add."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami_node_agent.api import deviceplugin_pb2 as pb
from hami_protocol import kubernetes as k
from hami_rig.kubelet import containers, process_environment
from hami_rig.kubelet.devices import Held

SPEC = """{"cdiVersion": "0.6.0", "kind": "hami.io/share",
 "devices": [{"name": "one", "containerEdits": {"env": ["LIMIT=3000m"], "mounts": [{"hostPath": "/h/lib", "containerPath": "/c/lib"}],
   "deviceNodes": [{"path": "/dev/nvidia0"}]}}, {"name": "two", "containerEdits": {"env": ["LIMIT=5000m"]}}]}"""


def held(answer: pb.ContainerAllocateResponse) -> tuple[Held, ...]:
    return (Held(pod_uid="u", container="c", resource="nvidia.com/gpu", ids=("a",), answer=answer.SerializeToString()),)


def test_the_plugins_answer_adds_to_the_containers_own_environment(tmp_path: Path) -> None:
    container = k.Container(name="c", env=(k.EnvVar(name="OWN", value="x"), k.EnvVar(name="NVIDIA_VISIBLE_DEVICES", value="all")))
    mount = pb.Mount(container_path="/etc/ld.so.preload", host_path="/h/preload", read_only=True)
    answer = pb.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": "GPU-a"}, mounts=[mount])
    given = containers.given_to(container, held(answer), tmp_path)
    assert given.env == {"OWN": "x", "NVIDIA_VISIBLE_DEVICES": "GPU-a"}
    assert [(each.host_path, each.container_path, each.options) for each in given.mounts] == [
        ("/h/preload", "/etc/ld.so.preload", ("ro", "bind"))
    ]


def test_a_cdi_name_brings_its_devices_edits(tmp_path: Path) -> None:
    (tmp_path / "hami.io-share.json").write_text(SPEC)
    (tmp_path / "broken.json").write_text("{")
    answer = pb.ContainerAllocateResponse(cdi_devices=[pb.CDIDevice(name="hami.io/share=one")])
    given = containers.given_to(k.Container(name="c"), held(answer), tmp_path)
    assert given.env == {"LIMIT": "3000m"}
    assert [node.path for node in given.device_nodes] == ["/dev/nvidia0"]
    assert given.cdi_devices == ("hami.io/share=one",)


def test_a_name_in_no_spec_keeps_the_container_from_starting(tmp_path: Path) -> None:
    answer = pb.ContainerAllocateResponse(cdi_devices=[pb.CDIDevice(name="hami.io/share=gone")])
    with pytest.raises(process_environment.StartFailed, match=r"unresolvable CDI devices hami.io/share=gone") as failed:
        containers.given_to(k.Container(name="c"), held(answer), tmp_path)
    assert failed.value.reason == "CreateContainerError"


def test_paths_of_the_container_become_the_hosts() -> None:
    mounts = {"/usr/local/vgpu": "/rig/containers/u", "/usr/local/vgpu/libvgpu.so": "/rig/libvgpu.so"}
    assert process_environment.host_path("/usr/local/vgpu/libvgpu.so", mounts) == "/rig/libvgpu.so"
    assert process_environment.host_path("/usr/local/vgpu/x.cache", mounts) == "/rig/containers/u/x.cache"
    assert process_environment.host_path("/usr/local/vgpux", mounts) == "/usr/local/vgpux"


@pytest.mark.parametrize(("text", "seconds"), [("1.5", 1.5), ("-1", None), ("nan", None), ("soon", None), ("1e99", None)])
def test_an_annotation_that_makes_no_sense_counts_as_absent(text: str, seconds: float | None) -> None:
    assert containers.seconds_of({containers.RUN_SECONDS: text}, containers.RUN_SECONDS) == seconds
