"""Manifests that are made from the code are what the code makes."""

import pytest

from tests.unit.manifests.conftest import KUSTOMIZE
from tools import manifests


@pytest.mark.parametrize("path", manifests.generated())
def test_a_generated_manifest_is_current(path: str) -> None:
    assert (KUSTOMIZE / path).read_text() == manifests.generated()[path], "run `make docs`"
