"""Explain: why a pod is where it is, or is nowhere, from the last verdict and from the state at the moment of asking. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from hami_devices.model import PodRequest
from hami_devices.rejections import in_words
from hami_devices.requests import RequestError
from hami_protocol import keys
from hami_protocol.devices import PodRef
from hami_protocol.events import PodRefused
from hami_protocol.explanation import Explanation, LastVerdict, Reservation
from hami_protocol.kubernetes import Pod
from hami_protocol.pods import pod_ref
from hami_scheduler.gangs import UNFIT, WAITS
from hami_scheduler.picture import Picture
from hami_scheduler.placement import Placement, Refusal

NOT_SELECTED = "node selector does not match"
MOST_SHOWN = 20


def explain(pod: Pod, picture: Picture) -> Explanation:
    """Explain ``pod``."""
    ref = pod_ref(pod)
    entry = picture.state.entry(ref.uid)
    holding = None if entry is None else Reservation(node=entry.node, phase=entry.phase.value, assignments=entry.assignments)
    verdict = picture.verdicts.of(ref)
    common = Explanation(
        pod=ref,
        phase=pod.status.phase,
        node=pod.spec.node_name,
        bind_phase=pod.metadata.annotations.get(keys.BIND_PHASE, ""),
        summary="",
        holding=holding,
        verdict=verdict,
        warnings=tuple(map(str, picture.catalog.misspellings(pod))),
    )
    if pod.spec.node_name:
        return msgspec.structs.replace(common, summary=f"bound to {pod.spec.node_name}")
    try:
        request = picture.catalog.read_pod(pod)
    except RequestError as exc:
        return msgspec.structs.replace(common, summary=f"its request is refused: {exc}")
    if not request.asks:
        return msgspec.structs.replace(common, summary="it asks for no device")
    names = _selected(pod, picture)
    judged = picture.state.explain(request, _shown(picture, request, ref, names) if pod.spec.node_selector else None, uid=ref.uid)
    summary, reasons = judged.summary, dict(judged.reasons)
    if judged.node and isinstance(refusal := picture.judge(ref, request, names), Refusal):  # there is room, and no quota
        summary, reasons = refusal.summary, dict(refusal.reasons)
    elif judged.node and (other := _other_obstacle(pod, verdict)) is not None:
        summary, reasons = other
    if excluded := len(picture.state.nodes()) - len(names):
        reasons[NOT_SELECTED] = excluded
    return msgspec.structs.replace(
        common,
        summary=summary,
        reasons=reasons,
        causes=in_words(reasons, request, other_vendors=_of_other_vendors(names, request, picture)),
        nodes_left_out=max(0, len(names) - len(judged.nodes)),
        nodes=judged.nodes,
    )


def _selected(pod: Pod, picture: Picture) -> list[str]:
    """The nodes that the pod's node selector lets it on."""
    wanted = (pod.spec.node_selector or {}).items()
    return [name for name in picture.state.nodes() if wanted <= picture.inventory.labels(name).items()]


def _shown(picture: Picture, request: PodRequest, ref: PodRef, names: list[str]) -> list[str]:
    """Of ``names`` the best or the nearest, as many as an explanation shows."""
    judged = picture.judge(ref, request, names, ranked=True, reasons=True) if names else None
    best = [name for name, _ in judged.fitting] if isinstance(judged, Placement) else []
    return list(dict.fromkeys([*best, *names]))[:MOST_SHOWN]


def _of_other_vendors(names: Iterable[str], request: PodRequest, picture: Picture) -> int:
    """How many of the nodes have devices, and none of the vendors that the pod asks."""
    asked = {each.vendor for container in request.containers for each in container.requests}
    having = ({device.vendor for device in picture.state.devices(name)} for name in names)
    return sum(bool(vendors) and vendors.isdisjoint(asked) for vendors in having)


def _other_obstacle(pod: Pod, verdict: LastVerdict | None) -> tuple[str, dict[str, int]] | None:
    """What keeps a pod waiting for which there are devices: its group, or what kube-scheduler found besides."""
    said = None if verdict is None else verdict.verdict
    if isinstance(said, PodRefused) and not {WAITS, UNFIT}.isdisjoint(said.reasons):
        return said.summary, dict(said.reasons)
    condition = next((each for each in pod.status.conditions or () if each.type == "PodScheduled" and each.status != "True"), None)
    if condition is None or not condition.message or isinstance(said, PodRefused):
        return None
    return f"its devices fit, and kube-scheduler found: {condition.message}", {}
