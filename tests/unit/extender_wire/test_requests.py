"""What kube-scheduler sends: read in Go's names or in any case, and never a crash."""

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_scheduler import wire

POD = {"metadata": {"name": "a1", "namespace": "default", "uid": "6445a14b"}, "spec": {"containers": [{"name": "c"}]}, "status": {}}


def encoded(**fields: object) -> bytes:
    return msgspec.json.encode(fields)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(encoded(Pod=POD, Nodes=None, NodeNames=["m1", "m2"]), id="go"),
        pytest.param(encoded(pod=POD, nodenames=["m1", "m2"]), id="lower"),
        pytest.param(encoded(pod=POD, nodeNames=["m1", "m2"], nodes=None), id="camel"),
        pytest.param(encoded(Pod=POD, nodenames=["m1", "m2"]), id="mixed"),
        pytest.param(encoded(POD=POD, NODENAMES=["m1", "m2"]), id="upper"),
        pytest.param(encoded(Pod=POD, NodeNames=["m1", "m2"], Unknown={"a": [1]}), id="unknown field"),
    ],
)
def test_node_names_are_read_in_any_case(body: bytes) -> None:
    args = wire.decode_args(body)
    assert args.pod is not None
    assert args.pod.metadata.uid == "6445a14b"
    assert args.node_names == ["m1", "m2"]
    assert args.nodes is None


def test_whole_nodes_are_kept_as_they_came() -> None:
    node = {"metadata": {"name": "m1"}, "status": {"unknownToUs": {"deep": [1, 2]}}}
    args = wire.decode_args(encoded(Pod=POD, Nodes={"metadata": {}, "items": [node]}, NodeNames=None))
    assert isinstance(args.nodes, wire.NodeItems)
    assert args.nodes.items is not None
    assert wire.decode_node(args.nodes.items[0]).metadata.name == "m1"
    answer = msgspec.json.decode(wire.encode_filter(wire.FilterAnswer(nodes=args.nodes.items)))
    assert answer["Nodes"]["items"] == [node]


@pytest.mark.parametrize(
    ("fields", "names", "nodes"),
    [
        pytest.param({"pod": POD}, None, False, id="neither"),
        pytest.param({"Pod": POD, "nodes": None, "nodenames": None}, None, False, id="both null"),
        pytest.param({"Pod": POD, "NodeNames": []}, [], False, id="no names"),
        pytest.param({"Pod": POD, "Nodes": {"items": []}}, None, True, id="no items"),
        pytest.param({"Pod": POD, "Nodes": {"items": None}}, None, True, id="null items"),
    ],
)
def test_candidates_may_be_missing_or_empty(fields: dict[str, object], names: list[str] | None, nodes: bool) -> None:
    args = wire.decode_args(msgspec.json.encode(fields))
    assert args.node_names == names
    assert (args.nodes is not None) is nodes


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{", id="truncated"),
        pytest.param(b"[]", id="list"),
        pytest.param(b"null", id="null"),
        pytest.param(b'{"Pod": 1}', id="pod is a number"),
        pytest.param(b'{"Pod": {"spec": {}}}', id="pod without metadata"),
        pytest.param(b'{"NodeNames": [1]}', id="names are numbers"),
        pytest.param(b'{"Pod": ' * 50_000, id="deep objects"),
        pytest.param(b'{"x": ' + b"[" * 100_000, id="deep lists"),
        pytest.param(b'{"\xff": 1}', id="not UTF-8"),
    ],
)
def test_what_cannot_be_read_is_said(body: bytes) -> None:
    with pytest.raises(wire.WireError, match="request"):
        wire.decode_args(body)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    for decode in (wire.decode_args, wire.decode_binding, wire.decode_preemption):
        with suppress(wire.WireError):
            decode(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(["Pod", "pod", "NodeNames", "nodenames", "Nodes", "NODES", "PodName", "Node"]), JSON))
def test_any_json_is_read_or_refused_and_answered(fields: dict[str, object]) -> None:
    body = msgspec.json.encode(fields)
    try:
        args = wire.decode_args(body)
    except wire.WireError:
        return
    failed = dict.fromkeys(args.node_names or (), "node unregistered")
    assert msgspec.json.decode(wire.encode_filter(wire.FilterAnswer(failed=failed)))["FailedNodes"] == failed


def test_a_binding_is_read_in_any_case() -> None:
    go = encoded(PodName="a1", PodNamespace="default", PodUID="6445a14b", Node="m2")
    lower = encoded(podname="a1", podnamespace="default", poduid="6445a14b", node="m2")
    assert (
        wire.decode_binding(go)
        == wire.decode_binding(lower)
        == wire.BindingArgs(pod_name="a1", pod_namespace="default", pod_uid="6445a14b", node="m2")
    )


@pytest.mark.parametrize("missing", ["PodName", "PodNamespace", "PodUID", "Node"])
def test_a_binding_names_what_it_lacks(missing: str) -> None:
    fields = {"PodName": "a1", "PodNamespace": "default", "PodUID": "u", "Node": "m2"} | {missing: ""}
    with pytest.raises(wire.WireError, match=missing):
        wire.decode_binding(msgspec.json.encode(fields))


def test_a_lone_surrogate_in_a_node_name_is_no_crash() -> None:
    body = b'{"Pod": {"metadata": {}}, "NodeNames": ["\\ud800"]}'
    with pytest.raises(wire.WireError):
        wire.decode_args(body)
