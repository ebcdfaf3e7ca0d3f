"""The krew manifest of a release: ``python -m tools.krew_manifest SOURCE FOLDER`` prints deploy/krew/hami.yaml for what is in FOLDER."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[1]
MANIFEST: Final = ROOT / "deploy" / "krew" / "hami.yaml"


def filled(manifest: dict[str, Any], source: str, digest: Callable[[str], str]) -> dict[str, Any]:
    """The manifest with ``source``, the repository's address, and the digest of each archive, by its name."""
    spec = manifest["spec"]
    release = f"{source}/releases/download/{spec['version']}"
    platforms = []
    for each in spec["platforms"]:
        name = each["uri"].rpartition("/")[2]
        platforms.append({**each, "uri": f"{release}/{name}", "sha256": digest(name)})
    return {**manifest, "spec": {**spec, "homepage": source, "platforms": platforms}}


def main() -> None:
    """Print the manifest."""
    source, folder = sys.argv[1], Path(sys.argv[2])
    manifest = filled(yaml.safe_load(MANIFEST.read_text()), source, lambda name: hashlib.sha256((folder / name).read_bytes()).hexdigest())
    yaml.safe_dump(manifest, sys.stdout, sort_keys=False)


if __name__ == "__main__":
    main()
