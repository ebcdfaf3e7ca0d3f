"""What is left when a pod has ended: says so on the bus, once, and takes away its specs, grants and folders, when nobody can need them.

A pod has ended when its phase says so, or when its object is gone. Files go only when, besides, the API server itself lists no such pod on
this node and kubelet names it no more (or cannot be asked, and a grace period has passed). Files of pods that nobody knows (the journal was
lost) are treated alike. What a tenant left is removed a bounded part at a time; a pod whose files cannot be removed is reported, left, and tried
again with a backoff: it keeps no other pod's files from being removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Final

import structlog

from hami_devices.vendor import Vendor
from hami_node_agent import cdi
from hami_node_agent.checkpoint import Checkpoint
from hami_node_agent.grants_view import GrantsView
from hami_node_agent.hostfiles import HostFiles
from hami_node_agent.journal import Journal
from hami_node_agent.kubelet_records import KubeletRecords
from hami_node_agent.needs import HostPaths
from hami_node_agent.node_pods import NodePods
from hami_protocol.devices import PodRef
from hami_protocol.events import PodReleased
from hami_protocol.kubernetes import Pod
from hami_protocol.pods import is_terminal, pod_ref
from hami_runtime.clock import Clock
from hami_runtime.isolation import Isolation
from hami_runtime.lifecycle import run_until, sleep_until
from hami_runtime.outbox import Outbox
from hami_runtime.telemetry import OFF, Telemetry

log = structlog.get_logger()
LOOP: Final = "cleanup"
SWEEP_SECONDS: Final = 10.0
GRACE_SECONDS: Final = 60.0
"""For containers of a pod that was deleted by force and that kubelet may still be stopping."""


class FilesLeft(RuntimeError):  # noqa: N818 - reads as the condition it names
    """Files of an ended pod that cannot be removed now. The text names the first obstacle."""


class Cleanup:
    """Ends of pods on one node."""

    def __init__(
        self,
        *,
        node: str,
        vendor: Vendor,
        clock: Clock,
        pods: NodePods,
        kubelet: KubeletRecords,
        files: HostFiles,
        journal: Journal,
        outbox: Outbox,
        view: GrantsView,
        paths: HostPaths,
        cdi_folder: str,
        forget: Callable[[str], None],
        catch_up: Callable[[], None],
        telemetry: Telemetry = OFF,
    ) -> None:
        self._isolation = Isolation(LOOP, clock, telemetry)
        self._node = node
        self._vendor = vendor
        self._clock = clock
        self._pods = pods
        self._kubelet = kubelet
        self._files = files
        self._journal = journal
        self._outbox = outbox
        self._view = view
        self._paths = paths
        self._cdi_folder = cdi_folder.rstrip("/")
        self._forget = forget
        self._catch_up = catch_up
        self._over_since: dict[str, float] = {}
        pods.subscribe(self._pod_changed)

    async def run(self, stop: asyncio.Event) -> None:
        """Say again what a killed agent may not have said, then sweep now and then."""
        await run_until(stop, self._pods.wait_synced())
        if stop.is_set():
            return
        with self._isolation.item("what was served before"):
            self._catch_up()
        self._release_missed()
        while not stop.is_set():
            with self._isolation.item("sweep"):
                await self.sweep()
            await sleep_until(stop, SWEEP_SECONDS)

    async def sweep(self) -> None:
        """Take away what belongs to pods that are over.

        Raises:
            ClusterError: the API server could not be asked, so that nothing was taken away.
            OSError: our own folders cannot be read.
        """
        on_host = self._on_host()
        settled = () if self._outbox.pending else self._journal.pods  # what is not said yet must not be forgotten
        over = sorted(uid for uid in {*on_host, *settled, *self._view.uids} if self._is_over(uid, on_host))
        self._over_since = {uid: self._over_since.get(uid, self._clock.monotonic()) for uid in over}
        held = await self._held_by_kubelet() if over else None
        unneeded = [uid for uid in over if not self._may_be_needed(uid, held)]
        listed = await self._pods.listed_uids() if unneeded else frozenset()
        for uid in unneeded:
            gone = self._pods.get(uid) is None
            if gone and uid in listed:
                continue  # our view is late, the pod is there
            name = self._name(uid)
            if not self._isolation.due(name):
                continue
            with self._isolation.item(name):
                await self._clear(uid, on_host.get(uid, ()), forget=gone and uid in settled)

    async def _clear(self, uid: str, paths: Sequence[str], *, forget: bool) -> None:
        """Remove the files of one pod, or as many as one sweep may; then forget the pod.

        Raises:
            FilesLeft: some cannot be removed.
        """
        found = [await self._files.remove(path) for path in paths]
        if obstacle := next((one.obstacle for one in found if one.obstacle), ""):
            raise FilesLeft(f"files of the ended pod are left below {self._paths.vgpu}: {obstacle}")
        if not all(one.complete for one in found):
            return  # the next sweep goes on
        self._view.forget(uid)
        if forget:
            self._journal.forget(uid)
        log.info("pod cleaned up", uid=uid, paths=len(paths))

    def _name(self, uid: str) -> str:
        record = self._journal.pods.get(uid)
        return f"pod {record.pod} ({uid})" if record is not None else f"pod {uid}"

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._release(pod_ref(old), held=self._vendor.allocated_key in old.metadata.annotations, reason="the pod is gone")
        if new is not None and is_terminal(new):
            held = self._vendor.allocated_key in new.metadata.annotations
            self._release(pod_ref(new), held=held, reason=f"the pod has ended: {new.status.phase}")

    def _release_missed(self) -> None:
        """Pods that ended while the agent was away: the journal knows them, the cluster does not."""
        for uid, record in sorted(self._journal.pods.items()):
            if self._pods.get(uid) is None:
                with self._isolation.item(self._name(uid)):
                    record.released = False  # published once more: the bus may not have it
                    self._release(record.pod, held=True, reason="the pod is gone")

    def _release(self, ref: PodRef, *, held: bool, reason: str) -> None:
        if not held and ref.uid not in self._journal.pods:
            return
        record = self._journal.pod(ref)
        if record.released:
            return
        record.released = True
        self._view.forget(ref.uid)
        self._forget(ref.uid)
        self._outbox.put(PodReleased(pod=ref, node=self._node, reason=reason), f"{ref.uid}/released/agent")
        with self._isolation.item("journal"):  # a full disk does not keep the release back; the next save has it
            self._journal.save()

    def _on_host(self) -> dict[str, list[str]]:
        """What lies on the host, by the UID of its pod."""
        found: dict[str, list[str]] = {}
        for folder in self._paths.per_container:
            for name in self._files.names(folder):
                found.setdefault(name.partition("_")[0], []).append(f"{folder}/{name}")
        for name in self._files.names(self._cdi_folder):
            if uid := cdi.pod_uid_of(name):
                found.setdefault(uid, []).append(f"{self._cdi_folder}/{name}")
        return found

    def _is_over(self, uid: str, on_host: Container[str]) -> bool:
        """Whether there is something left of a pod that has ended."""
        pod = self._pods.get(uid)
        return pod is None or (is_terminal(pod) and uid in on_host)

    async def _held_by_kubelet(self) -> frozenset[tuple[str, str]] | None:
        """Pods, by namespace and name, that kubelet lists with devices of ours; None where it cannot be asked."""
        listed = await self._kubelet.listed(self._vendor.count_resource)
        if listed is None:
            return None
        return frozenset((pod.namespace, pod.name) for pod in listed if any(pod.containers.values()))

    def _may_be_needed(self, uid: str, held: Iterable[tuple[str, str]] | None) -> bool:
        record = self._journal.pods.get(uid)
        in_grace = self._clock.monotonic() - self._over_since[uid] < GRACE_SECONDS
        if record is None or held is None:
            return in_grace
        if in_grace and (record.pod.namespace, record.pod.name) in held:
            return True
        return self._used_by_another(uid, frozenset(record.answers.values()))

    def _used_by_another(self, uid: str, answers: frozenset[str]) -> bool:
        """``envvar``: a twin may have been given what was written for this pod (``matching``)."""
        known = self._kubelet.checkpoint()
        if not isinstance(known, Checkpoint):
            return False
        live = self._pods.live
        return any(
            entry.pod_uid != uid and entry.pod_uid in live and any(answer in value for _, value in entry.environment)
            for entry in known.held
            for answer in answers
        )
