"""A pod's containers in the protocol's order."""

from hami_protocol.devices import ContainerKind
from hami_protocol.kubernetes import Container, ObjectMeta, Pod, PodSpec, PodStatus
from hami_protocol.pods import containers_in_order, is_terminal


def test_init_containers_come_first_and_sidecars_are_told_apart() -> None:
    pod = Pod(
        metadata=ObjectMeta(name="p"),
        spec=PodSpec(
            containers=(Container(name="main"), Container(name="second")),
            init_containers=(Container(name="setup"), Container(name="proxy", restart_policy="Always")),
        ),
    )
    assert [(placed.container.name, placed.kind, placed.path) for placed in containers_in_order(pod)] == [
        ("setup", ContainerKind.INIT, "spec.initContainers[0]"),
        ("proxy", ContainerKind.SIDECAR, "spec.initContainers[1]"),
        ("main", ContainerKind.APP, "spec.containers[0]"),
        ("second", ContainerKind.APP, "spec.containers[1]"),
    ]


def test_only_ended_pods_are_terminal() -> None:
    for phase, terminal in {"": False, "Pending": False, "Running": False, "Succeeded": True, "Failed": True}.items():
        assert is_terminal(Pod(metadata=ObjectMeta(), status=PodStatus(phase=phase))) is terminal
