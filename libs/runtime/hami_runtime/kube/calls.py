"""The calls that each service makes to the API server, and why: what it must be allowed, and all that it may be. Data.

``hami doctor`` asks whether each may. Tests count the calls at a running rig's API server and in a real one's audit log: one that is not here fails
there; one that is here and is not allowed by the manifests, or is allowed there and is not here, fails in ``tests/unit/manifests/test_rights.py``.
"""

from __future__ import annotations

from typing import NamedTuple

from hami_runtime.kube.accounts import AGENT_NAMESPACE


class Call(NamedTuple):
    """A verb on a resource, as RBAC names them; ``names`` where it is on certain objects alone."""

    verb: str
    resource: str
    group: str = ""
    names: frozenset[str] = frozenset()
    namespaced: bool = False
    """Only in one namespace: the account's own, or the other one."""
    namespace: str = ""
    """That other namespace."""


def _own(verbs: str, resource: str, *names: str, group: str = "", namespace: str = "") -> set[Call]:
    return {Call(verb, resource, group, frozenset(names), namespaced=True, namespace=namespace) for verb in verbs.split()}


def _any(verbs: str, resource: str, *names: str, group: str = "") -> set[Call]:
    return {Call(verb, resource, group, frozenset(names)) for verb in verbs.split()}


EVENTS = _any("create patch", "events")
"""Events, and their counts."""
QUESTIONS = {
    *_any("create", "tokenreviews", group="authentication.k8s.io"),
    *_any("create", "subjectaccessreviews", group="authorization.k8s.io"),
}
"""Who asks ``/v1``, and whether he may see the pod or node that he asks about."""
LEASES = "coordination.k8s.io"
WEBHOOKS = "admissionregistration.k8s.io"

OWN_CERTIFICATE = {
    *_any("get patch", "mutatingwebhookconfigurations", "vgpu.hami.io", group=WEBHOOKS),  # its caBundle
    *_any("get patch", "validatingwebhookconfigurations", "validate.vgpu.hami.io", group=WEBHOOKS),
    *_own("get update", "secrets", "hami-webhook-tls"),  # the certificate that replicas share
    *_own("create", "secrets"),  # RBAC cannot limit a create to a name
}
"""The webhook's calls where it issues its certificate itself: not with components/webhook-certificate, which leaves that to cert-manager."""

CALLS: dict[str, set[Call]] = {
    "hami-webhook": {
        *_any("list watch", "resourcequotas"),  # what each namespace may hold
        *_any("list watch", "pods"),  # and what it holds, once a quota limits it
        *OWN_CERTIFICATE,
    },
    "hami-scheduler": {
        *_any("list watch", "nodes"),  # inventory
        *_any("get patch", "nodes"),  # the lock of a node in envvar mode
        *_any("list watch", "pods"),  # what is held
        *_any("get", "pods"),  # a Binding whose answer was lost
        *_any("create", "pods/binding"),
        *_any("patch", "pods/status"),  # its own condition, which wakes a pod that waits
        *_any("list watch", "resourcequotas"),
        *_any("list watch", "poddisruptionbudgets", group="policy"),  # preemption respects them
        *_any("create", "pods/eviction"),  # and evicts
        *_any("get", "podgroups", group="scheduling.x-k8s.io"),  # how many pods must be placed together
        *_any("get", "podgroups", group="scheduling.volcano.sh"),
        *EVENTS,
        *QUESTIONS,
        *_own("get patch", "leases", "hami-scheduler-extender", group=LEASES),
        *_own("create", "leases", group=LEASES),
        *_own("get update", "leases", "hami-kube-scheduler", group=LEASES),  # kube-scheduler, which shares the account
    },
    "hami-registry": {
        *_any("list watch", "nodes"),  # registrations of other plugins
        *_any("get patch", "nodes"),  # registrations, handshakes, and the lock where another scheduler holds it
        *_any("get patch", "pods"),  # phases
        *EVENTS,
        *QUESTIONS,
        *_own("get patch", "leases", "hami-registry", group=LEASES),
        *_own("create", "leases", group=LEASES),
    },
    "hami-auth-callout": {
        *_any("create", "tokenreviews", group="authentication.k8s.io"),  # whose token an agent shows, and on which node
        *_own("get", "pods", namespace=AGENT_NAMESPACE),  # the pod of a token that does not name its node
    },
    "hami-node-agent": {
        *_any("get list watch", "nodes"),  # its own: versions, and its records
        *_any("list watch", "pods"),  # its node's
        *EVENTS,
    },
}
BUILT_IN = {"hami-scheduler": {"system:kube-scheduler", "system:volume-scheduler"}}
"""Roles of Kubernetes' own that an account has: kube-scheduler's, which runs beside the extender."""
