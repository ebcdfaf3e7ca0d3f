"""PreStartContainer: whose container starts, and has it exactly what it was granted? The same in both modes: kubelet's record decides which.

Kubelet has written down who holds what, with our own answer to Allocate, so the pod and each of its containers are known for certain.

- Where the answer was a CDI name, what the name stands for is written now: specs and grant files of *all* containers of the pod in one go,
  then success is reported.
- Where the answer was complete in itself (``envvar`` mode, or the reference's plugin before an upgrade), it is compared with the pod's grant: a
  container that was answered for another pod never starts.

Doing it again, as at every restart of a container, changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import structlog

from hami_node_agent import cdi, grants, identity
from hami_node_agent.checkpoint import HeldDevices, Unreadable
from hami_node_agent.granting import Granting
from hami_node_agent.hostfiles import HostFiles
from hami_node_agent.identity import GrantedPod, Identified
from hami_node_agent.journal import Journal
from hami_node_agent.kubelet_records import KubeletRecords
from hami_node_agent.needs import Needs
from hami_node_agent.node_pods import NodePods, annotated
from hami_node_agent.refusals import Refusal, RefusalKind, Refused
from hami_protocol.devices import VendorAssignment
from hami_protocol.errors import RecordError
from hami_protocol.kubernetes import Pod
from hami_protocol.pods import pod_ref

log = structlog.get_logger()
VOID = "void"
"""For ``NVIDIA_VISIBLE_DEVICES``: NVIDIA's own runtime leaves the container alone."""
LIMITS = ("NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT")
"""What an answer must say as the grant does. The rest may change with the agent's configuration between two starts of a container."""


