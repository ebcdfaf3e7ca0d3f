"""Records that nobody should write: devices twice, negative figures, unknown vendors and templates, forms of other versions. For every vendor.

They fence their node or are refused with a reason, or what is new in them is passed over. Nothing counts as zero, and nothing crashes.
"""

from __future__ import annotations

import json

import msgspec
import pytest

from hami_devices.records import read_assignment
from hami_devices.vendor import Vendor
from hami_protocol import keys, registration
from hami_protocol.devices import AllocationMode, PodRef
from hami_protocol.errors import RecordError
from hami_protocol.events import DevicesReported
from hami_protocol.kubernetes import Pod
from hami_scheduler.inventory import Inventory
from hami_scheduler.placement import ClusterState, Refusal
from hami_scheduler.pods import PodLedger
from tests.builders import a_device
from tests.unit.vendors.vendor_world import CATALOG, a_node_with, a_pod_asking, held, share, written

EACH = pytest.mark.parametrize("vendor", CATALOG.vendors, ids=lambda vendor: vendor.name)
DEVICE = '{"id":"d1","index":1,"count":2,"devmem":1024,"devcore":100,"type":"T","health":true'


class Watched:
    """A state that follows one node."""

    def __init__(self) -> None:
        self.state = ClusterState(CATALOG)
        self.inventory = Inventory(self.state, CATALOG)

    def sees(self, **annotations: str) -> list[str]:
        """The UUIDs of the node's devices once the watch has shown it with these annotations."""
        self.inventory.node_changed("test", a_node_with(annotations=annotations))
        return sorted(found.device.uuid for found in self.state.devices("test"))


def refused(vendor: Vendor, text: str) -> bool:
    """Whether the node takes no pod, and keeps what was known, once ``text`` is its registration."""
    watched = Watched()
    good = registration.encode_text((a_device("good", memory_mib=1024, type="T"),))
    if watched.sees(**{vendor.register_key: good}) != ["good"]:
        return False
    kept = watched.sees(**{vendor.register_key: text}) == ["good"]
    fenced = bool(watched.state.fences("test"))
    request = CATALOG.read_pod(a_pod_asking({"nvidia.com/gpu": 1}))
    return kept and fenced and isinstance(watched.state.judge(request, ["test"], uid="u"), Refusal)


@EACH
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"[{DEVICE}}},{DEVICE}}}]", id="twice, JSON"),
        pytest.param("d1,2,1024,100,T,0,true:d1,2,1024,100,T,0,true:", id="twice, text"),
        pytest.param("d1,2,-1,100,T,0,true:", id="negative memory"),
        pytest.param("d1,-2,1024,100,T,0,true:", id="negative count"),
        pytest.param("d1,2,1024,-1,T,0,true:", id="negative cores"),
        pytest.param("d1,2,1024,100,T,0,-1:", id="negative health"),
        pytest.param(f"[{DEVICE[:-4]}-1}}]", id="negative health, JSON"),
        pytest.param("d1,2,1024,100,T:", id="too few fields"),
    ],
)
def test_a_registration_that_makes_no_sense_fences_its_node_and_what_was_known_stays(vendor: Vendor, text: str) -> None:
    assert refused(vendor, text)


@EACH
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("d1,2,1024,100,T,0,true:", id="before indexes and modes"),
        pytest.param(
            f'[{DEVICE},"instanceCount":7,"devicepairscore":{{}},"newer":{{"a":[1]}}}}]', id="newer, with fields that nobody knows"
        ),
        pytest.param('[{"ID":"d1","Count":2,"Devmem":1024,"DEVCORE":100,"type":"T","health":true}]', id="names in another case"),
    ],
)
def test_a_registration_of_another_version_is_read(vendor: Vendor, text: str) -> None:
    assert Watched().sees(**{vendor.register_key: text}) == ["d1"]


@EACH
def test_an_assignment_of_a_newer_version_is_read_and_a_damaged_one_is_an_error(vendor: Vendor) -> None:
    def read(text: str) -> object:
        pod = a_pod_asking({vendor.count_resource: 1})
        annotated = msgspec.structs.replace(pod.metadata, annotations={vendor.allocated_key: text})
        return read_assignment(msgspec.structs.replace(pod, metadata=annotated), vendor)

    newer, plain = read(f"d1,{vendor.name},1024,10,something,else:;"), read(f"d1,{vendor.name},1024,10:;")
    assert newer == plain
    for text in (f"d1,{vendor.name},-1,10:;", f"d1,{vendor.name},1024:;", f"d1,{vendor.name},1024,ten:;", ";;d1,T,1,1:;"):
        with pytest.raises(RecordError):
            read(text)


def test_a_vendor_that_nobody_knows_is_passed_over_on_nodes_on_pods_and_on_the_bus() -> None:
    watched = Watched()
    known = registration.encode_text((a_device("gpu", memory_mib=1024),))
    annotations = {keys.register("nvidia"): known, keys.register("nobody"): "d1,2,1024,100,T,0,true:"}
    assert watched.sees(**annotations) == ["gpu"]
    report = DevicesReported(
        node="test", device_type="nobody", generation=9, devices=(a_device("x"),), allocation_mode=AllocationMode.CDI, third_party=True
    )
    watched.inventory.reported(report)
    assert watched.sees(**annotations) == ["gpu"]
    assert not watched.state.fences("test")
    pod = a_pod_asking({"nobody.example/gpu": 1}, annotations={"hami.io/nobody-devices-allocated": "x,Nobody,1,1:;"})
    assert not CATALOG.read_pod(pod).asks
    change = PodLedger(watched.state, CATALOG).changed(
        None, msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name="test"))
    )
    assert change.fenced is None
    assert not list(watched.state.entries())


def test_an_assignment_of_an_unknown_vendor_is_charged_on_no_card_and_released_again() -> None:
    watched = Watched()
    watched.sees(**{keys.register("nvidia"): registration.encode_text((a_device("gpu", memory_mib=1024),))})
    ref = PodRef(namespace="default", name="p", uid="u")
    watched.state.charge(ref, "test", [held("Nobody", [share("gpu", "Nobody", 512, 10)])], shrunk=False)
    (card,) = watched.state.devices("test")
    assert card.used_memory_mib == 0
    watched.state.validate()
    watched.state.release("u")
    watched.state.validate()


def test_a_share_of_no_known_template_names_none() -> None:
    """Ascend's runtime takes what it finds; a name that is made up would cut another card."""
    text = written(held("Ascend910A", [share("npu", "Ascend910A", 1234, 0)]), a_device("npu", index=0))["huawei.com/Ascend910A"]
    assert json.loads(text) == [{"UUID": "npu", "memory": 1234}]


@pytest.mark.parametrize(
    "text", ['{"main":{"request":0}}', '{"main":{"request":-3}}', '{"main":{"request":true}}', "{}", "[]", '{"main":7}']
)
def test_slices_that_make_no_sense_fence_the_node(text: str) -> None:
    watched = Watched()
    pod: Pod = a_pod_asking({"enflame.com/drs-gcu": 3})
    annotations = {
        "hami.io/enflame-vgpu-devices-allocated": "d,Enflame,20480,50:;",
        "assigned-containers": text,
        keys.ASSIGNED_NODE: "test",
    }
    pod = msgspec.structs.replace(
        pod,
        metadata=msgspec.structs.replace(pod.metadata, annotations=annotations),
        spec=msgspec.structs.replace(pod.spec, node_name="test"),
    )
    watched.sees()
    change = PodLedger(watched.state, CATALOG).changed(None, pod)
    assert change.fenced is not None
    assert "assigned-containers" in change.fenced.reason
