"""The extender's wire (kube-scheduler's extender v1): request bodies in, answer bodies out. Pure; decides nothing about pods or nodes.

Requests come with Go's field names; any other case of them is read too, on a slower path. An answer always has every key. What cannot be read
raises ``WireError``, whose text goes into the answer's ``Error``; no body, however long or deep, raises anything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from hami_protocol import kubernetes as k

T = TypeVar("T")


class WireError(ValueError):
    """A request that cannot be read; the text says what is wrong with it."""


class _Go(Struct, frozen=True, kw_only=True, rename="pascal"):
    """Fields are named as Go's structs without tags are: ``NodeNames``."""


class NodeItems(Struct, frozen=True, kw_only=True):
    """A NodeList whose items stay as they came, so that they can be answered unchanged."""

    items: tuple[Raw, ...] | None = None


class ExtenderArgs(Struct, frozen=True, kw_only=True):
    """Body of filter and prioritize. ``nodes`` and ``node_names`` are two forms of the candidates; at most one is set."""

    pod: k.Pod | None = None
    nodes: NodeItems | None = None
    node_names: list[str] | None = None


class _ArgsOnWire(_Go, frozen=True, kw_only=True):
    pod: k.Pod | UnsetType | None = UNSET
    nodes: NodeItems | UnsetType | None = UNSET
    node_names: list[str] | UnsetType | None = UNSET


class BindingArgs(_Go, frozen=True, kw_only=True):
    """Body of bind."""

    pod_name: str = ""
    pod_namespace: str = ""
    pod_uid: str = field(default="", name="PodUID")
    node: str = ""


class MetaPod(_Go, frozen=True, kw_only=True):
    """A victim, by its UID."""

    uid: str = field(default="", name="UID")


class MetaVictims(_Go, frozen=True, kw_only=True):
    """The victims on one node."""

    pods: tuple[MetaPod, ...] | None = None
    num_pdb_violations: int = field(default=0, name="NumPDBViolations")


class Victims(_Go, frozen=True, kw_only=True):
    """The victims on one node, as whole pods."""

    pods: tuple[k.Pod, ...] | None = None
    num_pdb_violations: int = field(default=0, name="NumPDBViolations")


class PreemptionArgs(_Go, frozen=True, kw_only=True):
    """Body of preempt: kube-scheduler's candidate nodes with the victims that it would evict there."""

    pod: k.Pod | None = None
    node_name_to_victims: dict[str, Victims] | None = None
    node_name_to_meta_victims: dict[str, MetaVictims] | None = None


class FilterAnswer(Struct, frozen=True, kw_only=True):
    """What filter decided. ``nodes`` are full Node objects, answered only where full objects were asked about."""

    node_names: Sequence[str] | None = None
    nodes: Sequence[Raw] | None = None
    failed: Mapping[str, str] | None = None
    unresolvable: Mapping[str, str] | None = None
    error: str = ""


class HostPriority(_Go, frozen=True, kw_only=True):
    """How much one node is preferred, 0 to 10."""

    host: str
    score: int


class _FilterResult(_Go, frozen=True, kw_only=True):
    nodes: dict[str, Any] | None
    node_names: Sequence[str] | None
    failed_nodes: Mapping[str, str] | None
    failed_and_unresolvable_nodes: Mapping[str, str] | None
    error: str


class _BindingResult(_Go, frozen=True, kw_only=True):
    error: str


class _PreemptionResult(_Go, frozen=True, kw_only=True):
    node_name_to_meta_victims: dict[str, MetaVictims]


_ARGS: Final = msgspec.json.Decoder(_ArgsOnWire)
_BINDING: Final = msgspec.json.Decoder(BindingArgs)
_PREEMPTION: Final = msgspec.json.Decoder(PreemptionArgs)
_KEYS: Final = msgspec.json.Decoder(dict[str, Raw])
_NODE: Final = msgspec.json.Decoder(k.Node)
_ENCODER: Final = msgspec.json.Encoder()

