"""What a pod asks: its containers in order, selectors, policies and weights."""

from __future__ import annotations

import pytest

from hami_devices.catalog import Catalog
from hami_devices.model import Selectors, Weights
from hami_devices.requests import RequestError, read_weights
from hami_protocol.devices import ContainerKind
from tests.builders import MEMORY, a_container, a_pod, example

WEIGHTS = "hami.io/device-scoring-weights"


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        example("weights 21", " memory = 3, slot = 1, core = 0 ", Weights(slots=1, cores=0, memory=3)),
        pytest.param(None, Weights(), id="absent"),
    ],
)
def test_weights_are_read(text: str | None, weights: Weights) -> None:
    assert read_weights(text) == weights


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        example("weights 22", "slot=1,memory=3", "expected slot, core, and memory weights"),
        example("weights 23", "slot=1,core=-1,memory=3", '"core" weight must not be negative'),
        example("weights 24", "slot=0,core=0,memory=0", "at least one weight must be positive"),
        example("weights 25", "slot=1,slot=2,memory=3", 'duplicate "slot" weight'),
        pytest.param("", "expected slot, core, and memory weights", id="empty"),
        pytest.param("slot=1,core=1,memory=1e3", '"memory" weight must be a whole number', id="exponent"),
        pytest.param("slot=1,core=1,memory=٣", '"memory" weight must be a whole number', id="digits of another script"),
        pytest.param("slot=1,core=1,memory=" + "9" * 300, "at most 256 characters", id="long"),
    ],
)
def test_weights_that_make_no_sense_are_refused(text: str, detail: str) -> None:
    with pytest.raises(RequestError) as refused:
        Catalog().read_pod(a_pod(gpu=1, annotations={WEIGHTS: text}))
    assert refused.value.field == f"metadata.annotations[{WEIGHTS}]"
    assert detail in str(refused.value)


def test_containers_come_in_the_protocol_s_order_with_their_kinds() -> None:
    pod = a_pod("p1", a_container("app", gpu=1, mem=1000), inits=[a_container("warm", gpu=1), a_container("proxy", sidecar=True)])
    asked = Catalog().read_pod(pod)
    assert [(container.name, container.kind, len(container.requests)) for container in asked.containers] == [
        ("warm", ContainerKind.INIT, 1),
        ("proxy", ContainerKind.SIDECAR, 0),
        ("app", ContainerKind.APP, 1),
    ]
    assert asked.asks


def test_a_bad_init_container_is_named_by_its_path() -> None:
    with pytest.raises(RequestError, match=r"^spec.initContainers\[1\].resources.limits\[nvidia.com/gpumem\]: '-1' is not accepted"):
        Catalog().read_pod(a_pod(inits=[a_container("a"), a_container("b", gpu=1, mem="-1")]))


def test_a_pod_that_asks_for_nothing_asks_for_nothing_whatever_its_annotations_say() -> None:
    asked = Catalog().read_pod(a_pod(annotations={WEIGHTS: "nonsense", "nvidia.com/numa-bind": "nonsense"}))
    assert not asked.asks


def test_policies_come_from_the_pod_else_from_the_installation() -> None:
    catalog = Catalog(node_policy="spread", device_policy="mutex")
    assert (catalog.read_pod(a_pod(gpu=1)).node_policy, catalog.read_pod(a_pod(gpu=1)).device_policy) == ("spread", "mutex")
    own = catalog.read_pod(
        a_pod(gpu=1, annotations={"hami.io/node-scheduler-policy": "binpack", "hami.io/gpu-scheduler-policy": "numa,spread"})
    )
    assert (own.node_policy, own.device_policy) == ("binpack", "numa,spread")
    unknown = catalog.read_pod(a_pod(gpu=1, annotations={"hami.io/node-scheduler-policy": "whatever"}))
    assert unknown.node_policy == "binpack"


def test_selectors_are_read_per_vendor() -> None:
    pod = a_pod(
        gpu=1,
        annotations={
            "nvidia.com/use-gputype": " A10 , H20,A10",
            "nvidia.com/nouse-gpuuuid": "GPU-1",
            "nvidia.com/vgpu-mode": "hami-core",
            "nvidia.com/numa-bind": "True",
            "nvidia.com/nouse-gputype": "   ",
        },
    )
    assert Catalog().read_pod(pod).selectors == {
        "NVIDIA": Selectors(use_types=("A10", "H20"), avoid_uuids=("GPU-1",), modes=("hami-core",), numa_bind=True)
    }


@pytest.mark.parametrize(
    ("key", "text"),
    [
        example(
            "selectors 174",
            "nvidia.com/use-gputype",
            ",",
            departs="a list that names nothing is refused where it is written, not card by card",
        ),
        pytest.param("nvidia.com/use-gputype", ",".join(f"T{n}" for n in range(300)), id="too many"),
        pytest.param("nvidia.com/use-gpuuuid", "x" * 300, id="too long"),
        pytest.param("nvidia.com/numa-bind", "perhaps", id="no truth value"),
    ],
)
def test_selectors_that_cannot_be_read_are_refused(key: str, text: str) -> None:
    with pytest.raises(RequestError) as refused:
        Catalog().read_pod(a_pod(gpu=1, annotations={key: text}))
    assert refused.value.field == f"metadata.annotations[{key}]"


def test_a_request_written_as_an_annotation_is_found_and_its_right_place_named() -> None:
    found = Catalog().annotated_requests(a_pod(gpu=1, annotations={MEMORY: "2000", "app": "x"}))
    (one,) = found
    assert str(one) == (
        "metadata.annotations[nvidia.com/gpumem] has no effect; "
        "ask in spec.containers[*].resources.limits[nvidia.com/gpumem] of the container that needs it"
    )


def test_the_pod_s_own_priority_is_carried() -> None:
    assert Catalog().read_pod(a_pod(gpu=1, priority=1000)).priority == 1000
