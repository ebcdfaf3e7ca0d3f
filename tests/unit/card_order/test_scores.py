"""How full a device and a node are."""

from __future__ import annotations

import pytest

from hami_devices.model import DeviceRequest, DeviceState, Weights
from hami_devices.scores import device_score, node_score
from tests.builders import a_share, a_state, example


def device(shares: str, cores: str, memory: str) -> DeviceState:
    """Each as used/total."""
    (used_shares, total_shares), (used_cores, total_cores), (used_memory, total_memory) = (
        map(int, text.split("/")) for text in (shares, cores, memory)
    )
    return a_state(
        shares=total_shares,
        cores=total_cores,
        memory_mib=total_memory,
        used_shares=used_shares,
        used_cores=used_cores,
        used_memory_mib=used_memory,
    )


A = device("1/10", "90/100", "10/100")
B = device("7/10", "10/100", "20/100")
BUSY = device("2/10", "1/4", "2048/8192")
IDLE = device("0/10", "0/10", "0/10000")
OTHER = a_share(1, memory_mib=4096, cores=3, vendor="OTHER")
FORTY = a_share(1, memory_percent=40)


@pytest.mark.parametrize(
    ("state", "requests", "weights", "score"),
    [
        example("device score 1", device("0/0", "0/0", "0/0"), [], Weights(), 0),
        example("device score 2", device("0/0", "0/8", "0/4096"), [], Weights(), 0),
        example("device score 3", BUSY, [], Weights(), 7.0),
        example("device score 4", BUSY, [a_share(4, memory_mib=1024, cores=1), OTHER], Weights(), 11.75),
        example("device score 5", IDLE, [a_share(1, memory_percent=50, cores=2)], Weights(), 8.0),
        example(
            "device score 6",
            IDLE,
            [a_share(1, memory_percent=10, cores=1), a_share(1, memory_percent=20, cores=2), OTHER],
            Weights(),
            8.0,
        ),
        example("device score 7 a", A, [FORTY], Weights(), 16),
        example("device score 7 b", B, [FORTY], Weights(), 15),
        example("device score 8 a", A, [FORTY], Weights(memory=3), 26),
        example("device score 8 b", B, [FORTY], Weights(memory=3), 27),
        example("device score 9 a", A, [FORTY], Weights(cores=3), 34),
        example("device score 9 b", B, [FORTY], Weights(cores=3), 17),
        example("device order 269", BUSY, [], Weights(), 7.0),
        example("device order 270", BUSY, [a_share(4, memory_mib=1024, cores=1), OTHER], Weights(), 11.75),
        example("device order 271", IDLE, [a_share(1, memory_percent=50, cores=2)], Weights(), 8.0),
        example("device order 272", A, [FORTY], Weights(), 16),
        example("device order 272 memory", A, [FORTY], Weights(memory=3), 26),
        example("device order 272 cores", A, [FORTY], Weights(cores=3), 34),
    ],
)
def test_devices_score(state: DeviceState, requests: list[DeviceRequest], weights: Weights, score: float) -> None:
    assert device_score(state, weights, requests) == pytest.approx(score)


@pytest.mark.parametrize(
    ("states", "score"),
    [
        example("node score 26", [device("5/10", "50/100", "4000/8000")], 15),
        example("node score 27", [device("5/10", "50/100", "4000/8000"), device("0/10", "0/100", "0/8000")], 7.5),
        example("node score 28", [device("50/100", "100/100", "100/100"), device("75/150", "200/200", "200/200")], 25),
        example("node score 29", [], 0),
        example("node score 29 zero", [device("0/0", "0/0", "0/0")], 0),
        example("edge 28", [device("5/10", "3/4", "0/0")], 12.5, departs="a dimension of which a node has nothing is skipped"),
    ],
)
def test_nodes_score(states: list[DeviceState], score: float) -> None:
    assert node_score(states) == pytest.approx(score)


def test_the_request_counts_on_a_card_whose_model_is_not_the_vendor_s_word() -> None:
    small, large = a_state(memory_mib=10_000), a_state(memory_mib=40_000)
    request = [a_share(1, memory_mib=5_000)]
    assert device_score(small, Weights(), request) > device_score(large, Weights(), request)
