"""Which copy of a registration counts, and what fences a node."""

import msgspec
import pytest

from hami_devices.catalog import Catalog
from hami_protocol import keys, registration
from hami_protocol.devices import AllocationMode, RegisteredDevice
from hami_protocol.events import DevicesReported, LivenessChanged
from hami_protocol.kubernetes import NodeStatus
from hami_scheduler.inventory import Inventory, InventoryChange
from hami_scheduler.placement import ClusterState, Placement, Refusal
from tests.builders import a_device, a_node, a_request

REGISTER = keys.register("nvidia")
GENERATION = keys.generation("nvidia")


def registered(*devices: RegisteredDevice, generation: int | None = None, **more: str) -> dict[str, str]:
    annotations = {REGISTER: registration.encode_text(devices), **more}
    return annotations if generation is None else annotations | {GENERATION: str(generation)}


def reported(*devices: RegisteredDevice, generation: int, **fields: object) -> DevicesReported:
    return DevicesReported(node="n1", device_type="nvidia", generation=generation, devices=devices, **fields)  # type: ignore[arg-type]


class World:
    def __init__(self) -> None:
        self.state = ClusterState(Catalog())
        self.inventory = Inventory(self.state, Catalog())

    def node(self, annotations: dict[str, str], *, allocatable: str | None = None) -> InventoryChange:
        node = a_node(annotations=annotations)
        if allocatable is not None:
            node = msgspec.structs.replace(node, status=NodeStatus(allocatable={"nvidia.com/gpu": allocatable}))
        return self.inventory.node_changed("n1", node)

    def uuids(self) -> list[str]:
        return [held.device.uuid for held in self.state.devices("n1")]

    def reason(self) -> str | None:
        found = self.state.judge(a_request(memory_mib=1000), ["n1"], uid="u")
        if isinstance(found, Placement):
            return None
        return (found.failed | found.unresolvable)["n1"]  # type: ignore[operator]


@pytest.fixture
def world() -> World:
    return World()


def test_a_node_has_what_its_annotation_says(world: World) -> None:
    assert world.node(registered(a_device("GPU-A"), a_device("GPU-B"))).improved
    assert world.uuids() == ["GPU-A", "GPU-B"]
    assert world.reason() is None


def test_the_same_text_again_changes_nothing(world: World) -> None:
    world.node(registered(a_device()))
    assert world.node(registered(a_device())) == InventoryChange()


def test_the_bus_counts_where_its_generation_is_higher(world: World) -> None:
    world.node(registered(a_device("GPU-A"), generation=3))
    world.inventory.reported(reported(a_device("GPU-B"), generation=4))
    assert world.uuids() == ["GPU-B"]
    world.node(registered(a_device("GPU-C"), generation=5))
    assert world.uuids() == ["GPU-C"]


def test_an_older_report_changes_nothing(world: World) -> None:
    world.node(registered(a_device("GPU-A"), generation=5))
    world.inventory.reported(reported(a_device("GPU-B"), generation=5))
    world.inventory.reported(reported(a_device("GPU-C"), generation=4))
    assert world.uuids() == ["GPU-A"]


def test_a_report_waits_for_its_node(world: World) -> None:
    assert world.inventory.reported(reported(a_device("GPU-B"), generation=1)) == InventoryChange()
    assert world.reason() == "node unregistered"
    world.node({})
    assert world.uuids() == ["GPU-B"]


def test_a_deleted_node_takes_its_reports_along(world: World) -> None:
    world.node({})
    world.inventory.reported(reported(a_device("GPU-B"), generation=7))
    world.inventory.node_changed("n1", None)
    world.node({})
    assert world.uuids() == []


@pytest.mark.parametrize("text", ["GPU-A,ten,24576,100,NVIDIA,0,true:", "[{", "\x00", "GPU-A,10,24576:"])
def test_a_registration_that_cannot_be_read_fences_the_node_and_keeps_what_was_known(world: World, text: str) -> None:
    world.node(registered(a_device("GPU-A")))
    change = world.node({REGISTER: text})
    assert [(fence.node, fence.source) for fence in change.fenced] == [("n1", "nvidia registration")]
    assert world.uuids() == ["GPU-A"]
    assert world.reason() == "node has an unreadable record"
    assert world.node({REGISTER: text}).fenced == ()
    assert world.node(registered(a_device("GPU-A"))).improved
    assert world.reason() is None


def test_a_newer_report_lifts_the_fence_of_an_unreadable_annotation(world: World) -> None:
    world.node({REGISTER: "[{", GENERATION: "1"}, allocatable="10")
    assert world.inventory.reported(reported(a_device("GPU-B"), generation=2)).improved
    assert world.reason() is None


def test_a_node_of_our_agent_that_kubelet_counts_no_devices_of_waits_for_kubelet(world: World) -> None:
    world.inventory.reported(reported(a_device(), generation=1))
    world.node(registered(a_device(), generation=1))
    assert world.reason() == "NodeInsufficientAllocatable"
    assert world.node(registered(a_device(), generation=1), allocatable="10").improved
    assert world.reason() is None
    world.node(registered(a_device(), generation=1), allocatable="0")
    assert world.reason() == "NodeInsufficientAllocatable"


