"""Strategies: small clusters with few distinct values, so that ties, near misses and overlaps are frequent."""

from __future__ import annotations

from hypothesis import strategies as st

from hami_devices.catalog import Catalog
from hami_devices.model import ContainerRequest, DeviceRequest, PodRequest, Selectors, Weights
from hami_devices.vendor import Vendor
from hami_protocol.devices import SHARED_MODE, ContainerKind, ContainerShares, DeviceShare, RegisteredDevice, VendorAssignment
from hami_scheduler.placement import ClusterState, Placement
from tests.builders import a_ref

OTHER = Vendor(
    name="OTHER",
    device_type="other",
    count_resource="other.io/card",
    register_key="hami.io/node-other-register",
    allocated_key="hami.io/other",
)
VENDORS = ("NVIDIA", "OTHER")
MODELS = ("NVIDIA A10", "NVIDIA A100-SXM4-40GB", "NVIDIA A100 80GB PCIe")
NODES = ("n1", "n2", "n3", "n4")
POLICIES = (
    "binpack",
    "spread",
    "mutex",
    "numa",
    "topology-aware",
    "numa,spread",
    "binpack,spread",
    "mutex,topology-aware",
    "numa,binpack,mutex",
)


def devices(node: str, vendor: str) -> st.SearchStrategy[tuple[RegisteredDevice, ...]]:
    """Up to five devices of one vendor on one node; some UUIDs are on every node."""
    one = st.builds(
        RegisteredDevice,
        uuid=st.sampled_from([f"{vendor}-{node}-a", f"{vendor}-{node}-b", f"{vendor}-c", f"{vendor}-d", f"{vendor}-e"]),
        index=st.integers(0, 3),
        shares=st.sampled_from([1, 2, 10]),
        memory_mib=st.sampled_from([0, 1000, 1000, 2000, 4000]),
        cores=st.sampled_from([0, 100, 100, 200]),
        type=st.sampled_from(MODELS),
        numa=st.integers(0, 2),
        healthy=st.sampled_from([True, True, True, False]),
        mode=st.sampled_from([SHARED_MODE, SHARED_MODE, SHARED_MODE, "mig"]),
    )
    return st.lists(one, max_size=5, unique_by=lambda device: device.uuid).map(tuple)


def shares(vendors: tuple[str, ...] = VENDORS) -> st.SearchStrategy[DeviceRequest]:
    """What one container asks of one vendor."""
    memory = st.one_of(
        st.sampled_from([1, 500, 1000, 2000]).map(lambda mib: {"memory_mib": mib}),
        st.sampled_from([1, 33, 50, 100]).map(lambda percent: {"memory_percent": percent}),
    )
    return st.builds(
        lambda vendor, count, amount, cores: DeviceRequest(vendor=vendor, count=count, cores=cores, **amount),
        st.sampled_from(vendors),
        st.sampled_from([1, 1, 2, 3]),
        memory,
        st.sampled_from([0, 10, 50, 100]),
    )


SELECTORS = st.builds(
    Selectors,
    use_types=st.sampled_from([(), (), ("A10",), ("A100",), ("A100*80GB*",)]),
    avoid_types=st.sampled_from([(), (), ("A100",)]),
    use_uuids=st.sampled_from([(), (), (), ("NVIDIA-c", "NVIDIA-n1-a", "OTHER-c")]),
    avoid_uuids=st.sampled_from([(), (), ("NVIDIA-d",)]),
    modes=st.sampled_from([(), (), (SHARED_MODE,), ("mig",)]),
    numa_bind=st.sampled_from([False, False, True]),
)

_KINDS = st.sampled_from([ContainerKind.INIT, ContainerKind.SIDECAR])


@st.composite
def requests(draw: st.DrawFn, *, vendors: tuple[str, ...] = VENDORS, most: int = 3) -> PodRequest:
    """A pod with up to ``most`` containers, init containers and sidecars first."""
    kinds = [*draw(st.lists(_KINDS, max_size=most - 1)), ContainerKind.APP]
    kinds += [ContainerKind.APP] * draw(st.integers(0, max(most - len(kinds), 0)))
    containers = []
    for place, kind in enumerate(kinds):
        asked = draw(st.lists(shares(vendors), max_size=2, unique_by=lambda request: request.vendor))
        containers.append(ContainerRequest(name=f"c{place}", kind=kind, requests=tuple(asked)))
    if not any(container.requests for container in containers):
        containers[-1] = ContainerRequest(name="last", kind=ContainerKind.APP, requests=(draw(shares(vendors)),))
    return PodRequest(
        containers=tuple(containers),
        selectors=draw(st.dictionaries(st.sampled_from(vendors), SELECTORS, max_size=2)),
        node_policy=draw(st.sampled_from(["binpack", "spread"])),
        device_policy=draw(st.sampled_from(POLICIES)),
        weights=draw(st.sampled_from([Weights(), Weights(slots=0, cores=1, memory=3)])),
    )


