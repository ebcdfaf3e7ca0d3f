"""Pods as kubectl writes them, and a reviewer with the chart's defaults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jsonpatch
import msgspec
import pytest

from hami_devices.catalog import Catalog
from hami_devices.config import DeviceConfig
from hami_protocol.kubernetes import ObjectMeta, ResourceQuota, ResourceQuotaSpec
from hami_webhook.quota import QuotaBook
from hami_webhook.review import Policy, Reviewer
from hami_webhook.wire import AdmissionRequest, Decision, GroupResource, UserInfo

NAMES = {
    "gpu": "nvidia.com/gpu",
    "mem": "nvidia.com/gpumem",
    "percent": "nvidia.com/gpumem-percentage",
    "cores": "nvidia.com/gpucores",
    "priority": "nvidia.com/priority",
}


def a_container(name: str = "main", **limits: Any) -> dict[str, Any]:
    extra = {key: limits.pop(key) for key in ("securityContext", "restartPolicy", "env", "resources") if key in limits}
    container: dict[str, Any] = {"name": name, "image": "pause", **extra}
    if limits:
        container["resources"] = {"limits": {NAMES.get(key, key): value for key, value in limits.items()}}
    return container


def a_pod(
    *containers: dict[str, Any], inits: tuple[dict[str, Any], ...] = (), metadata: dict[str, Any] | None = None, **spec: Any
) -> dict[str, Any]:
    body: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p1", **(metadata or {})},
        "spec": {"containers": list(containers), **spec},
    }
    if inits:
        body["spec"]["initContainers"] = list(inits)
    return body


def a_request(pod: Any, **fields: Any) -> AdmissionRequest:
    user = UserInfo(username=fields.pop("user", "jane"))
    old = msgspec.Raw(msgspec.json.encode(fields.pop("old"))) if "old" in fields else msgspec.Raw()
    return AdmissionRequest(
        **{
            "uid": "u1",
            "namespace": "team-a",
            "operation": "CREATE",
            "resource": GroupResource(version="v1", resource="pods"),
            "user_info": user,
            "object": msgspec.Raw(msgspec.json.encode(pod)),
            "old_object": old,
            **fields,
        }
    )


def a_quota(name: str = "q", namespace: str = "team-a", **hard: Any) -> ResourceQuota:
    named = {f"{key.split('_')[0]}.{NAMES[key.split('_')[1]]}": value for key, value in hard.items()}
    return ResourceQuota(metadata=ObjectMeta(name=name, namespace=namespace), spec=ResourceQuotaSpec(hard=named))


class Desk:
    """A reviewer and its quotas. It sets no seccomp profile unless it is told to, so that a patch shows what its test is about."""

    def __init__(self, config: DeviceConfig | None = None, **policy: Any) -> None:
        self.catalog = Catalog(config or DeviceConfig())
        self.quotas = QuotaBook(self.catalog)
        self.reviewer = Reviewer(self.catalog, Policy(**{"confine": False, **policy}), self.quotas)

    def mutate(self, pod: Any, *, traceparent: str = "", **fields: Any) -> Decision:
        return self.reviewer.mutate(a_request(pod, **fields), traceparent=traceparent)

    def validate(self, pod: Any, **fields: Any) -> Decision:
        return self.reviewer.validate(a_request(pod, **fields))

    def mutated(self, pod: Any, **fields: Any) -> Any:
        decision = self.mutate(pod, **fields)
        assert decision.allowed, decision.message
        return patched(pod, decision)


def patched(pod: Any, decision: Decision) -> Any:
    return jsonpatch.apply_patch(pod, msgspec.json.decode(msgspec.json.encode(decision.patch)))


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def make_desk() -> Callable[..., Desk]:
    return Desk
