"""Texts on nodes and pods: registrations, assignments, handshakes, locks, quantities, selectors, and what vendors write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from hami_devices.catalog import Catalog
from hami_devices.order import read_order
from hami_devices.requests import RequestError, read_weights
from hami_devices.selectors import read_selectors
from hami_devices.vendor import SelectorKeys
from hami_devices.vendors import enflame, metax, metax_sgpu
from hami_protocol import assignment, cordon, handshake, mig, nodelock, quantities, registration
from hami_protocol.devices import ContainerKind
from hami_protocol.errors import QuantityError, RecordError
from hami_registry import records
from hami_scheduler import lock_rules
from tests.fuzz.target import Target

CATALOG = Catalog()
REGISTRATIONS = (
    b"G,10,7680,100,NVIDIA-Tesla P4,0,true:",
    b"G,10,7680,100,NVIDIA-Tesla P4,0,true,1,hami-core:H,10,7680,100,NVIDIA-Tesla P4,1,false,2,mig:",
    b":",
    b'[{"id":"id-1","index":1,"count":1,"devmem":1024,"devcore":10,"type":"type","health":true}]',
    (
        b'[{"ID":"GPU-a","Count":7,"Devmem":40960,"devcore":100,"type":"NVIDIA-A100","numa":1,"mode":"mig","health":true,"migProfiles":'
        b'[{"name":"1g.5gb","memoryMB":4864,"core":15,"sliceCount":1,"placements":[{"start":6,"size":1}]}],"custominfo":{"NetworkID":1}}]'
    ),
)
ASSIGNMENTS = (
    b"test1,DCU,2048,1:;",
    b";device-0,MLU,256000,1:;",
    b"U1,NVIDIA,1000,30:U2,NVIDIA,1000,30:;",
    b"G-a,NVIDIA,3000,0:;G-a,NVIDIA,5000,0:;",
    b";;;",
)
HANDSHAKES = (
    b"Requesting_2026-01-02 15:04:05",
    b"Requesting_2024.01.10 04:06:57",
    b"Reported 2024-01-10 04:06:57.123 +0000 UTC m=+1.5",
    b"Reported_2024.01.10 04:06:57",
    b"Deleted_2024.01.10 04:06:57",
)
QUANTITIES = (b"0", b"3000", b"3k", b"16Gi", b"16.0Gi", b"1500m", b"-1", b"1e3", b"0.5", b"12E", b"9223372036854775807", b"100")
MIG = (
    b'[{"containerIndex":0,"deviceIndex":0,"gpuUUID":"GPU-a","profile":"1g.5gb","placement":{"start":6,"size":1}}]',
    (
        b'[{"containerIndex":0,"deviceIndex":1,"gpuUUID":"GPU-a","profile":"2g.10gb","placement":{"start":0,"size":2},"migUUID":"MIG-1",'
        b'"gpuInstanceID":0,"computeInstanceID":0}]'
    ),
)
DRS = (b'{"devices":[{"index":"0","minor":"0","capacity":6}],"profiles":{"1g.6gb":"0","3g.20gb":"1","6g.40gb":"2"}}',)
SGPU = (
    (
        b'[{"uuid":"GPU-a","bdf":"x","model":"MXC500","totalDevCount":16,"totalCompute":100,"totalVRam":65536,"availableDevCount":3,'
        b'"availableCompute":50,"availableVRam":100,"numa":1,"healthy":true,"qosPolicy":"burst-share","linkZone":2}]'
    ),
)
CONTAINERS = [("i", ContainerKind.INIT), ("s", ContainerKind.SIDECAR), ("a", ContainerKind.APP)]


def text(data: bytes) -> str:
    """An annotation's value: any Unicode text, since the API server lets nothing else in."""
    return data.decode("utf-8", "replace")


def _round_trip(decode: Callable[[str], Any], encode: Callable[[Any], str]) -> Callable[[bytes], Any]:
    def call(data: bytes) -> Any:
        found = decode(text(data))
        assert decode(encode(found)) == found
        return found

    return call


def _registration(data: bytes) -> Any:
    devices = registration.decode(text(data))
    assert all(device.uuid and device.shares >= 0 and device.memory_mib >= 0 and device.cores >= 0 for device in devices)
    assert len({device.uuid for device in devices}) == len(devices)
    return devices


def _annotations(data: bytes) -> Any:
    report = records.read_annotations("n1", "nvidia", text(data), {"hami.io/node-nvidia-generation": text(data)[:24]})
    assert report.generation >= 0
    return report


def _quantity(data: bytes) -> Any:
    """All readings of one quantity: what one accepts is a whole number, never negative."""
    found = []
    for parse in (quantities.parse_count, quantities.parse_percent, quantities.parse_memory_mib):
        try:
            number = parse(text(data), field="f")
        except QuantityError:
            continue
        assert isinstance(number, int)
        assert 0 <= number < 2**31
        found.append(number)
    return quantities.exact(text(data), field="f"), found


def _quantity_number(data: bytes) -> Any:
    """A quantity that came as a JSON number."""
    value = msgspec.json.decode(data, type=float | int)
    return quantities.parse_count(value, field="f"), quantities.parse_memory_mib(value, field="f")


