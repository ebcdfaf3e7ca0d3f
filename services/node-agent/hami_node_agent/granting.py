"""From a pod to the grant that it may be served from, and from a grant to what its containers need: what both allocation modes share.

Asks the pod's annotation and the scheduler's event, and lets ``grants`` compare them. Writes folders and grant files of the host; never the
API server. Outcomes go to the bus through the outbox, refusals to the pod's events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Final

import msgspec
import structlog
from opentelemetry.trace import Span

from hami_devices import records
from hami_devices.catalog import Catalog
from hami_devices.vendor import Vendor
from hami_node_agent import grant_file, grants, node_pods
from hami_node_agent import region as regions
from hami_node_agent.grant_file import Grant
from hami_node_agent.grants_view import GrantsView
from hami_node_agent.hostfiles import HostFiles
from hami_node_agent.identity import Identified
from hami_node_agent.journal import Journal, ServedPod
from hami_node_agent.kubelet_ids import difference
from hami_node_agent.mig_instances import MigInstances
from hami_node_agent.needs import REGION_INSIDE, HostPaths, Needs, Shim, folder_name, needs
from hami_node_agent.node_devices import NodeDevices
from hami_node_agent.node_pods import NodePods
from hami_node_agent.refusals import Refusal, RefusalKind
from hami_protocol import assignment, keys
from hami_protocol.devices import ContainerShares, PodRef, VendorAssignment
from hami_protocol.errors import ProtocolError, RecordError
from hami_protocol.events import AllocationFailed, AllocationSucceeded, ContainerServed
from hami_protocol.kubernetes import Pod
from hami_protocol.pods import containers_in_order, pod_ref
from hami_runtime.kube.events import EventRecorder
from hami_runtime.outbox import Outbox
from hami_runtime.telemetry import OFF, Telemetry

log = structlog.get_logger()
FOLDER_MODE: Final = 0o777
REGION_MODE: Final = 0o666
"""Of a container's own folder: the user it runs as is not known. Nothing that limits it is in there."""
ASK_SECONDS: Final = 1.0
UNNAMED_KEPT: Final = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class GrantPolicy:
    """What a grant must be backed by, and what a pod may switch off."""

    require_event: bool = True
    """With the bus up, refuse an annotation that no grant event backs. Off only beside the reference's scheduler, which has no bus."""
    wait_seconds: float = 8.0
    """How long to wait for what is on its way: the pod, its annotation, its grant."""
    legacy_region: bool = False
    """Have the shim write the reference's region beside its own."""


