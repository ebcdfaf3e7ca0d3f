import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_runtime.kube.store import Change, ObjectStore, selected
from hami_runtime.kube.store_errors import ApiError
from hami_runtime.kube.store_resources import CONFIG_MAPS, NODES, PODS
from hami_runtime.kube.store_selectors import Selection, label_selector_matches


def a_map(store: ObjectStore, name: str, **labels: str) -> None:
    store.create(CONFIG_MAPS, {"metadata": {"name": name, "labels": labels}}, "default")


def test_an_object_that_stops_matching_is_deleted_for_the_watcher(store: ObjectStore) -> None:
    selection = Selection.parse(CONFIG_MAPS, labels="app=x")
    start = store.revision
    a_map(store, "m", app="x")
    a_map(store, "other", app="y")
    store.merge_patch(CONFIG_MAPS, "m", {"metadata": {"labels": {"app": "y"}}}, "default")
    store.merge_patch(CONFIG_MAPS, "m", {"metadata": {"labels": {"app": "x"}}}, "default")
    store.merge_patch(CONFIG_MAPS, "m", {"data": {"k": "v"}}, "default")
    store.delete(CONFIG_MAPS, "m", "default")
    events = store.events_since(CONFIG_MAPS, start, selection)
    assert [event.type for event in events] == ["ADDED", "DELETED", "ADDED", "MODIFIED", "DELETED"]
    left = events[1].stored.body["metadata"]
    assert left["labels"] == {"app": "x"}
    assert left["resourceVersion"] == str(start + 3)


def test_history_that_is_gone_says_so() -> None:
    store = ObjectStore(now=lambda: datetime(2026, 1, 1, tzinfo=UTC), rng=random.Random(1), history=3)
    start = store.revision
    for index in range(4):
        a_map(store, f"m{index}")
    assert len(store.events_since(CONFIG_MAPS, start + 1)) == 3
    with pytest.raises(ApiError) as refused:
        store.events_since(CONFIG_MAPS, start)
    assert (refused.value.code, refused.value.reason) == (410, "Expired")
    store.compact()
    with pytest.raises(ApiError, match="too old resource version"):
        store.events_since(CONFIG_MAPS, start + 3)
    assert store.events_since(CONFIG_MAPS, store.revision) == []


def test_a_version_from_the_future_is_refused(store: ObjectStore) -> None:
    with pytest.raises(ApiError, match="Too large resource version"):
        store.events_since(PODS, store.revision + 1)


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("", ["a", "b", "c"]),
        ("app=x", ["a"]),
        ("app==x", ["a"]),
        ("app!=x", ["b", "c"]),
        ("app", ["a", "b"]),
        ("!app", ["c"]),
        ("app in (x, y),tier", ["b"]),
        ("app notin (x)", ["b", "c"]),
    ],
)
def test_label_selectors(store: ObjectStore, selector: str, names: list[str]) -> None:
    a_map(store, "c")
    a_map(store, "b", app="y", tier="")
    a_map(store, "a", app="x")
    found = store.select(CONFIG_MAPS, Selection.parse(CONFIG_MAPS, "default", selector))
    assert [stored.body["metadata"]["name"] for stored in found] == names


def test_pods_are_found_by_their_node_and_phase(store: ObjectStore) -> None:
    for name in ("p", "q"):
        store.create(PODS, {"metadata": {"name": name}, "spec": {}}, "default")
    store.bind("p", {"target": {"name": "n1"}}, "default")

    def names(fields: str) -> list[str]:
        return [each.body["metadata"]["name"] for each in store.select(PODS, Selection.parse(PODS, fields=fields))]

    assert names("spec.nodeName=n1") == ["p"]
    assert names("spec.nodeName=") == ["q"]
    assert names("spec.nodeName!=n1,status.phase=Pending") == ["q"]
    assert names("metadata.name=q,metadata.namespace=default") == ["q"]


@pytest.mark.parametrize(("labels", "fields"), [("a=b=c", ""), ("a>1", ""), ("in (x)", ""), ("", "spec.color=red"), ("", "spec.nodeName")])
def test_a_selector_that_cannot_be_read_selects_nothing_but_an_error(labels: str, fields: str) -> None:
    with pytest.raises(ApiError) as refused:
        Selection.parse(NODES, labels=labels, fields=fields)
    assert refused.value.code == 400


def test_label_selector_objects() -> None:
    expression = {"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}, {"key": "b", "operator": "Exists"}]}
    assert label_selector_matches(expression, {"b": ""})
    assert not label_selector_matches(expression, {"a": "1", "b": ""})
    assert label_selector_matches({}, {})
    assert not label_selector_matches(None, {})


names = st.sampled_from(["a", "b", "c"])
labels = st.sampled_from(["x", "y"])
actions = st.lists(st.tuples(st.sampled_from(["create", "label", "finalize", "release", "delete"]), names, labels), max_size=30)


def _act(store: ObjectStore, action: str, name: str, label: str) -> None:
    calls: dict[str, Callable[[], Any]] = {
        "create": lambda: store.create(CONFIG_MAPS, {"metadata": {"name": name, "labels": {"app": label}}}, "default"),
        "label": lambda: store.merge_patch(CONFIG_MAPS, name, {"metadata": {"labels": {"app": label}}}, "default"),
        "finalize": lambda: store.merge_patch(CONFIG_MAPS, name, {"metadata": {"finalizers": ["a/b"]}}, "default"),
        "release": lambda: store.merge_patch(CONFIG_MAPS, name, {"metadata": {"finalizers": None}}, "default"),
        "delete": lambda: store.delete(CONFIG_MAPS, name, "default"),
    }
    try:
        calls[action]()
    except ApiError as refused:
        if refused.code not in {404, 409}:
            raise


@given(actions, st.sampled_from(["", "app=x", "app!=x"]), st.integers(0, 30))
def test_list_and_watch_agree_with_a_later_list(steps: list[tuple[str, str, str]], selector: str, pause: int) -> None:
    """A watcher that lists at any moment and follows from there ends with what the store holds, by history or live."""
    store = ObjectStore(now=lambda: datetime(2026, 1, 1, tzinfo=UTC), rng=random.Random(1))
    selection = Selection.parse(CONFIG_MAPS, "default", selector)
    for step in steps[:pause]:
        _act(store, *step)
    seen = {each.body["metadata"]["name"]: each.body for each in store.select(CONFIG_MAPS, selection)}
    start, live = store.revision, []
    store.subscribe(live.append)
    for step in steps[pause:]:
        _act(store, *step)

    missed = store.events_since(CONFIG_MAPS, start, selection)
    followed = [event for change in live if (event := selected(change, selection))]
    assert [(event.type, event.stored.body) for event in missed] == [(event.type, event.stored.body) for event in followed]
    assert all(isinstance(change, Change) for change in live)
    for event in missed:
        name = event.stored.body["metadata"]["name"]
        assert (event.type == "ADDED") == (name not in seen)
        if event.type == "DELETED":
            del seen[name]
        else:
            seen[name] = event.stored.body
    assert seen == {each.body["metadata"]["name"]: each.body for each in store.select(CONFIG_MAPS, selection)}
