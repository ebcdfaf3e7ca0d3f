"""Which device ids each container gets, as kubelet's device manager decides it. Pure: no I/O, no gRPC.

Invariants: an id is held by one pod at most; within a pod, ids of ordinary init containers are given again to later containers, first of all,
and those of sidecars and app containers are not; what a container was given does not change when it restarts. What a pod held stays recorded
after its end, until the next container asks for devices.
"""

from __future__ import annotations

import random
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field

from hami_protocol.devices import ContainerKind


class AllocationRefused(Exception):  # noqa: N818 - reads as the condition it names
    """A container cannot have its devices; the text is kubelet's own."""


@dataclass(kw_only=True, slots=True)
class Resource:
    """One resource as its plugin reported it last."""

    healthy: set[str] = field(default_factory=set)
    unhealthy: set[str] = field(default_factory=set)

    @property
    def capacity(self) -> int:
        """Devices, healthy or not."""
        return len(self.healthy) + len(self.unhealthy)


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """What one container holds of one resource, and what the plugin answered for it."""

    pod_uid: str
    container: str
    resource: str
    ids: tuple[str, ...]
    answer: bytes
    """The plugin's ContainerAllocateResponse, serialised."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Ids for one container, before the plugin was asked for its preference."""

    reused: tuple[str, ...]
    available: tuple[str, ...]
    needed: int
    """How many of ``available`` are still to be taken."""


class DeviceLedger:
    """Resources and who holds what of them."""

    def __init__(self, held: Iterable[Held] = (), known_resources: Iterable[str] = (), *, rng: random.Random) -> None:
        self.resources = {name: Resource() for name in known_resources}
        self._held = {(each.pod_uid, each.container, each.resource): each for each in held}
        self._reusable: dict[tuple[str, str], set[str]] = {}
        self._rng = rng

    @property
    def held(self) -> tuple[Held, ...]:
        """Everything held, in the order in which it was given."""
        return tuple(self._held.values())

    def of_container(self, pod_uid: str, container: str) -> tuple[Held, ...]:
        """What one container holds."""
        return tuple(each for each in self._held.values() if (each.pod_uid, each.container) == (pod_uid, container))

    def of_pod(self, pod_uid: str) -> tuple[Held, ...]:
        """What all containers of a pod hold."""
        return tuple(each for each in self._held.values() if each.pod_uid == pod_uid)

    def report(self, resource: str, healthy: Iterable[str], unhealthy: Iterable[str]) -> None:
        """A plugin's whole list, in place of the one before."""
        self.resources[resource] = Resource(healthy=set(healthy), unhealthy=set(unhealthy))

    def disconnect(self, resource: str) -> None:
        """The plugin's stream has ended: all its devices are unhealthy until it is back."""
        if known := self.resources.get(resource):
            known.unhealthy |= known.healthy
            known.healthy = set()

    def restart(self) -> None:
        """Kubelet has started again: it remembers who holds what, but has no device until the plugins are back."""
        self.resources = {name: Resource() for name in self.resources}

    def forget_resource(self, resource: str) -> None:
        """The plugin has been away for too long."""
        self.resources.pop(resource, None)

    def choices(self, pod_uid: str, container: str, resource: str, count: int) -> Choice | None:
        """What ``container`` may be given of ``resource``; None if it needs nothing more.

        Raises:
            AllocationRefused: it cannot have ``count``.
        """
        before = self._held.get((pod_uid, container, resource))
        if before is not None and len(before.ids) != count:
            changed = f'changed request for resource "{resource}" from {len(before.ids)} to {count}'
            raise AllocationRefused(f'pod "{pod_uid}" container "{container}" {changed}')
        known = self.resources.get(resource)
        if known is None or not known.capacity:
            raise AllocationRefused(f"cannot allocate unregistered device {resource}")
        if not known.healthy:
            raise AllocationRefused(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        if before is not None:
            if not known.healthy.issuperset(before.ids):
                raise AllocationRefused(f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {resource}")
            return None
        if count <= 0:
            return None
        reusable = sorted(self._reusable.get((pod_uid, resource), ()))
        reused = tuple(self._rng.sample(reusable, min(count, len(reusable))))
        used = {each for held in self._held.values() if held.resource == resource for each in held.ids}
        available = sorted(known.healthy - used - set(reused))
        needed = count - len(reused)
        if len(available) < needed:
            figures = f"Requested: {needed}, Available: {len(available)}"
            raise AllocationRefused(f"requested number of devices unavailable for {resource}. {figures}")
        self._rng.shuffle(available)  # kubelet takes them from a set: nobody may rely on their order
        return Choice(reused=reused, available=tuple(available), needed=needed)

    def chosen(self, choice: Choice, preferred: Sequence[str]) -> tuple[str, ...]:
        """The ids to allocate: those that are reused, then the plugin's preference as far as it can be had, then any."""
        wanted = [each for each in dict.fromkeys(preferred) if each in choice.available]
        others = [each for each in choice.available if each not in wanted]
        ids = [*choice.reused, *(*wanted, *others)[: choice.needed]]
        self._rng.shuffle(ids)
        return tuple(ids)

    def hold(self, held: Held) -> None:
        """The plugin has answered: the container holds this from now on."""
        self._held[held.pod_uid, held.container, held.resource] = held

    def settle(self, pod_uid: str, container: str, kind: ContainerKind) -> None:
        """A container has all its resources: an ordinary init container's may be given again within the pod, others' not."""
        for held in self.of_container(pod_uid, container):
            reusable = self._reusable.setdefault((pod_uid, held.resource), set())
            if kind is ContainerKind.INIT:
                reusable |= set(held.ids)
            else:
                reusable -= set(held.ids)

    def admitted(self, pod_uid: str) -> None:
        """All containers of the pod have been looked at: nothing is given again any more."""
        for key in [key for key in self._reusable if key[0] == pod_uid]:
            del self._reusable[key]

    def free_others(self, active: Container[str]) -> None:
        """Forget what pods hold that are not ``active``: kubelet does that before it allocates, not when a pod ends."""
        for pod_uid in {each.pod_uid for each in self._held.values() if each.pod_uid not in active}:
            self.release(pod_uid)

    def release(self, pod_uid: str) -> None:
        """Forget what one pod holds."""
        for key in [key for key in self._held if key[0] == pod_uid]:
            del self._held[key]
        self.admitted(pod_uid)
