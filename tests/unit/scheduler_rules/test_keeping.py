"""What pods have in common is kept once, what others wrote on them not at all, and no rule of the scheduler can tell."""

from typing import Any

import msgspec
import pytest

from hami_protocol import keys
from hami_protocol.kubernetes import Container, EnvVar, ObjectMeta, Pod, PodSpec, PodStatus, ResourceRequirements
from hami_scheduler import preempting, tending
from hami_scheduler.keeping import KeptPods
from hami_scheduler.lock_rules import Holder, holder_state
from hami_scheduler.pods import init_is_over


def a_pod(name: str, gpumem: str = "1000", init: str = "", **status: Any) -> Pod:
    main = Container(
        name="main",
        image="registry/image:1",
        env=(EnvVar(name="HOST", value_from={"fieldRef": {"fieldPath": "status.hostIP"}}),),
        resources=ResourceRequirements(limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": gpumem}),
    )
    inits = (Container(name=init),) if init else None
    metadata = ObjectMeta(name=name, namespace="team", uid=name, annotations={keys.ASSIGNED_NODE: "n1", "mine": name})
    spec = PodSpec(node_name=f"node-of-{name}", containers=(main,), init_containers=inits)
    return decoded(Pod(metadata=metadata, spec=spec, status=msgspec.convert(status, PodStatus)))


def decoded(pod: Pod) -> Pod:
    return msgspec.json.decode(msgspec.json.encode(pod), type=Pod)


def test_equal_containers_are_one_object_and_everything_else_stays_the_pods_own() -> None:
    kept = KeptPods()
    first, second = kept.of(a_pod("p1", init="warm")), kept.of(a_pod("p2", init="warm"))
    assert second.spec.containers is first.spec.containers
    assert second.spec.init_containers is first.spec.init_containers
    assert second.status is first.status
    assert msgspec.to_builtins(second) == msgspec.to_builtins(a_pod("p2", init="warm"))
    assert msgspec.to_builtins(first) == msgspec.to_builtins(a_pod("p1", init="warm"))


@pytest.mark.parametrize("other", [a_pod("p2", gpumem="1001"), a_pod("p2", init="warm"), a_pod("p2", gpumem="1k")])
def test_containers_that_differ_at_all_are_kept_apart(other: Pod) -> None:
    kept = KeptPods()
    first, second = kept.of(a_pod("p1")), kept.of(other)
    assert second.spec.containers is not first.spec.containers
    assert msgspec.to_builtins(second) == msgspec.to_builtins(other)


def test_what_has_not_been_met_for_longest_is_forgotten() -> None:
    kept = KeptPods(capacity=3)  # the status, which all of them have in common, is one
    first = kept.of(a_pod("p1", gpumem="1"))
    for gpumem in ("2", "1", "3"):
        kept.of(a_pod("p", gpumem=gpumem))
    assert kept.of(a_pod("p4", gpumem="1")).spec.containers is first.spec.containers
    late = a_pod("p5", gpumem="2")
    assert kept.of(late).spec.containers is late.spec.containers


def test_a_copy_of_the_manifest_is_not_kept() -> None:
    pod = a_pod("p")
    pod.metadata.annotations["kubectl.kubernetes.io/last-applied-configuration"] = "{" * 10_000
    assert KeptPods().of(pod).metadata.annotations == {keys.ASSIGNED_NODE: "n1", "mine": "p"}


STATES: list[dict[str, Any]] = [
    {},
    {"waiting": {"reason": "PodInitializing"}},
    {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
    {"terminated": {"exitCode": 0, "finishedAt": "2026-01-01T00:00:00Z", "reason": "Completed"}},
    {"terminated": {"exitCode": 1}},
]


@pytest.mark.parametrize("init_state", STATES)
@pytest.mark.parametrize("state", STATES)
def test_locks_and_charges_go_by_the_same_states(init_state: dict[str, Any], state: dict[str, Any]) -> None:
    statuses = {
        "initContainerStatuses": [{"name": "warm", "state": init_state, "restartCount": 3}],
        "containerStatuses": [{"name": "main", "state": state, "ready": True, "lastState": {"terminated": {"exitCode": 1}}}],
    }
    pod = a_pod("p", init="warm", **statuses)
    kept = KeptPods().of(pod)
    assert init_is_over(kept) == init_is_over(pod)
    assert holder_state(kept, "node-of-p") is holder_state(pod, "node-of-p")
    assert holder_state(KeptPods().of(a_pod("p")), "node-of-p") is Holder.PENDING


def test_conditions_that_something_is_not_as_it_should_be_are_kept_whole() -> None:
    when = {"lastTransitionTime": "2026-01-01T00:00:00Z"}
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3", **when}
    told = [
        {"type": preempting.CONDITION, "status": "True", "message": "on n1", **when},
        {"type": tending.CONDITION, "status": "True", **when},
    ]
    others = [{"type": "Ready", "status": "True", **when}, {"type": "PodReadyToStartContainers", "status": "False", **when}]
    pod = a_pod("p", phase="Pending", nominatedNodeName="n1", conditions=[refused, *others, *told])
    kept = KeptPods().of(pod).status
    assert [each.type for each in kept.conditions or ()] == ["PodScheduled", preempting.CONDITION, tending.CONDITION]
    assert [each for each in pod.status.conditions or () if each in (kept.conditions or ())] == list(kept.conditions or ())
    assert (kept.phase, kept.nominated_node_name) == ("Pending", "n1")
    scheduled = a_pod("p", phase="Running", conditions=[{"type": "PodScheduled", "status": "True"}])
    assert KeptPods().of(scheduled).status == PodStatus(phase="Running")
