"""What the controller manager would do next: pods for ReplicaSets and Jobs, ReplicaSets for Deployments, counts for disruption budgets. Pure.

A decision looks at one owner and what it owns, and returns commands; carrying them out twice changes nothing. Far simpler than the real ones: a
Deployment replaces its pods at once, a Job knows completions, parallelism and its limit of failures.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from hami_runtime.kube.store_objects import Object, timestamp
from hami_runtime.kube.store_resources import DEPLOYMENTS, JOBS, POD_DISRUPTION_BUDGETS, PODS, REPLICA_SETS, Resource
from hami_runtime.kube.store_selectors import label_selector_matches

__all__ = [
    "Command",
    "Create",
    "Delete",
    "Patch",
    "budget_commands",
    "deployment_commands",
    "is_active",
    "job_commands",
    "owner_uid",
    "replica_set_commands",
]

_HASH_LABEL = "pod-template-hash"
_BACKOFF_LIMIT = 6
_Body = Mapping[str, Any]


class Create(Struct, frozen=True):
    """Create an object that ``owner`` owns."""

    resource: Resource
    body: Object
    owner: _Body


class Delete(Struct, frozen=True):
    """Delete an object."""

    resource: Resource
    body: _Body


class Patch(Struct, frozen=True):
    """Merge-patch an object, or its status."""

    resource: Resource
    body: _Body
    patch: Object
    subresource: str = ""


Command = Create | Delete | Patch


def owner_uid(body: _Body) -> str | None:
    """The uid of the controller that owns an object, if one does."""
    references = body["metadata"].get("ownerReferences") or ()
    return next((each["uid"] for each in references if each.get("controller")), None)


def is_active(pod: _Body) -> bool:
    """Whether a pod counts as one of its owner's replicas."""
    return not pod["metadata"].get("deletionTimestamp") and _phase(pod) not in ("Succeeded", "Failed")


def replica_set_commands(replica_set: _Body, pods: Sequence[_Body]) -> list[Command]:
    """Bring the number of active pods to what is wanted; the youngest and least ready go first."""
    spec = replica_set["spec"]
    wanted = spec.get("replicas", 1)
    active = sorted(filter(is_active, pods), key=lambda pod: (_is_ready(pod), pod["metadata"]["name"]))
    ready = sum(map(_is_ready, active))
    commands: list[Command] = [Create(PODS, _pod_of(replica_set, spec["template"]), replica_set) for _ in range(wanted - len(active))]
    commands += [Delete(PODS, pod) for pod in active[: max(0, len(active) - wanted)]]
    counts = {"replicas": len(active), "fullyLabeledReplicas": len(active), "readyReplicas": ready, "availableReplicas": ready}
    return [*commands, _status(REPLICA_SETS, replica_set, _observed(replica_set, counts))]


def deployment_commands(deployment: _Body, replica_sets: Sequence[_Body]) -> list[Command]:
    """Keep one ReplicaSet for the present template at the wanted size, and the others at none."""
    spec, name = deployment["spec"], deployment["metadata"]["name"]
    wanted = spec.get("replicas", 1)
    digest = hashlib.sha256(msgspec.json.encode(spec["template"], order="deterministic")).hexdigest()[:10]
    current = next((each for each in replica_sets if each["metadata"]["name"] == f"{name}-{digest}"), None)
    commands: list[Command] = []
    if current is None:
        commands.append(Create(REPLICA_SETS, _replica_set_of(deployment, digest), deployment))
    for each in replica_sets:
        size = wanted if each is current else 0
        if each["spec"].get("replicas", 1) != size:
            commands.append(Patch(REPLICA_SETS, each, {"spec": {"replicas": size}}))
    status = (current or {}).get("status") or {}
    ready, updated = status.get("readyReplicas", 0), status.get("replicas", 0)
    total = sum((each.get("status") or {}).get("replicas", 0) for each in replica_sets)
    counts = {
        "replicas": total,
        "updatedReplicas": updated,
        "readyReplicas": ready,
        "availableReplicas": ready,
        "unavailableReplicas": max(0, wanted - ready),
    }
    available = {"type": "Available", "status": "True" if ready >= wanted else "False", "reason": "MinimumReplicas"}
    progressing = {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}
    return [*commands, _status(DEPLOYMENTS, deployment, {**_observed(deployment, counts), "conditions": [available, progressing]})]


