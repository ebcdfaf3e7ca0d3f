from collections.abc import Callable
from typing import Any, Protocol

import pytest

from hami_runtime.kube.store import Change, ObjectStore
from hami_runtime.kube.store_errors import ApiError
from hami_runtime.kube.store_resources import CONFIG_MAPS, PODS


class Clock(Protocol):
    def advance(self, seconds: float) -> None: ...


def a_pod(store: ObjectStore, *, bound: bool, **metadata: Any) -> None:
    body = {"metadata": {"name": "p", **metadata}, "spec": {"containers": [], "terminationGracePeriodSeconds": 20}}
    store.create(PODS, body, "default")
    if bound:
        store.bind("p", {"target": {"name": "n1"}}, "default")


def types_of(store: ObjectStore, act: Callable[[], object]) -> list[str]:
    seen: list[Change] = []
    unsubscribe = store.subscribe(seen.append)
    act()
    unsubscribe()
    return [change.type for change in seen]


def test_a_pod_nobody_runs_goes_at_once(store: ObjectStore) -> None:
    a_pod(store, bound=False)
    assert types_of(store, lambda: store.delete(PODS, "p", "default")) == ["MODIFIED", "DELETED"]
    assert store.find(PODS, "p", "default") is None


def test_a_bound_pod_waits_for_its_kubelet(store: ObjectStore, clock: Clock) -> None:
    a_pod(store, bound=True)
    marked = store.delete(PODS, "p", "default")
    assert not marked.gone
    assert marked.last.body["metadata"]["deletionTimestamp"] == "2026-01-02T03:04:25Z"
    assert marked.last.body["metadata"]["deletionGracePeriodSeconds"] == 20
    clock.advance(5)
    assert types_of(store, lambda: store.delete(PODS, "p", "default")) == []
    assert store.delete(PODS, "p", "default", {"gracePeriodSeconds": 0}).gone
    assert store.find(PODS, "p", "default") is None


def test_a_grace_period_only_gets_shorter(store: ObjectStore, clock: Clock) -> None:
    a_pod(store, bound=True)
    store.delete(PODS, "p", "default")
    clock.advance(5)
    shorter = store.delete(PODS, "p", "default", {"gracePeriodSeconds": 10}).last.body["metadata"]
    assert (shorter["deletionTimestamp"], shorter["deletionGracePeriodSeconds"]) == ("2026-01-02T03:04:15Z", 10)
    assert types_of(store, lambda: store.delete(PODS, "p", "default", {"gracePeriodSeconds": 60})) == []


def test_a_pod_that_has_ended_needs_no_grace(store: ObjectStore) -> None:
    a_pod(store, bound=True)
    store.merge_patch(PODS, "p", {"status": {"phase": "Succeeded"}}, "default", subresource="status")
    assert store.delete(PODS, "p", "default").gone


def test_the_last_finalizer_lets_go(store: ObjectStore) -> None:
    store.create(CONFIG_MAPS, {"metadata": {"name": "m", "finalizers": ["a/b", "c/d"]}}, "default")
    assert not store.delete(CONFIG_MAPS, "m", "default").gone
    store.merge_patch(CONFIG_MAPS, "m", {"metadata": {"finalizers": ["c/d"]}}, "default")
    assert store.find(CONFIG_MAPS, "m", "default") is not None
    release = {"metadata": {"finalizers": None}}
    assert types_of(store, lambda: store.merge_patch(CONFIG_MAPS, "m", release, "default")) == ["DELETED"]
    assert store.find(CONFIG_MAPS, "m", "default") is None


def test_grace_and_finalizers_are_both_waited_for(store: ObjectStore) -> None:
    a_pod(store, bound=True, finalizers=["a/b"])
    store.delete(PODS, "p", "default")
    store.merge_patch(PODS, "p", {"metadata": {"finalizers": None}}, "default")
    assert store.find(PODS, "p", "default") is not None
    assert store.delete(PODS, "p", "default", {"gracePeriodSeconds": 0}).gone


@pytest.mark.parametrize("preconditions", [{"uid": "another"}, {"resourceVersion": "1"}])
def test_a_namesake_is_not_deleted(store: ObjectStore, preconditions: dict[str, str]) -> None:
    a_pod(store, bound=False)
    with pytest.raises(ApiError) as refused:
        store.delete(PODS, "p", "default", {"preconditions": preconditions})
    assert refused.value.code == 409
    assert store.find(PODS, "p", "default") is not None
