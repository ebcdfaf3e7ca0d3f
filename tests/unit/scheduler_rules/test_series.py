"""Series of cards and shares: what the ledger holds, readable whatever is in a name, each once, in pieces that hold nobody up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from hami_devices.catalog import Catalog
from hami_protocol.devices import ContainerKind, ContainerShares, DeviceShare, PodRef, VendorAssignment
from hami_scheduler import series
from hami_scheduler.placement import ClusterState
from hami_scheduler.series import CardMetrics
from tests.builders import a_device


def a_state(*devices: str, vendor: str = "NVIDIA", nodes: int = 1, **fields: object) -> ClusterState:
    state = ClusterState(Catalog())
    for node in range(nodes):
        state.upsert_node(f"n{node}", {vendor: [a_device(name, **fields) for name in devices or ("GPU-a",)]})
    return state


def held(state: ClusterState, uuid: str, *, vendor: str = "NVIDIA", mib: int = 3000, cores: int = 20) -> None:
    share = DeviceShare(uuid=uuid, type=vendor, memory_mib=mib, cores=cores)
    container = ContainerShares(container="main", kind=ContainerKind.APP, shares=(share,))
    state.charge(
        PodRef(namespace="default", name="p", uid="u"), "n0", [VendorAssignment(vendor=vendor, containers=(container,))], shrunk=False
    )


def shown(state: ClusterState) -> dict[tuple[str, tuple[str, ...]], float]:
    """By name and labels but ``zone``, each value; a series that is there twice is an error."""
    found: dict[tuple[str, tuple[str, ...]], float] = {}
    for family in text_string_to_metric_families("".join(series.pieces(state))):
        for sample in family.samples:
            key = sample.name, tuple(sample.labels.values())[1:]
            assert sample.labels["zone"] == "vGPU"
            assert key not in found
            found[key] = sample.value
    return found


def test_what_the_ledger_holds_is_shown_under_both_names() -> None:
    state = a_state("GPU-a", memory_mib=30_000)
    held(state, "GPU-a")
    found = shown(state)
    card = next(labels for name, labels in found if name == "hami_gpu_memory_limit_bytes")
    for names, labels, value in (
        (("hami_gpu_memory_limit_bytes", "GPUDeviceMemoryLimit"), card, 30_000 * 2**20),
        (("hami_gpu_memory_allocated_bytes", "GPUDeviceMemoryAllocated"), (*card[:3], "100", card[3]), 3000 * 2**20),
        (("hami_gpu_core_allocated_ratio", "GPUDeviceCoreAllocated"), card, 20),
        (("hami_gpu_shared_count", "GPUDeviceSharedNum"), card, 1),
        (("hami_node_gpu_memory_allocated_ratio",), card, 0.1),
        (("nodeGPUMemoryPercentage",), card[:3], 0.1),
        (("hami_vgpu_memory_allocated_bytes", "vGPUMemoryAllocated"), ("default", "n0", "p", "0", "GPU-a"), 3000 * 2**20),
        (("hami_vgpu_core_allocated_ratio", "vGPUCoreAllocated"), ("default", "n0", "p", "0", "GPU-a"), 20),
    ):
        for name in names:
            assert found[name, labels] == value, name


def test_a_card_without_memory_has_no_ratio_of_it() -> None:
    names = {name for name, _ in shown(a_state("GPU-a", memory_mib=0))}
    assert "hami_gpu_memory_limit_bytes" in names
    assert "hami_node_gpu_memory_allocated_ratio" not in names


def test_compute_that_is_counted_in_units_is_shown_in_percent_and_as_it_was_under_its_earlier_name() -> None:
    state = a_state("AMD-a", vendor="AMD", type="AMDGPU-MI300", cores=304)
    held(state, "AMD-a", vendor="AMD", cores=77)
    values = {name: value for (name, _), value in shown(state).items()}
    assert (values["hami_gpu_core_limit_ratio"], values["GPUDeviceCoreLimit"]) == (100, 304)
    assert (values["hami_gpu_core_allocated_ratio"], values["GPUDeviceCoreAllocated"]) == (26, 77)
    assert (values["hami_vgpu_core_allocated_ratio"], values["vGPUCoreAllocated"]) == (26, 77)


@given(st.text(max_size=40))
def test_any_text_can_be_the_value_of_a_label(text: str) -> None:
    line = f'x{{a="{series.escaped(text)}"}} 1\n'
    assert line.count("\n") == 1
    (family,) = text_string_to_metric_families(line)
    assert family.samples[0].labels["a"] == text


def test_no_piece_is_long_whatever_the_cluster_is() -> None:
    state = a_state(*(f"GPU-{card}" for card in range(8)), nodes=200)
    pieces = list(series.pieces(state))
    assert max(piece.count("\n") for piece in pieces) <= series.SERIES_A_PIECE + 2
    assert sum(piece.startswith("#") for piece in pieces) >= 14


def test_nodes_may_come_and_go_between_pieces() -> None:
    state = a_state(nodes=3 * series.NODES_A_PIECE)
    pieces = series.pieces(state)
    next(pieces)
    state.remove_node("n59")
    state.remove_node("n0")
    assert "n58" in "".join(pieces)


def test_the_earlier_names_or_all_series_are_left_out_on_request() -> None:
    state = a_state("GPU-a")
    held(state, "GPU-a")
    both, new = ("".join(series.pieces(state, shown)) for shown in (CardMetrics.BOTH, CardMetrics.NEW))
    assert {line for line in both.splitlines() if "hami_" in line.split("{")[0].split()[-1] and not line.startswith("#")} == {
        line for line in new.splitlines() if not line.startswith("#")
    }
    assert "earlier name" not in new
    assert list(series.pieces(state, CardMetrics.NONE)) == []
