"""What `kubectl logs` shows of a rig's containers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hami_rig.apiserver import logs
from hami_runtime.kube.store_errors import ApiError


def a_pod(*containers: str, node: str = "n1") -> dict[str, Any]:
    return {"metadata": {"name": "p", "uid": "u1"}, "spec": {"nodeName": node, "containers": [{"name": each} for each in containers]}}


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    folder = tmp_path / "n1" / "containers" / "u1"
    folder.mkdir(parents=True)
    (folder / "main.log").write_bytes(b"one\ntwo\nthree\n")
    return tmp_path


def test_what_a_process_printed_is_shown_whole_or_its_end(nodes: Path) -> None:
    assert logs.read(nodes, a_pod("main"), {}) == b"one\ntwo\nthree\n"
    assert logs.read(nodes, a_pod("main", "side"), {"container": "main", "tailLines": "2"}) == b"two\nthree\n"
    assert logs.read(nodes, a_pod("main"), {"tailLines": "0"}) == b""


def test_a_container_that_is_no_process_says_nothing(nodes: Path) -> None:
    assert logs.read(nodes, a_pod("main", "side"), {"container": "side"}) == b""


def test_of_a_long_log_the_end_is_shown(nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MOST_BYTES", 6)
    assert logs.read(nodes, a_pod("main"), {}) == b"three\n"


@pytest.mark.parametrize(
    ("pod", "query", "said"),
    [
        (a_pod("main", "side"), {}, "choose one of: ['main', 'side']"),
        (a_pod("main"), {"container": "../main"}, "container ../main is not valid for pod p"),
        (a_pod("main", node=""), {}, "pod p does not have a host assigned"),
    ],
)
def test_what_cannot_be_shown_is_refused_with_the_reason(nodes: Path, pod: dict[str, Any], query: dict[str, str], said: str) -> None:
    with pytest.raises(ApiError) as refused:
        logs.read(nodes, pod, query)
    assert said in refused.value.message
