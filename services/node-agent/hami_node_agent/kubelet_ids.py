"""Whether the device ids that kubelet holds for a pod are of the cards that it was granted. Pure.

Kubelet takes ids by its own rules where it must, as where a policy of its topology manager wants them of one NUMA node, and readers of PodResources
(exporters that map cards to pods) believe the ids. The grant is what holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hami_node_agent.discovery import card_of
from hami_node_agent.identity import Identified
from hami_protocol.devices import VendorAssignment


def difference(granted: VendorAssignment, kubelet: Identified, numa: Mapping[str, int | None]) -> str:
    """What kubelet's ids say otherwise than the grant, container by container; empty where they agree. ``numa``: each card's node, if any."""
    told = []
    for container in granted.containers:
        held = kubelet.containers.get(container.container)
        wanted = Counter(share.uuid for share in container.shares for _ in range(share.slots))
        if held is None or not wanted:
            continue
        found = Counter(card_of(one, numa) for one in held.device_ids)
        if found != wanted:
            told.append(f"container {container.container} was granted {_cards(wanted, numa)}, kubelet holds ids of {_cards(found, numa)}")
    return "; ".join(told)


def _cards(counted: Counter[str], numa: Mapping[str, int | None]) -> str:
    return ", ".join(
        uuid + (f" (NUMA node {node})" if (node := numa.get(uuid)) is not None else "") + (f" {count} times" if count > 1 else "")
        for uuid, count in sorted(counted.items())
    )
