"""One cluster for each module, with the images of an installation on its node."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.harness import building
from tests.install.harness import images
from tests.install.harness.cluster import Cluster

TEST_SECONDS = 1200
"""The first test of a module builds images and starts a cluster."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is here needs a cluster of its own."""
    for item in items:
        if item.path.is_relative_to(building.ROOT / "tests" / "install"):
            item.add_marker(pytest.mark.install)
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))


@contextmanager
def running(**options: int) -> Iterator[Cluster]:
    """A cluster with all images."""
    if reason := building.lacking(building.ADDONS):
        pytest.fail(f"no real Kubernetes here: {reason}", pytrace=False)
    folder = Path(tempfile.mkdtemp(prefix="hami-install-"))
    cluster = Cluster(folder, **options)
    try:
        cluster.start()
        cluster.import_images([*images.ours(), *images.of_others(folder / "images", cluster.binaries, cluster.version())])
        yield cluster
    finally:
        if keep := os.environ.get("HAMI_TEST_KEEP_LOGS"):
            shutil.copytree(cluster.machine.logs, keep, dirs_exist_ok=True)
        cluster.stop()
