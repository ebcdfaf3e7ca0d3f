"""Everything that pods went through while somebody looked on: what a step-by-step account is made of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hami_protocol.kubernetes import Pod
from hami_runtime.kube.cluster import PODS, Cluster


class NeverSeen(Exception):  # noqa: N818 - reads as the condition it names
    """A pod did not come to the state that was waited for; the text names it and says what was seen last."""


class PodHistory:
    """Every version of every pod, in the order of its writing."""

    def __init__(self) -> None:
        self._versions: dict[str, list[Pod]] = {}
        self._changed = asyncio.Condition()

    def of(self, name: str) -> list[Pod]:
        """All versions of the pod so far."""
        return list(self._versions.get(name, ()))

    async def follow(self, cluster: Cluster) -> None:
        """Watch pods, from those that there are, until cancelled."""
        listing = await cluster.list(PODS)
        for pod in listing.items:
            await self._add(pod)
        since = listing.resource_version
        while True:
            async with cluster.watch(PODS, since=since) as changes:
                async for change in changes:
                    since = change.resource_version
                    if change.object is not None:
                        await self._add(change.object)

    async def seen(self, name: str, holds: Callable[[Pod], bool], *, what: str, timeout_seconds: float = 30.0) -> Pod:
        """The first version of the pod for which ``holds``, waited for.

        Raises:
            NeverSeen: there is none in time.
        """
        try:
            async with asyncio.timeout(timeout_seconds), self._changed:
                while True:
                    for pod in self._versions.get(name, ()):
                        if holds(pod):
                            return pod
                    await self._changed.wait()
        except TimeoutError as exc:
            versions = self._versions.get(name)
            last = (
                f"seen last: phase {versions[-1].status.phase}, annotations {versions[-1].metadata.annotations}"
                if versions
                else "never seen"
            )
            raise NeverSeen(f"pod {name}: not {what} after {timeout_seconds:.0f} s; {last}") from exc

    async def _add(self, pod: Pod) -> None:
        async with self._changed:
            self._versions.setdefault(pod.metadata.name, []).append(pod)
            self._changed.notify_all()
