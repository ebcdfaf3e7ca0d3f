"""The bill of materials: each locked package with its hashes, and what it says of its licence."""

from __future__ import annotations

from typing import Any

from tools import sbom

LOCK = f"""# a comment
aiohttp==3.1 ; python_version > '3'\\
    --hash=sha256:{"a" * 64} \\
    --hash=sha256:{"b" * 64}
    # via hami
colorama==0.4 \\
    --hash=sha256:{"c" * 64}
"""


def component(name: str, version: str, *digests: str) -> dict[str, Any]:
    hashes = [{"alg": "SHA-256", "content": digest * 64} for digest in digests]
    return {
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name}@{version}",
        "description": "line 1",
        "externalReferences": [{"hashes": hashes}],
    }


LOCKED = {
    "metadata": {"component": {"bom-ref": "root", "name": "hami"}},
    "components": [component("aiohttp", "3.1", "a", "b"), component("colorama", "0.4", "c")],
}
INSTALLED = {
    "metadata": {"component": {"bom-ref": "hami"}},
    "components": [
        {"name": "AioHTTP", "bom-ref": "aiohttp==3.1", "licenses": [{"expression": "Apache-2.0"}], "description": "HTTP"},
        {"name": "pip", "bom-ref": "pip==25"},
    ],
    "dependencies": [{"ref": "hami", "dependsOn": ["aiohttp==3.1", "pip==25"]}, {"ref": "aiohttp==3.1"}],
}


def test_a_locked_package_gets_the_licence_and_description_that_it_states() -> None:
    found = {each["name"]: each for each in sbom.merged(LOCKED, INSTALLED)["components"]}
    assert found["aiohttp"]["licenses"] == [{"expression": "Apache-2.0"}]
    assert found["aiohttp"]["description"] == "HTTP"
    assert found["colorama"].keys() & {"licenses", "description"} == set()  # of another system: not installed here
    assert set(found) == {"aiohttp", "colorama"}  # what is installed beside the lock is left out


def test_who_depends_on_whom_refers_to_the_lock_alone() -> None:
    graph = {each["ref"]: each["dependsOn"] for each in sbom.merged(LOCKED, INSTALLED)["dependencies"]}
    assert graph == {"root": ["pkg:pypi/aiohttp@3.1"], "pkg:pypi/aiohttp@3.1": [], "pkg:pypi/colorama@0.4": []}


def test_a_package_or_a_hash_that_is_not_there_is_named() -> None:
    document = sbom.merged(LOCKED, INSTALLED)
    assert sbom.missing(document, LOCK) == []
    assert sbom.missing({"components": document["components"][:1]}, LOCK) == [f"colorama==0.4: {'c' * 64}"]
    assert sbom.missing(document, LOCK.replace("3.1", "3.2")) == [f"aiohttp==3.2: {'a' * 64}", f"aiohttp==3.2: {'b' * 64}"]
    assert sbom.missing(document, LOCK.replace("b" * 64, "d" * 64)) == [f"aiohttp==3.1: {'d' * 64}"]
