"""Damaged inputs: the same from the same seed, every decoder is given some, and what broke is found and told."""

from __future__ import annotations

import ast
import random
import re
from functools import cache
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
    *(ROOT / f"services/{name}" for name in ("scheduler", "webhook", "registry", "node-agent", "billing")),
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


RAW = re.compile(
    r"msgspec\.\w+\.decode|msgspec\.convert|json\.loads|\w*(?:DECODER|[Dd]ecoder)\w*(?:\[[^]]*\])?\.decode|struct\.unpack\w*|b64decode|FromString"
    r"|fromisoformat|parse_qs\w*|yaml\.\w*load\w*"
)
"""Calls that make something of bytes or text."""
OF_NATS = "an answer of the NATS server, which is trusted as the log itself is"
OF_OPERATORS = "a file or an object that an operator writes"
OWN = "text that this program has made"
NOT_FUZZED_RAW = {
    "hami_protocol.cloud_events._is_a_line": "part of encode, which the target that decodes a cloud event calls",
    "hami_protocol.cordon._items": "the target `cordon`",
    "hami_devices.vendors.enflame._recall": "a vendor's hook, which the chains of pods and records call",
    "hami_webhook.wire.as_dict": "part of the target `admission review`",
    "hami_runtime.bus.api.first_after": OF_NATS,
    "hami_runtime.bus.api.kept_message": OF_NATS,
    "hami_runtime.bus.pulling.Reader._has_lost_its_tail": OF_NATS,
    "hami_runtime.kube.http.HttpCluster.version": "the API server's version, which only the command line asks",
    "hami_runtime.kube.kubeconfig.from_files": OF_OPERATORS,
    "hami_runtime.kube.kubeconfig._pem": OF_OPERATORS,
    "hami_runtime.kube.kubeconfig.namespace_of": OF_OPERATORS,
    "hami_runtime.kube.store_selectors.label_selector_matches": "the store in memory, which only the rig and tests have",
    "hami_runtime.kube.memory.MemoryCluster.create": "the store in memory, which only the rig and tests have",
    "hami_runtime.kube.store.ObjectStore._marked": "the store in memory, which only the rig and tests have",
    "hami_scheduler.questions.application": "the targets `question to …` have its types",
    "hami_scheduler.questions._handlers": "the targets `question to …` have its types",
    "hami_scheduler.resize_api.route": "the target `wish to resize` has its type",
    "hami_webhook.registration.trusted_by": OF_OPERATORS,
    "hami_webhook.stores.SecretStore.read": OF_OPERATORS,
    "hami_registry.web.feed.Feed._ask_all": "the scheduler's answer; what cannot be read is tried again (tests/security/test_other_loops.py)",
    "hami_registry.web.feed._reason": "the scheduler's answer",
    "hami_registry.web.feed._unix": "ce-time of a message, any text (tests/unit/web_page)",
    "hami_node_agent.bus_certificate._context": OF_OPERATORS,
    "hami_node_agent.journal.Journal.reload": OWN,
    "hami_node_agent.sharing.for_node": "the target `node configuration`",
    "hami_billing.follower.microseconds": "ce-time of a message, any text: what is none is counted as unreadable",
}
"""Functions that read something and are not reached from a function that is fuzzed, and why."""


@cache
def reached(package: Path, path: Path) -> tuple[dict[str, ast.AST], dict[str, set[str]]]:
    """The functions of a file by their full names, and for each which other names it uses."""
    module = ".".join(path.relative_to(package).with_suffix("").parts).removesuffix(".__init__")
    found: dict[str, ast.AST] = {}

    def walk(tree: ast.AST, names: tuple[str, ...]) -> None:
        for node in ast.iter_child_nodes(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found[".".join((module, *names, node.name))] = node
            else:
                walk(node, (*names, node.name) if isinstance(node, ast.ClassDef) else names)

    walk(ast.parse(path.read_text()), ())
    used = {
        name: {
            node.attr if isinstance(node, ast.Attribute) else node.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Name | ast.Attribute)
        }
        for name, tree in found.items()
    }
    return found, used


def functions() -> set[str]:
    """All functions of all packages."""
    return {name for package in PACKAGES for path in package.rglob("hami_*/**/*.py") for name in reached(package, path)[0]}


@cache
def unread() -> set[str]:
    """Functions that make something of bytes or text and that no target reaches through the functions of their own file."""
    covered = {name for target in TARGETS for name in target.covers} | NOT_FUZZED.keys()
    missing = set()
    for package in PACKAGES:
        for path in package.rglob("hami_*/**/*.py"):
            if path.name.endswith(("_pb2.py", "_pb2_grpc.py")):
                continue
            found, used = reached(package, path)
            known = covered & found.keys()
            while more := {name for name in found if any(name.rpartition(".")[2] in used[each] for each in known)} - known:
                known |= more
            missing |= {name for name, tree in found.items() if name not in known and RAW.search(re.sub(r"\s", "", ast.unparse(tree)))}
    return missing


def test_whatever_reads_bytes_or_text_is_reached_by_a_target_or_says_why_not() -> None:
    assert unread() - NOT_FUZZED_RAW.keys() == set()
    assert NOT_FUZZED_RAW.keys() - unread() == set(), "these are read by a target now, or are no more"


def test_every_decoder_is_fuzzed_or_says_why_not() -> None:
    covered = {name for target in TARGETS for name in target.covers}
    assert decoders() - covered - NOT_FUZZED.keys() == set()
    assert NOT_FUZZED.keys() - decoders() == set(), "these are no decoders any more"
    assert covered - functions() == set(), "these are no functions any more"


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
