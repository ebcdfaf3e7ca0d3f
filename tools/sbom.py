"""The software bill of materials as CycloneDX JSON: ``python -m tools.sbom FILE``; `make sbom` installs what it needs.

Its components are the packages of requirements.lock, with their hashes. Licences, descriptions and who depends on whom come from the
metadata of the same packages in the environment that runs this.
"""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
LOCK: Final = "requirements.lock"
Document = dict[str, Any]


class SbomError(Exception):
    """The bill of materials is not complete or not valid; the text names what is wrong."""


def merged(locked: Mapping[str, Any], installed: Mapping[str, Any]) -> Document:
    """The document of the lock file, completed with what the installed packages say of themselves."""
    known = {each["name"].lower(): each for each in installed["components"]}
    refs = {known[name]["bom-ref"]: each["purl"] for each in locked["components"] if (name := each["name"].lower()) in known}
    root = locked["metadata"]["component"]["bom-ref"]
    refs[installed["metadata"]["component"]["bom-ref"]] = root
    components = []
    for each in locked["components"]:
        own = {key: value for key, value in known.get(each["name"].lower(), {}).items() if key in {"licenses", "description"}}
        named = {key: value for key, value in each.items() if key != "description"}
        components.append({**named, **own, "bom-ref": each["purl"]})
    graph = {refs[each["ref"]]: each.get("dependsOn", []) for each in installed["dependencies"] if each["ref"] in refs}
    dependencies = [
        {"ref": ref, "dependsOn": sorted(refs[each] for each in graph.get(ref, []) if each in refs)}
        for ref in [root, *(each["bom-ref"] for each in components)]
    ]
    return {**locked, "components": components, "dependencies": dependencies}


def missing(document: Mapping[str, Any], lock: str) -> list[str]:
    """What of a lock file's packages the document lacks: the package itself, its version, or a hash."""
    components = {(each["name"].lower(), each["version"]): json.dumps(each) for each in document["components"]}
    lacking = []
    for block in re.split(r"\n(?=\S)", lock):
        if pinned := re.match(r"([\w.-]+)==(\S+)", block):
            text = components.get((pinned[1].lower(), pinned[2]), "")
            lacking += [f"{pinned[0]}: {each}" for each in re.findall(r"sha256:([0-9a-f]{64})", block) if each not in text]
    return lacking


def generate() -> Document:
    """The document.

    Raises:
        SbomError: it lacks a package or a hash, or is not CycloneDX.
    """
    common = ("--pyproject", "pyproject.toml", "--output-reproducible", "--output-format", "JSON")
    document = merged(_run("requirements", LOCK, *common), _run("environment", sys.executable, *common))
    if lacking := missing(document, (ROOT / LOCK).read_text()):
        raise SbomError(f"not in the document: {', '.join(lacking)}")
    validation = importlib.import_module("cyclonedx.validation.json")
    schema = importlib.import_module("cyclonedx.schema")
    if fault := validation.JsonStrictValidator(schema.SchemaVersion.V1_6).validate_str(json.dumps(document)):
        raise SbomError(f"not CycloneDX 1.6: {fault}")
    return document


def _run(*arguments: str) -> Document:
    command = [sys.executable, "-W", "ignore", "-m", "cyclonedx_py", *arguments]
    return dict(json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout))


def main() -> int:
    """Write the document, and print what is in it."""
    path = Path(sys.argv[1])
    try:
        document = generate()
    except SbomError as exc:
        print(exc, file=sys.stderr)
        return 1
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2) + "\n")
    components = document["components"]
    print(f"{path}: {len(components)} packages, {sum('licenses' in each for each in components)} with a licence")
    return 0


if __name__ == "__main__":
    sys.exit(main())
