"""What one container needs besides its device nodes: environment, mounts and grant file. Pure.

Inside the container everything is at the fixed path that the shim knows, ``/usr/local/vgpu``; on the host it is below the hook path. The
container's own folder is mounted read-only, and over it, from outside, the shim and the grant file, read-only, and the region, a file that whatever
user the container runs as may write. With the reference's region, and for containers of an agent before this one, the folder itself is writable.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from msgspec.structs import replace

from hami_devices.environment import container_environment
from hami_devices.requests import switched_off
from hami_devices.vendor import Vendor
from hami_node_agent import grant_file
from hami_node_agent.grant_file import GrantedDevice
from hami_node_agent.sharing import Sharing
from hami_protocol import quantities
from hami_protocol.devices import ContainerShares, DeviceShare, RegisteredDevice
from hami_protocol.errors import ProtocolError
from hami_protocol.kubernetes import Container

INSIDE: Final = "/usr/local/vgpu"
REGION_INSIDE: Final = f"{INSIDE}/region"
"""Where a region that the agent has made is mounted."""
DEVICES: Final = "HAMI_DEVICES"
"""Environment variable that names a container's devices, whatever its vendor's software reads."""
_PATH_PART: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}", re.ASCII)
_WHOLE_CORES: Final = 100
_DEFAULT_PRIORITY: Final = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Bind:
    """One bind mount."""

    host_path: str
    container_path: str
    read_only: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """What one container needs."""

    environment: dict[str, str]
    mounts: tuple[Bind, ...]
    folders: tuple[str, ...]
    """Of the host, to be made with mode 0777: the container's user is not known."""
    mount_points: tuple[str, ...]
    """Inside the container's own folder: where files are mounted over it. The container can write there, also a link to elsewhere."""
    grant_path: str = ""
    """Empty where there is no grant file: the vendor's containers are not held to their shares by our shim."""
    grant: bytes = b""
    region_path: str = ""
    """The region to be made on the host, where there is none yet; empty where the container's processes make it."""
    device_nodes: tuple[str, ...] = ()
    """Of MIG instances, besides their cards'."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shim:
    """What of the shim is installed on the host."""

    host_path: str = ""
    """Path of ``libvgpu.so`` on the host; empty where there is none, and then nothing of it is mounted."""
    version: str = ""
    license: str = ""
    validator: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostPaths:
    """Where things are on the host; ``hook`` is what the reference calls HOOK_PATH."""

    hook: str = "/usr/local"

    @property
    def vgpu(self) -> str:
        """Everything of ours."""
        return f"{self.hook.rstrip('/')}/vgpu"

    @property
    def containers(self) -> str:
        """A folder per container, ``<podUID>_<container>``."""
        return f"{self.vgpu}/containers"

    @property
    def grants(self) -> str:
        """A grant file per container, ``<podUID>_<container>``."""
        return f"{self.vgpu}/grants"

    def grant(self, name: str) -> str:
        """The grant file of one container, by ``folder_name``."""
        return f"{self.grants}/{name}"

    @property
    def regions(self) -> str:
        """A region per container, ``<podUID>_<container>``; each is mounted alone."""
        return f"{self.vgpu}/regions"

    def region(self, name: str, inside: str) -> str:
        """The region of one container, which its grant names as it is ``inside``: the agent's file, or one in a folder that the tenant writes to."""
        if inside == REGION_INSIDE:
            return f"{self.regions}/{name}"
        return f"{self.containers}/{name}/{inside.rpartition('/')[2]}"

    @property
    def locks(self) -> str:
        """A folder per container with the reference's region; not in its own folder, where it could be made a link."""
        return f"{self.vgpu}/locks"

    @property
    def per_container(self) -> tuple[str, ...]:
        """Folders in which every container has one entry, named by ``folder_name``."""
        return (self.containers, self.grants, self.locks, self.regions)

    @property
    def preload(self) -> str:
        """What is mounted as ``/etc/ld.so.preload``."""
        return f"{self.vgpu}/ld.so.preload"

    @property
    def journal(self) -> str:
        """What the agent remembers."""
        return f"{self.vgpu}/agent/journal.json"


def folder_name(pod_uid: str, container: str) -> str:
    """Name of a container's folder and grant file.

    Raises:
        ProtocolError: a part is none that a file may be named after.
    """
    for part in (pod_uid, container):
        if not _PATH_PART.fullmatch(part) or "_" in part:
            raise ProtocolError(f"{part[:80]!r} cannot be part of a path; accepted: a Kubernetes name or UID")
    return f"{pod_uid}_{container}"


def shared_cache(answer: str) -> str:
    """Path, inside the container, of the file with its usage."""
    return f"{INSIDE}/{answer}.cache"


