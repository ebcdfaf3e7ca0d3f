"""Where the scheduler finds devices: the protocol's annotation, else the vendor's own, else the node's capacity, and what it makes of changes."""

from __future__ import annotations

import pytest

from hami_protocol import keys
from hami_protocol.devices import AllocationMode
from hami_protocol.events import DevicesReported
from hami_protocol.kubernetes import Node
from hami_scheduler.inventory import Inventory
from hami_scheduler.placement import ClusterState
from tests.builders import a_device
from tests.unit.vendors.vendor_world import CATALOG, a_node_with, held, share

MLU_CORES, MLU_MEMORY = "cambricon.com/mlu.smlu.vcore", "cambricon.com/mlu.smlu.vmemory"
GCU = "enflame.com/gcu"
ASCEND = {"hami.io/node-register-Ascend910B3": '[{"id":"npu","count":4,"devmem":65536,"devcore":20,"health":true}]'}


class Watched:
    """A state that follows one node."""

    def __init__(self) -> None:
        self.state = ClusterState(CATALOG)
        self.inventory = Inventory(self.state, CATALOG)

    def sees(self, node: Node) -> list[str]:
        """The UUIDs of the node's devices once the watch has shown it so."""
        self.inventory.node_changed("test", node)
        return [found.device.uuid for found in self.state.devices("test")]


@pytest.fixture
def watched() -> Watched:
    return Watched()


@pytest.mark.departs("devices that the capacity counts go with it")
@pytest.mark.example("edge 13")
def test_devices_come_and_go_with_the_capacity(watched: Watched) -> None:
    assert watched.sees(a_node_with({GCU: "2"})) == ["test-GCU-0", "test-GCU-1"]
    assert watched.sees(a_node_with({GCU: "1"})) == ["test-GCU-0"]
    assert watched.sees(a_node_with({GCU: "0"})) == []
    assert watched.sees(a_node_with({})) == []


def test_a_registration_is_believed_before_the_capacity(watched: Watched) -> None:
    text = "MLU-1,10,23308,0,MLU-MLU370-X4,0,false:"
    capacity = {MLU_CORES: "100", MLU_MEMORY: "64"}
    assert watched.sees(a_node_with(capacity)) == ["test-cambricon-mlu-0"]
    assert watched.sees(a_node_with(capacity, annotations={"hami.io/node-mlu-register": text})) == ["MLU-1"]


def test_a_capacity_that_cannot_be_read_fences_the_node_and_keeps_what_was_known(watched: Watched) -> None:
    watched.sees(a_node_with({GCU: "2"}))
    assert watched.sees(a_node_with({GCU: "many"})) == ["test-GCU-0", "test-GCU-1"]
    assert "status.capacity[enflame.com/gcu]" in str(watched.state.fences("test"))
    watched.sees(a_node_with({GCU: "2"}))
    assert watched.state.fences("test") == {}


def test_more_devices_than_a_node_can_have_fence_it(watched: Watched) -> None:
    watched.sees(a_node_with({"kunlunxin.com/xpu": "800"}))
    assert "kunlun" in str(watched.state.fences("test"))


def test_what_else_a_node_says_of_its_devices_is_followed(watched: Watched) -> None:
    def mode() -> str:
        return watched.state.devices("test")[0].device.mode

    watched.sees(a_node_with(annotations=ASCEND))
    assert mode() == "template"
    watched.sees(a_node_with(annotations={**ASCEND, "hami-vnpu-core": "true"}))
    assert mode() == "hami-core"
    watched.sees(a_node_with(annotations={**ASCEND, "hami-vnpu-core": "no"}))
    assert mode() == "template"


def report(mode: AllocationMode, *, third_party: bool = False) -> DevicesReported:
    devices = (a_device("g", memory_mib=100, type="GCU"),)
    return DevicesReported(
        node="test", device_type="gcu", generation=0 if third_party else 1, devices=devices, allocation_mode=mode, third_party=third_party
    )


@pytest.mark.parametrize(
    ("vendor", "event", "locked"),
    [
        pytest.param("DCU", None, True, id="its plugin finds its pod by the lock"),
        pytest.param("GCU", None, False, id="its plugin does not, and would never release it"),
        pytest.param("GCU", report(AllocationMode.ENVVAR, third_party=True), False, id="as the registry has read it"),
        pytest.param("GCU", report(AllocationMode.ENVVAR), True, id="our agent does, in envvar mode"),
        pytest.param("GCU", report(AllocationMode.CDI), False, id="our agent does not, in cdi mode"),
    ],
)
def test_a_node_is_locked_where_somebody_waits_for_the_lock(
    watched: Watched, vendor: str, event: DevicesReported | None, locked: bool
) -> None:
    watched.sees(a_node_with({GCU: "2"}))
    if event is not None:
        watched.inventory.reported(event)
    assert watched.inventory.locks("test", [held(vendor, [share("g", vendor, 100, 100)])]) == ((keys.NODE_LOCK,) if locked else ())
    assert watched.inventory.locks("test", []) == ()
