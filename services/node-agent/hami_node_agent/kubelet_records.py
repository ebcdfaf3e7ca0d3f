"""What kubelet says about who holds which device: its checkpoint, and PodResources, its public API. A port with a real adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Protocol

import grpc
import structlog

from hami_node_agent import checkpoint
from hami_node_agent.api import podresources_pb2 as api
from hami_node_agent.api.podresources_pb2_grpc import PodResourcesListerStub
from hami_node_agent.checkpoint import Checkpoint, Unreadable
from hami_node_agent.hostfiles import HostFiles, Stamp
from hami_node_agent.identity import ListedPod

log = structlog.get_logger()
TIMEOUT_SECONDS: Final = 3.0
_MAX_MESSAGE_BYTES: Final = 64 * 2**20


class KubeletRecords(Protocol):
    """Kubelet of this node."""

    def checkpoint(self) -> Checkpoint | Unreadable:
        """Who holds what, as kubelet has written it down."""
        ...

    async def listed(self, resource: str) -> tuple[ListedPod, ...] | None:
        """Who holds devices of ``resource``, as PodResources lists it; None where it cannot be asked."""
        ...


class LocalKubelet:
    """The kubelet of this machine."""

    def __init__(self, files: HostFiles, *, plugin_folder: str, pod_resources_socket: str) -> None:
        self._files = files
        self._path = f"{plugin_folder.rstrip('/')}/{checkpoint.FILE_NAME}"
        self._socket = pod_resources_socket
        self._read: tuple[Stamp, Checkpoint | Unreadable] | None = None

    def checkpoint(self) -> Checkpoint | Unreadable:
        """See ``KubeletRecords``; decoded again only when the file is another one."""
        stamp = self._files.stamp(self._path)
        if stamp is None:
            return Unreadable(reason=f"there is no {self._path}")
        if self._read is None or self._read[0] != stamp:
            try:
                self._read = (stamp, checkpoint.decode(self._files.read(self._path)))
            except OSError as exc:
                return Unreadable(reason=f"{self._path}: {exc.strerror}")
        return self._read[1]

    async def listed(self, resource: str) -> tuple[ListedPod, ...] | None:
        """See ``KubeletRecords``."""
        if not Path(self._socket).exists():  # noqa: ASYNC240 - a stat of a local socket
            return None
        options = (("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES), ("grpc.default_authority", "localhost"))
        async with grpc.aio.insecure_channel(f"unix://{self._socket}", options=options) as channel:
            try:
                answer = await PodResourcesListerStub(channel).List(api.ListPodResourcesRequest(), timeout=TIMEOUT_SECONDS)
            except grpc.aio.AioRpcError as exc:
                log.warning("PodResources cannot be asked", reason=exc.details())
                return None
        return tuple(listed_pod(pod, resource) for pod in answer.pod_resources)


def listed_pod(pod: api.PodResources, resource: str) -> ListedPod:
    """One pod of PodResources' answer: of each container the union of its entries, kubelet sends one per id."""
    return ListedPod(
        namespace=pod.namespace,
        name=pod.name,
        containers={
            container.name: frozenset(
                one for devices in container.devices if devices.resource_name == resource for one in devices.device_ids
            )
            for container in pod.containers
        },
    )
