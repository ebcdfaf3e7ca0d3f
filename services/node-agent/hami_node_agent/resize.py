"""A running pod's share gets another size: what the scheduler wishes is written into the grant files, or refused with the figure.

Limits change in place, under the processes that have mapped them. Nothing goes below what is in use: a smaller limit is written, use is looked
at again, and where it is above, everything is put back. The outcome goes to the bus, from where the registry writes the pod's annotation and the
scheduler lowers its charge; until then the journal knows what the pod holds. A resize that comes twice is answered twice and carried out once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

import structlog

from hami_node_agent.grant_file import Grant, GrantedDevice, GrantError, encode
from hami_node_agent.granting import Granting
from hami_node_agent.grants_view import GrantsView
from hami_node_agent.journal import Journal, ServedPod
from hami_node_agent.monitor import Monitor
from hami_node_agent.node_devices import NodeDevices
from hami_node_agent.node_pods import NodePods
from hami_node_agent.usage import Measured
from hami_protocol import assignment
from hami_protocol.devices import ContainerShares, VendorAssignment
from hami_protocol.errors import RecordError
from hami_protocol.events import ShareResizeApplied, ShareResized, ShareResizeRefused
from hami_protocol.kubernetes import Pod
from hami_runtime.isolation import Isolation
from hami_runtime.lifecycle import run_until, until
from hami_runtime.outbox import Outbox

log = structlog.get_logger()


class Resizer:
    """Resizes on one node."""

    def __init__(
        self,
        granting: Granting,
        *,
        view: GrantsView,
        pods: NodePods,
        monitor: Monitor,
        devices: NodeDevices,
        journal: Journal,
        outbox: Outbox,
        isolation: Isolation,
    ) -> None:
        self._isolation = isolation
        self._granting = granting
        self._view = view
        self._pods = pods
        self._monitor = monitor
        self._devices = devices
        self._journal = journal
        self._outbox = outbox

    async def run(self, stop: asyncio.Event) -> None:
        """Carry out what the scheduler wishes, once the node's pods are known."""
        await run_until(stop, self._pods.wait_synced())
        if stop.is_set():
            return
        async for _ in until(stop, self._view.changed.each()):
            for uid, resize in sorted(self._view.resizes.items()):
                if (pod := self._pods.live.get(uid)) is not None:
                    del self._view.resizes[uid]
                    with self._isolation.item(f"resize of pod {resize.pod}"):
                        self._answer(resize, pod)

    def republish(self, record: ServedPod) -> None:
        """Publish once more that the pod's last resize was carried out."""
        assignments = self._view.all_of(record.pod.uid)
        if assignments:
            node, generation = self._granting.node, record.resize_generation
            self._say(ShareResized(pod=record.pod, node=node, assignments=assignments, generation=generation), "")
            log.info("outcome of a resize published again", pod=str(record.pod), generation=generation)

    def _answer(self, resize: ShareResized, pod: Pod) -> None:
        record = self._journal.pod(resize.pod)
        if resize.generation < record.resize_generation:
            return  # an older one, from the start of the log
        if resize.generation > record.resize_generation:
            refusal = self._carried_out(resize, pod)
            record.resize_generation, record.resize_refused = resize.generation, refusal
            self._journal.save()
            log.info("share resized", pod=str(resize.pod), generation=resize.generation, refused=refusal)
        if not record.resize_refused:
            self._view.settle(resize)
        self._say(resize, record.resize_refused)

    def _say(self, resize: ShareResized, refusal: str) -> None:
        node, ref, generation = self._granting.node, resize.pod, resize.generation
        outcome: ShareResizeApplied | ShareResizeRefused
        if refusal:
            outcome = ShareResizeRefused(pod=ref, node=node, generation=generation, reason=refusal)
        else:
            outcome = ShareResizeApplied(pod=ref, node=node, assignments=resize.assignments, generation=generation)
        self._outbox.put(outcome, f"{ref.uid}/resized/{generation}/{'refused' if refusal else 'applied'}")

    def _carried_out(self, resize: ShareResized, pod: Pod) -> str:
        """Why the resize cannot be carried out; empty where it has been."""
        wanted = next((one for one in resize.assignments if one.vendor == self._granting.vendor.name), None)
        try:
            held = self._granting.held(pod)
        except RecordError as exc:
            return str(exc)
        if wanted is None or held is None or not same_cards(held, wanted):
            return f"pod {resize.pod} holds other devices than the resize names"
        changes: list[tuple[Grant, Grant]] = []
        for container in wanted.containers:
            if not container.shares:
                continue
            measured = self._monitor.measured(resize.pod.uid, container.container)
            if measured is None:
                return f"container {container.container} has not been given its devices yet"
            grant = resized(measured.grant, container, self._devices.whole_mib)
            if isinstance(grant, str):
                return grant
            if refusal := in_use(measured, grant):
                return refusal
            changes.append((measured.grant, grant))
        try:
            refusal = self._write(changes)
        except OSError as exc:
            return f"the grant cannot be written: {exc}"
        if not refusal:
            record = self._journal.pod(resize.pod)
            record.resized_from |= {assignment.encode(held)}
            record.resized, record.granted = wanted, assignment.encode(wanted)
        return refusal

    def _write(self, changes: Sequence[tuple[Grant, Grant]]) -> str:
        """Write them all, and look again: whoever has allocated in between keeps the size that allowed it."""
        for _, grant in changes:
            self._granting.change_grant(grant)
        for _, grant in changes:
            measured = self._monitor.measured(grant.pod_uid, grant.container)
            if measured is not None and (refusal := in_use(measured, grant)):
                for before, _ in changes:
                    self._granting.change_grant(before)
                return refusal
        return ""


