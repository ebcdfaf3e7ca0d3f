"""What a pod holds of one vendor, by its annotations: the assignment's text, and what the vendor keeps elsewhere on the pod.

A bound pod holds something for each container that asks. A record that says otherwise was emptied or cut, and is unreadable:
it never counts as zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from hami_devices.vendor import Vendor
from hami_protocol import assignment, keys, mig, quantities
from hami_protocol.devices import ContainerKind, DeviceShare, VendorAssignment
from hami_protocol.errors import QuantityError, RecordError
from hami_protocol.kubernetes import Container, Pod
from hami_protocol.mig import MigAllocation
from hami_protocol.pods import containers_in_order

_RECORD = "pod assignment"
_BOUND_BY_US = frozenset({keys.ASSIGNED_NODE, keys.ASSIGNED_TIME, keys.BIND_TIME, keys.BIND_PHASE, keys.MIG_ALLOCATIONS})
"""Annotations that come with an assignment and never alone."""


def read_assignment(pod: Pod, vendor: Vendor) -> VendorAssignment | None:
    """What ``pod`` holds of ``vendor``; None where it has no annotation of it.

    Raises:
        RecordError: the annotation cannot be read, or lacks what a container of a bound pod asks for.
    """
    text = pod.metadata.annotations.get(vendor.allocated_key)
    if text is None:
        return None
    placed = containers_in_order(pod)
    asked = [_asked(each.container, vendor) for each in placed]
    named = [(each.container.name, each.kind) for each in placed]
    held = assignment.decode(text, vendor.name, named, asking=[count > 0 for count in asked])
    if pod.spec.node_name:
        _check_complete(held, vendor, asked, shortened=len(assignment.decode_entries(text)) < len(placed))
    if text := pod.metadata.annotations.get(keys.MIG_ALLOCATIONS):
        held = _with_instances(held, mig.decode(text))
    return held if vendor.recall is None else _recalled(held, vendor, pod)


def _asked(container: Container, vendor: Vendor) -> int:
    """At least how many devices of ``vendor`` the container asks for; 1 where that is not a plain number."""
    resources = {**(container.resources.requests or {}), **(container.resources.limits or {})}
    if resources.keys().isdisjoint(vendor.resources):
        return 0
    try:
        count = quantities.parse_count(resources.get(vendor.count_resource, 1), field="")
    except QuantityError:
        return 1
    return count if vendor.read is None else min(count, 1)


def _check_complete(held: VendorAssignment, vendor: Vendor, asked: Sequence[int], *, shortened: bool) -> None:
    """Refuse a record in which a container has less than it asks for. v2.7 of the reference leaves init containers out.

    Raises:
        RecordError: there is such a container.
    """
    empty = not any(container.shares for container in held.containers)
    for container, count in zip(held.containers, asked, strict=True):
        if len(container.shares) < count and (empty or not shortened or container.kind is ContainerKind.APP):
            have = f"the record has {len(container.shares)}"
            raise RecordError(_RECORD, 0, f"container {container.container} asks for {count} {vendor.name} devices; {have}")


def check_present(pod: Pod, vendors: Iterable[Vendor]) -> None:
    """Refuse a bound pod of which only the assignment is missing: what else a Binding writes is there.

    Raises:
        RecordError: it asks for devices of a vendor, and has no annotation of that vendor.
    """
    annotations = pod.metadata.annotations
    if not pod.spec.node_name or (_BOUND_BY_US.isdisjoint(annotations) and keys.ASSIGNED_NODE not in pod.metadata.labels):
        return
    for vendor in vendors:
        if vendor.allocated_key not in annotations:
            asking = next((each.container.name for each in containers_in_order(pod) if _asked(each.container, vendor)), None)
            if asking is not None:
                raise RecordError(_RECORD, 0, f"container {asking} asks for {vendor.name} devices; {vendor.allocated_key} is missing")


def places(pod: Pod, vendor: Vendor) -> tuple[int, ...]:
    """The place of the container that each entry of the pod's record of ``vendor`` belongs to. Other texts of it have the same form.

    Raises:
        RecordError: the record cannot be read.
    """
    placed = containers_in_order(pod)
    entries = assignment.decode_entries(pod.metadata.annotations.get(vendor.allocated_key, ""))
    return assignment.alignment(entries, [each.kind for each in placed], [_asked(each.container, vendor) > 0 for each in placed])


def read_left(pod: Pod, vendor: Vendor) -> tuple[tuple[DeviceShare, ...], ...] | None:
    """By container, what is still to be handed out; None where the pod has no annotation of it.

    Raises:
        RecordError: it cannot be read.
    """
    text = pod.metadata.annotations.get(vendor.to_allocate_key or vendor.allocated_key)
    if text is None:
        return None
    left = dict(zip(places(pod, vendor), assignment.decode_entries(text), strict=False))
    return tuple(left.get(place, ()) for place in range(len(containers_in_order(pod))))


def _with_instances(held: VendorAssignment, allocations: Sequence[MigAllocation]) -> VendorAssignment:
    """Each share with its MIG instance. One that names no share, or another card, is left over, and the card is not trusted."""
    instances = {(each.container, each.device, each.gpu): each.instance for each in allocations}
    return msgspec.structs.replace(
        held,
        containers=tuple(
            msgspec.structs.replace(
                each,
                shares=tuple(
                    msgspec.structs.replace(share, instance=instances.get((place, number, share.uuid)))
                    for number, share in enumerate(each.shares)
                ),
            )
            for place, each in enumerate(held.containers)
        ),
    )


def instances_text(assignments: Sequence[VendorAssignment]) -> str:
    """The MIG instances in ``assignments``, as the pod's annotation has them; empty for none."""
    return mig.encode(
        tuple(
            MigAllocation(container=place, device=number, gpu=share.uuid, instance=share.instance)
            for given in assignments
            for place, container in enumerate(given.containers)
            for number, share in enumerate(container.shares)
            if share.instance is not None
        )
    )


def _recalled(held: VendorAssignment, vendor: Vendor, pod: Pod) -> VendorAssignment:
    recall = vendor.recall
    if recall is None:
        return held
    containers = [each.container for each in containers_in_order(pod)]
    return msgspec.structs.replace(
        held,
        containers=tuple(
            msgspec.structs.replace(each, shares=tuple(recall(share, container, pod.metadata.annotations) for share in each.shares))
            for container, each in zip(containers, held.containers, strict=False)
        ),
    )
