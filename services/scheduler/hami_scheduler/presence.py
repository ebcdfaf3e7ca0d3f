"""Which nodes take no new pods because their agent does not serve them: decides from reports, answers and rejected pods. Pure.

Three facts hold a node, each for one type of device:

- *stated*: the agent's last report says that it serves no pods, as before it stops or while kubelet does not watch its devices.
- *away*: the agent did not answer the scheduler's question on the bus, though its reports say that it answers.
- *rejected*: kubelet rejected a pod of ours with ``UnexpectedAdmissionError``: its device plugin was not there.

Any of them ends with the agent's next report that says that it serves; *away* also with an answer. While this process has no connection to the
bus, *stated* and *away* do not count: the node's annotations and kubelet's allocatable count then, as for a node without our agent. A node from
which no agent reports leaves *rejected* by time alone. Devices of other vendors' plugins know neither *stated* nor *away*.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from hami_devices.catalog import Catalog
from hami_protocol.events import DevicesReported
from hami_scheduler.placement import ClusterState

REJECTED_SECONDS = 30.0
"""How long a rejected pod holds a node whose agent cannot be heard: the period in which an agent reports."""
UNEXPECTED_ADMISSION_ERROR = "UnexpectedAdmissionError"
"""The reason with which kubelet fails a pod that a device plugin could not serve."""
AGAIN = "it takes pods again once its agent has registered"


class Key(NamedTuple):
    """One agent: a node, and the type of its devices."""

    node: str
    device_type: str


@dataclass(slots=True)
class _Agent:
    """What is known of one agent."""

    generation: int = 0
    answers: bool = False
    stated: str = ""
    away: str = ""
    rejected: str = ""
    rejected_until: float = 0.0
    held: str = ""
    """The reason last given to the state."""


class Change(NamedTuple):
    """A node that is held from now on, with the reason, or, where that is empty, held no more."""

    key: Key
    reason: str
    announced: bool = False
    """The agent said so itself."""


class Presence:
    """Feeds ``ClusterState`` with the nodes that are held."""

    def __init__(self, state: ClusterState, catalog: Catalog) -> None:
        self._state = state
        self._vendors = {vendor.device_type: vendor.name for vendor in catalog.vendors}
        self._device_types = {vendor.name: vendor.device_type for vendor in catalog.vendors}
        self._agents: dict[Key, _Agent] = {}
        self._connected = True

    def reported(self, event: DevicesReported) -> Change | None:
        """Take an agent's report. One of an older generation, as of an agent that was replaced, changes nothing."""
        key = Key(event.node, event.device_type)
        if event.third_party or event.device_type not in self._vendors:
            return None
        agent = self._agents.setdefault(key, _Agent())
        if event.generation < agent.generation:
            return None
        agent.generation, agent.answers, agent.stated = event.generation, event.answers, event.not_serving
        if not event.not_serving:
            agent.away = agent.rejected = ""
        return self._settle(key, agent)

    def answered(self, key: Key, not_serving: str) -> Change | None:
        """The agent has answered that it serves or, with a reason, that it does not."""
        agent = self._agents.setdefault(key, _Agent())
        agent.away = not_serving
        return self._settle(key, agent)

    def unanswered(self, key: Key, why: str) -> Change | None:
        """The agent has not answered."""
        return self.answered(key, f"its agent does not answer on the bus ({why})")

    def rejected(self, node: str, vendors: Iterable[str], pod: str, now: float) -> list[Change]:
        """Kubelet has rejected ``pod``, which held devices of ``vendors`` on ``node``."""
        changes = []
        for vendor in vendors:
            key = Key(node, self._device_types[vendor])
            agent = self._agents.setdefault(key, _Agent())
            agent.rejected, agent.rejected_until = f"kubelet rejected pod {pod} there", now + REJECTED_SECONDS
            changes.append(self._settle(key, agent))
        return [change for change in changes if change is not None]

    def look(self, *, connected: bool, now: float) -> list[Change]:
        """What time alone brings, and whether there is a connection to the bus now."""
        reconnected, self._connected = connected != self._connected, connected
        changes = []
        for key, agent in self._agents.items():
            if agent.rejected and now >= agent.rejected_until and not (connected and agent.answers):
                agent.rejected = ""
            elif not reconnected:
                continue
            changes.append(self._settle(key, agent))
        return [change for change in changes if change is not None]

    def forget(self, node: str) -> None:
        """The node is gone."""
        for key in [key for key in self._agents if key.node == node]:
            del self._agents[key]

    def reason(self, node: str, vendor: str) -> str:
        """Why the node takes no pods that ask for devices of ``vendor``; empty where it does."""
        return self._state.held(node, vendor)

    def answering(self, node: str, vendors: Iterable[str]) -> Iterator[Key]:
        """Of the agents that serve devices of ``vendors`` on ``node``, those that answer questions on the bus."""
        for vendor in vendors:
            key = Key(node, self._device_types[vendor])
            if (agent := self._agents.get(key)) is not None and agent.answers:
                yield key

    @property
    def away(self) -> tuple[Key, ...]:
        """Agents that have not answered, or have answered that they do not serve."""
        return tuple(key for key, agent in self._agents.items() if agent.away)

    @property
    def held_count(self) -> int:
        """How many agents' nodes take no new pods."""
        return sum(1 for agent in self._agents.values() if agent.held)

    def _settle(self, key: Key, agent: _Agent) -> Change | None:
        heard = self._connected and (agent.stated or agent.away)
        because = agent.rejected or heard or ""
        reason = f"{because}; {AGAIN}" if because else ""
        if reason == agent.held:
            return None
        agent.held = reason
        self._state.hold(key.node, self._vendors[key.device_type], reason)
        return Change(key, reason, announced=because == agent.stated)
