"""What the agent must still know after a restart: which answers it gave, which pods it served. Kept in one small file, by rename.

It is a memory, never a truth: kubelet's records and the scheduler's grants decide. A journal that is lost or unreadable costs a look-up or,
where kubelet's checkpoint is unreadable too, a refusal; it never makes a wrong answer.
"""

from __future__ import annotations

import secrets
from typing import Final

import msgspec
from msgspec import Struct

from hami_node_agent.health import HealthRecord
from hami_node_agent.hostfiles import HostFiles
from hami_node_agent.identity import AllocateCall
from hami_node_agent.mig import Spot
from hami_protocol.devices import PodRef, VendorAssignment

_CALLS_KEPT: Final = 512


class ServedPod(Struct, kw_only=True):
    """What was done for one pod."""

    pod: PodRef
    granted: str = ""
    """What it was served from, as its annotation says it."""
    answers: dict[str, str] = {}
    """By container, the name of the answer it was served with."""
    served: set[int] = set()
    """``envvar``: places of the containers that have their devices."""
    resize_generation: int = 0
    """The last resize that was answered."""
    resize_refused: str = ""
    """Why it was refused; empty where it was carried out."""
    resized: VendorAssignment | None = None
    """What the pod holds since it was last resized."""
    resized_from: set[str] = set()
    """What its annotation may say until the registry has written that."""
    succeeded: bool = False
    failed: str = ""
    """Why kubelet gave it up; empty where it has not."""
    released: bool = False


class _Call(Struct, frozen=True, kw_only=True):
    name: str
    device_ids: tuple[str, ...]


class _Content(Struct, kw_only=True):
    generation: int = 0
    reported: str = ""
    """What the generation stands for."""
    pods: dict[str, ServedPod] = {}
    calls: list[_Call] = []
    health: HealthRecord = HealthRecord()
    instances: list[Spot] = []
    key: bytes = b""


class Journal:
    """The file, read when this agent begins to act, written at every change."""

    def __init__(self, files: HostFiles, path: str) -> None:
        self._files = files
        self._path = path
        self.damage = ""
        """Why the file on disk could not be read; empty where it could, or where there was none."""
        self.reload()

    def reload(self) -> None:
        """Read the file, which another agent may have written since."""
        content = self._files.read(self._path)
        try:
            self._content = msgspec.json.decode(content, type=_Content) if content else _Content()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            self.damage = str(exc)
            self._content = _Content()

    @property
    def pods(self) -> dict[str, ServedPod]:
        """By UID. Call ``save`` after changing one."""
        return self._content.pods

    @property
    def calls(self) -> tuple[AllocateCall, ...]:
        """Allocate calls that were answered, oldest first."""
        return tuple(AllocateCall(name=call.name, device_ids=frozenset(call.device_ids)) for call in self._content.calls)

    @property
    def health(self) -> HealthRecord:
        """Which cards were out."""
        return self._content.health

    @property
    def generation(self) -> int:
        """Of the last report."""
        return self._content.generation

    @property
    def reported(self) -> str:
        """What that generation stands for."""
        return self._content.reported

    @property
    def key(self) -> bytes:
        """A secret of this agent, over restarts: what it publishes is known by it."""
        if not self._content.key:
            self._content.key = secrets.token_bytes(32)
        return self._content.key

    def pod(self, pod: PodRef) -> ServedPod:
        """What is known of a pod; new where nothing is."""
        return self.pods.setdefault(pod.uid, ServedPod(pod=pod))

    def forget(self, uid: str) -> None:
        """Drop a pod that is gone."""
        if self.pods.pop(uid, None) is not None:
            self.save()

    def called(self, name: str, device_ids: tuple[str, ...]) -> None:
        """Note an Allocate call before it is answered."""
        self._content.calls.append(_Call(name=name, device_ids=device_ids))
        del self._content.calls[:-_CALLS_KEPT]
        self.save()

    def keep_generation(self, generation: int, reported: str) -> None:
        """Note what is reported now."""
        self._content.generation, self._content.reported = generation, reported
        self.save()

    def keep_health(self, health: HealthRecord) -> None:
        """Note which cards are out."""
        self._content.health = health
        self.save()

    @property
    def instances(self) -> tuple[Spot, ...]:
        """MIG instances that this agent has made, or was about to."""
        return tuple(self._content.instances)

    def keep_instances(self, instances: tuple[Spot, ...]) -> None:
        """Note which there are, before one is made.

        Raises:
            OSError: it cannot be written.
        """
        self._content.instances = list(instances)
        self.save()

    def save(self) -> None:
        """Write the file.

        Raises:
            OSError: it cannot be written.
        """
        self._files.write(self._path, msgspec.json.encode(self._content), mode=0o600)
