"""NetworkPolicies as Kubernetes means them: which of them let one pod call another at a port. Pure.

A pod that a policy selects is closed in the policy's directions but for what some policy allows. An endpoint that is no pod, as the API server, is
matched by rules without peers only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

Object = dict[str, Any]
NAMESPACE_LABEL = "kubernetes.io/metadata.name"


class Pod(NamedTuple):
    """A pod as policies see it."""

    namespace: str
    name: str
    labels: Mapping[str, str]
    ports: Mapping[str, int]
    """Of its containers, by name."""


def matches(selector: Object, labels: Mapping[str, str]) -> bool:
    """Whether a label selector matches."""
    wanted = all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())
    return wanted and all(
        {"In": True, "NotIn": False}[each["operator"]] == (labels.get(each["key"]) in each["values"])
        for each in selector.get("matchExpressions", ())
    )


def of_pod(policies: Iterable[Object], pod: Pod, direction: Literal["Ingress", "Egress"]) -> list[Object]:
    """The policies that select ``pod`` for ``Ingress`` or ``Egress``."""
    return [
        each
        for each in policies
        if each["metadata"]["namespace"] == pod.namespace
        and direction in each["spec"]["policyTypes"]
        and matches(each["spec"]["podSelector"], pod.labels)
    ]


def allowing(
    policies: Sequence[Object],
    direction: Literal["Ingress", "Egress"],
    pod: Pod,
    other: Pod | None,
    listener: Pod | None,
    port: int,
    protocol: str = "TCP",
) -> list[Object] | None:
    """Those that allow it; None where no policy closes ``pod`` in this direction.

    Args:
        policies: all that there are.
        direction: ``Ingress`` of ``pod``, or its ``Egress``.
        pod: whose policies count.
        other: the pod at the other end, None where that is no pod.
        listener: the pod that listens, for ports that are named.
        port: its port.
        protocol: of the port.
    """
    closing = of_pod(policies, pod, direction)
    if not closing:
        return None
    peers = {"Ingress": "from", "Egress": "to"}[direction]
    return [
        each
        for each in closing
        if any(
            _port_is_in(rule, listener, port, protocol) and (peers not in rule or any(_is_peer(peer, each, other) for peer in rule[peers]))
            for rule in each["spec"].get(direction.lower(), ())
        )
    ]


def _port_is_in(rule: Object, listener: Pod | None, port: int, protocol: str) -> bool:
    named = listener.ports if listener is not None else {}
    return "ports" not in rule or any(
        named.get(each["port"], each["port"]) == port and each.get("protocol", "TCP") == protocol for each in rule["ports"]
    )


def _is_peer(peer: Object, policy: Object, pod: Pod | None) -> bool:
    """A peer without a namespace selector means the policy's own namespace."""
    if pod is None:
        return False
    if "namespaceSelector" in peer:
        there = matches(peer["namespaceSelector"], {NAMESPACE_LABEL: pod.namespace})
    else:
        there = pod.namespace == policy["metadata"]["namespace"]
    return there and matches(peer.get("podSelector", {}), pod.labels)
