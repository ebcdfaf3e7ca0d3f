"""The reference's device-config file is read unchanged."""

from __future__ import annotations

import pytest

from hami_devices.catalog import Catalog
from hami_devices.config import MIG_ALLOWANCES, ConfigError, DeviceConfig, load
from tests.builders import a_container, a_pod

CHART = """
nvidia:
  resourceCountName: nvidia.com/gpu
  resourceMemoryName: nvidia.com/gpumem
  resourceMemoryPercentageName: nvidia.com/gpumem-percentage
  resourceCoreName: nvidia.com/gpucores
  resourcePriorityName: nvidia.com/priority
  overwriteEnv: false
  defaultMemory: 0
  defaultCores: 0
  defaultGPUNum: 1
  memoryFactor: 1
  deviceSplitCount: 10
  deviceMemoryScaling: 1
  deviceCoreScaling: 1
  gpuCorePolicy: default
  libCudaLogLevel: 1
  runtimeClassName: ""
  migProfileAllowlist:
    - models: ["A30"]
      profiles: ["1g.6gb", "2g.12gb", "4g.24gb"]
cambricon:
  resourceCountName: cambricon.com/vmlu
  resourceMemoryName: cambricon.com/mlu.smlu.vmemory
  resourceCoreName: cambricon.com/mlu.smlu.vcore
vnpus:
  hamiVnpuCore: false
  configs: [{chipName: 910A, commonWord: Ascend910A}]
iluvatars:
  - chipName: MR-V100
    commonWord: MR-V100
"""


def test_the_chart_s_file_gives_the_defaults_without_a_warning() -> None:
    config, warnings = load(CHART)
    assert warnings == ()
    assert config.nvidia.mig_allowances == MIG_ALLOWANCES[:1]
    assert load("nvidia: {defaultMemory: 0}")[0] == DeviceConfig()


def test_every_resource_can_be_renamed() -> None:
    config, _ = load("nvidia: {resourceCountName: acme.io/gpu, resourceMemoryName: acme.io/mem, defaultCores: 30, memoryFactor: 2}")
    catalog = Catalog(config)
    assert catalog.managed_resources[:2] == ("acme.io/gpu", "acme.io/mem")
    (request,) = catalog.read_pod(a_pod("p", a_container(**{"acme.io/gpu": 1, "acme.io/mem": 1000}))).containers[0].requests
    assert (request.memory_mib, request.cores) == (2000, 30)
    assert not catalog.read_pod(a_pod("p", a_container(gpu=1))).asks


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("nvidia: {resourceCountNam: x}", "nobody reads nvidia.resourceCountNam; did you mean nvidia.resourceCountName?"),
        ("nvidia: {knownMigGeometries: [1]}", "nobody reads nvidia.knownMigGeometries"),
        ("nvidai: {a: 1}", "nobody reads nvidai; did you mean nvidia?"),
        ("iluvatars: [{chipNam: x}]", "nobody reads iluvatars.chipNam; did you mean iluvatars.chipName?"),
    ],
)
def test_unknown_keys_are_warned_of_with_the_nearest_known_one(text: str, warning: str) -> None:
    _, (only,) = load(text)
    assert warning in only


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "no section"),
        ("nvidia:\nhygon:", "no section"),
        ("[1, 2]", "no section"),
        ("a: [", "no YAML"),
        ("nvidia: {defaultMemory: -1}", "defaultMemory"),
        ("nvidia: {defaultMemory: lots}", "defaultMemory"),
        ("nvidia: {defaultCores: 101}", "defaultCores"),
        ("nvidia: {gpuCorePolicy: sometimes}", "gpuCorePolicy"),
        ("nvidia: {resourceCountName: ''}", "resourceCountName"),
        ("nvidia: {resourceCountName: nvidia.com/gpumem}", "two resources of nvidia are named nvidia.com/gpumem"),
        ("nvidia: {migProfileAllowlist: [{models: [], profiles: [1g.5gb]}]}", "without models or profiles"),
        ("nvidia: {migProfileAllowlist: [{models: [A30], profiles: [5gb]}]}", "'5gb' is no profile"),
        ("nvidia: 3", "section nvidia"),
    ],
)
def test_values_that_cannot_be_used_stop_the_process(text: str, part: str) -> None:
    with pytest.raises(ConfigError, match=r"^device configuration") as refused:
        load(text)
    assert part in str(refused.value)