@pytest.mark.parametrize(
    ("allocatable", "reason"), [(None, None), ("4", None), ("0", "NodeInsufficientAllocatable"), ("many", "NodeInsufficientAllocatable")]
)
def test_of_another_plugin_only_no_devices_at_all_counts(world: World, allocatable: str | None, reason: str | None) -> None:
    world.node(registered(a_device()), allocatable=allocatable)
    assert world.reason() == reason


def test_a_node_that_was_removed_and_comes_back_is_counted_anew(world: World) -> None:
    world.node(registered(a_device(), generation=1), allocatable="0")
    world.inventory.node_changed("n1", None)
    world.node(registered(a_device(), generation=1), allocatable="10")
    assert world.reason() is None


def test_a_plugin_of_another_form_is_read_by_the_registry(world: World) -> None:
    world.node({REGISTER: "its own form"})
    world.inventory.reported(reported(a_device("GPU-B"), generation=0, third_party=True))
    assert world.reason() is None


@pytest.mark.parametrize("generation", ["", "-1", "x", "1" * 40, "٣"])
def test_a_generation_that_cannot_be_read_is_the_oldest(world: World, generation: str) -> None:
    world.node(registered(a_device("GPU-A")) | {GENERATION: generation})
    world.inventory.reported(reported(a_device("GPU-B"), generation=1))
    assert world.uuids() == ["GPU-B"]


def test_a_node_that_does_not_report_takes_no_pods_and_is_back_with_the_next_verdict(world: World) -> None:
    world.node(registered(a_device()))
    world.inventory.liveness_changed(LivenessChanged(node="n1", device_type="nvidia", alive=False, reason="silent for 60 s"))
    assert world.reason() == "node not reporting"
    assert world.uuids() == ["GPU-A"]
    change = world.inventory.liveness_changed(LivenessChanged(node="n1", device_type="nvidia", alive=True, reason=""))
    assert change.improved
    assert world.reason() is None


@pytest.mark.parametrize("key", [keys.handshake("nvidia"), keys.LEGACY_HANDSHAKE])
def test_a_node_that_an_older_scheduler_gave_up_waits_for_its_next_handshake(world: World, key: str) -> None:
    world.node(registered(a_device(), **{key: "Deleted_2024.01.10 04:06:57"}))
    assert world.reason() == "node not reporting"
    world.node(registered(a_device(), **{key: "Requesting_2024.01.10 04:06:57"}))
    assert world.reason() is None


def test_the_registrys_verdict_counts_more_than_the_handshake(world: World) -> None:
    world.inventory.liveness_changed(LivenessChanged(node="n1", device_type="nvidia", alive=True, reason=""))
    world.node(registered(a_device(), **{keys.handshake("nvidia"): "Deleted_2024.01.10 04:06:57"}))
    assert world.reason() is None


def test_a_cordon_takes_effect_with_the_annotation_and_ends_with_it(world: World) -> None:
    world.node(registered(a_device("GPU-A")))
    world.node(registered(a_device("GPU-A"), **{keys.DEVICE_CORDON: " GPU-A , "}))
    assert world.reason() == "1/1 CardCordoned"
    world.node(registered(a_device("GPU-A")))
    assert world.reason() is None


@pytest.mark.parametrize("scores", ["[{", "{}", '[{"uuid": "GPU-A", "score": {"GPU-B": "x"}}]', "[[]]"])
def test_pair_scores_that_cannot_be_read_are_only_a_lost_preference(world: World, scores: str) -> None:
    world.node(registered(a_device("GPU-A"), a_device("GPU-B"), **{keys.NODE_PAIR_SCORES: scores}))
    assert world.reason() is None


def test_the_mode_is_envvar_until_somebody_says_otherwise(world: World) -> None:
    assert world.inventory.mode("n1") is AllocationMode.ENVVAR
    world.node(registered(a_device(), **{keys.ALLOCATION_MODE: "cdi"}))
    assert world.inventory.mode("n1") is AllocationMode.CDI
    world.node(registered(a_device(), **{keys.ALLOCATION_MODE: "something else"}))
    assert world.inventory.mode("n1") is AllocationMode.ENVVAR
    world.inventory.reported(reported(a_device(), generation=1, allocation_mode=AllocationMode.CDI))
    assert world.inventory.mode("n1") is AllocationMode.CDI


def test_a_node_without_devices_is_unregistered(world: World) -> None:
    assert world.node({}) == InventoryChange()
    assert isinstance(world.state.judge(a_request(), ["n1"], uid="u"), Refusal)
    assert world.reason() == "node unregistered"


OTHER = keys.register("mlu")
MLU = registration.encode_text((a_device("MLU-1", type="MLU370"),))


