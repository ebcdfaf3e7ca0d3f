"""The reference's device-config file: read unchanged, leniently about what is not known, strictly about what is.

A key that nobody reads is a warning that names it, with the nearest known one; a value of a wrong type stops the process.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

import msgspec
import yaml
from msgspec import Meta, Struct, field

from hami_devices.config_sections import (
    ILUVATARS,
    AmdConfig,
    AscendConfig,
    AscendSection,
    BirenConfig,
    CambriconConfig,
    EnflameConfig,
    HygonConfig,
    IluvatarConfig,
    KunlunConfig,
    MetaxConfig,
    MooreThreadsConfig,
    NeuronConfig,
    VastaiConfig,
    Whole,
)

Percent = Annotated[int, Meta(ge=0, le=100)]
Scaling = Annotated[float, Meta(gt=0, le=1000)]


class ConfigError(ValueError):
    """The file cannot be used; the text names the key, what was given and what is accepted."""


class MigAllowance(Struct, frozen=True, kw_only=True):
    """Which MIG profiles are offered on which models."""

    models: tuple[str, ...]
    profiles: tuple[str, ...]


def _allow(models: str, profiles: str) -> MigAllowance:
    return MigAllowance(models=tuple(models.split(", ")), profiles=tuple(profiles.split(", ")))


MIG_ALLOWANCES: Final = (
    _allow("A30", "1g.6gb, 2g.12gb, 4g.24gb"),
    _allow("A100-SXM4-40GB, A100-40GB-PCIe, A100-PCIE-40GB", "1g.5gb, 2g.10gb, 3g.20gb, 7g.40gb"),
    _allow("A100-SXM4-80GB, A100-80GB-PCIe, A100-PCIE-80GB", "1g.10gb, 2g.20gb, 3g.40gb, 7g.79gb"),
    _allow("H100-PCIE-80GB, H100-SXM5-80GB", "1g.10gb, 2g.20gb, 3g.40gb, 7g.80gb"),
    _allow("H100-PCIE-94GB, H100-SXM5-94GB", "1g.12gb, 2g.24gb, 3g.47gb, 7g.94gb"),
    _allow("H20, H100 on GH200", "1g.12gb, 2g.24gb, 3g.48gb, 7g.96gb"),
    _allow("H200 NVL, H200-SXM5", "1g.18gb, 2g.35gb, 3g.71gb, 7g.141gb"),
    _allow("B200", "1g.23gb, 2g.45gb, 3g.90gb, 7g.180gb"),
    _allow("RTX PRO 6000 Blackwell Server Edition", "1g.24gb, 2g.48gb, 4g.96gb"),
)


class NvidiaConfig(Struct, frozen=True, kw_only=True):
    """Section ``nvidia``. The last group is what a node's own configuration may override."""

    count_resource: str = field(name="resourceCountName", default="nvidia.com/gpu")
    memory_resource: str = field(name="resourceMemoryName", default="nvidia.com/gpumem")
    memory_percent_resource: str = field(name="resourceMemoryPercentageName", default="nvidia.com/gpumem-percentage")
    cores_resource: str = field(name="resourceCoreName", default="nvidia.com/gpucores")
    priority_resource: str = field(name="resourcePriorityName", default="nvidia.com/priority")
    overwrite_env: bool = field(name="overwriteEnv", default=False)
    allow_disable_control: bool = field(name="allowDisableControl", default=False)
    """A container may switch its limits off with ``CUDA_DISABLE_CONTROL``, and is then booked whole cards."""
    default_memory_mib: Whole = field(name="defaultMemory", default=0)
    default_cores: Percent = field(name="defaultCores", default=0)
    default_count: Whole = field(name="defaultGPUNum", default=1)
    memory_factor: Whole = field(name="memoryFactor", default=1)
    core_policy: Literal["", "default", "force", "disable"] = field(name="gpuCorePolicy", default="default")
    runtime_class: str = field(name="runtimeClassName", default="")
    disable_core_limit: bool = field(name="disableCoreLimit", default=False)
    mig_allowances: tuple[MigAllowance, ...] = field(name="migProfileAllowlist", default=MIG_ALLOWANCES)

    shares_per_device: Annotated[int, Meta(ge=1, le=10_000)] = field(name="deviceSplitCount", default=10)
    memory_scaling: Scaling = field(name="deviceMemoryScaling", default=1.0)
    cores_scaling: Scaling = field(name="deviceCoreScaling", default=1.0)
    fallback_memory_mib: Whole = field(name="preConfiguredDeviceMemory", default=0)
    """For a card that cannot say how much memory it has."""
    shim_log_level: str = field(name="libCudaLogLevel", default="1")
    numa_topology: bool = field(name="enableNumaTopology", default=False)


