"""Prints ``deploy/kustomize/components/admission-policies/policies.yaml``: who may write the system's records, as the API server itself holds it.

Made from ``hami_devices.ownership``, the one list of records and writers. A vendor's own plugin, and a person who has to repair a record, are
named in the policies' first variable, ``writers``, which an overlay patches. It is part of the policy and no ConfigMap, so that nothing that
could be missing stands between the API server and every write to a pod. The path of a device configuration may be given.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hami_devices import ownership
from hami_devices.catalog import Catalog
from hami_devices.config import DeviceConfig, load
from hami_devices.ownership import Writer
from hami_protocol import keys
from hami_runtime.kube import accounts
from tools import manifests

OPERATORS = "operators"
API_VERSION = "admissionregistration.k8s.io/v1"
HEADER = """\
# Who may write the system's records, held by the API server itself: `make docs` writes this file from hami_devices/ownership.py.
#
# hami-pod-records, hami-binding-records, hami-node-records: nobody but our services and whom the first variable, `writers`, names: by vendor,
# the users that its own plugin runs as, which write that vendor's keys; and operators, who repair. kustomization.yaml shows how to set it.
# hami-service-writes: what our services change on nodes and pods is their records, and nothing else.
# `adopted` is whose pods the registry may give their first records, where they are bound: HAMI_ADOPTED_SCHEDULERS of the scheduler.
"""

Object = dict[str, Any]


def account(writer: Writer) -> str:
    """The user name of a service."""
    return accounts.user(writer, accounts.SYSTEM_NAMESPACE)


def policies(catalog: Catalog) -> list[Object]:
    """Policies and their bindings."""
    return [
        *_pair(
            "hami-pod-records",
            rules=[_rule("CREATE", "UPDATE", resources=["pods", "pods/status", "pods/resize", "pods/ephemeralcontainers"])],
            protected=catalog.system_pod_keys,
            ours=ownership.pod_keys(catalog),
            vendors={vendor.name: ownership.vendor_pod_keys(vendor) for vendor in catalog.vendors},
            labels=True,
            adopted=True,
        ),
        *_pair(
            "hami-binding-records",
            rules=[_rule("CREATE", resources=["pods/binding", "bindings"])],
            protected=catalog.system_pod_keys,
            ours={Writer.SCHEDULER: ownership.binding_keys(catalog)},
            vendors={},
            labels=True,
            label_writers=(Writer.SCHEDULER,),
        ),
        *_pair(
            "hami-node-records",
            rules=[_rule("CREATE", "UPDATE", resources=["nodes", "nodes/status"])],
            protected=ownership.system_node_keys(catalog),
            ours=ownership.node_keys(catalog),
            vendors={vendor.name: ownership.vendor_node_keys(vendor) for vendor in catalog.vendors},
        ),
        *_confinement(catalog),
    ]


def _pair(
    name: str,
    *,
    rules: list[Object],
    protected: Iterable[str],
    ours: Mapping[Writer, Iterable[str]],
    vendors: Mapping[str, Iterable[str]],
    labels: bool = False,
    label_writers: tuple[Writer, ...] = (),
    adopted: bool = False,
) -> list[Object]:
    """A policy that holds who writes ``protected``, and its binding; with ``adopted``, of pods some of which another scheduler may have bound."""
    user = "request.userInfo.username"
    vendor_writes = f"variables.vendorKeys.exists(v, {user} in variables.writers[?v].orValue([]) && k in variables.vendorKeys[v])"
    variables = [
        ("writers", f"{{'{OPERATORS}': []}}"),
        ("vendorKeys", _map(vendors)),
        ("before", _metadata("oldObject", "annotations")),
        ("after", _metadata("object", "annotations")),
        ("records", _list(protected)),
        *(_adoption() if adopted else ()),
        ("changed", f"variables.records.filter(k, {_differs('k')})"),
        ("ours", f"variables.adopts ? variables.records : ({_ours(ours)})" if adopted else _ours(ours)),
        ("foreign", f"variables.changed.filter(k, !(k in variables.ours) && !{vendor_writes})"),
        ("operator", f"{user} in variables.writers[?'{OPERATORS}'].orValue([])"),
    ]
    validations = [
        {
            "expression": "variables.operator || variables.foreign.size() == 0",
            "messageExpression": "'only HAMI writes these annotations: ' + variables.foreign.join(', ')",
            "reason": "Forbidden",
        }
    ]
    if labels:
        variables += [("labelsBefore", _metadata("oldObject", "labels")), ("labelsAfter", _metadata("object", "labels"))]
        permitted = "".join(f"request.userInfo.username == '{account(writer)}' || " for writer in label_writers)
        validations += [
            {
                "expression": f"variables.operator || {permitted}"
                f"variables.labelsBefore[?'{key}'].orValue('') == variables.labelsAfter[?'{key}'].orValue('')",
                "message": f"the label {key} is written by HAMI alone",
                "reason": "Forbidden",
            }
            for key in sorted(ownership.SYSTEM_POD_LABELS)
        ]
    spec: Object = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": rules},
        "variables": [{"name": name, "expression": expression} for name, expression in variables],
        "validations": validations,
    }
    return _bound(name, spec)


def _ours(ours: Mapping[Writer, Iterable[str]]) -> str:
    """CEL: the keys that whoever asks may write, being one of our services."""
    rest = "[]"
    for writer, its in sorted(ours.items(), reverse=True):
        rest = f"request.userInfo.username == '{account(writer)}' ? {_list(its)} : {rest}"
    return rest


def _adoption() -> list[tuple[str, str]]:
    """CEL variables: whether the registry writes the first records of a pod that another scheduler has bound, for the node where it is."""
    conditions = (
        f"request.userInfo.username == '{account(Writer.REGISTRY)}'",
        "request.resource.resource == 'pods' && request.operation == 'UPDATE' && request.?subResource.orValue('') == ''",
        "object.spec.?schedulerName.orValue('') in variables.adopted",
        "object.spec.?nodeName.orValue('') != ''",
        f"variables.after[?'{keys.ASSIGNED_NODE}'].orValue('') == object.spec.nodeName",
        "variables.records.all(k, !(k in variables.before))",
    )
    return [("adopted", _list(ownership.ADOPTED_SCHEDULERS)), ("adopts", " && ".join(conditions))]


def _differs(key: str) -> str:
    """CEL: whether an annotation is another one than before."""
    return (
        f"({key} in variables.before) != ({key} in variables.after) || "
        f"({key} in variables.before && variables.before[{key}] != variables.after[{key}])"
    )


def _same_cards(key: str) -> str:
    """CEL: whether an assignment, ``uuid,type,MiB,cores:`` for each share, names the cards that it named before."""
    before, after = (f"variables.{when}[{key}].split(':').map(share, share.split(',')[0])" for when in ("before", "after"))
    return (
        f"({key} in variables.before) == ({key} in variables.after) && "
        f"(!({key} in variables.before) || variables.before[{key}] == variables.after[{key}] || {before} == {after})"
    )


def _confinement(catalog: Catalog) -> list[Object]:
    """A policy that holds our services to their records, and its binding: RBAC cannot, since it knows no single annotation."""
    name = "hami-service-writes"
    nodes, pods = ownership.node_keys(catalog), ownership.pod_keys(catalog)
    variables = [
        ("before", _metadata("oldObject", "annotations")),
        ("after", _metadata("object", "annotations")),
        ("labelsBefore", _metadata("oldObject", "labels")),
        ("labelsAfter", _metadata("object", "labels")),
        ("records", _list(catalog.system_pod_keys)),
        *_adoption(),
        ("ours", f"variables.adopts ? variables.records : ({_ours(pods)})"),
        ("mine", f"request.resource.resource == 'nodes' ? ({_ours(nodes)}) : variables.ours"),
        ("kept", "variables.before.all(k, k in variables.mine || (k in variables.after && variables.after[k] == variables.before[k]))"),
        ("added", "variables.after.all(k, k in variables.mine || k in variables.before)"),
        ("assignments", _list(ownership.assignment_keys(catalog))),
    ]
    spec: Object = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [_rule("UPDATE", resources=["nodes", "pods"])]},
        "matchConditions": [
            {"name": "by-our-services", "expression": f"request.userInfo.username in {_list(account(writer) for writer in Writer)}"}
        ],
        "variables": [{"name": name, "expression": expression} for name, expression in variables],
        "validations": [
            {
                "expression": "variables.kept && variables.added",
                "message": "HAMI's services change no annotations but their own",
                "reason": "Forbidden",
            },
            {
                "expression": f"variables.adopts || variables.assignments.all(k, {_same_cards('k')})",
                "message": "a pod that is bound keeps its cards: they may be recorded with other sizes alone",
                "reason": "Forbidden",
            },
            {
                "expression": "object.spec == oldObject.spec && variables.labelsBefore == variables.labelsAfter",
                "message": "HAMI's services change nothing but annotations",
                "reason": "Forbidden",
            },
        ],
    }
    return _bound(name, spec)


def _bound(name: str, spec: Object) -> list[Object]:
    """A policy and what puts it into force."""
    binding = {"policyName": name, "validationActions": ["Deny"]}
    return [_object("ValidatingAdmissionPolicy", name, spec), _object("ValidatingAdmissionPolicyBinding", name, binding)]


def _rule(*operations: str, resources: list[str]) -> Object:
    return {"apiGroups": [""], "apiVersions": ["v1"], "operations": list(operations), "resources": resources, "scope": "*"}


def _object(kind: str, name: str, spec: Object) -> Object:
    labels = {"app.kubernetes.io/name": "hami", "app.kubernetes.io/part-of": "hami", "app.kubernetes.io/component": "admission-policies"}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name, "labels": labels}, "spec": spec}


def _metadata(version: str, part: str) -> str:
    """CEL: annotations or labels of one version of the object; a Binding's metadata may be missing altogether."""
    return f"{version} != null && has({version}.metadata) && has({version}.metadata.{part}) ? {version}.metadata.{part} : {{}}"


def _list(texts: Iterable[str]) -> str:
    """CEL: a list, each text on a line of its own where there are several."""
    quoted = [f"'{text}'" for text in sorted(texts)]
    return "[" + ", ".join(quoted) + "]" if len(quoted) < 2 else "[\n  " + ",\n  ".join(quoted) + "\n]"


def _map(lists: Mapping[str, Iterable[str]]) -> str:
    """CEL: a map of lists, each on a line of its own."""
    rows = [f"'{name}': [" + ", ".join(f"'{text}'" for text in sorted(texts)) + "]" for name, texts in lists.items()]
    return "{\n  " + ",\n  ".join(rows) + "\n}" if rows else "{}"


def text(catalog: Catalog) -> str:
    """The file."""
    return HEADER + manifests.dump(policies(catalog))


def main() -> None:
    """Print it."""
    devices = load(Path(sys.argv[1]).read_text())[0] if len(sys.argv) > 1 else DeviceConfig()
    sys.stdout.write(text(Catalog(devices)))


if __name__ == "__main__":
    main()
