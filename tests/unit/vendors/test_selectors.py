"""Which devices a pod accepts, by model, UUID and mode."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_devices.fit import fit_node
from hami_devices.model import Reason, Selectors
from hami_devices.reasons import Misfit
from hami_devices.selectors import misfit, type_matches
from tests.builders import a_device, a_request, a_state, example

WORDS = "a model is matched by whole words (HAMi#1485)"


@pytest.mark.parametrize(
    ("pattern", "model", "matches"),
    [
        example("selectors 171", "A10", "NVIDIA A100", False, departs=WORDS),
        example("edge 39", "A10", "NVIDIA A100-SXM4-40GB", False, departs=WORDS),
        pytest.param("H20", "NVIDIA H20", True, id="B14 H20"),
        pytest.param("H20", "NVIDIA H200", False, id="B14 H200"),
        pytest.param("H200", "NVIDIA H200 NVL", True, id="a form of the same model"),
        pytest.param("T4", "NVIDIA T400", False, id="B14 T400"),
        pytest.param("RTX 4000", "NVIDIA RTX 4000 SFF Ada Generation", False, id="B14 SFF"),
        pytest.param("RTX 4000", "Quadro RTX 4000", True, id="B14 RTX 4000"),
        pytest.param("RTX 4000 SFF Ada", "NVIDIA RTX 4000 SFF Ada Generation", True, id="B14 SFF asked"),
        pytest.param("RTX 3080", "NVIDIA GeForce RTX 3080 Ti", False, id="Ti"),
        pytest.param("a100", "NVIDIA A100-SXM4-40GB", True, id="any case"),
        pytest.param("A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB", True, id="several words"),
        pytest.param("NVIDIA-Tesla V100-PCIE-32GB", "NVIDIA-Tesla V100-PCIE-32GB", True, id="the whole text"),
        pytest.param("V100", "NVIDIA-Tesla V100-PCIE-32GB", True, id="V100"),
        pytest.param("100", "NVIDIA A100", False, id="part of a word"),
        pytest.param("A10*", "NVIDIA A100-SXM4-40GB", True, id="glob"),
        pytest.param("A100*80GB*", "NVIDIA A100 80GB PCIe", True, id="glob in the middle"),
        pytest.param("A1?", "NVIDIA A100", False, id="glob of one character"),
        pytest.param("*", "anything", True, id="everything"),
        pytest.param("-", "NVIDIA A100", False, id="no word"),
    ],
)
def test_models_match(pattern: str, model: str, matches: bool) -> None:
    assert type_matches(pattern, model) == matches


@pytest.mark.parametrize(
    ("selectors", "device", "reason"),
    [
        example("selectors 167", Selectors(use_uuids=("abc", "123")), a_device("1abc"), Reason.UUID),
        example("selectors 168", Selectors(use_uuids=("abc", "123")), a_device("abc"), None),
        example("selectors 169", Selectors(use_uuids=("abc", "123"), avoid_uuids=("abc",)), a_device("abc"), Reason.UUID),
        example("selectors 170", Selectors(), a_device("any"), None),
        example("selectors 172", Selectors(use_types=("A10",), avoid_types=("A100",)), a_device(type="NVIDIA A100"), Reason.TYPE),
        example("selectors 172 A10", Selectors(use_types=("A10",), avoid_types=("A100",)), a_device(type="NVIDIA A10"), None),
        example("selectors 173", Selectors(avoid_types=("V100",)), a_device(type="NVIDIA-A100"), None),
        pytest.param(Selectors(use_uuids=("ABC",)), a_device("abc"), Reason.UUID, id="UUIDs match in their case"),
        pytest.param(Selectors(modes=("mig",)), a_device(), Reason.TYPE, id="mode"),
        pytest.param(Selectors(modes=("mig", "hami-core")), a_device(), None, id="one of two modes"),
        pytest.param(Selectors(modes=("hami-core-2",)), a_device(), Reason.TYPE, id="a mode is no substring"),
    ],
)
def test_devices_are_accepted(selectors: Selectors, device: object, reason: Reason | None) -> None:
    assert misfit(selectors, device) == reason  # type: ignore[arg-type]


def test_b14_an_unknown_type_is_refused_with_the_types_that_are_there() -> None:
    request = a_request(selectors={"NVIDIA": Selectors(use_types=("H20",))})
    fit = fit_node([a_state(type="NVIDIA H200"), a_state(uuid="b", type="NVIDIA A10")], request)
    assert isinstance(fit, Misfit)
    assert fit.text == "2/2 CardTypeMismatch"
    assert fit.unresolvable
    assert fit.detail == "container c0: type not accepted: asks H20; node has NVIDIA A10, NVIDIA H200"


@given(st.text(max_size=40), st.text(max_size=60))
def test_any_pattern_is_answered(pattern: str, model: str) -> None:
    assert type_matches(pattern, model) in (True, False)
    assert type_matches(model, model) or not model