def judged(world: World, vendor: str) -> str | None:
    found = world.state.judge(a_request(memory_mib=1000, vendor=vendor), ["n1"], uid="u")
    world.state.validate()
    return None if isinstance(found, Placement) else (found.failed | found.unresolvable)["n1"]  # type: ignore[operator]


def test_an_unreadable_registration_of_one_vendor_takes_that_vendors_devices_alone(world: World) -> None:
    change = world.node(registered(a_device("GPU-A"), **{OTHER: "rubbish"}))
    assert [(fence.source, fence.vendor) for fence in change.fenced] == [("mlu registration", "MLU")]
    assert (judged(world, "NVIDIA"), judged(world, "MLU")) == (None, "node has an unreadable record")
    world.node({REGISTER: "[{", OTHER: MLU})
    assert (judged(world, "NVIDIA"), judged(world, "MLU")) == ("node has an unreadable record", None)
    assert list(world.state.fences("n1", "NVIDIA")) == ["nvidia registration"]
    assert list(world.state.fences("n1", "MLU")) == []
    world.node({OTHER: MLU})
    assert (judged(world, "NVIDIA"), judged(world, "MLU")) == ("node unregistered", None)


def test_too_many_devices_of_one_vendor_take_that_vendors_devices_alone(world: World) -> None:
    many = registration.encode_text(tuple(a_device(f"MLU-{number}") for number in range(65)))
    world.node(registered(a_device("GPU-A"), **{OTHER: many}))
    assert (judged(world, "NVIDIA"), judged(world, "MLU")) == (None, "node has an unreadable record")


@pytest.mark.parametrize("text", ["", " ", "\n", "null", ":", "[]"])
def test_an_empty_registration_is_one_of_no_devices(world: World, text: str) -> None:
    change = world.node(
        registered(a_device("GPU-A"), **{OTHER: text, "metax-tech.com/node-gpu-devices": "", "hami.io/node-va-register": text})
    )
    assert change.fenced == ()
    assert (judged(world, "NVIDIA"), judged(world, "MLU")) == (None, "node unregistered")
    assert world.node({REGISTER: text}).fenced == ()
    assert world.uuids() == []


BAD_IDS = ["0000:3b:00.0", "GPU-A,B", "GPU-A;", ";"]


@pytest.mark.parametrize("uuid", BAD_IDS)
def test_an_id_that_no_record_of_a_pod_can_carry_fences_the_vendor(world: World, uuid: str) -> None:
    text = registration.encode_json((a_device(uuid), a_device("GPU-B")))
    change = world.node({REGISTER: text, OTHER: MLU})
    assert [fence.vendor for fence in change.fenced] == ["NVIDIA"]
    assert "accepted: an id without" in change.fenced[0].reason
    assert (judged(world, "NVIDIA"), judged(world, "MLU")) == ("node has an unreadable record", None)


@pytest.mark.parametrize("devices", [*((a_device(uuid),) for uuid in BAD_IDS), (a_device("GPU-A"), a_device("GPU-A")), (a_device(""),)])
def test_ids_on_the_bus_are_held_to_the_same_and_what_was_known_stays(world: World, devices: tuple[RegisteredDevice, ...]) -> None:
    world.node(registered(a_device("GPU-A"), generation=1))
    assert [fence.vendor for fence in world.inventory.reported(reported(*devices, generation=2)).fenced] == ["NVIDIA"]
    assert (world.uuids(), judged(world, "NVIDIA")) == (["GPU-A"], "node has an unreadable record")
    assert world.inventory.reported(reported(a_device("GPU-C"), generation=3)).improved
    assert (world.uuids(), dict(world.state.fences("n1"))) == (["GPU-C"], {})


@pytest.mark.parametrize("text", ['["GPU-A"]', ' [ "GPU-A" , "GPU-B" ] ', "GPU-A,GPU-A", '["GPU-A", ""]'])
def test_a_cordon_may_be_a_list_in_json(world: World, text: str) -> None:
    world.node(registered(a_device("GPU-A"), **{keys.DEVICE_CORDON: text}))
    assert world.reason() == "1/1 CardCordoned"


@pytest.mark.parametrize(
    "text", ['["GPU-A"', '[["GPU-A"]]', '{"GPU-A": true}', '"GPU-A"', "GPU-A GPU-B", "GPU-A;GPU-B", "['GPU-A']", "[1]"]
)
def test_a_cordon_that_cannot_be_read_fences_the_node_until_it_can(world: World, text: str) -> None:
    change = world.node(registered(a_device("GPU-A"), **{keys.DEVICE_CORDON: text}))
    assert [(fence.source, fence.vendor) for fence in change.fenced] == [(keys.DEVICE_CORDON, "")]
    assert "accepted: UUIDs with commas between" in change.fenced[0].reason
    assert world.reason() == "node has an unreadable record"
    world.node(registered(a_device("GPU-A"), **{keys.DEVICE_CORDON: "GPU-B"}))
    assert world.reason() is None