def job_commands(job: _Body, pods: Sequence[_Body], now: datetime) -> list[Command]:
    """Keep as many pods running as may and need to, until enough have succeeded or too many have failed."""
    spec, before = job["spec"], job.get("status") or {}
    if any(each["type"] in ("Complete", "Failed") for each in before.get("conditions") or ()):
        return []
    active = [pod for pod in pods if is_active(pod)]
    succeeded, failed = (sum(1 for pod in pods if _phase(pod) == phase) for phase in ("Succeeded", "Failed"))
    completions = spec.get("completions", 1)
    status: Object = {"startTime": before.get("startTime") or timestamp(now), "succeeded": succeeded, "failed": failed}
    if succeeded >= completions or failed > spec.get("backoffLimit", _BACKOFF_LIMIT):
        over = "Complete" if succeeded >= completions else "Failed"
        status |= {"active": 0, "conditions": [{"type": over, "status": "True", "lastTransitionTime": timestamp(now)}]}
        if over == "Complete":
            status["completionTime"] = timestamp(now)
        return [*(Delete(PODS, pod) for pod in active), _status(JOBS, job, status)]
    missing = min(spec.get("parallelism", 1), completions - succeeded) - len(active)
    labels = {"job-name": job["metadata"]["name"], "batch.kubernetes.io/job-name": job["metadata"]["name"]}
    commands: list[Command] = [Create(PODS, _pod_of(job, spec["template"], labels), job) for _ in range(missing)]
    return [*commands, _status(JOBS, job, {**status, "active": len(active), "ready": sum(map(_is_ready, active))})]


def budget_commands(budget: _Body, pods: Iterable[_Body]) -> list[Command]:
    """Count how many of the budget's pods are healthy, and how many of them may go."""
    spec = budget.get("spec") or {}
    expected = [pod for pod in pods if is_active(pod) and label_selector_matches(spec.get("selector"), pod["metadata"].get("labels") or {})]
    healthy = sum(map(_is_ready, expected))
    if "maxUnavailable" in spec:
        desired = len(expected) - _share(spec["maxUnavailable"], len(expected))
    else:
        desired = _share(spec.get("minAvailable", 1), len(expected))
    counts = {
        "expectedPods": len(expected),
        "currentHealthy": healthy,
        "desiredHealthy": max(0, desired),
        "disruptionsAllowed": max(0, healthy - desired) if expected else 0,
    }
    return [_status(POD_DISRUPTION_BUDGETS, budget, _observed(budget, counts))]


def _share(bound: Any, of: int) -> int:
    """A number of pods that is given as such or as a percentage, rounded up."""
    if isinstance(bound, int):
        return bound
    percent = str(bound).removesuffix("%")
    return -(-of * int(percent) // 100) if percent.isdigit() and len(percent) < 4 else of


def _status(resource: Resource, body: _Body, status: Object) -> Patch:
    return Patch(resource, body, {"status": status}, "status")


def _observed(body: _Body, counts: Object) -> Object:
    return {**counts, "observedGeneration": body["metadata"].get("generation", 1)}


def _phase(pod: _Body) -> str:
    phase: str = (pod.get("status") or {}).get("phase", "")
    return phase


def _is_ready(pod: _Body) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _owned_by(owner: _Body) -> list[Object]:
    metadata = owner["metadata"]
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": metadata["name"], "uid": metadata["uid"]}
    return [{**reference, "controller": True, "blockOwnerDeletion": True}]


def _pod_of(owner: _Body, template: _Body, labels: Mapping[str, str] | None = None) -> Object:
    given = template.get("metadata") or {}
    metadata: Object = {
        "generateName": f"{owner['metadata']['name']}-",
        "labels": {**(given.get("labels") or {}), **(labels or {})},
        "annotations": given.get("annotations") or {},
        "ownerReferences": _owned_by(owner),
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def _replica_set_of(deployment: _Body, digest: str) -> Object:
    spec, template = deployment["spec"], deployment["spec"]["template"]
    own = {_HASH_LABEL: digest}
    given = template.get("metadata") or {}
    labels = {**(given.get("labels") or {}), **own}
    selector = spec.get("selector") or {}
    return {
        "apiVersion": REPLICA_SETS.group_version,
        "kind": REPLICA_SETS.kind,
        "metadata": {"name": f"{deployment['metadata']['name']}-{digest}", "labels": labels, "ownerReferences": _owned_by(deployment)},
        "spec": {
            "replicas": spec.get("replicas", 1),
            "selector": {**selector, "matchLabels": {**(selector.get("matchLabels") or {}), **own}},
            "template": {**template, "metadata": {**given, "labels": labels}},
        },
    }
