"""Names in a pod that no component reads: resources under a vendor's domain, and scheduling policies. Pure.

Kubernetes accepts unknown resource names and annotations, so a misspelling is no error. It produces an admission warning and a finding.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from hami_devices.order import DEVICE_POLICIES
from hami_devices.requests import NODE_POLICIES, annotation_field
from hami_devices.vendor import Vendor
from hami_protocol import keys
from hami_protocol.kubernetes import Pod
from hami_protocol.pods import containers_in_order

_CUTOFF: Final = 0.6
_OF_OTHER_PLUGINS: Final = re.compile(r"nvidia\.com/(mig-.+|.+\.shared)")
"""What NVIDIA's own device plugin offers: MIG instances and time-sliced cards."""


class Misspelling(Struct, frozen=True, kw_only=True):
    """One name that no component reads."""

    field: str
    """Path of the field, as ``spec.containers[0].resources.limits[nvidia.com/gpumemory]``."""
    given: str
    effect: str
    """What happens to the pod instead."""
    accepted: tuple[str, ...]
    resource: bool = False
    """The name of a resource, so that no node can offer it."""

    @property
    def suggestion(self) -> str:
        """The accepted name that is closest; empty where none is close."""
        domain, slash, name = self.given.rpartition("/")
        found = difflib.get_close_matches(name, [each.rpartition("/")[2] for each in self.accepted], n=1, cutoff=_CUTOFF)
        return f"{domain}{slash}{found[0]}" if found else ""

    def __str__(self) -> str:
        hint = f"did you mean {self.suggestion}?" if self.suggestion else f"accepted: {', '.join(self.accepted)}"
        return f"{self.field}: {self.given!r} is not known to HAMi: {self.effect}; {hint}"


def misspellings(pod: Pod, vendors: Sequence[Vendor]) -> tuple[Misspelling, ...]:
    """Unknown resource names under the domains of ``vendors``, and unknown policies, in the pod's order."""
    return (*_resources(pod, vendors), *_policies(pod))


def _resources(pod: Pod, vendors: Sequence[Vendor]) -> Iterator[Misspelling]:
    known = tuple(name for vendor in vendors for name in vendor.resources)
    for container, _, path in containers_in_order(pod):
        limits, requests = container.resources.limits or {}, container.resources.requests or {}
        for name in dict.fromkeys([*limits, *requests]):
            domain = name.partition("/")[0]
            accepted = tuple(each for each in known if "/" in name and each.partition("/")[0] == domain)
            if accepted and name not in known and not _OF_OTHER_PLUGINS.fullmatch(name):
                yield Misspelling(
                    field=f"{path}.resources.{'limits' if name in limits else 'requests'}[{name}]",
                    given=name,
                    effect="the pod waits until a node offers it",
                    accepted=accepted,
                    resource=True,
                )


def _policies(pod: Pod) -> Iterator[Misspelling]:
    for key, accepted, effect in (
        (keys.NODE_POLICY, NODE_POLICIES, f"{NODE_POLICIES[0]} is used"),
        (keys.DEVICE_POLICY, DEVICE_POLICIES, "that name has no effect on the order of cards"),
    ):
        text = pod.metadata.annotations.get(key, "")
        names = [text] if key == keys.NODE_POLICY else text.split(",")
        for name in dict.fromkeys(each.strip() for each in names):
            if text.strip() and name not in accepted:
                yield Misspelling(field=annotation_field(key), given=name[:64], effect=effect, accepted=accepted)
