"""What there is and what is asked for: random nodes and random pods. Pure: a generator in, bodies out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hami_node_agent.profile import Profile, ProfileDevice
from hami_protocol import keys
from hami_protocol.devices import AllocationMode
from hami_rig.kubelet.containers import EXIT_CODE, INIT_SECONDS, RUN_SECONDS, STOP_SECONDS

GPU = "nvidia.com/gpu"
MEMORY = "nvidia.com/gpumem"
PERCENT = "nvidia.com/gpumem-percentage"
CORES = "nvidia.com/gpucores"
SCHEDULER = "hami-scheduler"
CUT_MODEL = "NVIDIA-A100-SXM4-40GB"


@dataclass(frozen=True, kw_only=True, slots=True)
class Brand:
    """A vendor as pods and annotations name it; independent of the product's own list."""

    name: str
    device_type: str
    count: str
    memory: str
    cores: str
    percent: str = ""
    allocated: str
    to_allocate: str
    shimmed: bool = False
    """Whether the C library holds its containers to their shares, by environment and grant file."""


NVIDIA = Brand(
    name="NVIDIA",
    device_type="nvidia",
    count=GPU,
    memory=MEMORY,
    percent=PERCENT,
    cores=CORES,
    allocated="hami.io/vgpu-devices-allocated",
    to_allocate="hami.io/vgpu-devices-to-allocate",
    shimmed=True,
)
DCU = Brand(
    name="DCU",
    device_type="dcu",
    count="hygon.com/dcunum",
    memory="hygon.com/dcumem",
    cores="hygon.com/dcucores",
    allocated="hami.io/dcu-devices-allocated",
    to_allocate="hami.io/dcu-devices-to-allocate",
)
BRANDS = (NVIDIA, DCU)


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeShape:
    """One node."""

    name: str
    brand: Brand
    mode: AllocationMode
    profile: Profile

    @property
    def cut(self) -> bool:
        """Whether its cards are cut into MIG instances."""
        return self.profile.mode == "mig"


@dataclass(frozen=True, kw_only=True, slots=True)
class PodShape:
    """One pod that somebody creates, and what must become of the attempt."""

    body: dict[str, Any]
    refused: bool = False
    """Admission must not let it in."""
    hopeless: bool = False
    """It comes past our admission, and must never be bound."""

    @property
    def name(self) -> str:
        """Its name."""
        name: str = self.body["metadata"]["name"]
        return name


def nodes(chance: random.Random) -> list[NodeShape]:
    """One to four nodes, of either mode, with one to four cards each; the first has NVIDIA's."""
    shapes = []
    for number in range(1, chance.choice([1, 1, 2, 2, 3, 4]) + 1):
        name = f"n{number}"
        brand = chance.choice([NVIDIA, NVIDIA, NVIDIA, DCU]) if shapes else NVIDIA
        if brand is NVIDIA and shapes and chance.random() < 0.2:
            shapes.append(_cut_node(chance, name))
            continue
        memory_mib = chance.choice([8000, 16384, 24576, 40960])
        devices = tuple(
            ProfileDevice(uuid=f"GPU-{name}-{card}", memory_mib=memory_mib, model=chance.choice(["NVIDIA A10", "Tesla V100-PCIE-32GB"]))
            for card in range(chance.choice([1, 2, 2, 4]))
        )
        shapes.append(
            NodeShape(
                name=name,
                brand=brand,
                mode=chance.choice(list(AllocationMode)),
                profile=Profile(
                    vendor=brand.device_type,
                    devices=devices,
                    split_count=chance.choice([2, 4, 10]),
                    memory_scaling=chance.choice([1.0, 1.0, 1.0, 1.5]) if brand is NVIDIA else None,
                ),
            )
        )
    return shapes


def _cut_node(chance: random.Random, name: str) -> NodeShape:
    """A node whose cards are cut into MIG instances as pods ask for them."""
    devices = tuple(ProfileDevice(uuid=f"GPU-{name}-{card}", memory_mib=40960, model=CUT_MODEL) for card in range(chance.choice([1, 2])))
    return NodeShape(
        name=name, brand=NVIDIA, mode=chance.choice(list(AllocationMode)), profile=Profile(devices=devices, split_count=7, mode="mig")
    )


