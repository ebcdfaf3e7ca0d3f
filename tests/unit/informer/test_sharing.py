"""Pods whose containers are equal keep them once, and nobody can tell."""

import msgspec
import pytest

from hami_protocol.kubernetes import Container, EnvVar, ObjectMeta, Pod, PodSpec, ResourceRequirements
from hami_runtime.kube.sharing import SharedContainers


def a_pod(name: str, gpumem: str = "1000", init: str = "") -> Pod:
    main = Container(
        name="main",
        image="registry/image:1",
        env=(EnvVar(name="HOST", value_from={"fieldRef": {"fieldPath": "status.hostIP"}}),),
        resources=ResourceRequirements(limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": gpumem}),
    )
    inits = (Container(name=init),) if init else None
    return Pod(metadata=ObjectMeta(name=name), spec=PodSpec(node_name=f"node-of-{name}", containers=(main,), init_containers=inits))


def decoded(pod: Pod) -> Pod:
    return msgspec.json.decode(msgspec.json.encode(pod), type=Pod)


def test_equal_containers_are_one_object_and_everything_else_stays_the_pods_own() -> None:
    shared = SharedContainers()
    first, second = shared.of(decoded(a_pod("p1", init="warm"))), shared.of(decoded(a_pod("p2", init="warm")))
    assert second.spec.containers is first.spec.containers
    assert second.spec.init_containers is first.spec.init_containers
    assert msgspec.to_builtins(second) == msgspec.to_builtins(a_pod("p2", init="warm"))
    assert msgspec.to_builtins(first) == msgspec.to_builtins(a_pod("p1", init="warm"))


@pytest.mark.parametrize("other", [a_pod("p2", gpumem="1001"), a_pod("p2", init="warm"), a_pod("p2", gpumem="1k")])
def test_containers_that_differ_at_all_are_kept_apart(other: Pod) -> None:
    shared = SharedContainers()
    first, second = shared.of(decoded(a_pod("p1"))), shared.of(decoded(other))
    assert second.spec.containers is not first.spec.containers
    assert msgspec.to_builtins(second) == msgspec.to_builtins(other)


def test_what_has_not_been_met_for_longest_is_forgotten() -> None:
    shared = SharedContainers(capacity=2)
    first = shared.of(decoded(a_pod("p1", gpumem="1")))
    for gpumem in ("2", "1", "3"):
        shared.of(decoded(a_pod("p", gpumem=gpumem)))
    assert shared.of(decoded(a_pod("p4", gpumem="1"))).spec.containers is first.spec.containers
    late = decoded(a_pod("p5", gpumem="2"))
    assert shared.of(late).spec.containers is late.spec.containers
