"""The verdict on one write: what is changed, what is refused and why. Pure: a request in, a decision out.

Invariants:
- A pod that asks for nothing of ours is allowed as it is, and so is one in an exempt namespace, or of another scheduler, unless we adopt its pods.
- No label or annotation of a pod weakens a rule: an opt-out is a namespace's, for its labels are the administrator's.
- What a pod asks of ours and cannot be read is refused with the field's path. It is never taken for nothing.
- Assignments are the scheduler's to write: whoever else puts one on a pod or into a Binding is refused, whatever the pod asks.
- Reviewing what came out of a review changes nothing more.

Order of the checks: facts of the protocol first (no containers, other scheduler), then what is asked, then policy, then quota.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct, field

from hami_devices.admission import Mutation, PrivilegedPolicy, confined, idle_environment, refused_privileged
from hami_devices.catalog import Catalog
from hami_devices.model import PodRequest
from hami_devices.requests import RequestError
from hami_protocol import keys
from hami_protocol.kubernetes import ObjectMeta, Pod
from hami_protocol.pods import containers_in_order
from hami_webhook.patch import Patch
from hami_webhook.quota import QuotaBook, mentions
from hami_webhook.wire import AdmissionRequest, Decision, Operation, UnreadableObject, as_dict, read_binding, read_pod

DEFAULT_SCHEDULER: Final = "default-scheduler"
ALLOWED: Final = Decision(allowed=True)
_LEFT: Final = Decision(allowed=True, message="pod already has different scheduler assigned")
MOST_WARNINGS: Final = 8
"""The API server cuts what is beyond 4 KiB in all."""
_TRACE_PARENT: Final = re.compile(r"[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)


class Policy(Struct, frozen=True, kw_only=True):
    """What an installation has decided."""

    scheduler_name: str = "hami-scheduler"
    overwrite_default_scheduler: bool = True
    """Whether a pod that names ``default-scheduler`` is taken over; one that names none always is."""
    privileged: PrivilegedPolicy = PrivilegedPolicy.CONTAINER
    least_memory_mib: int = 0
    """The smallest share of a card that our shim holds containers to; 0 is none."""
    confine: bool = True
    """Give containers with a share the runtime's seccomp profile where they name none."""
    adopted_schedulers: frozenset[str] = frozenset()
    """Schedulers whose pods are given devices where they are bound: such pods are judged as ours, and not changed."""
    exempt_namespaces: frozenset[str] = frozenset({"kube-system"})
    trusted_users: frozenset[str] = frozenset()
    """Who may write every system annotation: our own services' accounts."""
    vendor_writers: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Who else may write which: a vendor's own plugin its own keys."""


