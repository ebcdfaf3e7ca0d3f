"""What the page is told of nodes and cards."""

from __future__ import annotations

from hami_protocol.devices import RegisteredDevice
from hami_protocol.events import ContainerUsage, DeviceUsage, NodeUsage
from hami_protocol.holdings import CardCharge
from hami_registry.web import facts
from hami_registry.web.facts import Group, NodeAnnotations
from hami_registry.web.history import ALLOCATED, Span
from tests.builders import a_device, a_ref

PLAIN = NodeAnnotations()


def a_group(*devices: RegisteredDevice, alive: bool = True) -> Group:
    return Group(device_type="nvidia", alive=alive, devices=devices)


def a_span(name: str = "p1", uuid: str = "GPU-A", memory_mib: int = 6144, cores: int = 30) -> Span:
    charge = CardCharge(uuid=uuid, memory_mib=memory_mib, cores=cores)
    return Span(pod=a_ref(name), node="n1", phase=ALLOCATED, charges=(charge,), begin=1.0)


def test_a_node_is_the_sum_of_its_cards_and_of_what_is_held() -> None:
    found = facts.summary("n1", [a_group(a_device("GPU-A"), a_device("GPU-B"))], [a_span("p1"), a_span("p2")], PLAIN)
    assert (found.card_count, found.memory_mib, found.cores, found.pod_count) == (2, 2 * 24576, 200, 2)
    assert (found.booked_memory_mib, found.booked_cores, found.loads) == (12288, 60, (50, 0))


def test_a_node_says_what_is_wrong_with_it() -> None:
    card = a_device("GPU-A")
    assert facts.summary("n1", [a_group(card)], [], PLAIN).status == "ok"
    assert facts.summary("n1", [a_group(card, alive=False)], [], PLAIN).status == "away"
    assert facts.summary("n1", [a_group(card), a_group(card, alive=False)], [], PLAIN).status == "unhealthy"
    assert facts.summary("n1", [a_group(a_device("GPU-A", healthy=False))], [], PLAIN).status == "unhealthy"
    assert facts.summary("n1", [a_group(card)], [], NodeAnnotations(cordon="GPU-A")).status == "cordoned"
    assert facts.summary("n1", [], [a_span()], PLAIN).status == "away"


def test_a_card_lists_its_pods_with_what_was_measured() -> None:
    measured = ContainerUsage(
        pod=a_ref("p1"), container="main", devices=(DeviceUsage(uuid="GPU-A", memory_used_mib=5, memory_limit_mib=9, sm_percent=7),)
    )
    usage = NodeUsage(node="n1", containers=(measured,))
    found = facts.detail("n1", [a_group(a_device("GPU-A"), a_device("GPU-B"))], [a_span("p2"), a_span("p1")], PLAIN, usage)
    first, second = found.cards
    assert [(pod.name, pod.used_memory_mib, pod.used_sm_percent) for pod in first.pods] == [("p1", 5, 7), ("p2", None, None)]
    assert (first.booked_memory_mib, first.booked_shares, first.used_memory_mib) == (12288, 2, 5)
    assert (second.pods, second.used_memory_mib) == ((), None)


def test_a_pod_that_is_not_held_to_its_share_is_shown_as_such_whether_or_not_its_use_is_known() -> None:
    def of(*containers: ContainerUsage) -> bool | None:
        usage = NodeUsage(node="n1", containers=containers)
        return facts.detail("n1", [a_group(a_device("GPU-A"))], [a_span("p1")], PLAIN, usage).cards[0].pods[0].enforced

    held = ContainerUsage(pod=a_ref("p1"), container="side", devices=())
    loose = ContainerUsage(pod=a_ref("p1"), container="main", devices=(), enforced=False)
    assert (of(), of(held), of(held, loose)) == (None, True, False)


def test_cards_say_what_is_wrong_with_them() -> None:
    devices = (a_device("GPU-A"), a_device("GPU-B", healthy=False), a_device("GPU-C"))
    found = facts.detail("n1", [a_group(*devices)], [], NodeAnnotations(cordon="GPU-C"), None)
    assert [card.status for card in found.cards] == ["ok", "unhealthy", "cordoned"]
    assert [card.status for card in facts.detail("n1", [a_group(*devices, alive=False)], [], PLAIN, None).cards] == ["away"] * 3


def test_what_is_held_of_a_card_that_is_gone_is_not_hidden() -> None:
    found = facts.detail("n1", [a_group(a_device("GPU-A"))], [a_span(uuid="GPU-lost")], PLAIN, None)
    assert [(card.uuid, card.status, card.booked_memory_mib) for card in found.cards] == [("GPU-A", "ok", 0), ("GPU-lost", "gone", 6144)]


def test_a_cards_day_has_the_spans_that_reach_into_it_oldest_first() -> None:
    over, early, late = a_span("over"), a_span("early"), a_span("late")
    over.end, early.begin, early.end, late.begin = 5.0, 8.0, 15.0, 12.0
    found = facts.card_history("n1", "GPU-A", [a_group(a_device("GPU-A"))], [late, early, over], begins=10.0, now=20.0)
    assert [(span.name, span.begin, span.end) for span in found.spans] == [("early", 8.0, 15.0), ("late", 12.0, None)]
    assert found.memory_mib == 24576
