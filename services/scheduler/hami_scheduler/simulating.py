"""Where pods would go, with nodes added: filter's own code on a copy of the state. Pure; the cluster's state is not touched.

Each pod is placed beside those before it, and counts against its namespace's quotas; a pod that goes nowhere leaves no trace. In steps of one pod,
so that whoever asks can let others be served in between.
"""

from __future__ import annotations

from collections.abc import Iterator

from hami_devices.catalog import Catalog
from hami_devices.quota import QuotaLimits
from hami_devices.requests import RequestError
from hami_protocol.devices import PodRef, RegisteredDevice
from hami_protocol.kubernetes import Pod
from hami_protocol.simulation import MOST_NODES, MOST_PODS, NodeProfile, SimulatedPod, Simulation, SimulationQuestion
from hami_scheduler.inventory import Inventory
from hami_scheduler.placement import ClusterState, Refusal
from hami_scheduler.verdicts import INVALID_REQUEST


class SimulationError(ValueError):
    """The question makes no sense; the text says what is wrong with it."""


class Simulating:
    """One simulation on its way."""

    def __init__(self, question: SimulationQuestion, state: ClusterState, catalog: Catalog, quotas: QuotaLimits) -> None:
        """Add the nodes.

        Args:
            question: what is asked.
            state: a copy, which is changed.
            catalog: the vendors.
            quotas: what namespaces may have.

        Raises:
            SimulationError: a node cannot be added, or there are too many.
        """
        self._state = state
        self._catalog = catalog
        self._quotas = quotas
        self._pods: Iterator[tuple[int, Pod]] = enumerate(pod for _ in range(question.copies) for pod in question.pods)
        self._left = question.copies * len(question.pods)
        if self._left > MOST_PODS:
            raise SimulationError(f"pods: {self._left} with their copies; accepted: at most {MOST_PODS}")
        existing = () if question.only_added else state.nodes()
        added = self._add(question)
        if len(added) > MOST_NODES:
            raise SimulationError(f"nodes and profiles: {len(added)} nodes; accepted: at most {MOST_NODES}")
        self._names = tuple(dict.fromkeys((*existing, *added)))
        self._answers: list[SimulatedPod] = []

    def _add(self, question: SimulationQuestion) -> list[str]:
        names: list[str] = []
        inventory = Inventory(self._state, self._catalog)
        for place, node in enumerate(question.nodes):
            name = node.metadata.name
            if not name:
                raise SimulationError(f"nodes[{place}].metadata.name: missing")
            change = inventory.node_changed(name, node)
            if change.fenced:
                raise SimulationError(f"nodes[{place}]: {change.fenced[0].source}: {change.fenced[0].reason}")
            names.append(name)
        for place, profile in enumerate(question.profiles):
            vendor = self._catalog.by_device_type(profile.vendor)
            if vendor is None:
                known = ", ".join(sorted(each.device_type for each in self._catalog.vendors))
                raise SimulationError(f"profiles[{place}].vendor: {profile.vendor!r}; accepted: {known}")
            for number in range(profile.nodes):
                name = f"{profile.name}-{number}"
                self._state.upsert_node(name, {vendor.name: tuple(_devices(profile, name))})
                names.append(name)
        return names

    @property
    def over(self) -> bool:
        """Whether all pods have been answered."""
        return not self._left

    def step(self) -> None:
        """Answer the next pod."""
        place, pod = next(self._pods)
        self._left -= 1
        self._answers.append(self._answer(place, pod))

    def _answer(self, place: int, pod: Pod) -> SimulatedPod:
        ref = PodRef(namespace=pod.metadata.namespace or "default", name=pod.metadata.name or f"pods[{place}]", uid=f"simulated/{place}")
        try:
            request = self._catalog.read_pod(pod)
        except RequestError as exc:
            return self._said(ref, summary=str(exc), reasons={INVALID_REQUEST: len(self._names)})
        if not request.asks:
            return self._said(ref, summary="it asks for no device")
        allowance = self._quotas.allowance(ref.namespace, self._state.usage(ref.namespace), request.traits)
        found = self._state.judge(request, self._names, uid=ref.uid, reasons=False, allowance=allowance)
        if isinstance(found, Refusal):
            return self._said(ref, summary=found.summary, reasons=dict(found.reasons), nearest=tuple(found.nearest))
        self._state.reserve(ref, found, now=0.0)
        best = f"the best of {found.fitting_count} that fit under {request.node_policy}, of {len(self._names)}"
        return self._said(ref, node=found.node, summary=best, score=float(found.score), assignments=tuple(found.assignments))

    def _said(self, ref: PodRef, *, summary: str, node: str = "", **details: object) -> SimulatedPod:
        return SimulatedPod(namespace=ref.namespace, name=ref.name, node=node, summary=summary, **details)  # type: ignore[arg-type]

    def result(self) -> Simulation:
        """What was answered."""
        placed_count = sum(1 for answer in self._answers if answer.node)
        return Simulation(node_count=len(self._names), placed_count=placed_count, pods=tuple(self._answers))


def _devices(profile: NodeProfile, node: str) -> Iterator[RegisteredDevice]:
    for index in range(profile.count):
        yield RegisteredDevice(
            uuid=f"{node}/{index}",
            index=index,
            shares=profile.split_count,
            memory_mib=profile.device.memory_mib,
            cores=profile.device.cores,
            type=profile.device.model,
            numa=profile.device.numa,
            mode=profile.mode,
        )
