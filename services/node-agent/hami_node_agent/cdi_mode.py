"""``cdi`` mode: Allocate answers at once with a name; PreStartContainer finds out whose it is and writes what the name stands for.

Allocate makes no call and waits for nobody. The name is new at every call, never made from the ids. PreStartContainer comes after kubelet
has written down who holds what, so the pod and each of its containers are known for certain; it writes the specs and grant files of *all*
of them in one go and reports success. Calling it again, as at every restart of a container, changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from hami_node_agent import cdi, grants, identity
from hami_node_agent.answers import Answer, PluginOptions
from hami_node_agent.checkpoint import Unreadable
from hami_node_agent.granting import Granting
from hami_node_agent.hostfiles import HostFiles
from hami_node_agent.identity import GrantedPod, Identified
from hami_node_agent.journal import Journal
from hami_node_agent.kubelet_records import KubeletRecords
from hami_node_agent.needs import Needs
from hami_node_agent.node_pods import NodePods, annotated
from hami_node_agent.refusals import Refusal, RefusalKind, Refused
from hami_protocol.devices import VendorAssignment
from hami_protocol.kubernetes import Pod
from hami_protocol.pods import containers_in_order, pod_ref

log = structlog.get_logger()
VOID = "void"
"""For ``NVIDIA_VISIBLE_DEVICES``: NVIDIA's own runtime leaves the container alone."""