_ARGS_NAMES: Final = ("Pod", "Nodes", "NodeNames")
_BINDING_NAMES: Final = ("PodName", "PodNamespace", "PodUID", "Node")
_PREEMPTION_NAMES: Final = ("Pod", "NodeNameToVictims", "NodeNameToMetaVictims")


def decode_args(body: bytes) -> ExtenderArgs:
    """The filter or prioritize request in ``body``.

    Raises:
        WireError: it cannot be read.
    """
    args = _decoded(_ARGS, body)
    if args.pod is UNSET or (args.nodes is UNSET and args.node_names is UNSET):  # not Go's names, or nothing there
        args = _decoded(_ARGS, _with_go_names(body, _ARGS_NAMES))
    return ExtenderArgs(
        pod=None if args.pod is UNSET else args.pod,
        nodes=None if args.nodes is UNSET else args.nodes,
        node_names=None if args.node_names is UNSET else args.node_names,
    )


def decode_binding(body: bytes) -> BindingArgs:
    """The bind request in ``body``.

    Raises:
        WireError: it cannot be read, or does not say which pod goes where.
    """
    args = _decoded(_BINDING, body)
    if not args.pod_name:
        args = _decoded(_BINDING, _with_go_names(body, _BINDING_NAMES))
    for name, value in zip(_BINDING_NAMES, (args.pod_name, args.pod_namespace, args.pod_uid, args.node), strict=True):
        if not value:
            raise WireError(f"{name}: missing from the binding")
    return args


def decode_preemption(body: bytes) -> PreemptionArgs:
    """The preempt request in ``body``.

    Raises:
        WireError: it cannot be read.
    """
    args = _decoded(_PREEMPTION, body)
    if args.pod is None:
        args = _decoded(_PREEMPTION, _with_go_names(body, _PREEMPTION_NAMES))
    return args


def decode_node(item: Raw) -> k.Node:
    """The Node object in ``item``.

    Raises:
        WireError: it is none.
    """
    return _decoded(_NODE, bytes(item))


def encode_filter(answer: FilterAnswer) -> bytes:
    """The body that carries ``answer``."""
    return _ENCODER.encode(
        _FilterResult(
            nodes=None if answer.nodes is None else {"metadata": {}, "items": list(answer.nodes)},
            node_names=answer.node_names,
            failed_nodes=answer.failed,
            failed_and_unresolvable_nodes=answer.unresolvable,
            error=answer.error,
        )
    )


def encode_priorities(scores: Sequence[HostPriority]) -> bytes:
    """The body of a prioritize answer."""
    return _ENCODER.encode(scores)


def encode_binding(error: str) -> bytes:
    """The body of a bind answer; an empty ``error`` says that the pod is bound."""
    return _ENCODER.encode(_BindingResult(error=error))


def encode_preemption(victims: dict[str, MetaVictims]) -> bytes:
    """The body of a preempt answer: the nodes that stay candidates."""
    return _ENCODER.encode(_PreemptionResult(node_name_to_meta_victims=victims))


def unchanged(args: PreemptionArgs) -> dict[str, MetaVictims]:
    """kube-scheduler's own candidates as the answer says them: whole pods become their UIDs."""
    if args.node_name_to_meta_victims is not None:
        return args.node_name_to_meta_victims
    return {
        node: MetaVictims(
            pods=tuple(MetaPod(uid=pod.metadata.uid) for pod in victims.pods or ()), num_pdb_violations=victims.num_pdb_violations
        )
        for node, victims in (args.node_name_to_victims or {}).items()
    }


def _decoded(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    if not body:
        raise WireError("the request has no body")
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:  # msgspec lets the latter out for names that are not UTF-8
        raise WireError(f"the request cannot be read: {exc}") from exc
    except RecursionError as exc:
        raise WireError("the request cannot be read: it is nested too deeply") from exc


def _with_go_names(body: bytes, names: Sequence[str]) -> bytes:
    """``body`` with its top-level keys in Go's spelling, whatever their case; a key that is there twice keeps its last value, as in Go."""
    spelling = {name.lower(): name for name in names}
    return _ENCODER.encode({spelling.get(key.lower(), key): value for key, value in _decoded(_KEYS, body).items()})
