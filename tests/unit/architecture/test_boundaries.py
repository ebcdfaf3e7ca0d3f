"""What modules claim about themselves is what import-linter checks: purity by header, and the layers of all packages."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("libs", "services", "cli", "rig")
CLAIM = re.compile(r"(?:^|[.:;]\s+)Pure\b|\b[Nn]o I/O\b")
"""A sentence that begins with "Pure", or one that rules I/O out."""
CONFIGURATION: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]


def contract(name: str) -> dict[str, Any]:
    """The contract of this name."""
    return next(each for each in CONFIGURATION["contracts"] if each["name"] == name)


def modules() -> dict[str, Path]:
    """Every module of the product and the rig, by its import name."""
    found = {}
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            package = next((place for place, part in enumerate(parts) if part.startswith("hami_")), None)
            if package is not None:
                found[".".join(parts[package:]).removesuffix(".__init__")] = path
    return found


def claims_purity(source: str) -> bool:
    """Whether the module's docstring rules I/O out."""
    return CLAIM.search(ast.get_docstring(ast.parse(source)) or "") is not None


def is_covered(module: str, listed: list[str]) -> bool:
    """Whether a contract that lists ``listed`` checks ``module``, by itself or with its package."""
    return any(module == each or module.startswith(f"{each}.") for each in listed)


def test_a_claim_of_purity_is_recognized() -> None:
    assert claims_purity('"""Which device. Pure."""')
    assert claims_purity('"""Which device.\n\nPure; times are given.\n"""')
    assert claims_purity('"""Decides; no I/O."""')
    assert not claims_purity('"""The only I/O is reading the file. A pure function is inside."""')


def test_every_module_that_claims_to_be_pure_is_checked() -> None:
    listed = contract("Decisions do no I/O")["source_modules"]
    claiming = [name for name, path in modules().items() if claims_purity(path.read_text())]
    assert len(claiming) > 50
    assert [name for name in sorted(claiming) if not is_covered(name, listed)] == []


def test_every_checked_module_exists() -> None:
    assert [each for each in contract("Decisions do no I/O")["source_modules"] if each not in modules()] == []


def test_the_layers_name_every_package() -> None:
    layers = contract("Layers: services meet on the bus, not in imports")["layers"]
    named = {name.strip() for layer in layers for name in re.split(r"[|:]", layer)}
    packages = {name for name in modules() if "." not in name}
    assert named == packages == set(CONFIGURATION["root_packages"])
