"""Which refused pods are worth another try: those that a release which their last filter had not seen lets fit now. Pure; changes nothing for good.

kube-scheduler retries a refused pod by itself when a pod or node changes, but its retry may reach filter before our own watch has seen the change,
and of a lapsed reservation, a report on the bus or a quota's new limit it sees nothing. The retry is waited for a moment; whoever was refused before
the improvement and not since is judged again, on the improved nodes alone; whom a quota refused, on all, when the namespace may have more. Pods take
turns, each judged beside those that were found to fit before it, so that room for one wakes one. Invariant: an improvement wakes a pod at most once,
and wakings of one pod stand ever further apart, so there is no hot loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hami_devices.model import PodRequest
from hami_protocol.devices import PodRef
from hami_scheduler.placement import ClusterState, Placement, Refusal

Judge = Callable[[PodRef, PodRequest, Sequence[str]], Placement | Refusal]
"""Where a pod fits, within what its namespace may have. Changes nothing."""


SETTLE_SECONDS = 0.1
"""How long kube-scheduler's own retry is waited for."""
FIRST_GAP_SECONDS = 1.0
LONGEST_GAP_SECONDS = 60.0
MOST_JUDGEMENTS = 200
"""In one turn; pods beyond that wait for the next one."""
NEAR_SECONDS = 1e-9


@dataclass(slots=True)
class _Waiting:
    """One refused pod."""

    pod: PodRef
    request: PodRequest
    signature: tuple[str, str]
    """Pods with the same one share their fate."""
    by_quota: bool
    """It would have fitted, but for a quota."""
    refused_seconds: float
    version: int
    """How many improvements its last filter had seen."""
    woken: int = 0
    not_before_seconds: float = 0.0
    nodes: tuple[str, ...] = ()
    """For which it was woken last."""


@dataclass(slots=True)
class _Improvement:
    version: int
    seconds: float
    nodes: set[str]
    namespaces: set[str]
    """Whose quotas leave more than before."""


class Waking:
    """The refused pods, and the improvements that they have not been judged against."""

    def __init__(self, state: ClusterState, judge: Judge) -> None:
        self._state = state
        self._judge = judge
        self._waiting: dict[str, _Waiting] = {}
        self._improvements: list[_Improvement] = []
        self._version = 0

    def refused(self, pod: PodRef, request: PodRequest, *, now: float, by_quota: bool = False) -> None:
        """Filter has refused ``pod``, having seen every improvement until now; ``by_quota`` on nodes where it would have fitted."""
        earlier = self._waiting.pop(pod.uid, None)
        waiting = _Waiting(pod, request, (pod.namespace, repr(request)), by_quota, now, self._version)
        if earlier is not None:
            waiting.woken, waiting.not_before_seconds = earlier.woken, earlier.not_before_seconds
        self._waiting[pod.uid] = waiting

    def forget(self, uid: str) -> None:
        """The pod is placed, over or gone."""
        self._waiting.pop(uid, None)

    def improved(self, nodes: frozenset[str], *, now: float, namespaces: frozenset[str] = frozenset()) -> None:
        """There is more room on ``nodes`` than there was, and the quotas of ``namespaces`` leave more."""
        if not (nodes or namespaces) or not self._waiting:
            return
        self._version += 1
        if self._improvements and self._improvements[-1].seconds == now:
            self._improvements[-1].nodes |= nodes
            self._improvements[-1].namespaces |= namespaces
            self._improvements[-1].version = self._version
        else:
            self._improvements.append(_Improvement(self._version, now, set(nodes), set(namespaces)))

    def not_woken(self, uid: str, *, now: float) -> None:
        """Waking the pod has failed: it counts as not having been woken, and is looked at again soon."""
        waiting = self._waiting.get(uid)
        if waiting is not None and waiting.woken:
            waiting.version = -1
            waiting.not_before_seconds = now + FIRST_GAP_SECONDS
            again = waiting.not_before_seconds - SETTLE_SECONDS
            self._improvements.append(_Improvement(self._version, again, set(waiting.nodes), {waiting.pod.namespace}))
            self._improvements.sort(key=lambda improvement: improvement.seconds)

    def due_seconds(self) -> float | None:
        """When ``due`` should be asked next, on the caller's clock; None while there is nothing to wait for."""
        return self._improvements[0].seconds + SETTLE_SECONDS if self._improvements else None

    def due(self, *, now: float) -> tuple[PodRef, ...]:
        """The pods to be woken now, the longest waiting and highest in priority first."""
        settled = [improvement for improvement in self._improvements if improvement.seconds + SETTLE_SECONDS <= now + NEAR_SECONDS]
        if not settled:
            return ()
        self._improvements = self._improvements[len(settled) :]
        nodes = sorted({node for improvement in settled for node in improvement.nodes})
        namespaces = {namespace for improvement in settled for namespace in improvement.namespaces}
        version = settled[-1].version
        candidates = [waiting for waiting in self._waiting.values() if waiting.version < version]
        candidates.sort(key=lambda waiting: (-waiting.request.priority, waiting.refused_seconds, waiting.pod.uid))
        late = [waiting for waiting in candidates if waiting.not_before_seconds > now]
        chosen = self._choose([waiting for waiting in candidates if waiting.not_before_seconds <= now], nodes, namespaces, now)
        for waiting in chosen:
            waiting.version = version
            waiting.woken += 1
            waiting.nodes = tuple(nodes)
            waiting.not_before_seconds = now + min(LONGEST_GAP_SECONDS, FIRST_GAP_SECONDS * 2 ** (waiting.woken - 1))
        if late:  # woken too recently: this improvement is looked at again when their gap is over
            again = min(waiting.not_before_seconds for waiting in late)
            self._improvements.append(_Improvement(version, again - SETTLE_SECONDS, set(nodes), namespaces))
            self._improvements.sort(key=lambda improvement: improvement.seconds)
        return tuple(waiting.pod for waiting in chosen)

    def _choose(self, candidates: list[_Waiting], nodes: list[str], namespaces: set[str], now: float) -> list[_Waiting]:
        """Those that fit side by side. What is reserved for the trial is released before anybody else looks."""
        chosen: list[_Waiting] = []
        tried: list[str] = []
        hopeless: set[tuple[str, str]] = set()
        judged = 0
        all_nodes: Sequence[str] | None = None
        try:
            for waiting in candidates:
                kept = self._state.entry(waiting.pod.uid) is not None  # room of its own, unlike its likes
                if (waiting.signature in hopeless and not kept) or judged >= MOST_JUDGEMENTS:
                    continue
                where: Sequence[str] = nodes
                if waiting.by_quota and waiting.pod.namespace in namespaces:
                    where = all_nodes = self._state.nodes() if all_nodes is None else all_nodes
                if not where:
                    continue
                judged += 1
                found = self._judge(waiting.pod, waiting.request, where)
                if isinstance(found, Placement):
                    chosen.append(waiting)
                    if not kept:
                        self._state.reserve(waiting.pod, found, now=now)
                        tried.append(waiting.pod.uid)
                else:
                    hopeless.add(waiting.signature)
        finally:
            for uid in tried:
                self._state.release(uid)
        return chosen
