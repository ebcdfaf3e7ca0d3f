"""When an outcome may be published: behind the grant that it answers, so that the log keeps the order of events. Pure.

In an outage both scheduler and agent have events to publish when the bus is back. The agent reads grants from its pods' annotations
meanwhile, so it may be first. An outcome therefore waits until the log has its grant:

| the log has the grant, or the release | grants are expected there | the outcome | it waits |
|---|---|---|---|
| yes | | | not at all |
| no | no: the reference's scheduler decides | | not at all |
| no | yes | served or succeeded, of a pod that has not ended | until the grant is there: every leader publishes the grants that the log lacks |
| no | yes | any other | at most ``GRACE_SECONDS`` from the event, or from when the bus worked again, whichever is later |

The last row is bounded because its grant may never come: no leader repairs the grant of a pod that has ended, and a container is also
refused because there is no grant.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from hami_protocol.events import AllocationFailed, AllocationSucceeded, ContainerServed, Event, PodReleased
from hami_runtime.outbox import LONGEST_DELAY_SECONDS

GRACE_SECONDS: Final = LONGEST_DELAY_SECONDS + 5.0
"""How long a scheduler may take to publish what it could not publish before: its outbox's longest delay, and an election.

It is also longer than a reader of ours receives nothing from a server that died while our own connection stands: eleven seconds.
"""


def patience_seconds(event: Event, *, told: Callable[[str], bool], lives: Callable[[str], bool], grants_expected: bool) -> float:
    """How long ``event`` waits at most for the grant that it answers; 0 for not at all, infinity for as long as it takes.

    Args:
        event: what the agent publishes.
        told: whether the log has the grant, or already the release, of the pod with a UID.
        lives: whether this node has the pod with a UID, and it has not ended.
        grants_expected: whether our scheduler decides, which publishes its grants.
    """
    if not isinstance(event, ContainerServed | AllocationSucceeded | AllocationFailed | PodReleased):
        return 0.0  # it answers an event that the log has
    if not grants_expected or told(event.pod.uid):
        return 0.0
    if isinstance(event, ContainerServed | AllocationSucceeded) and lives(event.pod.uid):
        return math.inf
    return GRACE_SECONDS
