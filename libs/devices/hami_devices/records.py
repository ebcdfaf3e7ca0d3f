"""What a pod holds of one vendor, by its annotations: the assignment's text, and what the vendor keeps elsewhere on the pod."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hami_devices.vendor import Vendor
from hami_protocol import assignment, keys, mig
from hami_protocol.devices import VendorAssignment
from hami_protocol.kubernetes import Pod
from hami_protocol.mig import MigAllocation
from hami_protocol.pods import containers_in_order


def read_assignment(pod: Pod, vendor: Vendor) -> VendorAssignment | None:
    """What ``pod`` holds of ``vendor``; None where it has no annotation of it.

    Raises:
        RecordError: the annotation cannot be read.
    """
    text = pod.metadata.annotations.get(vendor.allocated_key)
    if text is None:
        return None
    placed = containers_in_order(pod)
    resources = [{*(each.container.resources.limits or ()), *(each.container.resources.requests or ())} for each in placed]
    asking = [not named.isdisjoint(vendor.resources) for named in resources]
    held = assignment.decode(text, vendor.name, [(each.container.name, each.kind) for each in placed], asking=asking)
    if text := pod.metadata.annotations.get(keys.MIG_ALLOCATIONS):
        held = _with_instances(held, mig.decode(text))
    return held if vendor.recall is None else _recalled(held, vendor, pod)


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
