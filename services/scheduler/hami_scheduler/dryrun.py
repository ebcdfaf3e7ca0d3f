"""Filter's dry-run form: the request brings whole Node objects, and the answer changes nothing (an autoscaler asks "would it fit on such a node?").

Each node is taken as it says it is, empty: pods are not charged, and annotations are not compared with the bus. Pure.
"""

from __future__ import annotations

from msgspec import Raw

from hami_devices.catalog import Catalog
from hami_devices.requests import RequestError
from hami_protocol.kubernetes import Pod
from hami_scheduler.inventory import Inventory
from hami_scheduler.placement import ClusterState, Refusal
from hami_scheduler.verdicts import INVALID_REQUEST
from hami_scheduler.wire import FilterAnswer, NodeItems, WireError, decode_node


def filter_nodes(pod: Pod, nodes: NodeItems, *, catalog: Catalog, pinned: bool) -> FilterAnswer:
    """Which of ``nodes`` would take ``pod`` if they were empty; only the best of them where ``pinned``."""
    items: dict[str, Raw] = {}
    state = ClusterState(catalog)
    inventory = Inventory(state, catalog)
    try:
        for item in nodes.items or ():
            node = decode_node(item)
            items[node.metadata.name] = item
            inventory.node_changed(node.metadata.name, node)
        request = catalog.read_pod(pod)
    except WireError as exc:
        return FilterAnswer(error=str(exc))
    except RequestError:
        return FilterAnswer(nodes=(), unresolvable=dict.fromkeys(items, INVALID_REQUEST))
    if not request.asks:
        return FilterAnswer(nodes=tuple(items.values()))
    found = state.judge(request, list(items), uid=pod.metadata.uid, ranked=not pinned)
    if isinstance(found, Refusal):
        return FilterAnswer(nodes=(), failed=found.failed, unresolvable=found.unresolvable)
    fitting = [found.node] if pinned else [name for name, _ in found.fitting]
    return FilterAnswer(nodes=tuple(items[name] for name in fitting), failed=found.failed, unresolvable=found.unresolvable)
