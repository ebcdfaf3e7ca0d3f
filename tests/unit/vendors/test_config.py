"""The reference's device-config file is read unchanged."""

from __future__ import annotations

import pytest

from hami_devices.catalog import Catalog
from hami_devices.config import MIG_ALLOWANCES, ConfigError, DeviceConfig, load
from hami_devices.config_sections import ASCENDS, ILUVATARS
from tests.builders import a_container, a_pod

OTHERS = ("cambricon", "hygon", "metax", "kunlun", "awsneuron", "mthreads", "amd", "biren", "vastai")
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
hygon:
  resourceCountName: hygon.com/dcunum
  resourceMemoryName: hygon.com/dcumem
  resourceCoreName: hygon.com/dcucores
  memoryFactor: 1
metax:
  resourceCountName: metax-tech.com/gpu
  resourceVCountName: metax-tech.com/sgpu
  resourceVMemoryName: metax-tech.com/vmemory
  resourceVCoreName: metax-tech.com/vcore
  sgpuTopologyAware: false
enflame:
  resourceNameGCU: enflame.com/gcu
  resourceNameDRSGCU: enflame.com/drs-gcu
  resourceNameGCUMemory: enflame.com/gcu-memory
  resourceNameGCUCore: enflame.com/gcu-core
mthreads:
  resourceCountName: mthreads.com/vgpu
  resourceMemoryName: mthreads.com/sgpu-memory
  resourceCoreName: mthreads.com/sgpu-core
kunlun:
  resourceCountName: kunlunxin.com/xpu
  resourceVCountName: kunlunxin.com/vxpu
  resourceVMemoryName: kunlunxin.com/vxpu-memory
awsneuron: {resourceCountName: aws.amazon.com/neuron, resourceCoreName: aws.amazon.com/neuroncore}
amd: {resourceCountName: amd.com/gpu, resourceMemoryName: amd.com/gpumem, resourceCoreName: amd.com/gpucores}
vastai: {resourceCountName: vastaitech.com/va}
biren: {resourceCountName: birentech.com/gpu}
iluvatars:
  - chipName: MR-V100
    commonWord: MR-V100
    resourceCountName: iluvatar.ai/MR-V100-vgpu
    resourceMemoryName: iluvatar.ai/MR-V100.vMem
    resourceCoreName: iluvatar.ai/MR-V100.vCore
vnpus:
  hamiVnpuCore: false
  configs:
    - chipName: 310P3
      commonWord: Ascend310P
      resourceName: huawei.com/Ascend310P
      resourceMemoryName: huawei.com/Ascend310P-memory
      resourceCoreName: huawei.com/Ascend310P-core
      memoryAllocatable: 21527
      memoryCapacity: 24576
      memoryFactor: 1
      aiCore: 8
      aiCPU: 7
      templates:
        - {name: vir01, memory: 3072, aiCore: 1, aiCPU: 1}
        - {name: vir02, memory: 6144, aiCore: 2, aiCPU: 2}
        - {name: vir04, memory: 12288, aiCore: 4, aiCPU: 4}
"""


def test_the_chart_s_file_gives_the_defaults_without_a_warning() -> None:
    config, warnings = load(CHART)
    assert warnings == ()
    assert config.nvidia.mig_allowances == MIG_ALLOWANCES[:1]
    assert config.iluvatars == ILUVATARS[:1]
    assert config.vnpus.configs == tuple(chip for chip in ASCENDS if chip.common_word == "Ascend310P")
    assert [getattr(config, name) for name in OTHERS] == [getattr(DeviceConfig(), name) for name in OTHERS]
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
        (
            "iluvatars: [{chipNam: x, commonWord: X, resourceCountName: x.io/x}]",
            "nobody reads iluvatars.chipNam; did you mean iluvatars.chipName?",
        ),
        ("vnpus: {hamiVnpuCor: true}", "nobody reads vnpus.hamiVnpuCor; did you mean vnpus.hamiVnpuCore?"),
        ("hygon: {memoryFacto: 2}", "nobody reads hygon.memoryFacto; did you mean hygon.memoryFactor?"),
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
        ("iluvatars: [{chipName: x}]", "section iluvatars: Object missing required field `commonWord`"),
        ("vnpus: {configs: [{commonWord: 'a/b', resourceName: x, memoryAllocatable: 1, memoryCapacity: 1}]}", "commonWord"),
        ("hygon: {memoryFactor: -1}", "memoryFactor"),
    ],
)
def test_values_that_cannot_be_used_stop_the_process(text: str, part: str) -> None:
    with pytest.raises(ConfigError, match=r"^device configuration") as refused:
        load(text)
    assert part in str(refused.value)


RENAMED = """
cambricon: {resourceCountName: acme.io/a, resourceMemoryName: acme.io/a-memory, resourceCoreName: acme.io/a-cores}
hygon: {resourceCountName: acme.io/b}
metax: {resourceCountName: acme.io/c, resourceVCountName: acme.io/d}
enflame: {resourceNameGCU: acme.io/e, resourceNameVGCU: acme.io/f}
kunlun: {resourceCountName: acme.io/g, resourceVCountName: acme.io/h}
awsneuron: {resourceCountName: acme.io/i}
vnpus: [{commonWord: Ascend910B3, resourceName: acme.io/j, memoryAllocatable: 1024, memoryCapacity: 1024}]
iluvatars: [{commonWord: MR-V100, resourceCountName: acme.io/k}]
mthreads: {resourceCountName: acme.io/l}
amd: {resourceCountName: acme.io/m}
biren: {resourceCountName: acme.io/n}
vastai: {resourceCountName: ""}
"""


def test_every_vendor_s_resources_can_be_renamed_and_an_empty_name_switches_it_off() -> None:
    config, warnings = load(RENAMED)
    assert warnings == ()
    counts = [vendor.count_resource for vendor in Catalog(config).vendors]
    assert counts == ["nvidia.com/gpu", *(f"acme.io/{letter}" for letter in "abcdefghijklmn")]
    assert Catalog(config).vendor("MLU").resources == ("acme.io/a", "acme.io/a-memory", "acme.io/a-cores")


@pytest.mark.departs("a list of chips under vnpus is read as its configs, where the reference stops at start")
@pytest.mark.example("edge 62")
def test_a_list_of_chips_is_as_good_as_an_object() -> None:
    chip = "{commonWord: X, resourceName: x.io/x, memoryAllocatable: 1, memoryCapacity: 1}"
    assert load(f"vnpus: [{chip}]") == load(f"vnpus: {{configs: [{chip}]}}")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("hygon: {resourceCountName: nvidia.com/gpu}", "two resources are named nvidia.com/gpu"),
        (
            "iluvatars: [{commonWord: X, resourceCountName: x.io/a}, {commonWord: X, resourceCountName: x.io/b}]",
            "two vendors have the common word X",
        ),
    ],
)
def test_names_that_would_be_ambiguous_stop_the_process(text: str, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        Catalog(load(text)[0])
