"""What is left of an agent on its node after ``hami-node-agent clean-up``: nothing of ours, and everything of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami_node_agent import clean_up
from hami_node_agent.needs import HostPaths
from hami_node_agent.removal import Removal

SPEC = "hami-0d0e4dd4-6c5f-4f2b-9f0c-1f8f1a2b3c4d.json"


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A node on which an agent has served a pod."""
    for path, text in {
        "local/vgpu/libvgpu.so.1": "x",
        "local/vgpu/grants/u_c": "x",
        "local/vgpu/containers/u_c/deep/er/file": "x",
        "local/bin/of-others": "x",
        f"cdi/{SPEC}": "{}",
        "cdi/nvidia.json": "{}",
        "plugins/nvidia-gpu-00ff1a.sock": "",
        "plugins/nvidia-gpu.sock": "",
        "plugins/kubelet.sock": "",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "local/vgpu/libvgpu.so").symlink_to("libvgpu.so.1")
    (tmp_path / "local/vgpu/containers/u_c/out").symlink_to(tmp_path / "local/bin")
    return tmp_path


def cleaned(node: Path) -> list[str]:
    clean_up.clean_up(HostPaths(hook=f"{node}/local"), cdi_folder=node / "cdi", plugin_folder=node / "plugins", device_type="nvidia")
    return sorted(str(path.relative_to(node)) for path in node.rglob("*") if not path.is_dir())


def test_ours_goes_and_what_others_have_stays_and_twice_is_as_once(node: Path) -> None:
    others = ["cdi/nvidia.json", "local/bin/of-others", "plugins/kubelet.sock", "plugins/nvidia-gpu.sock"]
    assert cleaned(node) == others
    assert not (node / "local" / "vgpu").exists()
    assert cleaned(node) == others


def test_what_cannot_be_removed_is_named_and_keeps_nothing_else(node: Path) -> None:
    removed: list[str] = []

    def remove(path: str) -> Removal:
        removed.append(Path(path).name)
        return Removal(complete=False, obstacle="Operation not permitted") if path.endswith("vgpu") else Removal(complete=True)

    with pytest.raises(clean_up.CleanUpError, match=r"local/vgpu: Operation not permitted"):
        clean_up.clean_up(
            HostPaths(hook=f"{node}/local"), cdi_folder=node / "cdi", plugin_folder=node / "plugins", device_type="nvidia", remove=remove
        )
    assert removed == [SPEC, "nvidia-gpu-00ff1a.sock", "vgpu"]


def test_a_removal_that_takes_more_than_one_call_goes_on(node: Path) -> None:
    answers = iter([Removal(complete=False), Removal(complete=False), *[Removal(complete=True)] * 3])
    clean_up.clean_up(
        HostPaths(hook=f"{node}/local"),
        cdi_folder=node / "cdi",
        plugin_folder=node / "plugins",
        device_type="nvidia",
        remove=lambda _: next(answers),
    )
    assert next(answers, None) is None
