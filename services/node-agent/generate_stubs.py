"""Generate ``hami_node_agent/api/*_pb2*`` from the ``.proto`` files beside them. Run it after changing one; ``--check`` only compares.

The ``NotImplementedError`` in them is gRPC's own answer of a base class to a call (UNIMPLEMENTED) that a servicer has not taken over.
"""
# ruff: noqa: INP001

from __future__ import annotations

import argparse
import sys
import sysconfig
import tempfile
from importlib import resources
from pathlib import Path

ROOT = Path(__file__).parent
API = Path("hami_node_agent/api")


def generate(into: Path) -> dict[str, bytes]:
    """Return the generated files by name; ``into`` is an empty folder to work in."""
    from grpc_tools import protoc

    protos = sorted(str(API / path.name) for path in (ROOT / API).glob("*.proto"))
    scripts = Path(sysconfig.get_path("scripts"))
    arguments = [
        "protoc",
        f"-I{ROOT}",
        f"-I{resources.files('grpc_tools') / '_proto'}",
        f"--plugin=protoc-gen-mypy={scripts / 'protoc-gen-mypy'}",
        f"--plugin=protoc-gen-mypy_grpc={scripts / 'protoc-gen-mypy_grpc'}",
        f"--python_out={into}",
        f"--mypy_out=quiet:{into}",
        f"--grpc_python_out={into}",
        f"--mypy_grpc_out=quiet:{into}",
        *protos,
    ]
    if protoc.main(arguments) != 0:
        raise RuntimeError("protoc failed; what it says is above")
    return {path.name: path.read_bytes() for path in sorted((into / API).iterdir())}


def stale(generated: dict[str, bytes]) -> list[str]:
    """Names of committed stubs that are missing, left over or different from ``generated``."""
    committed = {path.name: path.read_bytes() for path in (ROOT / API).glob("*_pb2*")}
    return sorted(name for name in generated.keys() | committed.keys() if generated.get(name) != committed.get(name))


def main() -> int:
    """Write the stubs, or compare them; the exit status is 1 where they are not current."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a committed stub is not current")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        generated = generate(Path(folder))
    different = stale(generated)
    if arguments.check:
        print("\n".join(f"not current: {name}" for name in different))
        return 1 if different else 0
    for name in different:
        if name in generated:
            (ROOT / API / name).write_bytes(generated[name])
        else:
            (ROOT / API / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
