"""The extender as kube-scheduler calls it: requests with Go field names, answers in either spelling, HTTP or a call in the same process.

What an answer means is decided here (an unknown node is an error, a node in neither list is refused without a reason); what follows from it is not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import aiohttp
import msgspec
from msgspec import Struct

from hami_protocol import kubernetes as k
from hami_rig import quantities
from hami_rig.scheduler.configuration import ExtenderConfig
from hami_rig.scheduler.objects import SchedulingPod

T = TypeVar("T")


class ExtenderError(Exception):
    """The extender could not be asked, took too long, or answered what cannot be used."""


class Transport(Protocol):
    """How a request reaches the extender."""

    async def post(self, verb: str, body: bytes, *, timeout_seconds: float) -> bytes:
        """Send ``body`` to ``verb`` and return the answer's body.

        Raises:
            ExtenderError: there is none in time, or its status is not 200.
        """
        ...


class HttpTransport:
    """HTTP, on a session that the caller opens and closes."""

    def __init__(self, session: aiohttp.ClientSession, url_prefix: str) -> None:
        self._session = session
        self._prefix = url_prefix.rstrip("/")

    async def post(self, verb: str, body: bytes, *, timeout_seconds: float) -> bytes:
        """POST one request."""
        url = f"{self._prefix}/{verb}"
        timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        try:
            async with self._session.post(url, data=body, headers={"Content-Type": "application/json"}, timeout=timeout) as answer:
                content = await answer.read()
                if answer.status != 200:
                    raise ExtenderError(f"failed {verb} with extender at URL {url}, code {answer.status}")
                return content
        except TimeoutError as exc:
            raise ExtenderError(f'Post "{url}": context deadline exceeded') from exc
        except aiohttp.ClientError as exc:
            raise ExtenderError(f'Post "{url}": {exc}') from exc


class CallTransport:
    """Calls in the same process: one async function per verb, JSON in and JSON out, so that the wire format is used all the same."""

    def __init__(self, verbs: Mapping[str, Callable[[bytes], Awaitable[bytes]]]) -> None:
        self._verbs = dict(verbs)

    async def post(self, verb: str, body: bytes, *, timeout_seconds: float) -> bytes:
        """Call one function; an unknown verb is answered as HTTP would answer it."""
        if verb not in self._verbs:
            raise ExtenderError(f"failed {verb} with extender, code 404")
        return await self._verbs[verb](body)


@dataclass(frozen=True, kw_only=True, slots=True)
class FilterResult:
    """What filter said of each node that was sent."""

    feasible: tuple[str, ...]
    failed: Mapping[str, str]
    unresolvable: Mapping[str, str]


class _FilterAnswer(Struct, frozen=True, kw_only=True):
    nodenames: tuple[str, ...] | None = None
    nodes: dict[str, Any] | None = None
    failednodes: dict[str, str] | None = None
    failedandunresolvablenodes: dict[str, str] | None = None
    error: str = ""


class _BindAnswer(Struct, frozen=True, kw_only=True):
    error: str = ""


class _Score(Struct, frozen=True, kw_only=True):
    host: str = ""
    score: int = 0


class _PreemptAnswer(Struct, frozen=True, kw_only=True):
    nodenametometavictims: dict[str, dict[str, Any]] | None = None


class Extender:
    """One extender of a configuration."""

    def __init__(self, config: ExtenderConfig, transport: Transport) -> None:
        self.config = config
        self._transport = transport

    def interested(self, pod: SchedulingPod) -> bool:
        """Whether pods like this one go to the extender: any container names a managed resource, even with 0."""
        names = self.config.resource_names
        if not names:
            return True
        for container in (*(pod.spec.init_containers or ()), *pod.spec.containers):
            if not names.isdisjoint(container.resources.limits or ()) or not names.isdisjoint(container.resources.requests or ()):
                return True
        return False

    async def filter(self, pod: SchedulingPod, nodes: Mapping[str, k.Node], names: Sequence[str]) -> FilterResult:
        """Ask which of ``names`` take the pod."""
        answer = _decode(await self._ask(self.config.filter_verb, self._arguments(pod, nodes, names)), _FilterAnswer, "filter")
        if answer.error:
            raise ExtenderError(answer.error)
        given = answer.nodenames
        if given is None and answer.nodes is not None:
            given = tuple(item["metadata"]["name"] for item in answer.nodes.get("items") or ())
        feasible, sent = given or (), frozenset(names)
        for name in feasible:
            if name not in sent:
                raise ExtenderError(
                    f'extender "{self.config.url_prefix}" claims a filtered node "{name}" which is not found in the input node list'
                )
        unresolvable = dict(answer.failedandunresolvablenodes or {})
        failed = {name: reason for name, reason in (answer.failednodes or {}).items() if name not in unresolvable}
        for name in names:
            if name not in feasible and name not in failed and name not in unresolvable:
                unresolvable[name] = ""
        return FilterResult(feasible=feasible, failed=failed, unresolvable=unresolvable)

    async def prioritize(self, pod: SchedulingPod, nodes: Mapping[str, k.Node], names: Sequence[str]) -> dict[str, int]:
        """The extender's points per node, 0 to 10; no points at all where it fails, as kube-scheduler does."""
        try:
            content = await self._ask(self.config.prioritize_verb, self._arguments(pod, nodes, names))
            return {each.host: each.score for each in _decode(content, list[_Score], "prioritize")}
        except ExtenderError:
            return {}

    async def bind(self, pod: SchedulingPod, node: str) -> None:
        """Have the extender bind the pod."""
        meta = pod.metadata
        body = {"PodName": meta.name, "PodNamespace": meta.namespace, "PodUID": meta.uid, "Node": node}
        answer = _decode(await self._ask(self.config.bind_verb, body), _BindAnswer, "bind")
        if answer.error:
            raise ExtenderError(answer.error)

    async def preempt(self, pod: SchedulingPod, victims: Mapping[str, Collection[SchedulingPod]]) -> dict[str, tuple[str, ...]]:
        """Which victims, by UID, of which nodes the extender agrees to."""
        body: dict[str, Any] = {"Pod": _wire_pod(pod), "NodeNameToVictims": None, "NodeNameToMetaVictims": None}
        if self.config.node_cache_capable:
            body["NodeNameToMetaVictims"] = {
                node: {"Pods": [{"UID": victim.metadata.uid} for victim in pods], "NumPDBViolations": 0} for node, pods in victims.items()
            }
        else:
            body["NodeNameToVictims"] = {
                node: {"Pods": [_wire_pod(victim) for victim in pods], "NumPDBViolations": 0} for node, pods in victims.items()
            }
        answer = _decode(await self._ask(self.config.preempt_verb, body), _PreemptAnswer, "preempt")
        agreed = {}
        for node, entry in (answer.nodenametometavictims or {}).items():
            pods = next((value for key, value in entry.items() if key.lower() == "pods"), None) or ()
            agreed[node] = tuple(next((value for key, value in pod.items() if key.lower() == "uid"), "") for pod in pods)
        return agreed

    def _arguments(self, pod: SchedulingPod, nodes: Mapping[str, k.Node], names: Sequence[str]) -> dict[str, Any]:
        if self.config.node_cache_capable:
            return {"Pod": _wire_pod(pod), "Nodes": None, "NodeNames": list(names)}
        return {"Pod": _wire_pod(pod), "Nodes": {"metadata": {}, "items": [nodes[name] for name in names]}, "NodeNames": None}

    async def _ask(self, verb: str, body: object) -> bytes:
        return await self._transport.post(verb, msgspec.json.encode(body), timeout_seconds=self.config.timeout_seconds)


