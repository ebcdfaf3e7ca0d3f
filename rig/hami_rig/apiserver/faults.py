"""What tests and benchmarks ask of the server beside Kubernetes: requests counted by kind, and failures made to order. Pure bookkeeping.

A fault is used up by the requests it hits, the oldest first.
"""

from collections import Counter

from msgspec import Struct

__all__ = ["Fault", "Faults", "RequestCounts", "RequestKey"]


class RequestKey(Struct, frozen=True, kw_only=True):
    """What requests are counted by."""

    verb: str
    resource: str
    subresource: str
    user_agent: str


class RequestCounts:
    """How many requests of each kind there were."""

    def __init__(self) -> None:
        self._counts: Counter[RequestKey] = Counter()

    def add(self, key: RequestKey) -> None:
        """Count one."""
        self._counts[key] += 1

    def reset(self) -> None:
        """Start again at none."""
        self._counts.clear()

    def rows(self) -> list[dict[str, str | int]]:
        """One row per kind, the most frequent first."""
        return [
            {
                "verb": key.verb,
                "resource": key.resource,
                "subresource": key.subresource,
                "user_agent": key.user_agent,
                "count": count,
            }
            for key, count in self._counts.most_common()
        ]


class Fault(Struct, frozen=True, kw_only=True):
    """A failure to order. Empty members match everything."""

    verb: str = ""
    resource: str = ""
    subresource: str | None = None
    """None matches requests on the object itself and on any of its subresources."""
    times: int = 1
    status: int
    """The HTTP status to answer with; 0 closes the connection without an answer."""
    after_commit: bool = False
    """Whether the request takes effect before it fails."""

    def matches(self, verb: str, resource: str, subresource: str) -> bool:
        """Whether a request is meant."""
        return self.verb in ("", verb) and self.resource in ("", resource) and self.subresource in (None, subresource)


class Faults:
    """The failures still to come."""

    def __init__(self) -> None:
        self._left: dict[int, tuple[Fault, int]] = {}
        self._next = 0

    def order(self, fault: Fault) -> None:
        """Add one."""
        self._left[self._next] = (fault, fault.times)
        self._next += 1

    def take(self, verb: str, resource: str, subresource: str) -> Fault | None:
        """Return the fault that hits this request, if one does, and use it up once."""
        for key, (fault, left) in self._left.items():
            if fault.matches(verb, resource, subresource):
                if left == 1:
                    del self._left[key]
                else:
                    self._left[key] = (fault, left - 1)
                return fault
        return None
