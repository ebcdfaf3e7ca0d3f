"""Damaged inputs: the same from the same seed, every decoder is given some, and what broke is found and told."""

from __future__ import annotations

import ast
import random
from pathlib import Path

import pytest

from tests.fuzz.__main__ import main
from tests.fuzz.mutation import MOST_BYTES, Pool, damaged
from tests.fuzz.target import Target, run
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).parents[3]
INPUTS = 60
PACKAGES = (
    *(ROOT / f"libs/{name}" for name in ("protocol", "devices", "runtime")),
    *(ROOT / f"services/{name}" for name in ("scheduler", "webhook", "registry", "node-agent")),
)
NOT_FUZZED = {
    "hami_runtime.pem_file.readable": "hands a file to OpenSSL, which reads it",
    "hami_runtime.kube.memory.decoded": "the store in memory, which only the rig and tests have",
    "hami_webhook.keeper.load": "a certificate, which OpenSSL reads",
    "hami_scheduler.main.load_catalog": "opens the file that hami_devices.config.load reads",
    "hami_node_agent.shim_layout.read_uint": "a number at a place, which the grant file and the region are made of",
    "hami_node_agent.shim_layout.read_text": "a text at a place, which the grant file and the region are made of",
    "hami_runtime.bus.permissions.reader": "makes permissions, and reads nothing",
}


def decoders() -> set[str]:
    """Public functions whose names say that they read something."""
    found = set()
    for package in PACKAGES:
        for path in package.rglob("*.py"):
            if "tests" in path.parts or path.name.endswith("_pb2.py") or path.name.endswith("_pb2_grpc.py"):
                continue
            module = ".".join(path.relative_to(package).with_suffix("").parts).removesuffix(".__init__")
            for node in ast.parse(path.read_text()).body:
                if (
                    isinstance(node, ast.FunctionDef)
                    and node.name.startswith(("decode", "read", "parse", "load", "open_"))
                    and module.startswith("hami_")
                ):
                    found.add(f"{module}.{node.name}")
    return found


def test_every_decoder_is_fuzzed_or_says_why_not() -> None:
    covered = {name for target in TARGETS for name in target.covers}
    assert decoders() - covered - NOT_FUZZED.keys() == set()
    assert (covered | NOT_FUZZED.keys()) - decoders() == set(), "these are no decoders any more"


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_decoder_raises_what_it_says_and_nothing_else(target: Target) -> None:
    report = run(target, seed=7, inputs=len(target.seeds) + INPUTS)
    assert [(fault.what, fault.data) for fault in report.faults] == []
    assert report.accepted, "no input was valid, not even a recorded one"


def test_the_same_seed_gives_the_same_inputs_and_another_one_others() -> None:
    def drawn(seed: int) -> list[bytes]:
        rng, pool = random.Random(seed), Pool([b'{"a":[1,{"b":"c"}]}', b"G,10,7680,100,P4,0,true:"])
        return [damaged(pool, rng) for _ in range(200)]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert len(set(drawn(1))) > 150
    assert max(map(len, drawn(1))) <= MOST_BYTES


def test_what_breaks_is_kept_and_ends_the_run_with_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(data: bytes) -> int:
        if data != b"12":
            raise KeyError("x")
        return int(data)

    monkeypatch.setattr("tests.fuzz.__main__.TARGETS", (Target(name="brittle", call=breaks, refuses=(ValueError,), seeds=(b"12",)),))
    assert main(["--inputs", "50", "--keep", str(tmp_path)]) == 1
    assert (tmp_path / "brittle-0").read_bytes() != b"12"
    told = capsys.readouterr()
    assert "FAULTS 3" in told.out
    assert "KeyError" in told.err


def test_a_run_says_how_many_inputs_it_gave_and_how_fast(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--inputs", "20", "--target", "handshake", "--target", "quantity"]) == 0
    assert "40 inputs for 2 targets, seed 1" in capsys.readouterr().out
