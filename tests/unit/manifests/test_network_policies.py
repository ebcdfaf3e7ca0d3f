"""What NetworkPolicies mean, on small ones: the judge of the manifests, and of the connections of a running installation."""

from __future__ import annotations

from typing import Any

import pytest

from tests.network_policies import Pod, allowing

SERVER = Pod("a", "server", {"app": "server"}, {"http": 80, "metrics": 90})
CLIENT = Pod("a", "client", {"app": "client"}, {})
ELSEWHERE = Pod("b", "client", {"app": "client"}, {})


def a_policy(
    name: str, *, ingress: Any = (), egress: Any = (), types: tuple[str, ...] = ("Ingress", "Egress"), **selector: Any
) -> dict[str, Any]:
    spec = {"podSelector": selector, "policyTypes": list(types), "ingress": list(ingress), "egress": list(egress)}
    return {"metadata": {"name": name, "namespace": "a"}, "spec": spec}


FROM_CLIENTS = a_policy(
    "clients",
    ingress=[{"from": [{"podSelector": {"matchLabels": {"app": "client"}}}], "ports": [{"port": "http"}]}],
    matchLabels={"app": "server"},
)
CLOSED = a_policy("closed")


@pytest.mark.parametrize(
    ("caller", "port", "protocol", "allowed"),
    [
        (CLIENT, 80, "TCP", ["clients"]),
        (CLIENT, 90, "TCP", []),
        (CLIENT, 80, "UDP", []),
        (ELSEWHERE, 80, "TCP", []),  # a peer without a namespace selector is of the policy's own namespace
        (None, 80, "TCP", []),  # no selector matches what is no pod
    ],
)
def test_a_pod_is_called_as_a_policy_allows(caller: Pod | None, port: int, protocol: str, allowed: list[str]) -> None:
    found = allowing([CLOSED, FROM_CLIENTS], "Ingress", SERVER, caller, SERVER, port, protocol)
    assert [each["metadata"]["name"] for each in found or ()] == allowed


def test_a_pod_that_no_policy_selects_is_open() -> None:
    assert allowing([FROM_CLIENTS], "Ingress", CLIENT, SERVER, CLIENT, 80) is None
    assert allowing([CLOSED], "Ingress", ELSEWHERE, SERVER, ELSEWHERE, 80) is None
    assert allowing([a_policy("in", types=("Ingress",))], "Egress", CLIENT, SERVER, SERVER, 80) is None


def test_peers_of_other_namespaces_and_rules_without_peers_are_matched() -> None:
    from_b = {"from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "b"}}}]}
    assert allowing([a_policy("b", ingress=[from_b])], "Ingress", SERVER, ELSEWHERE, SERVER, 1)
    assert not allowing([a_policy("b", ingress=[from_b])], "Ingress", SERVER, CLIENT, SERVER, 1)
    to_port = a_policy(
        "out", egress=[{"ports": [{"port": 6443}]}], matchExpressions=[{"key": "app", "operator": "NotIn", "values": ["server"]}]
    )
    assert allowing([to_port], "Egress", CLIENT, None, None, 6443)
    assert allowing([to_port], "Egress", SERVER, None, None, 6443) is None
