"""At which ports the API server listens, and which NetworkPolicies of an installation do not let pods reach it there. Pure.

Most networks judge a packet after its Service's address was replaced, so a policy has to allow the port of the endpoint, not 443 alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from hami_cli.checks import Check, ok, warning
from hami_cli.installation import Object, Ref, ref

POLICY: Final = "api-server"
"""The NetworkPolicy of the manifests, one in each namespace."""
SLICES: Final = "kubernetes.io/service-name=kubernetes"
"""Selects the EndpointSlices of the Service ``kubernetes``, in the namespace ``default``."""


def listening(slices: Iterable[Object]) -> frozenset[int]:
    """The ports in the EndpointSlices of the Service ``kubernetes``."""
    return frozenset(port["port"] for each in slices for port in each.get("ports") or () if port.get("port"))


def closed(objects: Iterable[Object], ports: frozenset[int]) -> dict[Ref, list[int]]:
    """Each policy of ``objects`` that names ports of the API server and not all of ``ports``, with those that it lacks."""
    found = {ref(each): sorted(ports - _allowed(each)) for each in objects if _names_ports(each)}
    return {policy: lacking for policy, lacking in found.items() if lacking}


def patches(objects: Iterable[Object], ports: frozenset[int]) -> list[dict[str, Any]]:
    """Kustomize's patches that add what is lacking."""
    return [_patch(policy, lacking) for policy, lacking in closed(objects, ports).items()]


def checks(objects: Iterable[Object], slices: Iterable[Object]) -> Iterator[Check]:
    """Whether the policies of an installation allow the API server's ports; nothing where one of the two is not there to be read."""
    policies, ports = [each for each in objects if _names_ports(each)], listening(slices)
    if not policies or not ports:
        return
    listens = f"the API server listens at {', '.join(map(str, sorted(ports)))}"
    lacking = closed(policies, ports)
    for policy, missing in lacking.items():
        detail = f"{policy} does not allow {', '.join(map(str, missing))}, and {listens}"
        yield warning(
            "API server's port", detail, "hami install adds it; with kubectl or Helm alone, docs/install.md has the patch and the value"
        )
    if not lacking:
        yield ok("API server's port", f"{listens}, which the NetworkPolicies allow")


def _patch(policy: Ref, ports: Iterable[int]) -> dict[str, Any]:
    added = [{"op": "add", "path": "/spec/egress/0/ports/-", "value": {"port": port, "protocol": "TCP"}} for port in ports]
    target = {"kind": policy.kind, "name": policy.name, "namespace": policy.namespace}
    return {"target": target, "patch": msgspec.json.encode(added).decode()}


def _names_ports(body: Mapping[str, Any]) -> bool:
    if body["kind"] != "NetworkPolicy" or body["metadata"]["name"] != POLICY:
        return False
    return any(rule.get("ports") for rule in body["spec"].get("egress") or ())


def _allowed(policy: Mapping[str, Any]) -> set[int]:
    return {port.get("port") for rule in policy["spec"].get("egress") or () for port in rule.get("ports") or ()}
