"""Draw what each placement policy does, with the scheduler's own code: ``python -m tools.policy_pictures`` writes ``docs/pictures/policy-*.svg``.

A scene is a few nodes with cards, and pods that come one after the other. Nothing in a picture is drawn by hand: it shows where they went.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from hami_devices.catalog import Catalog
from hami_devices.model import ContainerRequest, DeviceRequest, PodRequest, Selectors, Weights
from hami_protocol.devices import ContainerKind, PodRef, RegisteredDevice
from hami_scheduler.placement import ClusterState, Placement

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "pictures"
CARD_MIB = 16384
COLOURS = ("#8ecae6", "#ffb703", "#a7c957", "#f4978e", "#cdb4db", "#90be6d", "#f9c74f", "#b8c0ff")
CARD_WIDTH, CARD_HEIGHT, GAP, NODE_GAP, MARGIN, TOP = 64, 128, 14, 34, 16, 46


@dataclass(frozen=True, kw_only=True)
class Pod:
    """One pod of a scene: so many cards, and so much of each."""

    name: str
    gib: int
    cards: int = 1
    cores: int = 0
    on: str = ""
    """Was there before, on this node; on its card ``card``, where that matters."""
    card: int | None = None


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What is drawn."""

    name: str
    title: str
    pods: Sequence[Pod]
    nodes: Mapping[str, Sequence[int]] = field(default_factory=lambda: {"node a": (0, 0, 0, 0)})
    """Of each node, the NUMA node of each card."""
    node_policy: str = "binpack"
    device_policy: str = "spread"
    weights: Weights = field(default_factory=Weights)
    numa_bind: bool = False
    links: Sequence[tuple[int, int, int]] = ()
    """Cards of each node that are linked, and how well."""


FOUR = tuple(Pod(name=f"p{number}", gib=6) for number in range(1, 5))
TWO_NODES = {"node a": (0, 0), "node b": (0, 0)}
SCENES = (
    Scene(name="node-binpack", title="node policy binpack: the fullest node that fits", pods=FOUR, nodes=TWO_NODES),
    Scene(name="node-spread", title="node policy spread: the emptiest node that fits", pods=FOUR, nodes=TWO_NODES, node_policy="spread"),
    Scene(name="card-binpack", title="card policy binpack: the fullest card that fits", pods=FOUR, device_policy="binpack"),
    Scene(name="card-spread", title="card policy spread: the emptiest card that fits", pods=FOUR),
    Scene(
        name="card-mutex",
        title="card policy mutex: only cards that nobody uses",
        pods=[Pod(name=f"p{number}", gib=4) for number in range(1, 6)],
        device_policy="mutex",
    ),
    Scene(
        name="card-numa",
        title="card policy numa: one NUMA node first, then the other",
        pods=FOUR,
        nodes={"node a": (0, 0, 1, 1)},
        device_policy="numa,spread",
    ),
    Scene(
        name="card-numa-bind",
        title="numa-bind: all cards of a container on one NUMA node, or none",
        pods=[Pod(name="old", gib=12, on="node a"), Pod(name="p1", gib=10, cards=2), Pod(name="p2", gib=10, cards=2)],
        nodes={"node a": (0, 0, 1, 1)},
        numa_bind=True,
    ),
    Scene(
        name="card-topology",
        title="card policy topology-aware: several cards that are linked best; one that is linked least",
        pods=[Pod(name="p1", gib=8), Pod(name="p2", gib=8, cards=2)],
        device_policy="topology-aware",
        links=[(0, 1, 100), (1, 2, 400), (0, 2, 100)],
    ),
    Scene(
        name="card-chain",
        title="chain mutex,numa,binpack: unused cards alone, one NUMA node first",
        pods=[Pod(name="old", gib=3, on="node a"), *FOUR[:2]],
        nodes={"node a": (0, 0, 1, 1)},
        device_policy="mutex,numa,binpack",
    ),
    Scene(
        name="card-weights",
        title="weights slot=0,core=0,memory=1 under binpack: the card with the most memory in use, whatever its cores",
        pods=[
            Pod(name="busy", gib=2, cores=80, on="node a", card=0),
            Pod(name="large", gib=10, cores=5, on="node a", card=1),
            Pod(name="p1", gib=3, cores=5),
        ],
        nodes={"node a": (0, 0)},
        device_policy="binpack",
        weights=Weights(slots=0, cores=0, memory=1),
    ),
)


@dataclass(frozen=True)
class Result:
    """Where the pods of a scene went."""

    held: dict[tuple[str, int], list[Pod]]
    refused: list[Pod]


def played(scene: Scene) -> Result:
    """Place the pods, in their order, with the scheduler's own code."""
    state = ClusterState(Catalog())
    for node, numas in scene.nodes.items():
        devices = tuple(
            RegisteredDevice(uuid=f"{node}/{place}", index=place, shares=10, memory_mib=CARD_MIB, cores=100, type="NVIDIA A10", numa=numa)
            for place, numa in enumerate(numas)
        )
        scores: dict[str, dict[str, int]] = {}
        for one, other, points in scene.links:
            for here, there in ((one, other), (other, one)):
                scores.setdefault(f"{node}/{here}", {})[f"{node}/{there}"] = points
        state.upsert_node(node, {"NVIDIA": devices}, pair_scores=scores or None)
    result = Result({}, [])
    for pod in scene.pods:
        found = state.judge(_request(scene, pod), [pod.on] if pod.on else tuple(scene.nodes), uid=pod.name)
        if not isinstance(found, Placement):
            result.refused.append(pod)
            continue
        state.reserve(PodRef(namespace="default", name=pod.name, uid=pod.name), found, now=0.0)
        for charge in found.charges:
            result.held.setdefault((found.node, int(charge.uuid.rpartition("/")[2])), []).append(pod)
    return result


