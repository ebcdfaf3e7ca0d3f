"""Volcano's extender plugin on the wire: /volcano/predicate and /volcano/prioritize. Pure; decides nothing about pods or nodes.

Volcano posts its own structures (``TaskInfo`` with the pod, ``NodeInfo`` with all it knows of a node); only the pod and the nodes' names are read. A
predicate that answers a text refuses, with kube-scheduler's status codes. Scores are added to Volcano's own, whose plugins give 0 to 100 each.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from hami_protocol import kubernetes as k
from hami_scheduler.wire import WireError

T = TypeVar("T")

UNSCHEDULABLE: Final = 2
UNRESOLVABLE: Final = 3
"""Evicting others does not help."""
ERROR: Final = 1
POINTS: Final = 10
"""Of Volcano's for one of ours: 0 to 100."""


class _Task(Struct, frozen=True, kw_only=True, rename="pascal"):
    pod: k.Pod | None = None


class _Node(Struct, frozen=True, kw_only=True, rename="pascal"):
    name: str = ""


class _Predicate(Struct, frozen=True, kw_only=True):
    task: _Task | None = None
    node: _Node | None = None


class _Prioritize(Struct, frozen=True, kw_only=True):
    task: _Task | None = None
    nodes: tuple[_Node, ...] | None = None


class _PredicateAnswer(Struct, frozen=True, kw_only=True):
    status: str
    """Why the node does not do; empty where it does."""
    code: int


class _PrioritizeAnswer(Struct, frozen=True, kw_only=True, rename="camel"):
    node_score: dict[str, float]
    error_message: str = ""


class Question(Struct, frozen=True, kw_only=True):
    """About which pod, and which nodes."""

    pod: k.Pod
    nodes: tuple[str, ...]


_PREDICATE: Final = msgspec.json.Decoder(_Predicate)
_PRIORITIZE: Final = msgspec.json.Decoder(_Prioritize)


def decode_predicate(body: bytes) -> Question:
    """The predicate request in ``body``.

    Raises:
        WireError: it cannot be read, or names no pod or no node.
    """
    found = _decoded(_PREDICATE, body)
    name = found.node.name if found.node else ""
    return _question(found.task, (name,) if name else ())


def decode_prioritize(body: bytes) -> Question:
    """The prioritize request in ``body``.

    Raises:
        WireError: it cannot be read, or names no pod or no node.
    """
    found = _decoded(_PRIORITIZE, body)
    return _question(found.task, tuple(node.name for node in found.nodes or () if node.name))


def _question(task: _Task | None, nodes: tuple[str, ...]) -> Question:
    if task is None or task.pod is None:
        raise WireError("task.Pod: missing from the request")
    if not nodes:
        raise WireError("node.Name: missing from the request")
    return Question(pod=task.pod, nodes=nodes)


def _decoded(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise WireError(f"the request cannot be read: {exc}") from exc


def encode_predicate(reason: str, code: int) -> bytes:
    """The body of a predicate answer; an empty ``reason`` says that the node does."""
    return msgspec.json.encode(_PredicateAnswer(status=reason, code=code if reason else 0))


def encode_scores(scores: dict[str, int], error: str = "") -> bytes:
    """The body of a prioritize answer, from our 0 to 10."""
    return msgspec.json.encode(
        _PrioritizeAnswer(node_score={node: float(score * POINTS) for node, score in scores.items()}, error_message=error)
    )
