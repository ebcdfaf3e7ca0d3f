"""What a pod holds of one vendor, by its annotations: the assignment's text, and what the vendor keeps elsewhere on the pod."""

from __future__ import annotations

import msgspec

from hami_devices.vendor import Vendor
from hami_protocol import assignment
from hami_protocol.devices import VendorAssignment
from hami_protocol.kubernetes import Pod
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
    return held if vendor.recall is None else _recalled(held, vendor, pod)


def _recalled(held: VendorAssignment, vendor: Vendor, pod: Pod) -> VendorAssignment:
    recall = vendor.recall
    if recall is None:
        return held
    return msgspec.structs.replace(
        held,
        containers=tuple(
            msgspec.structs.replace(each, shares=tuple(recall(share, each.container, pod.metadata.annotations) for share in each.shares))
            for each in held.containers
        ),
    )
