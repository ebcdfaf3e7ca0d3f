"""What ``hami top`` lists: counted once, sorted, cut to the terminal, and without claims that nothing supports."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from hami_cli.pod_names import PodName, context_namespace, pod_name
from hami_cli.snapshot import Heard, Snapshot
from hami_cli.tables import cut_middle
from hami_cli.top_rows import TopError, What, as_csv, as_names, as_table, listing, read_what
from hami_protocol import keys
from hami_protocol.devices import ContainerKind, ContainerShares, VendorAssignment
from hami_protocol.figures import percent, rounded
from hami_protocol.inventory import Inventory
from tests.builders import a_pod
from tests.unit.command_line.clusters import CATALOG, a_gpu_node, a_held, a_holder, seen

ALIVE = Heard(inventory=Inventory(time="2026-01-01T00:00:00Z", nodes=()))
LONG = "training-large-language-models-with-a-long-name"


def a_cluster(heard: Heard | None = ALIVE) -> Snapshot:
    nodes = [
        a_gpu_node("dgx", *(f"GPU-00000000-1111-2222-3333-44444444444{index}" for index in range(8))),
        a_gpu_node("half", "GPU-a", "GPU-b", annotations={keys.DEVICE_CORDON: '["GPU-a"]'}),
    ]
    shares = [a_held(f"GPU-00000000-1111-2222-3333-44444444444{index}", 20000) for index in range(8)]
    pod = a_pod(LONG, node_name="dgx", namespace="research")
    containers = (ContainerShares(container="main", kind=ContainerKind.APP, shares=tuple(shares)),)
    pod.metadata.annotations.update(CATALOG.assignment_annotations([VendorAssignment(vendor="NVIDIA", containers=containers)]))
    return seen(nodes, [pod, a_holder("small", "half", a_held("GPU-b", 100))], heard)


def test_a_container_on_eight_cards_is_one_container() -> None:
    rows = {row["NODE"]: row for row in listing(a_cluster(), What.NODES).rows}
    assert rows["dgx"]["CONTAINERS"] == 1
    assert len(listing(a_cluster(), What.PODS, node="dgx").rows) == 8


def test_a_cordoned_card_is_no_cordoned_node() -> None:
    rows = {row["NODE"]: row["STATUS"] for row in listing(a_cluster(), What.NODES).rows}
    assert rows == {"dgx": "ok", "half": "ok (1/2 cordoned)"}
    both = seen([a_gpu_node("half", "GPU-a", annotations={keys.DEVICE_CORDON: '["GPU-a"]'})], [], ALIVE)
    assert listing(both, What.NODES).rows[0]["STATUS"] == "cards cordoned"


def test_without_the_registry_nothing_is_said_to_be_ok() -> None:
    unknown = a_cluster(None)
    assert {row["STATUS"] for row in listing(unknown, What.NODES).rows} == {"unknown", "unknown (1/2 cordoned)"}
    assert "ok" not in {row["STATUS"] for row in listing(unknown, What.CARDS).rows}
    assert [fact["alive"] for fact in listing(unknown, What.NODES).facts] == [None, None]


@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("what", What)
def test_every_table_fits_into_the_terminal(what: What, width: int) -> None:
    shown = as_table(listing(a_cluster(), what), width=width)
    assert max(map(len, shown.splitlines())) <= width


def test_wide_cuts_no_name() -> None:
    assert LONG in as_table(listing(a_cluster(), What.PODS))


@given(st.text(alphabet="abc-", max_size=60), st.integers(1, 80))
def test_a_name_is_cut_in_its_middle(name: str, width: int) -> None:
    cut = cut_middle(name, width)
    assert len(cut) <= max(width, 0)
    assert cut == name if len(name) <= width else len(cut) == width
    if len(name) > width >= 5:
        assert cut[:2] == name[:2]
        assert cut[-1] == name[-1]


def test_the_largest_figure_comes_first() -> None:
    rows = listing(a_cluster(), What.NODES, sort_by="memory").rows
    assert [row["NODE"] for row in rows] == ["dgx", "half"]
    assert listing(a_cluster(), What.CARDS, sort_by="node").rows[0]["NODE"] == "dgx"
    with pytest.raises(TopError, match="--sort-by: 'size' is not a column; accepted: node, status, cards, memory-mib"):
        listing(a_cluster(), What.NODES, sort_by="size")


def test_what_is_not_there_is_said() -> None:
    assert as_table(listing(a_cluster(), What.PODS, namespace="reserch"), namespace="reserch") == "No resources found in reserch namespace."
    assert as_table(listing(a_cluster(), What.NODES, node="none")) == "No resources found."


def test_names_and_csv_are_for_programs() -> None:
    assert as_names(listing(a_cluster(), What.PODS)).splitlines() == ["pod/default/small", f"pod/research/{LONG}"]
    assert as_names(listing(a_cluster(), What.NODES)).splitlines() == ["node/dgx", "node/half"]
    lines = as_csv(listing(a_cluster(), What.CARDS)).splitlines()
    assert (lines[0][:23], len(lines)) == ("node,index,uuid,model,s", 11)


@pytest.mark.parametrize(("text", "what"), [("node", What.NODES), ("po", What.PODS), ("pod", What.PODS), ("cards", What.CARDS)])
def test_kubectls_forms_are_accepted(text: str, what: What) -> None:
    assert read_what(text) is what


def test_a_half_is_rounded_upwards_as_on_the_page() -> None:
    assert percent(75, 600) == "13 %"
    assert [rounded(figure) for figure in (0.5, 1.5, 2.5, 2.49)] == [1, 2, 3, 2]
    assert percent(1, 0) == "-"


@pytest.fixture
def kubeconfig(tmp_path: Path) -> str:
    path = tmp_path / "kubeconfig"
    contexts = "[{name: a, context: {cluster: a, namespace: research}}, {name: b, context: {cluster: a}}]"
    path.write_text(f"{{clusters: [{{name: a, cluster: {{server: 'http://x'}}}}], contexts: {contexts}, current-context: a}}")
    return str(path)


@pytest.mark.parametrize(
    ("given_name", "namespace", "context", "expected"),
    [
        ("p", "", "", PodName("research", "p")),
        ("p", "", "b", PodName("default", "p")),
        ("p", "team", "", PodName("team", "p")),
        ("team/p", "", "", PodName("team", "p")),
        ("pod/p", "", "", PodName("research", "p")),
        ("pod/team/p", "team", "", PodName("team", "p")),
    ],
)
def test_a_pod_is_named_as_hami_prints_it(kubeconfig: str, given_name: str, namespace: str, context: str, expected: PodName) -> None:
    assert pod_name(given_name, namespace, kubeconfig, context) == expected


@pytest.mark.parametrize(("given_name", "namespace"), [("a/b/c", ""), ("/p", ""), ("a/", ""), ("team/p", "other")])
def test_what_names_no_pod_is_refused(kubeconfig: str, given_name: str, namespace: str) -> None:
    with pytest.raises(typer.BadParameter, match="accepted:"):
        pod_name(given_name, namespace, kubeconfig, "")


def test_without_a_kubeconfig_the_namespace_is_default(tmp_path: Path) -> None:
    assert context_namespace(str(tmp_path / "none"), "") == "default"
