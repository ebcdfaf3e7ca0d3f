"""Outcomes go out behind the grants that they answer, so that the log tells things in the order in which they happened. Pure.

In an outage scheduler and agent both have something to say when the bus is back, and the agent, which reads grants off its pods meanwhile, may come
first. So an outcome waits until the log has its grant. That is bounded, since what the log lacks may never come: the grant may be older than the log,
and where the reference's scheduler places pods there are none; a pod's phase, and in ``envvar`` mode a node's lock, wait for the outcome.

| the log has the grant, or the release | grants are expected there | an outcome waits |
|---|---|---|
| yes | | not at all |
| no | no: the reference's scheduler decides | not at all |
| no | yes | for the grant, at most ``GRACE_SECONDS`` from when it happened, or from when the bus worked again, whichever is later |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hami_protocol.events import AllocationFailed, AllocationSucceeded, ContainerServed, Event, PodReleased
from hami_runtime.outbox import LONGEST_DELAY_SECONDS

GRACE_SECONDS: Final = LONGEST_DELAY_SECONDS + 5.0
"""How long a scheduler may take to say what it could not say before: its outbox's longest delay, and the time in which another one leads.

It is also longer than a reader of ours sees nothing whose server has died while our own connection stands: eleven seconds.
"""


def patience_seconds(event: Event, *, told: Callable[[str], bool], grants_expected: bool) -> float:
    """How long ``event`` waits at most for the grant that it answers; 0 for not at all.

    Args:
        event: what the agent has to say.
        told: whether the log has the grant, or already the release, of the pod with a UID.
        grants_expected: whether our scheduler decides, which says what it grants.
    """
    if not isinstance(event, ContainerServed | AllocationSucceeded | AllocationFailed | PodReleased):
        return 0.0  # it answers a word that the log has
    return GRACE_SECONDS if grants_expected and not told(event.pod.uid) else 0.0