class CdiMode:
    """Serves Allocate and PreStartContainer."""

    options = PluginOptions(pre_start_required=True, preferred_allocation=False)

    def __init__(
        self,
        granting: Granting,
        *,
        pods: NodePods,
        kubelet: KubeletRecords,
        files: HostFiles,
        journal: Journal,
        cdi_folder: str,
        driver: Callable[[], cdi.DriverEdits],
        new_name: Callable[[], str],
    ) -> None:
        self._granting = granting
        self._pods = pods
        self._kubelet = kubelet
        self._files = files
        self._journal = journal
        self._cdi_folder = cdi_folder.rstrip("/")
        self._driver = driver
        self._new_name = new_name
        self._checked: dict[str, Identified] = {}
        """What PodResources agreed with, by pod."""

    async def allocate(self, device_ids: Sequence[str]) -> Answer:
        """Answer with a new name.

        Raises:
            Refused: no ids, or the journal cannot be written.
        """
        if not device_ids:
            raise Refused(Refusal(kind=RefusalKind.EMPTY_REQUEST, reason="kubelet named no device id"))
        name = cdi.qualified(f"c{self._new_name()}")  # a letter first: old readers of CDI want one
        try:
            self._journal.called(name, tuple(sorted(device_ids)))
        except OSError as exc:
            raise Refused(Refusal(kind=RefusalKind.HOST, reason=f"the journal cannot be written: {exc}")) from exc
        return Answer(cdi_devices=(name,))

    async def pre_start(self, device_ids: Sequence[str]) -> None:
        """Write what the names of the pod's containers stand for.

        Raises:
            Refused: the container must not start, with the reason.
        """
        refusal = await self._prepare(device_ids)
        if refusal is not None:
            self._granting.refused(refusal, failed=refusal.final)
            raise Refused(refusal)

    async def preferred(self, available: Sequence[str], required: Sequence[str], size: int) -> tuple[str, ...]:
        """No preference: ids are opaque here."""
        del available, required, size
        return ()

    def ended(self, uid: str) -> None:
        """The pod is over: forget it."""
        self._checked.pop(uid, None)

    async def _prepare(self, device_ids: Sequence[str]) -> Refusal | None:
        identified = await self._identified(device_ids)
        if isinstance(identified, Refusal):
            return identified
        pod = self._pods.live.get(identified.pod_uid)
        if pod is None:
            return Refusal(kind=RefusalKind.UNKNOWN_POD, reason=f"pod {identified.pod_uid} has ended")
        held = await self._granting.grant(pod, wait_seconds=self._granting.policy.wait_seconds)
        if isinstance(held, Refusal):
            return held
        ref = pod_ref(pod)
        refusal = grants.counted(ref, held, {name: len(entry.device_ids) for name, entry in identified.containers.items()})
        if refusal is None and self._checked.get(ref.uid) != identified:
            refusal = await self._cross_checked(pod, held, identified)
        if refusal is not None:
            return refusal
        with self._granting.traced(pod, "write specs and grants"):
            return self._written(pod, held, identified)

    async def _identified(self, device_ids: Sequence[str]) -> Identified | Refusal:
        last: list[Refusal] = []

        def look() -> Identified | Refusal | Unreadable | None:
            """None as long as waiting for the informer may help."""
            known = self._kubelet.checkpoint()
            if isinstance(known, Unreadable):
                return known
            found = identity.by_checkpoint(known.held, self._granting.vendor.count_resource, device_ids, self._pods.live)
            if isinstance(found, Identified) or found.kind is RefusalKind.EMPTY_REQUEST:
                return found
            last[:] = [found]
            return None

        found: Identified | Refusal | Unreadable | None = await self._pods.changed.until(look, seconds=self._granting.policy.wait_seconds)
        if isinstance(found, Unreadable):
            return await self._without_checkpoint(device_ids, found)
        return found or last[0]

    async def _without_checkpoint(self, device_ids: Sequence[str], why: Unreadable) -> Identified | Refusal:
        log.warning("kubelet's checkpoint cannot be read", reason=why.reason)
        resource = self._granting.vendor.count_resource
        listed = await self._kubelet.listed(resource)
        if listed is None:
            return Refusal(
                kind=RefusalKind.UNKNOWN_POD,
                reason=f"kubelet's checkpoint cannot be read ({why.reason}), and PodResources cannot be asked",
            )
        granted: list[GrantedPod] = []
        for pod in self._pods.live.values():
            try:
                held = annotated(pod, self._granting.vendor)
            except ValueError:
                continue  # its own start is refused; it does not keep others from starting
            if held is not None:
                granted.append(GrantedPod(pod=pod_ref(pod), containers=held.containers))
        return identity.by_calls(listed, self._journal.calls, granted, resource, device_ids)

    async def _cross_checked(self, pod: Pod, held: VendorAssignment, identified: Identified) -> Refusal | None:
        listed = await self._kubelet.listed(self._granting.vendor.count_resource)
        if listed is None:
            return None  # the checkpoint is exact; the check is a second look
        kinds = {one.container.name: one.kind for one in containers_in_order(pod)}
        refusal = identity.cross_check(identified, GrantedPod(pod=pod_ref(pod), containers=held.containers), listed)
        if refusal is None and kinds.keys() >= identified.containers.keys():
            self._checked[identified.pod_uid] = identified
        return refusal

    def _written(self, pod: Pod, held: VendorAssignment, identified: Identified) -> Refusal | None:
        """Write everything, then report; in this order, so that success is never said of what is not there. No await in here."""
        ref = pod_ref(pod)
        try:
            driver = self._driver()
        except cdi.CdiError as exc:
            return Refusal(kind=RefusalKind.HOST, reason=f"{ref}: {exc}", pod=ref)
        devices: dict[str, cdi.Edits] = {}
        answers: dict[str, str] = {}
        wanted: list[Needs] = []
        for container in held.containers:
            if not container.shares:
                continue
            entry = identified.containers[container.container]
            answer = cdi.name_of(entry.cdi_names[0]) if len(entry.cdi_names) == 1 else ""
            if not answer or answer in devices:
                return Refusal(
                    kind=RefusalKind.KUBELET_DISAGREES,
                    reason=f"the answer that kubelet kept for container {container.container} of {ref} is none of ours: {entry.cdi_names}",
                    pod=ref,
                )
            need = self._granting.needs(pod, container, answer, visible_devices=VOID)
            if isinstance(need, Refusal):
                return need
            wanted.append(need)
            answers[container.container] = answer
            devices[answer] = cdi.merged(driver.for_devices([share.uuid for share in container.shares]), _edits(need))
        try:
            for need in wanted:
                self._granting.put(need)
            self._put_spec(ref.uid, cdi.encode(devices))
            record = self._journal.pod(ref)
            if record.answers != answers:
                record.answers = answers
                self._journal.save()
            self._granting.succeeded(pod)
        except (OSError, cdi.CdiError) as exc:
            return Refusal(kind=RefusalKind.HOST, reason=f"{ref}: {exc}", pod=ref)
        return None

    def _put_spec(self, uid: str, content: bytes) -> None:
        path = f"{self._cdi_folder}/{cdi.file_name(uid)}"
        if self._files.read(path) != content:
            self._files.write(path, content)


def _edits(need: Needs) -> cdi.Edits:
    return cdi.Edits(
        env=tuple(f"{name}={value}" for name, value in need.environment.items()),
        mounts=tuple(
            cdi.Mount(
                host_path=bind.host_path,
                container_path=bind.container_path,
                options=cdi.READ_ONLY if bind.read_only else cdi.READ_WRITE,
            )
            for bind in need.mounts
        ),
    )
