"""Names that no component reads are found, with the name that was meant."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hami_devices.catalog import Catalog
from hami_protocol.kubernetes import Pod

CATALOG = Catalog()


def a_pod(limits: dict[str, Any] | None = None, requests: dict[str, Any] | None = None, **annotations: str) -> Pod:
    resources = {"limits": limits or {}, "requests": requests or {}}
    metadata = {
        "name": "p1",
        "namespace": "default",
        "annotations": {f"hami.io/{key.replace('_', '-')}": value for key, value in annotations.items()},
    }
    return msgspec.convert({"metadata": metadata, "spec": {"containers": [{"name": "main", "resources": resources}]}}, Pod)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("nvidia.com/gpumemory", "nvidia.com/gpumem"),
        ("nvidia.com/gpus", "nvidia.com/gpu"),
        ("nvidia.com/gpucore", "nvidia.com/gpucores"),
        ("huawei.com/Ascend910B3-memroy", "huawei.com/Ascend910B3-memory"),
    ],
)
def test_an_unknown_resource_of_a_known_vendor_names_the_one_that_was_meant(name: str, meant: str) -> None:
    for kind in ("limits", "requests"):
        (found,) = CATALOG.misspellings(a_pod(**{kind: {"cpu": "1", name: 1}}))  # type: ignore[arg-type]
        assert (found.field, found.suggestion) == (f"spec.containers[0].resources.{kind}[{name}]", meant)
        assert f"did you mean {meant}?" in str(found)


@pytest.mark.parametrize(
    "name", ["cpu", "example.com/gpu", "hugepages-2Mi", "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared", "amd.com"]
)
def test_known_resources_and_those_of_other_domains_are_not_found(name: str) -> None:
    assert not CATALOG.misspellings(a_pod({name: 1}))


def test_a_resource_that_is_like_none_lists_what_is_accepted() -> None:
    (found,) = CATALOG.misspellings(a_pod({"nvidia.com/xyzzy": 1}))
    assert found.suggestion == ""
    assert "accepted: nvidia.com/gpu, " in str(found)


@pytest.mark.parametrize(
    ("annotations", "meant"),
    [
        ({"node_scheduler_policy": "spraed"}, ["spread"]),
        ({"gpu_scheduler_policy": "binpak"}, ["binpack"]),
        ({"gpu_scheduler_policy": "numa,binpak,sprad"}, ["binpack", "spread"]),
        ({"node_scheduler_policy": "mutex"}, [""]),
        ({"node_scheduler_policy": "", "gpu_scheduler_policy": "numa, spread"}, []),
        ({"node_scheduler_policy": "binpack", "gpu_scheduler_policy": "topology-aware"}, []),
    ],
)
def test_an_unknown_policy_names_the_one_that_was_meant(annotations: dict[str, str], meant: list[str]) -> None:
    assert [found.suggestion for found in CATALOG.misspellings(a_pod({"nvidia.com/gpu": 1}, **annotations))] == meant