def _decode(content: bytes, type_: type[T], verb: str) -> T:
    try:
        return msgspec.convert(_lowered(msgspec.json.decode(content)), type_)
    except (msgspec.DecodeError, msgspec.ValidationError) as exc:
        raise ExtenderError(f"the extender's answer to {verb} cannot be read: {exc}") from exc


def _lowered(value: object) -> object:
    """Go reads field names without regard to case; the keys of maps inside the answer are names, and stay."""
    if isinstance(value, dict):
        return {key.lower(): inner for key, inner in value.items()}
    if isinstance(value, list):
        return [_lowered(each) for each in value]
    return value


def _wire_pod(pod: SchedulingPod) -> dict[str, Any]:
    body: dict[str, Any] = msgspec.to_builtins(pod)
    for member in ("spec", "status"):
        body.setdefault(member, {})
    for container in (*body["spec"].get("initContainers", ()), *body["spec"].get("containers", ())):
        resources = container.get("resources")
        if not resources:
            continue
        for part in ("limits", "requests"):
            if resources.get(part):
                resources[part] = {name: _canonical(amount) for name, amount in resources[part].items()}
        if resources.get("limits"):
            resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}
    return body


def _canonical(amount: k.Quantity) -> k.Quantity:
    try:
        return quantities.canonical(str(amount))
    except ValueError:
        return amount
