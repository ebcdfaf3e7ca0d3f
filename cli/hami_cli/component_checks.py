"""What ``hami doctor`` finds of an installation's workloads and pods: that each runs, and kube-scheduler's version. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from hami_cli import prerequisites, readiness
from hami_cli.checks import Check, failed, ok, warning
from hami_cli.installation import Object, ref

SKEW: Final = 1
"""How many minor versions kube-scheduler may be older than the API server; it may never be newer."""


def pods(workloads: Iterable[Object], found: Sequence[Object], events: Sequence[Object]) -> Iterator[Check]:
    """Whether all pods of an installation are ready. Nothing is said of an installation that has none: a rig's services are processes."""
    live = [each for each in found if not _is_over(each)]
    not_ready = [(each, reason) for each in live if (reason := readiness.why(each, events))]
    for pod, reason in not_ready:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        yield failed(
            f"pod {name}", reason, f"kubectl -n {namespace} describe pod {name}, and kubectl -n {namespace} logs {name} --previous"
        )
    lacking = False
    for body in workloads:
        where = ref(body)
        if _pods_wanted(body) and not any(_belongs(pod, body) for pod in live):
            lacking = True
            detail = readiness.workload(where, body, events) or "it has no pods"
            yield failed(str(where), detail, f"kubectl -n {where.namespace} describe {where.resource}")
    if live and not not_ready and not lacking:
        yield ok("pods", f"{len(live)} of {len(live)} are ready")


def kube_scheduler(workloads: Iterable[Object], server_version: str) -> Iterator[Check]:
    """Whether kube-scheduler is of a version that the API server's allows."""
    server = prerequisites.version(server_version)
    for body in workloads:
        for container in body["spec"]["template"]["spec"]["containers"]:
            found = prerequisites.version(container["image"].rpartition(":")[2]) if container["name"] == "kube-scheduler" else None
            if not found or not server:
                continue
            text = f"{found[0]}.{found[1]}, and the API server's is {server[0]}.{server[1]}"
            if found > server or server[1] - found[1] > SKEW:
                remedy = "hami install takes the cluster's own; an overlay of your own names it in images"
                yield warning("kube-scheduler version", f"it is {text}: Kubernetes does not support the two together", remedy)
            else:
                yield ok("kube-scheduler version", f"it is {text}")


def _is_over(pod: Object) -> bool:
    """Whether a pod has ended or is being deleted: its controller has made another, or will."""
    return bool(pod["metadata"].get("deletionTimestamp")) or (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}


def _pods_wanted(body: Object) -> bool:
    if body["kind"] == "DaemonSet":
        return bool((body.get("status") or {}).get("desiredNumberScheduled"))
    return bool(body["spec"].get("replicas", 1))


def _belongs(pod: Object, body: Object) -> bool:
    labels = pod["metadata"].get("labels") or {}
    selector = body["spec"]["selector"]["matchLabels"]
    return bool(pod["metadata"].get("namespace") == body["metadata"].get("namespace") and selector.items() <= labels.items())
