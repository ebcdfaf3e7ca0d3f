import pytest

from hami_protocol.devices import PodRef
from hami_protocol.events import (
    AllocationFailed,
    AllocationSucceeded,
    ContainerServed,
    Event,
    PodAllocating,
    PodReleased,
    ShareResizeApplied,
    ShareResizeRefused,
)
from hami_protocol.provenance import Provenance

POD = PodRef(namespace="default", name="p", uid="u")


def outcomes(node: str) -> list[Event]:
    return [
        ContainerServed(pod=POD, node=node, container="c", vendor="NVIDIA", to_allocate=""),
        AllocationSucceeded(pod=POD, node=node),
        AllocationFailed(pod=POD, node=node, reason=""),
        ShareResizeApplied(pod=POD, node=node, assignments=(), generation=1),
        ShareResizeRefused(pod=POD, node=node, generation=1, reason=""),
        PodReleased(pod=POD, node=node),
    ]


def test_an_outcome_counts_from_the_node_where_the_pod_was_granted() -> None:
    provenance = Provenance()
    assert provenance.counts(PodAllocating(pod=POD, node="n1", assignments=(), bind_time_seconds=1))
    assert all(provenance.counts(event) for event in outcomes("n1"))
    assert not any(provenance.counts(event) for event in outcomes("n2"))


@pytest.mark.parametrize("event", outcomes("n2"), ids=lambda event: type(event).__name__)
def test_where_the_grant_is_older_than_what_was_read_an_outcome_counts(event: Event) -> None:
    assert Provenance().counts(event)


def test_what_is_remembered_is_bounded() -> None:
    provenance = Provenance(capacity=2)
    for number in range(5):
        provenance.counts(
            PodAllocating(pod=PodRef(namespace="d", name="p", uid=str(number)), node="n1", assignments=(), bind_time_seconds=1)
        )
    assert len(provenance._nodes) == 2
