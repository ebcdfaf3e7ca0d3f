"""Every connection of a cluster's pods, as the kernel tracks them, and which NetworkPolicies allow each.

A connection that is refused is in no table of the kernel; ``refusals`` counts those that enforcement has answered.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

from hami_runtime.kube.kubectl import program as kubectl_program
from tests.install.harness.cluster import Cluster
from tests.install.harness.machine import run
from tests.network_policies import Pod, allowing

CONNECTIONS: Final = "conntrack"
PODS: Final = "pods"
DNS: Final = "53"
"""The port that answers of DNS come from: one that comes late is no longer tracked, and looks like a connection."""
_EVENT: Final = re.compile(
    r"\[NEW\] (?P<protocol>\w+) .*?src=(?P<source>\S+) dst=\S+ sport=(?P<from>\d+) .*?src=(?P<target>\S+) dst=\S+ sport=(?P<port>\d+)",
)
"""The second half of a line is the way back: its source is who was reached, behind a Service's address."""


class Connection(NamedTuple):
    """Who called whom, where; None is no pod: the node, or the API server."""

    source: Pod | None
    target: Pod | None
    protocol: str
    port: int

    def __str__(self) -> str:
        """For people."""
        source, target = (f"{pod.namespace}/{pod.name}" if pod else "the node" for pod in (self.source, self.target))
        return f"{source} -> {target}:{self.port}/{self.protocol}"


class Traffic:
    """What happens on a cluster's network from now on."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        machine = cluster.machine
        machine.spawn(CONNECTIONS, "conntrack", "--event", "--event-mask", "NEW")
        watch = (kubectl_program(), "--kubeconfig", cluster.kubeconfig, "get", "pods", "--all-namespaces", "--watch", "--output", "json")
        machine.spawn(PODS, *watch)

    def connections(self) -> set[Connection]:
        """Those that were made so far, of pods of ours."""
        pods = {address: pod for pod, address in self._pods()}
        text = (self._cluster.machine.logs / CONNECTIONS).read_text(errors="replace")
        found = {
            Connection(pods.get(event["source"]), pods.get(event["target"]), event["protocol"], int(event["port"]))
            for event in _EVENT.finditer(text)
            if (event["protocol"], event["from"]) != ("udp", DNS)
        }
        return {each for each in found if any(pod is not None and pod.namespace.startswith("hami-") for pod in each[:2])}

    def refusals(self) -> int:
        """How many packets were answered with an ICMP error, since the machine was started."""
        counters = run(self._cluster.machine.on_node("cat", "/proc/net/snmp"))
        names, values = (line.split()[1:] for line in counters.splitlines() if line.startswith("Icmp:"))
        return int(dict(zip(names, values, strict=True))["OutDestUnreachs"])

    def _pods(self) -> Iterator[tuple[Pod, str]]:
        """Every pod that there was, with its address: addresses are not given twice in so short a time."""
        decoder, at = json.JSONDecoder(), 0
        text = (self._cluster.machine.logs / PODS).read_text(errors="replace")
        while at < len(text):
            try:
                body, at = decoder.raw_decode(text, at)
            except json.JSONDecodeError:
                return  # it is still being written
            at += len(text[at:]) - len(text[at:].lstrip())
            if (address := body.get("status", {}).get("podIP")) and not body["spec"].get("hostNetwork"):
                yield a_pod(body), address


def a_pod(body: dict[str, Any]) -> Pod:
    """A pod as policies see it."""
    ports = {port["name"]: port["containerPort"] for each in body["spec"]["containers"] for port in each.get("ports", ()) if "name" in port}
    metadata = body["metadata"]
    return Pod(metadata["namespace"], metadata["name"], _Labels(metadata.get("labels", {})), _Labels(ports))


class _Labels(dict[str, Any]):
    """A dictionary that nobody changes, so that it may be in a set."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


def judge(connections: set[Connection], policies: list[dict[str, Any]]) -> tuple[list[str], set[str]]:
    """Connections that no policy allows, and the policies that allowed one, each as ``namespace/name``.

    What the node itself opens to its pods, kubelet's probes and the API server's calls, is allowed by every network's implementation.
    """
    unexplained, used = [], set()
    for each in sorted(connections, key=str):
        sides: tuple[tuple[Literal["Egress", "Ingress"], Pod | None, Pod | None], ...]
        sides = (("Egress", each.source, each.target), ("Ingress", each.target, each.source))
        for direction, pod, other in sides:
            if pod is None:
                continue
            allowed = allowing(policies, direction, pod, other, each.target, each.port, each.protocol.upper())
            if allowed == [] and not (direction == "Ingress" and other is None):
                unexplained.append(f"{each}: {direction.lower()}")
            used |= {f"{policy['metadata']['namespace']}/{policy['metadata']['name']}" for policy in allowed or ()}
    return unexplained, used
