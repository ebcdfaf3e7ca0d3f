from hami_protocol.card_facts import Measured
from hami_protocol.devices import PodRef
from hami_protocol.events import ContainerUsage, DeviceUsage, NodeUsage

POD = PodRef(namespace="default", name="p", uid="u")


def usage(node: str, mib: int, *, enforced: bool) -> NodeUsage:
    device = DeviceUsage(uuid="GPU-1", memory_used_mib=mib, memory_limit_mib=1000)
    return NodeUsage(node=node, containers=(ContainerUsage(pod=POD, container="c", devices=(device,), enforced=enforced),))


def test_what_an_agent_says_of_another_nodes_container_counts_for_nothing() -> None:
    measured = Measured([usage("n1", 500, enforced=False), usage("n2", 0, enforced=True)])
    found = measured.by_container("n1", "u", "c", "GPU-1")
    assert found is not None
    assert found.memory_mib == 500
    assert measured.enforced("n1", "u", "c") is False
    assert measured.pod_enforced("n2", "u") is True
    assert measured.enforced("n3", "u", "c") is None
    in_all = measured.by_pod("n1", "u", "GPU-1")
    assert in_all is not None
    assert in_all.memory_mib == 500
    assert measured.by_pod("n3", "u", "GPU-1") is None
