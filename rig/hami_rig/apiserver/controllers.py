"""What the controller manager would do next: pods for ReplicaSets, counts for disruption budgets. Pure.

A decision looks at one object and at pods, and returns commands; carrying them out twice changes nothing. Other workloads are not served here.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from hami_runtime.kube.store_objects import Object
from hami_runtime.kube.store_resources import POD_DISRUPTION_BUDGETS, REPLICA_SETS, Resource
from hami_runtime.kube.store_selectors import label_selector_matches

__all__ = ["Command", "Create", "Delete", "Report", "budget_report", "is_active", "owner_uid", "replica_set_commands"]

_Body = Mapping[str, Any]


class Create(Struct, frozen=True):
    """Create a pod that ``owner`` owns."""

    body: Object
    owner: _Body


class Delete(Struct, frozen=True):
    """Delete a pod."""

    body: _Body


class Report(Struct, frozen=True):
    """Write the status of an object."""

    resource: Resource
    body: _Body
    status: Object


Command = Create | Delete | Report


def owner_uid(pod: _Body) -> str | None:
    """The uid of the ReplicaSet that owns a pod, if one does."""
    references = pod["metadata"].get("ownerReferences") or ()
    return next((each["uid"] for each in references if each.get("controller") and each.get("kind") == REPLICA_SETS.kind), None)


def is_active(pod: _Body) -> bool:
    """Whether a pod counts as one of its owner's replicas."""
    return not pod["metadata"].get("deletionTimestamp") and _phase(pod) not in ("Succeeded", "Failed")


def replica_set_commands(replica_set: _Body, pods: Sequence[_Body]) -> list[Command]:
    """Bring the number of active pods to what is wanted; the youngest and least ready go first."""
    spec = replica_set["spec"]
    wanted = spec.get("replicas", 1)
    active = sorted(filter(is_active, pods), key=lambda pod: (_is_ready(pod), pod["metadata"]["name"]))
    ready = sum(map(_is_ready, active))
    commands: list[Command] = [Create(_pod_of(replica_set, spec["template"]), replica_set) for _ in range(wanted - len(active))]
    commands += [Delete(pod) for pod in active[: max(0, len(active) - wanted)]]
    counts = {"replicas": len(active), "fullyLabeledReplicas": len(active), "readyReplicas": ready, "availableReplicas": ready}
    return [*commands, _report(REPLICA_SETS, replica_set, counts)]


def budget_report(budget: _Body, pods: Iterable[_Body]) -> Report:
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
    return _report(POD_DISRUPTION_BUDGETS, budget, counts)


def _share(bound: Any, of: int) -> int:
    """A number of pods that is given as such or as a percentage, rounded up."""
    if isinstance(bound, int):
        return bound
    percent = str(bound).removesuffix("%")
    return -(-of * int(percent) // 100) if percent.isdigit() and len(percent) < 4 else of


def _report(resource: Resource, body: _Body, counts: Object) -> Report:
    return Report(resource, body, {**counts, "observedGeneration": body["metadata"].get("generation", 1)})


def _phase(pod: _Body) -> str:
    phase: str = (pod.get("status") or {}).get("phase", "")
    return phase


def _is_ready(pod: _Body) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _pod_of(owner: _Body, template: _Body) -> Object:
    given, own = template.get("metadata") or {}, owner["metadata"]
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": own["name"], "uid": own["uid"]}
    metadata: Object = {
        "generateName": f"{own['name']}-",
        "labels": given.get("labels") or {},
        "annotations": given.get("annotations") or {},
        "ownerReferences": [{**reference, "controller": True, "blockOwnerDeletion": True}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