def needs(
    *,
    pod_uid: str,
    held: ContainerShares,
    container: Container,
    answer: str,
    vendor: Vendor,
    sharing: Sharing,
    whole_mib: dict[str, int],
    paths: HostPaths,
    shim: Shim,
    legacy_region: bool = False,
    visible_devices: str | None = None,
    devices: Mapping[str, RegisteredDevice] = MappingProxyType({}),
    started: Mapping[str, GrantedDevice] = MappingProxyType({}),
    region: str = REGION_INSIDE,
) -> Needs:
    """What ``container`` needs to use the shares it holds, and no more.

    Args:
        pod_uid: its pod.
        held: its shares.
        container: as the pod's spec has it; written by a tenant.
        answer: name of the answer to its Allocate call; the usage file is named after it.
        vendor: whose devices.
        sharing: how the node's cards are shared.
        whole_mib: memory of each card that is not oversubscribed, by UUID: a grant of all of it and of all cores is a whole card.
        paths: where things are on the host.
        shim: what of it is installed.
        legacy_region: whether the shim writes the reference's region too. That lies where the environment says, in the container's own folder.
        visible_devices: for ``NVIDIA_VISIBLE_DEVICES``; None names the cards.
        devices: as they are registered, by UUID.
        started: what the container's grant file says already, by UUID. A share that was resized keeps the environment it started with: kubelet
            does not give a restarted container another one, and the shim must know which value there is the agent's own.
        region: where the region is inside the container: as the container's grant file says already, since its mounts stay what they were.

    Raises:
        ProtocolError: a name, a size or a quantity that cannot be used.
    """
    name = folder_name(pod_uid, held.container)
    if not vendor.shim:
        return Needs(environment=_told(held, vendor, devices), mounts=(), folders=(), mount_points=())
    try:
        environment = container_environment(
            tuple(_as_started(share, started.get(share.uuid)) for share in held.shares),
            shared_cache=shared_cache(answer),
            visible_devices=visible_devices,
            oversubscribe=sharing.memory_scaling > 1,
            log_level=sharing.log_level,
            disable_core_limit=sharing.disable_core_limit,
        )
        if legacy_region:
            environment["HAMI_LEGACY_REGION"] = "true"
        grant = grant_file.encode(_grant(pod_uid, held, container, region, vendor, sharing, whole_mib, started))
    except ValueError as exc:
        raise ProtocolError(f"container {held.container}: {exc}") from exc
    folder = f"{paths.containers}/{name}"
    whole = all(share.cores == _WHOLE_CORES and share.memory_mib == whole_mib.get(share.uuid) for share in held.shares)
    disabled = whole and bool(vendor.disable_env) and switched_off(container, vendor.disable_env)
    made = region == REGION_INSIDE
    lock = "" if made and not legacy_region else f"{paths.locks}/{name}"  # our shim has none; a folder could be filled without a bound
    mounts = [
        *([Bind(host_path=shim.host_path, container_path=f"{INSIDE}/libvgpu.so")] if shim.host_path else []),
        Bind(host_path=folder, container_path=INSIDE, read_only=made and not legacy_region),
        *([Bind(host_path=paths.region(name, region), container_path=region, read_only=False)] if made else []),
        *([Bind(host_path=lock, container_path="/tmp/vgpulock", read_only=False)] if lock else []),  # noqa: S108
        *([Bind(host_path=paths.preload, container_path="/etc/ld.so.preload")] if shim.host_path and not disabled else []),
        *([Bind(host_path=shim.license, container_path="/tmp/license")] if shim.license else []),  # noqa: S108
        *([Bind(host_path=shim.validator, container_path="/usr/bin/vgpuvalidator")] if shim.license and shim.validator else []),
        Bind(host_path=f"{paths.grants}/{name}", container_path=f"{INSIDE}/{grant_file.NAME}"),
    ]
    return Needs(
        environment=environment,
        mounts=tuple(mounts),
        folders=(folder, *([lock] if lock else [])),
        mount_points=(f"{folder}/libvgpu.so", f"{folder}/{grant_file.NAME}", *([f"{folder}/region"] if made else [])),
        region_path=paths.region(name, region) if made else "",
        grant_path=f"{paths.grants}/{name}",
        grant=grant,
    )


def _told(held: ContainerShares, vendor: Vendor, devices: Mapping[str, RegisteredDevice]) -> dict[str, str]:
    """What a container is told where no shim of ours is in it: which devices, and what its vendor's own software reads."""
    told = {DEVICES: ",".join(dict.fromkeys(share.uuid for share in held.shares))}
    return told if vendor.environment is None else told | vendor.environment(held.shares, devices)


def _grant(
    pod_uid: str,
    held: ContainerShares,
    container: Container,
    region: str,
    vendor: Vendor,
    sharing: Sharing,
    whole_mib: dict[str, int],
    started: Mapping[str, GrantedDevice],
) -> grant_file.Grant:
    return grant_file.Grant(
        pod_uid=pod_uid,
        container=held.container,
        devices=tuple(
            grant_file.GrantedDevice(
                uuid=share.uuid,
                memory_limit_mib=share.memory_mib,
                sm_percent=min(share.cores, 100),
                whole=share.cores == 100 and share.memory_mib == whole_mib.get(share.uuid),
                started_memory_mib=_as_started(share, started.get(share.uuid)).memory_mib,
                started_percent=min(_as_started(share, started.get(share.uuid)).cores, 100),
            )
            for share in held.shares
        ),
        region_path=region,
        region_made=region == REGION_INSIDE,
        core_policy="disable" if sharing.disable_core_limit else sharing.core_policy,
        priority=_priority(container, vendor),
        oversubscribe=sharing.memory_scaling > 1,
    )


def _as_started(share: DeviceShare, started: GrantedDevice | None) -> DeviceShare:
    if started is None or started.whole:
        return share
    memory_mib = started.memory_limit_mib if started.started_memory_mib is None else started.started_memory_mib
    percent = started.sm_percent if started.started_percent is None else started.started_percent
    return replace(share, memory_mib=memory_mib, cores=percent)


def _priority(container: Container, vendor: Vendor) -> int:
    limits = container.resources.limits or {}
    if vendor.priority_resource not in limits:
        return _DEFAULT_PRIORITY
    return quantities.parse_count(limits[vendor.priority_resource], field=f"limits[{vendor.priority_resource}]")
