"""The sections of the device-config file for all vendors but NVIDIA, with the chart's values as defaults. Data.

A section that is left out has its defaults; a count resource that is empty switches its vendor off.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct, field

Whole = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Word = Annotated[str, Meta(pattern=r"^[A-Za-z0-9](?:[A-Za-z0-9._-]{0,40}[A-Za-z0-9])?$")]
"""What stands in annotation keys and in subjects of the bus."""


class CambriconConfig(Struct, frozen=True, kw_only=True):
    """Section ``cambricon``."""

    count_resource: str = field(name="resourceCountName", default="cambricon.com/vmlu")
    memory_resource: str = field(name="resourceMemoryName", default="cambricon.com/mlu.smlu.vmemory")
    cores_resource: str = field(name="resourceCoreName", default="cambricon.com/mlu.smlu.vcore")


class HygonConfig(Struct, frozen=True, kw_only=True):
    """Section ``hygon``."""

    count_resource: str = field(name="resourceCountName", default="hygon.com/dcunum")
    memory_resource: str = field(name="resourceMemoryName", default="hygon.com/dcumem")
    cores_resource: str = field(name="resourceCoreName", default="hygon.com/dcucores")
    memory_factor: Whole = field(name="memoryFactor", default=1)


class MetaxConfig(Struct, frozen=True, kw_only=True):
    """Section ``metax``: whole GPUs, and shares of them (sGPU)."""

    count_resource: str = field(name="resourceCountName", default="metax-tech.com/gpu")
    share_resource: str = field(name="resourceVCountName", default="metax-tech.com/sgpu")
    memory_resource: str = field(name="resourceVMemoryName", default="metax-tech.com/vmemory")
    cores_resource: str = field(name="resourceVCoreName", default="metax-tech.com/vcore")
    topology_aware: bool = field(name="sgpuTopologyAware", default=False)


class EnflameConfig(Struct, frozen=True, kw_only=True):
    """Section ``enflame``: whole GCUs, and slices of them (DRS)."""

    count_resource: str = field(name="resourceNameGCU", default="enflame.com/gcu")
    slices_resource: str | None = field(name="resourceNameDRSGCU", default=None)
    memory_resource: str = field(name="resourceNameGCUMemory", default="enflame.com/gcu-memory")
    cores_resource: str = field(name="resourceNameGCUCore", default="enflame.com/gcu-core")
    legacy_slices_resource: str | None = field(name="resourceNameVGCU", default=None)
    legacy_percent_resource: str | None = field(name="resourceNameVGCUPercentage", default=None)
    """Read by older releases; nothing here uses it."""


class MooreThreadsConfig(Struct, frozen=True, kw_only=True):
    """Section ``mthreads``."""

    count_resource: str = field(name="resourceCountName", default="mthreads.com/vgpu")
    memory_resource: str = field(name="resourceMemoryName", default="mthreads.com/sgpu-memory")
    cores_resource: str = field(name="resourceCoreName", default="mthreads.com/sgpu-core")


class KunlunConfig(Struct, frozen=True, kw_only=True):
    """Section ``kunlun``: whole XPUs, and shares of them (vXPU)."""

    count_resource: str = field(name="resourceCountName", default="kunlunxin.com/xpu")
    share_resource: str = field(name="resourceVCountName", default="kunlunxin.com/vxpu")
    memory_resource: str = field(name="resourceVMemoryName", default="kunlunxin.com/vxpu-memory")


class NeuronConfig(Struct, frozen=True, kw_only=True):
    """Section ``awsneuron``."""

    count_resource: str = field(name="resourceCountName", default="aws.amazon.com/neuron")
    cores_resource: str = field(name="resourceCoreName", default="aws.amazon.com/neuroncore")


class AmdConfig(Struct, frozen=True, kw_only=True):
    """Section ``amd``."""

    count_resource: str = field(name="resourceCountName", default="amd.com/gpu")
    memory_resource: str = field(name="resourceMemoryName", default="amd.com/gpumem")
    cores_resource: str = field(name="resourceCoreName", default="amd.com/gpucores")


class VastaiConfig(Struct, frozen=True, kw_only=True):
    """Section ``vastai``."""

    count_resource: str = field(name="resourceCountName", default="vastaitech.com/va")


class BirenConfig(Struct, frozen=True, kw_only=True):
    """Section ``biren``."""

    count_resource: str = field(name="resourceCountName", default="birentech.com/gpu")


class IluvatarConfig(Struct, frozen=True, kw_only=True):
    """One chip of section ``iluvatars``."""

    chip: str = field(name="chipName", default="")
    common_word: Word = field(name="commonWord")
    count_resource: str = field(name="resourceCountName")
    memory_resource: str = field(name="resourceMemoryName", default="")
    cores_resource: str = field(name="resourceCoreName", default="")


class AscendTemplate(Struct, frozen=True, kw_only=True):
    """A size in which an Ascend card can be cut."""

    name: str
    memory_mib: Annotated[int, Meta(ge=1, le=2**31 - 1)] = field(name="memory")
    ai_core: Whole = field(name="aiCore", default=0)
    ai_cpu: Whole = field(name="aiCPU", default=0)


class AscendConfig(Struct, frozen=True, kw_only=True):
    """One chip of section ``vnpus``."""

    chip: str = field(name="chipName", default="")
    common_word: Word = field(name="commonWord")
    count_resource: str = field(name="resourceName")
    memory_resource: str = field(name="resourceMemoryName", default="")
    cores_resource: str = field(name="resourceCoreName", default="")
    memory_allocatable_mib: Annotated[int, Meta(ge=1, le=2**31 - 1)] = field(name="memoryAllocatable")
    memory_capacity_mib: Annotated[int, Meta(ge=1, le=2**31 - 1)] = field(name="memoryCapacity")
    memory_factor: Whole = field(name="memoryFactor", default=0)
    ai_core: Whole = field(name="aiCore", default=0)
    ai_cpu: Whole = field(name="aiCPU", default=0)
    templates: tuple[AscendTemplate, ...] = ()
    runtime_class: str = field(name="runtimeClassName", default="")
    overwrite_env: bool = field(name="overwriteEnv", default=False)
    super_pod: bool = field(name="superPod", default=False)


def _iluvatar(chip: str) -> IluvatarConfig:
    name = f"iluvatar.ai/{chip}"
    return IluvatarConfig(
        chip=chip, common_word=chip, count_resource=f"{name}-vgpu", memory_resource=f"{name}.vMem", cores_resource=f"{name}.vCore"
    )


def _template(text: str) -> AscendTemplate:
    name, memory_mib, ai_core, ai_cpu = text.split("/")
    return AscendTemplate(name=name, memory_mib=int(memory_mib), ai_core=int(ai_core), ai_cpu=int(ai_cpu))


def _ascend(
    chip: str, word: str, memory: tuple[int, int], engines: tuple[int, int], *templates: str, super_pod: bool = False
) -> AscendConfig:
    name = f"huawei.com/{word}"
    return AscendConfig(
        chip=chip,
        common_word=word,
        count_resource=name,
        memory_resource=f"{name}-memory",
        cores_resource=f"{name}-core",
        memory_allocatable_mib=memory[0],
        memory_capacity_mib=memory[1],
        memory_factor=0 if super_pod else 1,
        ai_core=engines[0],
        ai_cpu=engines[1],
        templates=tuple(_template(text) for text in templates),
        super_pod=super_pod,
    )


ILUVATARS: Final = tuple(_iluvatar(chip) for chip in ("MR-V100", "MR-V50", "BI-V150", "BI-V100"))

_GIB_32, _GIB_64 = (32768, 32768), (65536, 65536)
_ON_64_GIB: Final = ("vir05_1c_16g/16384/5/1", "vir10_3c_32g/32768/10/3")
ASCENDS: Final = (
    _ascend("910A", "Ascend910A", _GIB_32, (30, 0), "vir02/2184/2/0", "vir04/4369/4/0", "vir08/8738/8/0", "vir16/17476/16/0"),
    _ascend("910B2", "Ascend910B2", _GIB_64, (24, 6), "vir03_1c_8g/8192/3/1", "vir06_1c_16g/16384/6/1", "vir12_3c_32g/32768/12/3"),
    _ascend("910B3", "Ascend910B3", _GIB_64, (20, 7), *_ON_64_GIB),
    _ascend("910B4-1", "Ascend910B4-1", _GIB_64, (20, 7), *_ON_64_GIB),
    _ascend("910B4", "Ascend910B4", _GIB_32, (20, 7), "vir05_1c_8g/8192/5/1", "vir10_3c_16g/16384/10/3"),
    _ascend("310P3", "Ascend310P", (21527, 24576), (8, 7), "vir01/3072/1/1", "vir02/6144/2/2", "vir04/12288/4/4"),
    _ascend("Ascend910", "Ascend910C", _GIB_64, (20, 7), *_ON_64_GIB, super_pod=True),
)


class AscendSection(Struct, frozen=True, kw_only=True):
    """Section ``vnpus``."""

    soft_split: bool = field(name="hamiVnpuCore", default=False)
    """Whether a node that says nothing shares its cards by memory and cores, and not by templates."""
    configs: tuple[AscendConfig, ...] = ASCENDS