def pod(chance: random.Random, name: str, *, priorities: Sequence[int] = (0,), brands: Sequence[Brand] = (NVIDIA,)) -> PodShape:
    """A pod: mostly ordinary, of any shape, one of ``priorities`` and one of ``brands``; now and then one that must not get in."""
    match chance.randrange(40):
        case 0:
            return _unreadable(chance, name)
        case 1:
            return _forged(chance, name)
        case 2:
            return _around_admission(chance, name)
        case _:
            return PodShape(body=_ordinary(chance, name, priorities, chance.choice(brands)))


def small_pod(name: str) -> PodShape:
    """One that fits wherever there is anything left."""
    return PodShape(body=_body(name, [_container("main", {GPU: "1", MEMORY: "100"})], {}))


def _ordinary(chance: random.Random, name: str, priorities: Sequence[int], brand: Brand) -> dict[str, Any]:
    containers = [
        _container(f"c{place}", _asks(chance, brand) if place == 0 or chance.random() < 0.5 else {}) for place in range(_few(chance))
    ]
    chance.shuffle(containers)
    inits = [_container(f"i{place}", _asks(chance, brand) if chance.random() < 0.7 else {}) for place in range(_few(chance) - 1)]
    if chance.random() < 0.2:
        inits.insert(chance.randint(0, len(inits)), {**_container("sidecar", _asks(chance, brand)), "restartPolicy": "Always"})
    annotations = {STOP_SECONDS: chance.choice(["0", "0.5", "3"])}
    if inits:
        annotations[INIT_SECONDS] = chance.choice(["0", "1", "3"])
    spec: dict[str, Any] = {"terminationGracePeriodSeconds": chance.choice([1, 5, 30]), "priority": chance.choice(priorities)}
    if chance.random() < 0.6:
        annotations[RUN_SECONDS] = chance.choice(["1", "5", "20"])
        annotations[EXIT_CODE] = chance.choice(["0", "0", "1"])
        spec["restartPolicy"] = chance.choice(["Never", "Never", "OnFailure"])
    if chance.random() < 0.3:
        annotations[keys.NODE_POLICY] = chance.choice(["binpack", "spread"])
        annotations[keys.DEVICE_POLICY] = chance.choice(["binpack", "spread", "mutex"])
    if inits:
        spec["initContainers"] = inits
    return _body(name, containers, annotations, **spec)


def _unreadable(chance: random.Random, name: str) -> PodShape:
    asks = chance.choice([{PERCENT: "101"}, {MEMORY: "-1"}, {PERCENT: "50.5"}, {MEMORY: "99999999999"}, {CORES: "101"}])
    return PodShape(body=_body(name, [_container("main", {GPU: "1", **asks})], {}), refused=True)


def _forged(chance: random.Random, name: str) -> PodShape:
    text = "GPU-n1-0,NVIDIA,1,0:;"
    annotations = {
        keys.ASSIGNED_NODE: "n1",
        keys.BIND_PHASE: chance.choice(["allocating", "success"]),
        "hami.io/vgpu-devices-allocated": text,
        "hami.io/vgpu-devices-to-allocate": text,
    }
    return PodShape(body=_body(name, [_container("main", {GPU: "1", MEMORY: "8000"})], annotations), refused=True)


def _around_admission(chance: random.Random, name: str) -> PodShape:
    """What a webhook that was switched off would have refused."""
    body = _body(name, [_container("main", {GPU: "1", PERCENT: chance.choice(["101", "-5", "NaN"])})], {}, schedulerName=SCHEDULER)
    return PodShape(body=body, hopeless=True)


def _asks(chance: random.Random, brand: Brand) -> dict[str, str]:
    asks = {brand.count: chance.choice(["1", "1", "1", "2"])}
    match chance.randrange(10):
        case 0:
            pass  # whole cards
        case 1 | 2 | 3 if brand.percent:
            asks[brand.percent] = chance.choice(["1", "25", "33", "50", "100"])
        case _:
            asks[brand.memory] = chance.choice(["500", "2000", "4096", "7000", "20000"])
    if chance.random() < 0.4:
        asks[brand.cores] = chance.choice(["0", "10", "30", "50", "100"])
    return asks


def _few(chance: random.Random) -> int:
    return chance.choice([1, 1, 1, 2, 3])


def _container(name: str, limits: dict[str, str]) -> dict[str, Any]:
    return {"name": name, "image": "pause", **({"resources": {"limits": limits, "requests": dict(limits)}} if limits else {})}


def _body(name: str, containers: list[dict[str, Any]], annotations: dict[str, str], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "annotations": annotations},
        "spec": {"containers": containers, **spec},
    }
