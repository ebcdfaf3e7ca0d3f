"""Which objects of an installation are no longer part of it. Pure.

An object is the installation's if it has the label of the manifests, was applied (``kubectl apply`` marks what it writes) and has no owner: what
controllers, services and operators made of our objects carries the label too, and goes with what it was made of. Namespaces are never pruned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from hami_cli.installation import GroupKind, Object, Plan, Ref, ref

APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
HELM: Final = "meta.helm.sh/release-name"
KINDS: Final[tuple[GroupKind, ...]] = (
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"),
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding"),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy"),
    ("apps", "DaemonSet"),
    ("apps", "Deployment"),
    ("apps", "StatefulSet"),
    ("", "Service"),
    ("", "ConfigMap"),
    ("", "ServiceAccount"),
    ("networking.k8s.io", "NetworkPolicy"),
    ("policy", "PodDisruptionBudget"),
    ("rbac.authorization.k8s.io", "RoleBinding"),
    ("rbac.authorization.k8s.io", "Role"),
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"),
    ("rbac.authorization.k8s.io", "ClusterRole"),
    ("cert-manager.io", "Certificate"),
    ("cert-manager.io", "Issuer"),
    ("monitoring.coreos.com", "PodMonitor"),
    ("monitoring.coreos.com", "PrometheusRule"),
)
"""The kinds that the manifests have, in the order in which they are deleted: first what the API server calls, so that nothing that goes is called."""


def resources(served: Mapping[GroupKind, str]) -> str:
    """Those of ``KINDS`` that a cluster serves, as ``kubectl get`` takes them."""
    return ",".join(served[kind] for kind in KINDS if kind in served)


def superfluous(found: Iterable[Object], plan: Plan) -> list[Ref]:
    """What of an installation ``plan`` has no more, in the order in which it is deleted."""
    return sorted((each for each in map(ref, filter(applied, found)) if each not in plan.refs), key=order)


def applied(body: Object) -> bool:
    """Whether an object with our label was applied as part of an installation."""
    metadata = body["metadata"]
    return APPLIED in (metadata.get("annotations") or {}) and not metadata.get("ownerReferences") and body["kind"] != "Namespace"


def of_helm(found: Iterable[Object]) -> Iterator[str]:
    """Why kubectl may not change what was found: a Helm release owns it."""
    for name in sorted({name for each in found if (name := (each["metadata"].get("annotations") or {}).get(HELM))}):
        yield f"Helm installed this as the release {name}: change it with helm upgrade, or run helm uninstall first"


def order(one: Ref) -> tuple[int, str, str]:
    """The place of an object in the order of deletion."""
    kind = (one.group, one.kind)
    return KINDS.index(kind) if kind in KINDS else len(KINDS), one.namespace, one.name
