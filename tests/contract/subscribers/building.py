"""Builds what follows the bus in other languages: NATS' command line, the Go program, the JavaScript program with its packages.

``python -m tests.contract.subscribers.building`` does it, into build/subscribers, and says what is lacking where it cannot. Versions are those of
go.sum and package-lock.json.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
BUILD: Final = ROOT / "build" / "subscribers"
EXAMPLES: Final = ROOT / "examples" / "subscribers"
NATS: Final = BUILD / "nats"
GO: Final = BUILD / "go"
JAVASCRIPT: Final = BUILD / "javascript"
SCHEMA: Final = ROOT / "docs" / "protocol" / "event.schema.json"


def lacking() -> str:
    """What is missing on this machine; empty where nothing is."""
    found = {"go": _go(), "node": shutil.which("node"), "npm": shutil.which("npm")}
    missing = [name for name, path in found.items() if path is None]
    return f"no {', '.join(missing)} here" if missing else ""


def build() -> None:
    """Build what is not current.

    Raises:
        subprocess.CalledProcessError: it could not be built; its own words are on standard error.
    """
    BUILD.mkdir(parents=True, exist_ok=True)
    _go_build(Path(__file__).parent / "natscli", "github.com/nats-io/natscli/nats", NATS)
    _go_build(EXAMPLES / "go", ".", GO)
    JAVASCRIPT.mkdir(exist_ok=True)
    lock = EXAMPLES / "javascript" / "package-lock.json"
    installed = JAVASCRIPT / "package-lock.json"
    for name in ("package.json", "follow.mjs"):
        shutil.copy2(EXAMPLES / "javascript" / name, JAVASCRIPT / name)
    if not installed.exists() or installed.read_bytes() != lock.read_bytes() or not (JAVASCRIPT / "node_modules").exists():
        shutil.copy2(lock, installed)
        print("installing the packages of examples/subscribers/javascript", flush=True)
        subprocess.run(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=JAVASCRIPT, check=True)


def _go() -> str | None:
    usual = Path("/usr/local/go/bin/go")
    return shutil.which("go") or (str(usual) if usual.exists() else None)


def _go_build(module: Path, package: str, into: Path) -> None:
    go = _go()
    assert go is not None
    sources = [path.stat().st_mtime for path in module.iterdir()]
    if into.exists() and into.stat().st_mtime > max(sources):
        return
    print(f"building {into.name} (a few minutes the first time)", flush=True)
    environ = {**os.environ, "GOFLAGS": "-mod=readonly", "CGO_ENABLED": "0"}
    subprocess.run([go, "build", "-trimpath", "-ldflags=-s -w", "-o", str(into), package], cwd=module, env=environ, check=True)


if __name__ == "__main__":
    if reason := lacking():
        print(f"make subscribers-test: skipped: {reason}")
        sys.exit(3)
    build()