class Starting:
    """Starts of containers on one node."""

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
        answers_complete: bool,
    ) -> None:
        """``answers_complete``: this agent's own answers need nothing more, so that one that cannot be looked up is let through."""
        self._granting = granting
        self._pods = pods
        self._kubelet = kubelet
        self._files = files
        self._journal = journal
        self._cdi_folder = cdi_folder.rstrip("/")
        self._driver = driver
        self._answers_complete = answers_complete
        self._checked: dict[str, Identified] = {}
        """What PodResources agreed with, by pod."""
        self._compared: dict[str, Identified] = {}
        """Whose ids were compared with the grant, by pod."""

    async def pre_start(self, device_ids: Sequence[str]) -> None:
        """Make ready what starts.

        Raises:
            Refused: the container must not start, with the reason.
        """
        refusal = await self._prepare(device_ids)
        if refusal is not None:
            self._granting.refused(refusal, failed=refusal.final)
            raise Refused(refusal)

    def ended(self, uid: str) -> None:
        """The pod is over: forget it."""
        self._checked.pop(uid, None)
        self._compared.pop(uid, None)

    async def _prepare(self, device_ids: Sequence[str]) -> Refusal | None:
        if not self._pods.synced and self._prepared_before(device_ids):
            return None
        identified = await self._identified(device_ids)
        if isinstance(identified, Refusal):
            if self._answers_complete and identified.kind is RefusalKind.UNKNOWN_POD:
                log.warning("answer not verified", reason=identified.reason)
                return None
            return identified
        pod = self._pods.live.get(identified.pod_uid)
        if pod is None:
            return Refusal(kind=RefusalKind.UNKNOWN_POD, reason=f"pod {identified.pod_uid} has ended")
        if not any(entry.cdi_names for entry in identified.containers.values()):
            wanted = frozenset(device_ids)
            starting = [entry for entry in identified.containers.values() if entry.device_ids == wanted]
            if (refusal := await self._granting.instances_ready(pod)) is not None:
                return refusal
            with suppress(RecordError):  # refused below
                self._compare_ids(pod, annotated(pod, self._granting.vendor), identified)
            return next((refusal for entry in starting if (refusal := self._verified(pod, entry)) is not None), None)
        held = await self._granting.grant(pod)
        if isinstance(held, Refusal):
            return held
        refusal = grants.counted(pod_ref(pod), held, {name: len(entry.device_ids) for name, entry in identified.containers.items()})
        if refusal is None and self._checked.get(identified.pod_uid) != identified:
            refusal = await self._cross_checked(pod, held, identified)
        if refusal is not None:
            return refusal
        self._compare_ids(pod, held, identified)
        with self._granting.traced(pod, "write specs and grants"):
            return self._written(pod, held, identified)

    def _compare_ids(self, pod: Pod, held: VendorAssignment | None, identified: Identified) -> None:
        """Report, once for each pod, where kubelet's ids are of other cards than the grant."""
        if held is not None and self._compared.get(identified.pod_uid) != identified:
            self._compared[identified.pod_uid] = identified
            self._granting.ids_compared(pod_ref(pod), held, identified)

    def _prepared_before(self, device_ids: Sequence[str]) -> bool:
        """Whether this is a restart of what was written before, asked while the API server has not answered since the agent's own start."""
        known = self._kubelet.checkpoint()
        if isinstance(known, Unreadable):
            return False
        served = {uid for uid, record in self._journal.pods.items() if record.answers and not record.released}
        found = identity.by_checkpoint(known.held, self._granting.vendor.count_resource, device_ids, served)
        if isinstance(found, Refusal):
            return False
        names = {name: tuple(cdi.name_of(each) for each in entry.cdi_names) for name, entry in found.containers.items()}
        written = self._files.stamp(f"{self._cdi_folder}/{cdi.file_name(found.pod_uid)}") is not None
        return written and names == {name: (answer,) for name, answer in self._journal.pods[found.pod_uid].answers.items()}

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
            except RecordError:
                continue  # its own start is refused; it does not keep others from starting
            if held is not None:
                granted.append(GrantedPod(pod=pod_ref(pod), containers=held.containers))
        return identity.by_calls(listed, self._journal.calls, granted, resource, device_ids)

    async def _cross_checked(self, pod: Pod, held: VendorAssignment, identified: Identified) -> Refusal | None:
        listed = await self._kubelet.listed(self._granting.vendor.count_resource)
        if listed is None:
            return None  # the checkpoint is exact; this is a second look
        refusal = identity.cross_check(identified, GrantedPod(pod=pod_ref(pod), containers=held.containers), listed)
        if refusal is None:
            self._checked[identified.pod_uid] = identified
        return refusal

    def _written(self, pod: Pod, held: VendorAssignment, identified: Identified) -> Refusal | None:
        """Write everything, then report; in this order, so that success is never said of what is not there. No await in here."""
        ref = pod_ref(pod)
        devices: dict[str, cdi.Edits] = {}
        answers: dict[str, str] = {}
        wanted: list[Needs] = []
        try:
            driver = self._driver()
            for container in held.containers:
                if not container.shares:
                    continue
                names = identified.containers[container.container].cdi_names
                answer = cdi.name_of(names[0]) if len(names) == 1 else ""
                if not answer or answer in devices:
                    return Refusal(
                        kind=RefusalKind.KUBELET_DISAGREES,
                        reason=f"the answer that kubelet kept for container {container.container} of {ref} is none of ours: {names}",
                        pod=ref,
                    )
                need = self._granting.needs(pod, container, answer, visible_devices=VOID)
                if isinstance(need, Refusal):
                    return need
                wanted.append(need)
                answers[container.container] = answer
                devices[answer] = cdi.merged(driver.for_devices([share.uuid for share in container.shares]), _edits(need))
            for need in wanted:
                self._granting.put(need)
            self._put_spec(ref.uid, cdi.encode(devices))
            self._granting.remember(ref, held, answers)
            self._granting.succeeded(pod)
        except (OSError, cdi.CdiError) as exc:
            return Refusal(kind=RefusalKind.HOST, reason=f"{ref}: {exc}", pod=ref)
        return None

    def _put_spec(self, uid: str, content: bytes) -> None:
        path = f"{self._cdi_folder}/{cdi.file_name(uid)}"
        if self._files.read(path) != content:
            self._files.write(path, content)

    def _verified(self, pod: Pod, entry: HeldDevices) -> Refusal | None:
        """None where the complete answer that kubelet kept is what this container was granted; the file with its usage may be a twin's."""
        ref = pod_ref(pod)
        try:
            held = self._granting.held(pod)
        except RecordError as exc:
            return Refusal(kind=RefusalKind.UNREADABLE, reason=f"{ref}: {exc}", pod=ref)
        mine = next((one for one in held.containers if one.container == entry.container), None) if held else None
        if mine is None or not mine.shares:
            return Refusal(kind=RefusalKind.NO_GRANT, reason=f"container {entry.container} of {ref} was granted nothing", pod=ref)
        need = self._granting.needs(pod, mine, "any")
        if isinstance(need, Refusal):
            return need
        names = LIMITS if self._granting.vendor.shim else tuple(need.environment)
        answered, expected = _limits(dict(entry.environment), names), _limits(need.environment, names)
        if answered != expected:
            wrong = sorted(key for key in answered.keys() | expected.keys() if answered.get(key) != expected.get(key))
            return Refusal(
                kind=RefusalKind.SWAPPED,  # kubelet keeps an answer for good: nobody else must wait for this pod
                reason=f"container {entry.container} of {ref} was answered for another pod: {', '.join(wrong)} differ from its grant",
                pod=ref,
            )
        try:
            self._granting.secure(need)
        except OSError as exc:
            return Refusal(kind=RefusalKind.HOST, reason=f"{ref}: {exc}", pod=ref)
        return None


def _limits(environment: dict[str, str], names: tuple[str, ...]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(names)}


def _edits(need: Needs) -> cdi.Edits:
    return cdi.Edits(
        env=tuple(f"{name}={value}" for name, value in need.environment.items()),
        device_nodes=tuple(cdi.DeviceNode(path=path) for path in need.device_nodes),
        mounts=tuple(
            cdi.Mount(
                host_path=bind.host_path,
                container_path=bind.container_path,
                options=cdi.READ_ONLY if bind.read_only else cdi.READ_WRITE,
            )
            for bind in need.mounts
        ),
    )
