"""What happens to a pod through its subresources: a Binding takes it to a node, an eviction asks its disruption budgets. Pure.

Invariants: a pod is bound once, and what the Binding carries arrives in the same write; an eviction never takes a budget below zero.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from hami_runtime.kube.store_errors import ApiError
from hami_runtime.kube.store_objects import Object, timestamp, with_metadata
from hami_runtime.kube.store_resources import POD_DISRUPTION_BUDGETS, PODS
from hami_runtime.kube.store_selectors import label_selector_matches

__all__ = ["bound", "budgets_of", "charged_budget", "deletion_grace_seconds", "evicting", "with_condition"]

_TERMINAL = ("Succeeded", "Failed")


def bound(pod: Mapping[str, Any], binding: Mapping[str, Any], now: datetime) -> Object:
    """Return the pod as the Binding leaves it.

    Raises:
        ApiError: 409 if the pod is bound, being deleted or gated; 500 if the Binding names no node.
    """
    metadata = binding.get("metadata") or {}
    target = binding.get("target") or {}
    name = pod["metadata"]["name"]
    if target.get("kind") not in (None, "", "Node"):
        raise ApiError(500, "", f'target.kind: Unsupported value: "{target["kind"]}": supported values: "Node", "<empty>"')
    if not target.get("name"):
        raise ApiError(500, "", "target.name: Required value")
    if refusal := _unbindable(pod):
        raise ApiError.conflict(PODS, name, refusal, subresource="binding")
    carried = {key: {**(pod["metadata"].get(key) or {}), **metadata[key]} for key in ("annotations", "labels") if metadata.get(key)}
    assigned = {**with_metadata(pod, **carried), "spec": {**pod["spec"], "nodeName": target["name"]}}
    return with_condition(assigned, {"type": "PodScheduled", "status": "True"}, now)


def _unbindable(pod: Mapping[str, Any]) -> str | None:
    name, spec = pod["metadata"]["name"], pod["spec"]
    if pod["metadata"].get("deletionTimestamp"):
        return f"pod {name} is being deleted, cannot be assigned to a host"
    if spec.get("nodeName"):
        return f'pod {name} is already assigned to node "{spec["nodeName"]}"'
    if spec.get("schedulingGates"):
        return f"pod {name} has non-empty .spec.schedulingGates"
    return None


def with_condition(pod: Mapping[str, Any], condition: Mapping[str, Any], now: datetime) -> Object:
    """Return the pod with the condition in its status; the time of its last transition moves only when its status does."""
    status = pod.get("status") or {}
    conditions: list[Object] = list(status.get("conditions") or ())
    index = next((i for i, each in enumerate(conditions) if each["type"] == condition["type"]), len(conditions))
    before = conditions[index] if index < len(conditions) else {}
    since = before["lastTransitionTime"] if before.get("status") == condition["status"] else timestamp(now)
    conditions[index : index + 1] = [{"lastProbeTime": None, **condition, "lastTransitionTime": since}]
    return {**pod, "status": {**status, "conditions": conditions}}


def deletion_grace_seconds(pod: Mapping[str, Any], asked_seconds: int | None) -> int:
    """How long a pod may take to end: nothing if no kubelet has it or it has ended, else what was asked, else what it wants."""
    if not pod["spec"].get("nodeName") or (pod.get("status") or {}).get("phase") in _TERMINAL:
        return 0
    seconds: int = pod["spec"].get("terminationGracePeriodSeconds", 30) if asked_seconds is None else asked_seconds
    return seconds if seconds >= 0 else 1


def budgets_of(pod: Mapping[str, Any], budgets: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the budgets that an eviction of the pod is charged to; none for a pod that runs no longer or not yet."""
    if (pod.get("status") or {}).get("phase") in (*_TERMINAL, "Pending") or pod["metadata"].get("deletionTimestamp"):
        return []
    labels = pod["metadata"].get("labels") or {}
    return [each for each in budgets if label_selector_matches((each.get("spec") or {}).get("selector"), labels)]


def charged_budget(budget: Mapping[str, Any], pod: Mapping[str, Any], now: datetime) -> Object:
    """Return the budget after the pod's eviction; unchanged if the pod is not ready and the budget has enough that are.

    Raises:
        ApiError: 429 if the budget allows no disruption, or has not been counted yet.
    """
    name, status = budget["metadata"]["name"], budget.get("status") or {}
    healthy, needed = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
    if not _is_ready(pod):
        policy = (budget.get("spec") or {}).get("unhealthyPodEvictionPolicy", "IfHealthyBudget")
        if policy == "AlwaysAllow" or 0 < needed <= healthy:
            return dict(budget)
    refused = "Cannot evict pod as it would violate the pod's disruption budget."
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 1):
        raise ApiError.too_many_requests(refused, f"The disruption budget {name} is still being processed by the server.", 10)
    allowed = status.get("disruptionsAllowed", 0)
    if allowed < 0:
        raise ApiError.forbidden(POD_DISRUPTION_BUDGETS, name, "pdb disruptions allowed is negative")
    if allowed == 0:
        raise ApiError.too_many_requests(refused, f"The disruption budget {name} needs {needed} healthy pods and has {healthy} currently")
    disrupted = {**(status.get("disruptedPods") or {}), pod["metadata"]["name"]: timestamp(now)}
    return {**budget, "status": {**status, "disruptionsAllowed": allowed - 1, "disruptedPods": disrupted}}


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def evicting(pod: Mapping[str, Any], now: datetime) -> Object:
    """Return the pod with the condition that says why it goes."""
    reason = {"reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}
    return with_condition(pod, {"type": "DisruptionTarget", "status": "True", **reason}, now)