@st.composite
def pair_scores(draw: st.DrawFn, uuids: list[str]) -> dict[str, dict[str, int]]:
    """Scores of some pairs, in both directions."""
    scores: dict[str, dict[str, int]] = {}
    for place, one in enumerate(uuids):
        for other in uuids[place + 1 :]:
            points = draw(st.sampled_from([None, 10, 100, -5]))
            if points is not None:
                scores.setdefault(one, {})[other] = scores.setdefault(other, {})[one] = points
    return scores


@st.composite
def clusters(draw: st.DrawFn, *, pods: int = 4) -> ClusterState:
    """A state with nodes of two vendors, some pods on them, and now and then a fence, a cordon or a silent vendor."""
    state = ClusterState(Catalog(more=(OTHER,)))
    for node in draw(st.lists(st.sampled_from(NODES), unique=True)):
        has = {vendor: draw(devices(node, vendor)) for vendor in draw(st.lists(st.sampled_from(VENDORS), unique=True))}
        uuids = [device.uuid for listed in has.values() for device in listed]
        state.upsert_node(
            node,
            has,
            cordoned=frozenset(draw(st.sets(st.sampled_from(uuids), max_size=1)) if uuids else ()),
            pair_scores=draw(pair_scores(uuids)),
        )
    for number in range(draw(st.integers(0, pods))):
        placed = state.judge(draw(requests()), NODES, uid=f"uid-{number}")
        if isinstance(placed, Placement):
            state.reserve(a_ref(f"p{number}", uid=f"uid-{number}"), placed, now=0.0)
    if draw(st.booleans()):
        state.fence(draw(st.sampled_from(NODES)), "annotation", "cannot be read", vendor=draw(st.sampled_from(["", *VENDORS])))
    if draw(st.booleans()):
        state.set_available(draw(st.sampled_from(NODES)), draw(st.sampled_from(VENDORS)), False)
    if draw(st.booleans()):
        state.hold(draw(st.sampled_from(NODES)), draw(st.sampled_from(VENDORS)), "its agent is about to stop")
    if draw(st.booleans()):
        state.set_allocatable(draw(st.sampled_from(NODES)), draw(st.sampled_from(VENDORS)), draw(st.integers(0, 5)))
    return state


@st.composite
def crowded_clusters(draw: st.DrawFn) -> ClusterState:
    """Nodes whose healthy, equal-looking devices differ in what is used: which one a container takes decides whether the next one fits."""
    state = ClusterState(Catalog())
    for node in NODES[: draw(st.integers(1, 3))]:
        listed = [
            RegisteredDevice(
                uuid=f"{node}-{place}",
                index=draw(st.integers(0, 1)),
                shares=draw(st.sampled_from([2, 3, 10])),
                memory_mib=draw(st.sampled_from([6, 8, 8, 150])),
                cores=100,
                type="NVIDIA A10",
                numa=draw(st.integers(0, 1)),
            )
            for place in range(draw(st.integers(2, 4)))
        ]
        scores = draw(pair_scores([device.uuid for device in listed])) if draw(st.booleans()) else None
        state.upsert_node(node, {"NVIDIA": tuple(listed)}, pair_scores=scores)
        for device in listed:
            if draw(st.booleans()):
                used = DeviceShare(
                    uuid=device.uuid, type="NVIDIA", memory_mib=draw(st.integers(0, 4)), cores=draw(st.sampled_from([0, 20, 50]))
                )
                held = ContainerShares(container="c0", kind=ContainerKind.APP, shares=(used,))
                state.charge(a_ref(device.uuid), node, (VendorAssignment(vendor="NVIDIA", containers=(held,)),), shrunk=False)
    return state


@st.composite
def crowding_requests(draw: st.DrawFn) -> PodRequest:
    """Two to five containers of small shares."""
    kinds = [*draw(st.lists(_KINDS, max_size=3)), *[ContainerKind.APP] * draw(st.integers(1, 3))]
    containers = []
    for place, kind in enumerate(kinds):
        amount = draw(
            st.sampled_from([{"memory_mib": 2}, {"memory_mib": 4}, {"memory_mib": 5}, {"memory_percent": 50}, {"memory_percent": 1}])
        )
        asked = DeviceRequest(
            vendor="NVIDIA", count=draw(st.sampled_from([1, 1, 1, 2])), cores=draw(st.sampled_from([0, 30, 60])), **amount
        )
        containers.append(ContainerRequest(name=f"c{place}", kind=kind, requests=(asked,)))
    return PodRequest(
        containers=tuple(containers),
        selectors={"NVIDIA": Selectors(numa_bind=True)} if draw(st.booleans()) else {},
        device_policy=draw(st.sampled_from(POLICIES)),
        weights=draw(st.sampled_from([Weights(), Weights(slots=0, cores=1, memory=3), Weights(slots=5, cores=1, memory=0)])),
    )