class Granting:
    """Grants of one vendor on one node."""

    def __init__(
        self,
        *,
        node: str,
        vendor: Vendor,
        catalog: Catalog,
        view: GrantsView,
        devices: NodeDevices,
        files: HostFiles,
        journal: Journal,
        outbox: Outbox,
        recorder: EventRecorder,
        paths: HostPaths,
        shim: Callable[[], Shim],
        policy: GrantPolicy,
        instances: MigInstances,
        telemetry: Telemetry = OFF,
    ) -> None:
        self.node = node
        self.vendor = vendor
        self._catalog = catalog
        self._view = view
        self._devices = devices
        self._files = files
        self._journal = journal
        self._outbox = outbox
        self._recorder = recorder
        self._paths = paths
        self._shim = shim
        self._instances = instances
        self.policy = policy
        self._telemetry = telemetry
        self._unnamed: deque[str] = deque(maxlen=UNNAMED_KEPT)
        """Refusals of calls of which it was not known which pod they were for: kubelet names it when it rejects it."""
        self._differences = telemetry.counter(
            "hami_agent_device_ids_differ", "pods for which kubelet holds ids of other cards than granted"
        )

    def traced(self, pod: Pod, what: str) -> AbstractContextManager[Span]:
        """A span of the pod's own trace, which began at admission; what is said inside carries it on."""
        return self._telemetry.span(what, traceparent=pod.metadata.annotations.get(keys.TRACE_PARENT), pod=str(pod_ref(pod)))

    async def grant(self, pod: Pod) -> VendorAssignment | Refusal:
        """What ``pod`` may be served from.

        With the bus up its grant event is waited for, and asked for by subject. The log of grants is not kept for ever: a pod that was served
        from the same annotation before is served again.
        """
        ref = pod_ref(pod)
        try:
            held = self.held(pod)
        except RecordError as exc:
            return Refusal(kind=RefusalKind.UNREADABLE, reason=f"{ref}: {exc}", pod=ref)
        record = self._journal.pods.get(ref.uid)
        served_before = record is not None and held is not None and record.granted == assignment.encode(held)
        granted = record.resized if record and record.resized else self._view.get(ref.uid, self.vendor.name)
        event_required = self.policy.require_event and not served_before and self._view.connected
        if granted is None and event_required:
            granted, event_required = await self._granted_later(ref)
        agreed = grants.agreed(ref, held, granted, event_required=event_required)
        if isinstance(agreed, Refusal):
            return agreed
        return await self._instances.ready(ref, agreed) or agreed

    async def instances_ready(self, pod: Pod) -> Refusal | None:
        """See to it that the pod's MIG instances are there; why they are not. A pod whose records cannot be read is refused elsewhere."""
        try:
            held = node_pods.annotated(pod, self.vendor)
        except RecordError:
            return None
        return None if held is None else await self._instances.ready(pod_ref(pod), held)

    def held(self, pod: Pod) -> VendorAssignment | None:
        """What ``pod`` holds by its annotation or, until that has been written, by the resize that was carried out; None where it holds nothing.

        Raises:
            RecordError: the annotation cannot be read.
        """
        held = node_pods.annotated(pod, self.vendor)
        record = self._journal.pods.get(pod.metadata.uid)
        if held is None or record is None or record.resized is None or assignment.encode(held) not in record.resized_from:
            return held
        return record.resized

    async def _granted_later(self, ref: PodRef) -> tuple[VendorAssignment | None, bool]:
        """The pod's grant once it has arrived, and whether the bus can say that there is none: one that answers no look-up is as good as away."""
        answers = False
        for _ in range(max(1, round(self.policy.wait_seconds / ASK_SECONDS))):
            if not (answers := await self._view.ask(ref)):
                break
            granted = await self._view.changed.until(lambda: self._view.get(ref.uid, self.vendor.name), seconds=ASK_SECONDS)
            if granted is not None:
                return granted, True
        return None, answers and self._view.connected

    def needs(self, pod: Pod, held: ContainerShares, answer: str, *, visible_devices: str | None = None) -> Needs | Refusal:
        """What one container of ``pod`` needs."""
        ref = pod_ref(pod)
        container = next((one.container for one in containers_in_order(pod) if one.container.name == held.container), None)
        if container is None:
            return Refusal(kind=RefusalKind.GRANT_DIFFERS, reason=f"{ref} has no container {held.container}", pod=ref)
        try:
            cut = self._cut(pod, held, visible_devices)
            if cut is not None:
                return cut
            started = self._started(ref.uid, held.container)
            return needs(
                pod_uid=ref.uid,
                held=held,
                container=container,
                answer=answer,
                vendor=self.vendor,
                sharing=self._devices.sharing,
                whole_mib=self._devices.whole_mib,
                paths=self._paths,
                shim=self._shim(),
                legacy_region=self.policy.legacy_region,
                visible_devices=visible_devices,
                started={device.uuid: device for device in started.devices} if started else {},
                region=started.region_path if started else REGION_INSIDE,
                devices={device.uuid: device for device in self._devices.registered},
            )
        except ProtocolError as exc:
            return Refusal(kind=RefusalKind.UNREADABLE, reason=f"{ref}: {exc}", pod=ref)

    def _started(self, uid: str, container: str) -> Grant | None:
        """What the container's grant file says now; None where there is none for it."""
        content = self._files.read(self._paths.grant(folder_name(uid, container))) if self.vendor.shim else None
        try:
            return grant_file.decode(content, torn=True) if content is not None else None
        except grant_file.GrantError:
            return None  # made anew

    def _cut(self, pod: Pod, held: ContainerShares, visible_devices: str | None) -> Needs | Refusal | None:
        """What a container with MIG instances needs: to be told which. The card itself holds it to them; None where it has none.

        Raises:
            RecordError: the pod's records cannot be read.
        """
        if not any(share.instance for share in held.shares):
            return None
        ref = pod_ref(pod)
        assigned = node_pods.annotated(pod, self.vendor)
        made = None if assigned is None else self._instances.of(assigned, held.container)
        if made is None:
            return Refusal(kind=RefusalKind.HOST, reason=f"{ref}: the MIG instances of {held.container} are not there", pod=ref)
        visible = visible_devices or ",".join(each.identity.uuid for each in made)
        environment = {self.vendor.visible_env: visible} if self.vendor.visible_env else {}
        return Needs(
            environment=environment, mounts=(), folders=(), mount_points=(), device_nodes=tuple(p for each in made for p in each.paths)
        )

    def put(self, wanted: Needs) -> None:
        """Make the container's folders and its grant file.

        Raises:
            OSError: the host refused.
        """
        for folder in wanted.folders:
            self._files.make_folder(folder, mode=FOLDER_MODE)
        if wanted.region_path and self._files.stamp(wanted.region_path) is None:
            self._files.write(wanted.region_path, regions.EMPTY, mode=REGION_MODE)
        if wanted.grant_path:
            self.put_grant(wanted.grant_path, wanted.grant)
        self.secure(wanted)

    def put_grant(self, path: str, wanted: bytes) -> None:
        """Make the file at ``path`` grant what ``wanted`` does: in place where there is one, for a running container maps it.

        Raises:
            OSError: the host refused.
        """
        there = self._files.read(path)
        if there is None or len(there) != len(wanted):
            self._files.write(path, wanted)
        elif words := grant_file.rewrite_words(there, wanted):
            self._files.store(path, words)

    def change_grant(self, grant: grant_file.Grant) -> None:
        """Make a container's grant file say ``grant``, under the processes that have mapped it.

        Raises:
            OSError: the host refused.
        """
        self.put_grant(self._paths.grant(folder_name(grant.pod_uid, grant.container)), grant_file.encode(grant))

    def secure(self, wanted: Needs) -> None:
        """See to it that what is mounted over the container's own folder lands there, whatever an earlier run of the container left.

        Raises:
            OSError: the host refused.
        """
        for path in wanted.mount_points:
            self._files.make_plain(path)

    def remember(self, ref: PodRef, held: VendorAssignment, answers: Mapping[str, str], *, place: int | None = None) -> None:
        """Note on disk what was served, before it is said.

        Raises:
            OSError: it cannot be written.
        """
        record = self._journal.pod(ref)
        before = msgspec.json.encode(record)
        record.granted = assignment.encode(held)
        record.answers |= answers
        if place is not None:
            record.served |= {place}
        if msgspec.json.encode(record) != before:
            self._journal.save()

    def served(self, pod: Pod, held: VendorAssignment, places: frozenset[int], container: str) -> None:
        """``envvar``: one container has its devices. What is left is in the form of the pod's own annotation, which may be shortened."""
        if not self.vendor.to_allocate_key:
            return
        ref = pod_ref(pod)
        left = tuple(() if place in places else held.containers[place].shares for place in records.places(pod, self.vendor))
        event = ContainerServed(
            pod=ref, node=self.node, container=container, vendor=self.vendor.name, to_allocate=assignment.encode_entries(left)
        )
        self._outbox.put(event, f"{ref.uid}/served/{self.vendor.name}/{container}")

    def succeeded(self, pod: Pod) -> None:
        """All containers have what they were granted; said once, and not while another vendor's plugin still has to do its part."""
        ref = pod_ref(pod)
        record = self._journal.pod(ref)
        if record.succeeded or self._others_pending(pod):
            return
        record.succeeded = True
        self._journal.save()
        self._say_succeeded(ref, pod)
        log.info("allocation succeeded", pod=str(ref), uid=ref.uid)

    def say_again(self, pods: NodePods) -> None:
        """After a restart: what was done and may not have reached anybody. A double changes nothing."""
        for uid, record in sorted(self._journal.pods.items()):
            pod = pods.get(uid)
            if pod is None and record.succeeded:
                self._say_succeeded(record.pod)
            elif pod is not None and pod.metadata.annotations.get(keys.BIND_PHASE) == "allocating":
                with self.traced(pod, "say again"):
                    self.republish(pod, record)

    def republish(self, pod: Pod, record: ServedPod) -> None:
        """Publish once more what was done for ``pod``."""
        try:
            held = node_pods.annotated(pod, self.vendor)
        except RecordError:
            return  # refused when it is asked for
        for place in sorted(record.served):
            if held is not None and place < len(held.containers):
                self.served(pod, held, frozenset(record.served), held.containers[place].container)
        if record.succeeded:
            self._say_succeeded(record.pod, pod)
        elif record.failed:
            self._say_failed(record.pod, record.failed)

    def _say_succeeded(self, ref: PodRef, pod: Pod | None = None) -> None:
        held = None
        with suppress(RecordError):
            held = node_pods.annotated(pod, self.vendor) if pod is not None else None
        text = self._instances.identified(held) if held is not None else ""
        self._outbox.put(AllocationSucceeded(pod=ref, node=self.node, mig_allocations=text), f"{ref.uid}/succeeded")

    def ids_compared(self, ref: PodRef, held: VendorAssignment, identified: Identified) -> None:
        """Report where kubelet's ids are of other cards than the pod was granted."""
        numa = {device.uuid: device.numa for device in self._devices.inventory.devices}
        if told := difference(held, identified, numa):
            self._differences.add(1)
            log.warning("kubelet's ids are of other cards", pod=str(ref), uid=ref.uid, difference=told)
            self._recorder.record(
                ref, "Warning", "DeviceIdsDiffer", f"{told}; the grant holds, and readers of PodResources see the other card"
            )

    def rejected(self, pod: Pod) -> None:
        """Kubelet has rejected ``pod``: where a refusal of ours is the reason that named no pod, it was this one's."""
        reason = next((text for text in self._unnamed if text in (pod.status.message or "")), None)
        if reason is not None:
            self._recorder.record(pod_ref(pod), "Warning", "AllocationRefused", reason)

    def refused(self, refusal: Refusal, *, failed: bool) -> None:
        """Say why, where the pod is certain. ``failed``: kubelet will not try again, so that the pod has failed."""
        log.warning("allocation refused", kind=str(refusal.kind), reason=refusal.reason, pod=str(refusal.pod or ""))
        if refusal.pod is None:
            self._unnamed.append(str(refusal))
            return
        self._recorder.record(refusal.pod, "Warning", "AllocationRefused", str(refusal))
        if failed and not (record := self._journal.pod(refusal.pod)).succeeded:
            record.failed = str(refusal)
            with suppress(OSError):  # it is said all the same, unless the agent dies at once
                self._journal.save()
            self._say_failed(refusal.pod, record.failed)

    def _say_failed(self, ref: PodRef, reason: str) -> None:
        self._outbox.put(AllocationFailed(pod=ref, node=self.node, reason=reason), f"{ref.uid}/failed")

    def _others_pending(self, pod: Pod) -> bool:
        for vendor in self._catalog.vendors:
            text = pod.metadata.annotations.get(vendor.to_allocate_key, "") if vendor.to_allocate_key else ""
            if vendor.to_allocate_key == self.vendor.to_allocate_key or not text:
                continue
            try:
                if not assignment.all_served(text):
                    return True
            except RecordError:
                return True
        return False
