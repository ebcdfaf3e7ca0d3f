"""In a cluster of six card types, with a dead agent and nodes without cards, each cause is found and no other.

The verdicts are the scheduler's own: the cluster is judged by its placement code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from hami_cli.diagnosis import Evidence, diagnose
from hami_devices.blocking import cards_of
from hami_devices.catalog import Catalog
from hami_devices.rejections import in_words
from hami_protocol.devices import RegisteredDevice
from hami_protocol.events import PodRefused
from hami_protocol.inventory import DeviceGroup, Inventory, InventoryNode
from hami_protocol.kubernetes import Condition, Pod, PodStatus
from hami_protocol.pods import pod_ref
from hami_scheduler.placement import ClusterState, Placement, Refusal
from tests.builders import a_pod

CATALOG = Catalog()
TYPES = {  # node's name: vendor, nodes, cards on each, MiB of each, model
    "t4": ("NVIDIA", 6, 2, 16384, "NVIDIA-Tesla T4"),
    "v100": ("NVIDIA", 6, 2, 32768, "NVIDIA-Tesla V100"),
    "a100": ("NVIDIA", 8, 8, 81920, "NVIDIA-A100-SXM4-80GB"),
    "mlu": ("MLU", 4, 4, 98304, "MLU590"),
    "dcu": ("DCU", 2, 4, 65536, "DCU-Z100"),
    "xpu": ("XPU", 2, 4, 98304, "XPU-P800"),
}
DEAD, WITHOUT_CARDS = "a100-7", ("cpu-0", "cpu-1")
MEMORY = "no card has so much memory free"
SLOTS = "the cards that could take the pod have no free share"
TYPE = "the pod's annotations accept none of the cards' models"
DEAD_AGENT = "nodes that could take the pod do not report their cards"


class Cluster:
    """Thirty nodes as the scheduler and the registry know them."""

    def __init__(self) -> None:
        self.state = ClusterState(CATALOG)
        self.dead = {DEAD}
        self.devices: dict[str, tuple[str, tuple[RegisteredDevice, ...]]] = {}
        for kind, (vendor, nodes, cards, mib, model) in TYPES.items():
            for number in range(nodes):
                self.devices[f"{kind}-{number}"] = (vendor, tuple(a_card(f"{kind}-{number}", card, mib, model) for card in range(cards)))
        for name, (vendor, cards) in self.devices.items():
            self.state.upsert_node(name, {vendor: cards})
        self.state.set_available(DEAD, "NVIDIA", False)

    def cordon(self, kind: str) -> None:
        for name, (vendor, cards) in self.devices.items():
            if name.startswith(kind):
                self.state.upsert_node(name, {vendor: cards}, cordoned=frozenset(card.uuid for card in cards))

    def unhealthy(self, kind: str) -> None:
        for name, (vendor, cards) in self.devices.items():
            if name.startswith(kind):
                self.devices[name] = (vendor, tuple(msgspec.structs.replace(card, healthy=False) for card in cards))
                self.state.upsert_node(name, {vendor: self.devices[name][1]})

    def fill(self, kind: str, each: int, **amounts: Any) -> None:
        """Place ``each`` pods on every card of a kind."""
        for name, (_, cards) in self.devices.items():
            for card in cards if name.startswith(kind) and name not in self.dead else ():
                for number in range(each):
                    pod = a_pod(f"{card.uuid}-{number}", gpu=1, annotations={"nvidia.com/use-gpuuuid": card.uuid}, **amounts)
                    placed = self.state.judge(CATALOG.read_pod(pod), [name], uid=pod.metadata.uid)
                    assert isinstance(placed, Placement)
                    self.state.reserve(pod_ref(pod), placed, now=0.0)

    def kill(self, kind: str) -> None:
        for name in self.devices:
            if name.startswith(kind):
                self.dead.add(name)
                self.state.set_available(name, "NVIDIA", False)

    def inventory(self) -> Inventory:
        def group(name: str, vendor: str, cards: Sequence[RegisteredDevice]) -> DeviceGroup:
            kind = CATALOG.vendor(vendor).device_type
            return DeviceGroup(device_type=kind, alive=name not in self.dead, since="2026-01-01T00:00:00Z", devices=tuple(cards))

        nodes = (InventoryNode(name=name, device_groups=(group(name, *known),)) for name, known in self.devices.items())
        return Inventory(time="2026-01-01T00:00:00Z", nodes=tuple(nodes))

    def refusal(self, pod: Pod) -> PodRefused:
        names = [*self.devices, *WITHOUT_CARDS]
        refused = self.state.judge(CATALOG.read_pod(pod), names, uid=pod.metadata.uid)
        assert isinstance(refused, Refusal)
        return PodRefused(
            pod=pod_ref(pod), summary=refused.summary, node_count=len(names), reasons=dict(refused.reasons), nearest=tuple(refused.nearest)
        )

    def causes(self, pod: Pod, *, inventory: bool = True, verdict: bool = True) -> list[str]:
        """What is found of ``pod``, with kube-scheduler's condition beside the verdict."""
        refusal = self.refusal(pod)
        said = ", ".join(f"{count} {reason}" for reason, count in refusal.reasons.items())
        message = f"0/{refusal.node_count} nodes are available: {said}. preemption: 0/{refusal.node_count} nodes are available"
        condition = Condition(type="PodScheduled", status="False", reason="Unschedulable", message=message)
        evidence = Evidence(
            namespace="default",
            name=pod.metadata.name,
            pod=msgspec.structs.replace(pod, status=PodStatus(phase="Pending", conditions=(condition,))),
            refusal=refusal if verdict else None,
            request=CATALOG.read_pod(pod),
            cards=cards_of(self.inventory(), CATALOG) if inventory else None,
            misspellings=CATALOG.misspellings(pod),
        )
        return [finding.cause for finding in diagnose(evidence).findings]


