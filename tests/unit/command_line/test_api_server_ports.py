"""The API server's own port, and the NetworkPolicies that have to allow it."""

from __future__ import annotations

import json
from typing import Any

from hami_cli import api_server_ports
from hami_cli.checks import Outcome
from hami_cli.installation import Ref

SLICES: list[dict[str, Any]] = [{"ports": [{"name": "https", "port": 7443, "protocol": "TCP"}]}, {"ports": None}]


def a_policy(*ports: int, name: str = "api-server", namespace: str = "hami-system") -> dict[str, Any]:
    egress: list[dict[str, Any]] = [{"ports": [{"port": port, "protocol": "TCP"} for port in ports]}] if ports else [{}]
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": {"egress": egress}}


def test_ports_are_those_of_the_endpoints() -> None:
    assert api_server_ports.listening(SLICES) == {7443}
    assert api_server_ports.listening([]) == frozenset()


def test_a_policy_gets_the_ports_that_it_lacks_and_no_others() -> None:
    closed, open_, dns = a_policy(443, 6443), a_policy(443, 7443, namespace="hami-node-agent"), a_policy(53, name="dns")
    assert api_server_ports.closed([closed, open_, dns], frozenset({7443})) == {
        Ref("networking.k8s.io", "NetworkPolicy", "hami-system", "api-server"): [7443]
    }
    (patch,) = api_server_ports.patches([closed, open_, dns], frozenset({7443}))
    assert patch["target"] == {"kind": "NetworkPolicy", "name": "api-server", "namespace": "hami-system"}
    assert json.loads(patch["patch"]) == [{"op": "add", "path": "/spec/egress/0/ports/-", "value": {"port": 7443, "protocol": "TCP"}}]
    assert api_server_ports.patches([closed, open_, dns], frozenset()) == []


def test_a_policy_that_allows_every_port_needs_none() -> None:
    assert api_server_ports.patches([a_policy()], frozenset({7443})) == []


def test_doctor_names_the_policy_and_the_port() -> None:
    (found,) = api_server_ports.checks([a_policy(443, 6443)], SLICES)
    assert found.outcome is Outcome.WARNING
    assert "NetworkPolicy hami-system/api-server does not allow 7443" in found.detail
    (found,) = api_server_ports.checks([a_policy(443, 7443)], SLICES)
    assert found.outcome is Outcome.OK
    assert list(api_server_ports.checks([], SLICES)) == list(api_server_ports.checks([a_policy(443)], [])) == []