class DeviceConfig(Struct, frozen=True, kw_only=True):
    """The whole file; without one, the chart's defaults."""

    nvidia: NvidiaConfig = NvidiaConfig()
    cambricon: CambriconConfig = CambriconConfig()
    hygon: HygonConfig = HygonConfig()
    metax: MetaxConfig = MetaxConfig()
    enflame: EnflameConfig = EnflameConfig()
    kunlun: KunlunConfig = KunlunConfig()
    awsneuron: NeuronConfig = NeuronConfig()
    vnpus: AscendSection = AscendSection()
    iluvatars: tuple[IluvatarConfig, ...] = ILUVATARS
    mthreads: MooreThreadsConfig = MooreThreadsConfig()
    amd: AmdConfig = AmdConfig()
    biren: BirenConfig = BirenConfig()
    vastai: VastaiConfig = VastaiConfig()


def _keys(*sections: type[Struct]) -> frozenset[str]:
    return frozenset(item.encode_name for section in sections for item in msgspec.structs.fields(section))


_SECTIONS: Final = {item.name: item.type for item in msgspec.structs.fields(DeviceConfig)}
_KNOWN: Final[dict[str, frozenset[str]]] = {
    name: _keys(IluvatarConfig) if name == "iluvatars" else _keys(section) for name, section in _SECTIONS.items()
}
_FOREIGN: Final = frozenset({"version", "flags", "resources", "sharing", "imex"})
"""Sections of NVIDIA's own device plugin, which may stand in the same file."""


def load(text: str) -> tuple[DeviceConfig, tuple[str, ...]]:
    """Read the device configuration.

    Returns:
        The configuration, and a warning for each key that nobody reads.

    Raises:
        ConfigError: no YAML, no section at all, or a value that is not what its key takes.
    """
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as exc:  # a date or a number that Python has none for is a ValueError
        raise ConfigError(f"device configuration: no YAML: {exc}") from exc
    if not isinstance(document, dict) or not any(document.values()):
        raise ConfigError(f"device configuration: no section; accepted: at least one of {', '.join(sorted(_KNOWN))}")
    warnings: list[str] = []
    for name, section in document.items():
        warnings.extend(_unknown_keys(str(name), section))
    config = DeviceConfig(**{name: _section(name, given) for name in _SECTIONS if (given := document.get(name)) is not None})
    _check_nvidia(config.nvidia)
    return config, tuple(warnings)


def _section(name: str, given: object) -> Any:
    if name == "nvidia":
        given = _with_text_levels(given)
    elif name == "vnpus" and isinstance(given, list):
        given = {"configs": given}
    try:
        return msgspec.convert(given, _SECTIONS[name], strict=False)
    except msgspec.ValidationError as exc:
        raise ConfigError(f"device configuration, section {name}: {exc}") from exc


def _with_text_levels(section: object) -> object:
    """The log level is a number in some files and text in others."""
    if isinstance(section, dict) and isinstance(section.get("libCudaLogLevel"), int):
        return {**section, "libCudaLogLevel": str(section["libCudaLogLevel"])}
    return section


def _unknown_keys(name: str, section: Any) -> list[str]:
    if name not in _KNOWN:
        return [] if name in _FOREIGN else [_warning(name, "", _KNOWN)]
    if name != "vnpus":
        return list(_unknown_in(f"{name}.", section, _KNOWN[name]))
    chips = _keys(AscendConfig)
    if isinstance(section, list):
        return list(_unknown_in("vnpus.", section, chips))
    inner = section.get("configs") if isinstance(section, dict) else None
    return [*_unknown_in("vnpus.", section, _KNOWN[name]), *_unknown_in("vnpus.configs.", inner, chips)]


def _unknown_in(where: str, section: Any, known: frozenset[str]) -> Iterator[str]:
    for part in section if isinstance(section, list) else [section]:
        if isinstance(part, dict):
            yield from (_warning(str(key), where, known) for key in part if str(key) not in known)


def _warning(key: str, where: str, known: Any) -> str:
    nearest = difflib.get_close_matches(key, list(known), n=1)
    hint = f"; did you mean {where}{nearest[0]}?" if nearest else ""
    return f"device configuration: nobody reads {where}{key}{hint}"


def _check_nvidia(config: NvidiaConfig) -> None:
    if not config.count_resource:
        raise ConfigError("device configuration: nvidia.resourceCountName is empty; accepted: a resource name, as nvidia.com/gpu")
    names = [
        name
        for name in (
            config.count_resource,
            config.memory_resource,
            config.memory_percent_resource,
            config.cores_resource,
            config.priority_resource,
        )
        if name
    ]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"device configuration: two resources of nvidia are named {name}; accepted: a name of its own for each")
    for allowance in config.mig_allowances:
        if not allowance.models or not allowance.profiles:
            raise ConfigError("device configuration: nvidia.migProfileAllowlist has an entry without models or profiles")
        for profile in allowance.profiles:
            slices = profile.split(".", 1)[0]
            if "." not in profile or len(slices) < 2 or not slices.endswith("g"):
                raise ConfigError(f"device configuration: nvidia.migProfileAllowlist: {profile!r} is no profile; accepted: as 1g.5gb")