def a_card(node: str, index: int, mib: int, model: str) -> RegisteredDevice:
    return RegisteredDevice(uuid=f"{node}-{index}", index=index, shares=10, memory_mib=mib, cores=100, type=model)


def one_full_card(cluster: Cluster) -> None:
    """One card of 90 has no free share."""
    _, cards = cluster.devices["t4-0"]
    for number in range(cards[0].shares):
        pod = a_pod(f"small-{number}", gpu=1, mem=10, annotations={"nvidia.com/use-gpuuuid": cards[0].uuid})
        placed = cluster.state.judge(CATALOG.read_pod(pod), ["t4-0"], uid=pod.metadata.uid)
        assert isinstance(placed, Placement)
        cluster.state.reserve(pod_ref(pod), placed, now=0.0)


NOTHING: Callable[[Cluster], None] = lambda cluster: None  # noqa: E731
A100 = {"nvidia.com/use-gputype": "A100"}
CASES = [
    pytest.param(NOTHING, {"gpu": 1, "mem": 90000}, [MEMORY], id="larger than every card"),
    pytest.param(one_full_card, {"gpu": 1, "mem": 90000}, [MEMORY], id="larger than every card, one of which is shared out"),
    pytest.param(NOTHING, {"gpu": 9, "mem": 100}, ["no node has so many cards"], id="more cards than any node has"),
    pytest.param(NOTHING, {"gpu": 1, "mem": 100, "annotations": {"nvidia.com/use-gputype": "H100"}}, [TYPE], id="no such model"),
    pytest.param(
        NOTHING,
        {"gpu": 1, "mem": 100, "annotations": {"nvidia.com/use-gpuuuid": "GPU-none"}},
        ["the pod's annotations accept none of the cards' UUIDs"],
        id="no such card",
    ),
    pytest.param(NOTHING, {"gpu": 1, "mem": 90000, "annotations": A100}, [MEMORY], id="larger than every card of the model"),
    pytest.param(
        lambda cluster: cluster.fill("a100", 1, mem=60000), {"gpu": 1, "mem": 40000}, [MEMORY, DEAD_AGENT], id="large cards are full"
    ),
    pytest.param(
        lambda cluster: cluster.fill("a100", 10, mem=10), {"gpu": 1, "mem": 40000}, [SLOTS, DEAD_AGENT], id="large cards are shared out"
    ),
    pytest.param(
        lambda cluster: cluster.fill("a100", 1, mem=10, cores=80),
        {"gpu": 1, "mem": 40000, "cores": 30},
        ["no card has so many cores free", DEAD_AGENT],
        id="large cards are busy",
    ),
    pytest.param(
        lambda cluster: cluster.cordon("a100"), {"gpu": 1, "mem": 40000}, [DEAD_AGENT, "cards are cordoned"], id="large cards are cordoned"
    ),
    pytest.param(
        lambda cluster: cluster.unhealthy("a100"), {"gpu": 1, "mem": 40000}, [DEAD_AGENT, "cards are unhealthy"], id="large cards are ill"
    ),
    pytest.param(lambda cluster: cluster.kill("a100"), {"gpu": 1, "mem": 40000}, [DEAD_AGENT], id="agents with large cards are dead"),
    pytest.param(
        lambda cluster: cluster.fill("v100", 1, mem=30000),
        {"gpu": 1, "mem": 20000, "annotations": {"nvidia.com/use-gputype": "V100"}},
        [MEMORY],
        id="the dead agent's cards would not do",
    ),
]


