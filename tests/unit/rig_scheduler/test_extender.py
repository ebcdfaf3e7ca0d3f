"""The extender's wire: Go field names out, either spelling in, and what an answer means."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hami_protocol import kubernetes as k
from hami_rig.scheduler.configuration import ExtenderConfig, ManagedResource
from hami_rig.scheduler.extender import CallTransport, Extender, ExtenderError
from hami_rig.scheduler.objects import SchedulingPod

NODES = {name: k.Node(metadata=k.ObjectMeta(name=name)) for name in ("m1", "m2", "m3")}


def a_pod(**limits: str) -> SchedulingPod:
    spec = {"containers": [{"name": "c", "resources": {"limits": limits}}]}
    return msgspec.convert({"metadata": {"name": "a1", "namespace": "default", "uid": "6445a14b"}, "spec": spec}, SchedulingPod)


class Recorded:
    """An extender that answers what it is told and keeps what it was asked."""

    def __init__(self, answer: object, **config: Any) -> None:
        self.asked: list[tuple[str, Any]] = []
        verbs = {"filter_verb": "filter", "prioritize_verb": "prioritize", "bind_verb": "bind", "preempt_verb": "preempt"}
        managed = (ManagedResource(name="nvidia.com/gpu", ignored_by_scheduler=True),)
        settings = ExtenderConfig(url_prefix="http://x", managed_resources=managed, **{"node_cache_capable": True, **verbs, **config})

        def verb(name: str) -> Any:
            async def call(body: bytes) -> bytes:
                self.asked.append((name, msgspec.json.decode(body)))
                return msgspec.json.encode(answer)

            return call

        self.extender = Extender(settings, CallTransport({name: verb(name) for name in verbs.values()}))


async def test_filter_is_asked_with_names_and_canonical_quantities() -> None:
    recorded = Recorded({"NodeNames": ["m1"]})
    await recorded.extender.filter(a_pod(**{"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}), NODES, ["m3", "m1"])
    ((verb, body),) = recorded.asked
    assert verb == "filter"
    assert (body["Nodes"], body["NodeNames"]) == (None, ["m3", "m1"])
    resources = body["Pod"]["spec"]["containers"][0]["resources"]
    assert resources["limits"] == resources["requests"] == {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3k"}


async def test_without_a_node_cache_whole_nodes_are_sent() -> None:
    recorded = Recorded({"nodes": {"items": [{"metadata": {"name": "m1"}}]}}, node_cache_capable=False)
    result = await recorded.extender.filter(a_pod(), NODES, ["m1", "m2"])
    assert recorded.asked[0][1]["NodeNames"] is None
    assert [item["metadata"]["name"] for item in recorded.asked[0][1]["Nodes"]["items"]] == ["m1", "m2"]
    assert result.feasible == ("m1",)


@pytest.mark.parametrize(
    "keys", [("NodeNames", "FailedNodes", "FailedAndUnresolvableNodes"), ("nodenames", "failedNodes", "failedAndUnresolvableNodes")]
)
async def test_an_answer_is_read_in_either_spelling(keys: tuple[str, str, str]) -> None:
    recorded = Recorded({keys[0]: ["m1"], keys[1]: {"m3": "no GPU"}, keys[2]: {"m2": "never"}, "Error": ""})
    result = await recorded.extender.filter(a_pod(), NODES, ["m1", "m2", "m3"])
    assert (result.feasible, result.failed, result.unresolvable) == (("m1",), {"m3": "no GPU"}, {"m2": "never"})


async def test_a_node_in_neither_list_is_refused_without_a_reason() -> None:
    result = await Recorded({}).extender.filter(a_pod(), NODES, ["m1"])
    assert (result.feasible, result.failed, result.unresolvable) == ((), {}, {"m1": ""})


@pytest.mark.parametrize(
    ("answer", "message"), [({"Error": "not leader"}, "^not leader$"), ({"NodeNames": ["m9"]}, '"m9"'), ("no object", "cannot be read")]
)
async def test_an_answer_that_cannot_be_used_is_an_error(answer: object, message: str) -> None:
    with pytest.raises(ExtenderError, match=message):
        await Recorded(answer).extender.filter(a_pod(), NODES, ["m1"])


async def test_bind_names_the_pod_by_uid_and_raises_what_it_is_told() -> None:
    recorded = Recorded({"Error": "node lock not free"})
    with pytest.raises(ExtenderError, match=r"^node lock not free$"):
        await recorded.extender.bind(a_pod(), "m2")
    assert recorded.asked == [("bind", {"PodName": "a1", "PodNamespace": "default", "PodUID": "6445a14b", "Node": "m2"})]


async def test_prioritize_that_fails_gives_no_points() -> None:
    assert await Recorded([{"Host": "m1", "Score": 3}, {"host": "m2", "score": 10}]).extender.prioritize(a_pod(), NODES, ["m1", "m2"]) == {
        "m1": 3,
        "m2": 10,
    }
    assert await Recorded({"wrong": 1}).extender.prioritize(a_pod(), NODES, ["m1"]) == {}


async def test_preempt_sends_uids_and_reads_who_is_agreed() -> None:
    recorded = Recorded({"NodeNameToMetaVictims": {"m1": {"Pods": [{"UID": "6445a14b"}], "NumPDBViolations": 0}}})
    assert await recorded.extender.preempt(a_pod(), {"m1": (a_pod(),), "m2": (a_pod(),)}) == {"m1": ("6445a14b",)}
    assert recorded.asked[0][1]["NodeNameToMetaVictims"]["m2"] == {"Pods": [{"UID": "6445a14b"}], "NumPDBViolations": 0}


def test_a_pod_belongs_to_the_extender_when_any_container_names_a_managed_resource() -> None:
    extender = Recorded({}).extender
    assert extender.interested(a_pod(**{"nvidia.com/gpu": "0"}))
    assert not extender.interested(a_pod(cpu="1"))
    init = {"initContainers": [{"name": "i", "resources": {"requests": {"nvidia.com/gpu": "1"}}}]}
    assert extender.interested(msgspec.convert({"metadata": {}, "spec": init}, SchedulingPod))