def _selectors(data: bytes) -> Any:
    annotations = {key: text(data) for vendor in CATALOG.vendors[:3] for key in _keys(vendor.selector_keys)}
    return [read_selectors(vendor.selector_keys, annotations) for vendor in CATALOG.vendors[:3]]


def _keys(selector_keys: SelectorKeys) -> list[str]:
    return [key for name in SelectorKeys.__dataclass_fields__ if (key := getattr(selector_keys, name))]


TARGETS = (
    Target(
        name="registration",
        call=_registration,
        refuses=(RecordError,),
        seeds=REGISTRATIONS,
        covers=("hami_protocol.registration.decode",),
    ),
    Target(
        name="registration of a node",
        call=_annotations,
        refuses=(RecordError,),
        seeds=(*REGISTRATIONS, b"12", b"9" * 24),
        covers=("hami_registry.records.read_annotations",),
    ),
    Target(
        name="assignment",
        call=_round_trip(assignment.decode_entries, assignment.encode_entries),
        refuses=(RecordError,),
        seeds=ASSIGNMENTS,
        covers=("hami_protocol.assignment.decode_entries",),
    ),
    Target(
        name="assignment of containers",
        call=lambda data: assignment.decode(text(data), "NVIDIA", CONTAINERS, asking=[True, False, True]),
        refuses=(RecordError,),
        seeds=ASSIGNMENTS,
        covers=("hami_protocol.assignment.decode",),
    ),
    Target(
        name="handshake",
        call=lambda data: (handshake.decode(text(data)), records.is_answer(text(data))),
        refuses=(RecordError,),
        seeds=HANDSHAKES,
        covers=("hami_protocol.handshake.decode",),
    ),
    Target(
        name="node lock",
        call=lambda data: nodelock.decode(nodelock.encode(nodelock.decode(text(data)))),
        refuses=(RecordError,),
        seeds=(b"2026-01-01T00:00:00Z,default,p1", b"2026-01-01T00:00:00+02:00", b"2026-01-01T00:00:00Z"),
        covers=("hami_protocol.nodelock.decode",),
    ),
    Target(
        name="node lock as found",
        call=lambda data: lock_rules.read(text(data)),
        refuses=(),
        seeds=(b"2026-01-01T00:00:00Z,default,p1", b"rubbish"),
        covers=("hami_scheduler.lock_rules.read",),
    ),
    Target(
        name="mig allocations",
        call=_round_trip(mig.decode, mig.encode),
        refuses=(RecordError,),
        seeds=MIG,
        covers=("hami_protocol.mig.decode",),
    ),
    Target(
        name="quantity",
        call=_quantity,
        refuses=(QuantityError,),
        seeds=QUANTITIES,
        covers=tuple(f"hami_protocol.quantities.parse_{what}" for what in ("count", "percent", "memory_mib")),
    ),
    Target(name="quantity as a number", call=_quantity_number, refuses=(QuantityError, msgspec.DecodeError), seeds=(b"1", b"1.5", b"1e3")),
    Target(
        name="cordon",
        call=lambda data: cordon.cordoned(text(data)),
        refuses=(),
        seeds=(b"dev-0,dev-1", b" dev-1, "),
    ),
    Target(
        name="device weights",
        call=lambda data: read_weights(text(data)),
        refuses=(RequestError,),
        seeds=(b"slot=1,core=2,memory=3", b" memory = 3, slot = 1, core = 0 "),
        covers=("hami_devices.requests.read_weights",),
    ),
    Target(
        name="selectors",
        call=_selectors,
        refuses=(QuantityError,),
        seeds=(b"abc,123", b" abc , 123 ", b"true", b"A10", b"hami-core,mig"),
        covers=("hami_devices.selectors.read_selectors",),
    ),
    Target(
        name="device policy",
        call=lambda data: read_order(text(data), numa_bind=bool(data) and data[0] % 2 == 0),
        refuses=(),
        seeds=(b"binpack", b"numa,spread", b"mutex,topology-aware"),
        covers=("hami_devices.order.read_order",),
    ),
    Target(
        name="Enflame devices",
        call=lambda data: enflame.read_devices(text(data), "n1"),
        refuses=(RecordError,),
        seeds=DRS,
        covers=("hami_devices.vendors.enflame.read_devices",),
    ),
    Target(
        name="Enflame profile",
        call=lambda data: enflame.read_profile(text(data), "1"),
        refuses=(),
        seeds=(b"1g.6gb", b"3g.20gb"),
        covers=("hami_devices.vendors.enflame.read_profile",),
    ),
    Target(
        name="MetaX devices",
        call=lambda data: metax_sgpu.read_devices(text(data), "n1"),
        refuses=(RecordError,),
        seeds=SGPU,
        covers=("hami_devices.vendors.metax_sgpu.read_devices",),
    ),
    Target(
        name="MetaX points",
        call=lambda data: metax.read_points(text(data)),
        refuses=(),
        seeds=(b'{"1":0,"2":110,"3":270,"8":1240}',),
        covers=("hami_devices.vendors.metax.read_points",),
    ),
)