@pytest.mark.parametrize(("happened", "asked", "expected"), CASES)
def test_each_cause_is_found_and_no_other(happened: Callable[[Cluster], None], asked: dict[str, Any], expected: list[str]) -> None:
    cluster = Cluster()
    happened(cluster)
    pod = a_pod("waits", **asked)
    assert sorted(cluster.causes(pod)) == sorted(expected)
    assert sorted(cluster.causes(pod, verdict=False)) == sorted(expected), "from kube-scheduler's condition alone"


@pytest.mark.parametrize(("happened", "asked", "expected"), CASES)
def test_without_the_inventory_no_other_vendor_is_a_cause(
    happened: Callable[[Cluster], None], asked: dict[str, Any], expected: list[str]
) -> None:
    cluster = Cluster()
    happened(cluster)
    found = cluster.causes(a_pod("waits", **asked), inventory=False)
    assert found
    assert "no node has registered a card of the vendor that the pod asks for" not in found


def test_a_vendor_that_no_node_has_is_the_cause() -> None:
    pod = a_pod("waits")
    pod.spec.containers[0].resources.limits["amd.com/gpu"] = 1  # type: ignore[index]
    assert Cluster().causes(pod) == ["no node has registered a card of the vendor that the pod asks for"]


def test_a_card_of_another_vendor_is_found_by_its_own_reasons() -> None:
    pod = a_pod("waits")
    pod.spec.containers[0].resources.limits.update({"cambricon.com/vmlu": 1, "cambricon.com/mlu.smlu.vmemory": 500})  # type: ignore[union-attr]
    assert Cluster().causes(pod) == [MEMORY]


def test_misspelled_names_are_found_beside_what_keeps_the_pod_waiting() -> None:
    pod = a_pod("waits", gpu=1, mem=90000, annotations={"hami.io/gpu-scheduler-policy": "binpak"})
    assert Cluster().causes(pod) == ["the pod names a scheduling policy that does not exist", MEMORY]


def test_a_misspelled_resource_is_no_lack_of_resources() -> None:
    pod = a_pod("waits")
    pod.spec.containers[0].resources.limits.update({"nvidia.com/gpu": 1, "nvidia.com/gpumemory": 3000})  # type: ignore[union-attr]
    message = "0/30 nodes are available: 30 Insufficient nvidia.com/gpumemory. preemption: 0/30 nodes are available: 30 No preemption victims found."
    condition = Condition(type="PodScheduled", status="False", reason="Unschedulable", message=message)
    waiting = msgspec.structs.replace(pod, status=PodStatus(phase="Pending", conditions=(condition,)))
    found = diagnose(Evidence(namespace="default", name="waits", pod=waiting, misspellings=CATALOG.misspellings(pod))).findings
    assert [each.cause for each in found] == ["no node offers a resource that the pod asks for"]
    assert "did you mean nvidia.com/gpumem?" in found[0].text


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (
            {"gpu": 1, "mem": 90000},
            (
                "19 nodes: no card with 90,000 MiB free",
                "8 nodes: cards of other vendors",
                "2 nodes: no registered NVIDIA card",
                "1 node: the NVIDIA agent does not report",
            ),
        ),
        (
            {"gpu": 9, "mem": 100},
            (
                "19 nodes: fewer than 9 NVIDIA cards",
                "8 nodes: cards of other vendors",
                "2 nodes: no registered NVIDIA card",
                "1 node: the NVIDIA agent does not report",
            ),
        ),
        (
            {"gpu": 2, "percent": 50, "annotations": {"nvidia.com/use-gputype": "H100"}},
            (
                "19 nodes: fewer than 2 cards of a model that the pod accepts",
                "8 nodes: cards of other vendors",
                "2 nodes: no registered NVIDIA card",
                "1 node: the NVIDIA agent does not report",
            ),
        ),
    ],
)
def test_reasons_are_grouped_in_words(asked: dict[str, Any], expected: tuple[str, ...]) -> None:
    pod = a_pod("waits", **asked)
    assert in_words(Cluster().refusal(pod).reasons, CATALOG.read_pod(pod), other_vendors=8) == expected