def resized(grant: Grant, wanted: ContainerShares, whole_mib: Mapping[str, int]) -> Grant | str:
    """``grant`` with the sizes of ``wanted``, or why it cannot have them.

    Args:
        grant: what the container has.
        wanted: what it is to have, on the same cards.
        whole_mib: memory of each card, by UUID, where all of it and all cores are the whole card.
    """
    if [device.uuid for device in grant.devices] != [share.uuid for share in wanted.shares]:
        return f"container {grant.container} was started with other devices than the resize names"
    devices: list[GrantedDevice] = []
    for device, share in zip(grant.devices, wanted.shares, strict=True):
        if device.whole or (share.cores == 100 and share.memory_mib == whole_mib.get(share.uuid)):
            return f"container {grant.container}: all of {device.uuid} is given only when a container starts"
        devices.append(
            replace(
                device,
                memory_limit_mib=share.memory_mib,
                sm_percent=min(share.cores, 100),
                started_memory_mib=device.memory_limit_mib if device.started_memory_mib is None else device.started_memory_mib,
                started_percent=device.sm_percent if device.started_percent is None else device.started_percent,
            )
        )
    found = replace(grant, devices=tuple(devices))
    try:
        encode(found)
    except GrantError as exc:
        return str(exc)
    return found


def in_use(measured: Measured, wanted: Grant) -> str:
    """Why the container cannot be held to ``wanted`` now: more is in use, with the figures; empty where it can."""
    for device in wanted.devices:
        used_mib = measured.used_mib(device)
        if used_mib > device.memory_limit_mib:
            return (
                f"container {measured.grant.container} uses {used_mib} MiB of {device.uuid}, {device.memory_limit_mib} MiB were asked for; "
                f"accepted: at least {used_mib} MiB"
            )
    return ""


def same_cards(held: VendorAssignment, wanted: VendorAssignment) -> bool:
    """Whether both are of the same containers and cards, whatever the sizes."""

    def cards(one: VendorAssignment) -> list[tuple[str, list[str]]]:
        return [(container.container, [share.uuid for share in container.shares]) for container in one.containers]

    return cards(held) == cards(wanted)