class Reviewer:
    """Judges writes under one policy, with the quotas as they are known now."""

    def __init__(self, catalog: Catalog, policy: Policy, quotas: QuotaBook) -> None:
        self._catalog = catalog
        self._policy = policy
        self._quotas = quotas
        self._managed = frozenset(catalog.managed_resources)
        self._touches_all = any(vendor.idle_env for vendor in catalog.vendors)

    def mutate(self, request: AdmissionRequest, *, traceparent: str = "") -> Decision:
        """The verdict on a pod that is being created, with what is to be changed on it.

        Args:
            request: any request; what is no creation of a pod is allowed.
            traceparent: trace context to put on a pod of ours that has none.
        """
        if (request.resource.resource, request.sub_resource, request.operation) == ("pods", "ephemeralcontainers", "UPDATE"):
            return self._debugged(request)
        return self._created(request, traceparent=traceparent)

    def validate(self, request: AdmissionRequest) -> Decision:
        """The verdict on a pod or Binding in its final form: the same refusals, and nobody but ours changes an assignment later."""
        if request.namespace in self._policy.exempt_namespaces or request.resource.resource != "pods":
            return ALLOWED
        try:
            if request.sub_resource == "binding" and request.operation == "CREATE":
                return self._forged(request, ObjectMeta(), read_binding(request.object).metadata) or ALLOWED
            if request.operation == "UPDATE" and request.sub_resource in ("", "status", "resize", "ephemeralcontainers"):
                before = read_pod(request.old_object, field_path="request.oldObject").metadata
                forged = self._forged(request, before, read_pod(request.object).metadata)
                if forged or request.sub_resource != "ephemeralcontainers":
                    return forged or ALLOWED
                return msgspec.structs.replace(self._debugged(request), patch=())
        except UnreadableObject as exc:
            return _unreadable(str(exc))
        decision = self._created(request)
        return msgspec.structs.replace(decision, patch=(), warnings=()) if decision.allowed else decision

    def _debugged(self, request: AdmissionRequest) -> Decision:
        """The verdict on ephemeral containers: they ask for nothing, and are given nothing."""
        if request.namespace in self._policy.exempt_namespaces:
            return ALLOWED
        try:
            pod, known = read_pod(request.object), read_pod(request.old_object, field_path="request.oldObject")
            asked = self._catalog.read_pod(pod)
        except UnreadableObject as exc:
            return _unreadable(str(exc))
        except RequestError:
            return ALLOWED  # a pod of before this rule; it holds nothing
        if (privileged := refused_privileged(pod, asked, self._policy.privileged)) is not None:
            return _refused(f"container {privileged} is privileged")
        before = {container.name for container in known.spec.ephemeral_containers or ()}
        patch = Patch(as_dict(request.object))
        for place, container in enumerate(pod.spec.ephemeral_containers or ()):
            if container.name not in before:
                patch.apply(idle_environment(container, f"spec.ephemeralContainers[{place}]", self._catalog.vendors))
        return Decision(allowed=True, patch=patch.operations) if patch.operations else ALLOWED

    def _created(self, request: AdmissionRequest, *, traceparent: str = "") -> Decision:
        if (request.resource.resource, request.sub_resource, request.operation) != ("pods", "", "CREATE"):
            return ALLOWED
        if request.namespace in self._policy.exempt_namespaces:
            return ALLOWED
        try:
            return self._judge(request, read_pod(request.object), traceparent)
        except UnreadableObject as exc:
            return _unreadable(str(exc))

    def _judge(self, request: AdmissionRequest, pod: Pod, traceparent: str) -> Decision:
        """The verdict on a pod that can be read.

        Raises:
            UnreadableObject: it is to be patched, and in fields that we do not know it is no JSON.
        """
        if forged := self._forged(request, ObjectMeta(), pod.metadata):
            return forged
        if not pod.spec.containers:
            return _refused("pod has no containers")
        return self._judge_request(request, pod, traceparent)

    def _judge_request(self, request: AdmissionRequest, pod: Pod, traceparent: str) -> Decision:
        warnings = self._warnings(pod)
        if not mentions(pod, self._managed) and not self._touches_all:
            return Decision(allowed=True, warnings=warnings) if warnings else ALLOWED
        another = self._of_another_scheduler(pod)
        if another and pod.spec.scheduler_name not in self._policy.adopted_schedulers:
            return _LEFT
        try:
            asked = self._catalog.read_pod(pod)
            mutations = self._catalog.mutations(pod)
        except RequestError as exc:
            return Decision(allowed=False, code=422, reason="Invalid", message=str(exc))
        if asked.asks and (reason := self._refusal(request, pod, asked)):
            return _refused(reason)
        if another:
            return _LEFT
        if self._policy.confine:
            mutations = (*mutations, *confined(pod, asked))
        return Decision(allowed=True, patch=self._patch(request, pod, asked, mutations, traceparent), warnings=warnings)

    def _warnings(self, pod: Pod) -> tuple[str, ...]:
        """What the pod names and no component reads; at most ``MOST_WARNINGS``."""
        found = (*self._catalog.annotated_requests(pod), *self._catalog.misspellings(pod))
        return tuple(str(each) for each in found[:MOST_WARNINGS])

    def _of_another_scheduler(self, pod: Pod) -> bool:
        named, ours = pod.spec.scheduler_name, self._policy.scheduler_name
        if not named or (ours and named == ours):
            return False
        return named != DEFAULT_SCHEDULER or not self._policy.overwrite_default_scheduler

    def _refusal(self, request: AdmissionRequest, pod: Pod, asked: PodRequest) -> str | None:
        """Why a pod that asks for devices is not let in, although what it asks can be read."""
        if (privileged := refused_privileged(pod, asked, self._policy.privileged)) is not None:
            return f"container {privileged} is privileged"
        if pod.spec.node_name and self._policy.scheduler_name:
            return "pod has node assigned"
        if (small := self._too_small(pod, asked)) is not None:
            return small
        for annotated in self._catalog.annotated_requests(pod):
            if self._asked_nowhere_else(pod, asked, annotated.resource):
                return str(annotated)
        return self._quotas.refusal(request.namespace or pod.metadata.namespace, asked)

    def _too_small(self, pod: Pod, asked: PodRequest) -> str | None:
        """Which share is smaller than the installation's smallest. One in percent is an amount only once there is a card."""
        least_mib = self._policy.least_memory_mib
        for (_, _, path), container in zip(containers_in_order(pod), asked.containers, strict=True):
            for share in container.requests:
                vendor = self._catalog.vendor(share.vendor)
                if vendor.shim and 0 < share.memory_mib < least_mib:
                    field = f"{path}.resources.limits[{vendor.memory_resource}]"
                    return f"{field}: {share.memory_mib} MiB is not accepted; accepted: {least_mib} MiB or more"
        return None

    def _asked_nowhere_else(self, pod: Pod, asked: PodRequest, resource: str) -> bool:
        """Whether ``resource`` of a vendor that the pod asks is in no container, so that an annotation of it can only be a mistake."""
        vendors = {request.vendor for container in asked.containers for request in container.requests}
        if not any(resource in self._catalog.vendor(name).resources for name in vendors):
            return False
        return not mentions(pod, frozenset({resource}))

    def _patch(
        self, request: AdmissionRequest, pod: Pod, asked: PodRequest, mutations: tuple[Mutation, ...], traceparent: str
    ) -> tuple[Operation, ...]:
        wants_trace = asked.asks and traceparent and not _TRACE_PARENT.fullmatch(pod.metadata.annotations.get(keys.TRACE_PARENT, ""))
        claims = asked.asks and self._policy.scheduler_name and pod.spec.scheduler_name != self._policy.scheduler_name
        if not (mutations or wants_trace or claims):
            return ()
        patch = Patch(as_dict(request.object))
        if claims:
            patch.set(("spec", "schedulerName"), self._policy.scheduler_name)
        patch.apply(mutations)
        if wants_trace:
            patch.set(("metadata", "annotations", keys.TRACE_PARENT), traceparent)
        return patch.operations

    def _forged(self, request: AdmissionRequest, before: ObjectMeta, after: ObjectMeta) -> Decision | None:
        """A refusal where somebody who may not do so sets, changes or removes an assignment."""
        user = request.user_info.username
        if user in self._policy.trusted_users:
            return None
        theirs = self._policy.vendor_writers.get(user, frozenset())
        changed = sorted(
            key for key in self._catalog.system_pod_keys if before.annotations.get(key) != after.annotations.get(key) and key not in theirs
        )
        if changed:
            return _refused(f"metadata.annotations[{changed[0]}] is written by the scheduler and the registry alone")
        label = keys.ASSIGNED_NODE
        if before.labels.get(label) != after.labels.get(label) and label not in theirs:
            return _refused(f"metadata.labels[{label}] is written by the scheduler alone")
        return None


def _refused(message: str) -> Decision:
    return Decision(allowed=False, code=403, reason="Forbidden", message=message)


def _unreadable(message: str) -> Decision:
    return Decision(allowed=False, code=400, reason="BadRequest", message=message)
