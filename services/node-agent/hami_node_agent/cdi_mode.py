"""``cdi`` mode: Allocate answers at once with a name. Whose it is, and what it stands for, is found out when the container starts.

Allocate makes no call and waits for nobody. The name is new at every call and never made from the ids, since kubelet gives an init
container's ids to later containers of the same pod. It is noted on disk first, for the case that kubelet's checkpoint cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import structlog

from hami_devices.vendor import Vendor
from hami_node_agent import cdi, discovery, matching
from hami_node_agent.answers import Answer, PluginOptions
from hami_node_agent.checkpoint import Unreadable
from hami_node_agent.journal import Journal
from hami_node_agent.kubelet_records import KubeletRecords
from hami_node_agent.matching import PendingPod
from hami_node_agent.node_pods import NodePods, pending
from hami_node_agent.refusals import Refusal, RefusalKind, Refused
from hami_protocol.errors import RecordError
from hami_protocol.pods import containers_in_order

log = structlog.get_logger()
PREFERENCE_SECONDS: Final = 0.5


class CdiMode:
    """Serves Allocate with names."""

    options = PluginOptions(pre_start_required=True, preferred_allocation=True)

    def __init__(
        self, *, node: str, vendor: Vendor, pods: NodePods, kubelet: KubeletRecords, journal: Journal, new_name: Callable[[], str]
    ) -> None:
        self._node = node
        self._vendor = vendor
        self._pods = pods
        self._kubelet = kubelet
        self._journal = journal
        self._new_name = new_name

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

    async def preferred(self, available: Sequence[str], required: Sequence[str], size: int) -> tuple[str, ...]:
        """Slots of the cards that the container was granted, which kubelet asks about most likely: readers of PodResources see the ids.

        Nothing depends on it: what a container gets is its grant, whatever its ids. So it waits for a pod that has not been seen yet only shortly.
        """
        found = matching.likely(self._unallocated(), size)
        if found is None and self._pods.connected:
            found = await self._pods.changed.until(lambda: matching.likely(self._unallocated(), size), seconds=PREFERENCE_SECONDS)
        if found is None:
            return ()
        cards = [share.uuid for share in found.container.shares for _ in range(share.slots)]
        try:
            return discovery.preferred(cards, available, required, size)
        except ValueError as exc:
            log.info("no preference", reason=str(exc))
            return ()

    def _unallocated(self) -> list[PendingPod]:
        """Pods of which kubelet has not allocated every container, by its checkpoint."""
        known = self._kubelet.checkpoint()
        if isinstance(known, Unreadable):
            return []
        allocated = {(held.pod_uid, held.container) for held in known.held if held.resource == self._vendor.count_resource}
        found = []
        for uid, pod in sorted(self._pods.live.items()):
            places = [place for place, one in enumerate(containers_in_order(pod)) if (uid, one.container.name) in allocated]
            with suppress(RecordError):  # refused when its container starts
                if (waiting := pending(pod, self._vendor, self._node, frozenset(places))) is not None:
                    found.append(waiting)
        return found