def _request(scene: Scene, pod: Pod) -> PodRequest:
    there = () if pod.card is None else (f"{pod.on}/{pod.card}",)
    asked = DeviceRequest(vendor="NVIDIA", count=pod.cards, memory_mib=pod.gib * 1024, cores=pod.cores)
    return PodRequest(
        containers=(ContainerRequest(name="main", kind=ContainerKind.APP, requests=(asked,)),),
        selectors={"NVIDIA": Selectors(numa_bind=scene.numa_bind, use_uuids=there)},
        node_policy=scene.node_policy,
        device_policy=scene.device_policy,
        weights=scene.weights,
    )


def drawn(scene: Scene) -> str:
    """The picture, as SVG."""
    result = played(scene)
    colours = {pod.name: COLOURS[place % len(COLOURS)] for place, pod in enumerate(scene.pods)}
    parts: list[str] = []
    x = MARGIN
    for node, numas in scene.nodes.items():
        width = len(numas) * (CARD_WIDTH + GAP) + GAP
        parts.append(_box(x, TOP, width, CARD_HEIGHT + 58, "#f6f8fa", "#d0d7de"))
        parts.append(_text(x + 10, TOP + 16, node, weight="bold"))
        for place, numa in enumerate(numas):
            left = x + GAP + place * (CARD_WIDTH + GAP)
            parts += _card(left, result.held.get((node, place), []), colours)
            label = f"card {place}" if len(set(numas)) == 1 else f"card {place}, NUMA {numa}"
            parts.append(_text(left + CARD_WIDTH / 2, TOP + CARD_HEIGHT + 40, label, size=10, anchor="middle"))
        parts += [_link(x, one, other, points) for one, other, points in scene.links]
        x += width + NODE_GAP
    order = ", ".join(_asks(pod) for pod in scene.pods)
    below = TOP + CARD_HEIGHT + 78
    parts.append(_text(MARGIN, below, f"in this order: {order}", size=11))
    if result.refused:
        parts.append(_text(MARGIN, below + 18, f"no place: {', '.join(pod.name for pod in result.refused)}", size=11, colour="#b42318"))
    width = max(x - NODE_GAP + MARGIN, 2 * MARGIN + 7 * max(len(scene.title), len(order) + 16))
    height = below + (36 if result.refused else 18)
    body = "\n".join([_box(0, 0, width, height, "#ffffff", "#ffffff"), _text(MARGIN, 26, scene.title, size=14, weight="bold"), *parts])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" '
        f'font-family="Helvetica, Arial, sans-serif">\n<title>{escape(scene.title)}</title>\n{body}\n</svg>\n'
    )


def _asks(pod: Pod) -> str:
    cards = "" if pod.cards == 1 else f"{pod.cards} x "
    cores = f" and {pod.cores} %" if pod.cores else ""
    return f"{pod.name} ({cards}{pod.gib} GiB{cores}{', there before' if pod.on else ''})"


def _card(left: float, pods: Sequence[Pod], colours: Mapping[str, str]) -> list[str]:
    top = TOP + 24
    parts = [_box(left, top, CARD_WIDTH, CARD_HEIGHT, "#ffffff", "#8c959f")]
    bottom = top + CARD_HEIGHT
    for pod in pods:
        height = CARD_HEIGHT * pod.gib * 1024 / CARD_MIB
        bottom -= height
        parts.append(_box(left, bottom, CARD_WIDTH, height, colours[pod.name], "#57606a"))
        parts.append(_text(left + CARD_WIDTH / 2, bottom + height / 2 + 4, pod.name, size=11, anchor="middle"))
    return parts


def _link(x: float, one: int, other: int, points: int) -> str:
    y = TOP + 24 + CARD_HEIGHT + 4
    ends = [x + GAP + place * (CARD_WIDTH + GAP) + CARD_WIDTH / 2 for place in (one, other)]
    return f'<path d="M {ends[0]} {y} Q {sum(ends) / 2} {y + 18} {ends[1]} {y}" fill="none" stroke="#1f6feb" stroke-width="{1 + points // 100}"/>'


def _box(x: float, y: float, width: float, height: float, fill: str, stroke: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}" stroke="{stroke}"/>'


def _text(x: float, y: float, text: str, *, size: int = 12, weight: str = "normal", anchor: str = "start", colour: str = "#1f2328") -> str:
    style = f'font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" fill="{colour}"'
    return f'<text x="{x:g}" y="{y:g}" {style}>{escape(text)}</text>'


def pictures() -> dict[str, str]:
    """File name to content."""
    return {f"policy-{scene.name}.svg": drawn(scene) for scene in SCENES}


def main() -> int:
    """Write them."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, content in pictures().items():
        (FOLDER / name).write_text(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
