"""What kubectl prints of a dry run that is refused, recorded from kubectl 1.37 at a kube-apiserver of 1.37, shortened where it repeats manifests."""

from __future__ import annotations

from hami_cli import rehearsal
from hami_cli.installation import Object

IMMUTABLE = """\
Error from server (Invalid): error when applying patch:
{"metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"a password"}},"spec":{"replicas":3}}
to:
Resource: "apps/v1, Resource=statefulsets", GroupVersionKind: "apps/v1, Kind=StatefulSet"
Name: "hami-nats", Namespace: "hami-system"
for: "STDIN": error when patching "STDIN": StatefulSet.apps "hami-nats" is invalid: spec.volumeClaimTemplates: Invalid value: \
[{"name":"data","Spec":{"AccessModes":["ReadWriteOnce"],"Selector":null,"Resources":{"Requests":{"storage":"2Gi"}}}}]: field is immutable
Error from server (Invalid): error when applying patch:
{"roleRef":{"name":"other"},"subjects":[]}
to:
Resource: "rbac.authorization.k8s.io/v1, Resource=clusterrolebindings", GroupVersionKind: "rbac.authorization.k8s.io/v1, Kind=ClusterRoleBinding"
Name: "hami-registry", Namespace: ""
for: "STDIN": error when patching "STDIN": ClusterRoleBinding.rbac.authorization.k8s.io "hami-registry" is invalid: roleRef: Invalid value: \
{"APIGroup":"rbac.authorization.k8s.io","Kind":"ClusterRole","Name":"other"}: field is immutable
Error from server (Invalid): error when applying patch:
{"spec":{"clusterIP":"None"}}
to:
Resource: "/v1, Resource=services", GroupVersionKind: "/v1, Kind=Service"
Name: "hami-nats", Namespace: "hami-system"
for: "STDIN": error when patching "STDIN": Service "hami-nats" is invalid: spec.clusterIPs[0]: Invalid value: ["None"]: may not change once set
"""
OLDER = """\
Error from server (Invalid): error when applying patch:
{}
to:
Resource: "apps/v1, Resource=statefulsets", GroupVersionKind: "apps/v1, Kind=StatefulSet"
Name: "hami-nats", Namespace: "hami-system"
for: "STDIN": error when patching "STDIN": StatefulSet.apps "hami-nats" is invalid: spec: Forbidden: updates to statefulset spec for fields \
other than 'replicas', 'ordinals', 'template', 'updateStrategy' and 'minReadySeconds' are forbidden
"""
OTHERS = """\
Warning: would violate PodSecurity "restricted:latest": privileged
Error from server (Invalid): error when creating "STDIN": ConfigMap "BAD_NAME" is invalid: metadata.name: Invalid value: "BAD_NAME": a lowercase \
RFC 1123 subdomain must consist of lower case alphanumeric characters
Error from server (Forbidden): error when retrieving current configuration of:
Resource: "apps/v1, Resource=deployments", GroupVersionKind: "apps/v1, Kind=Deployment"
Name: "hami-registry", Namespace: "hami-system"
from server for: "STDIN": deployments.apps "hami-registry" is forbidden: User "alice" cannot get resource "deployments" in API group "apps"
Error from server (NotFound): error when creating "STDIN": namespaces "hami-system" not found
Error from server (BadRequest): error when creating "STDIN": admission webhook "old.example.com" does not support dry run
Error from server (AlreadyExists): error when creating "STDIN": statefulsets.apps "hami-nats" already exists
"""


def an_object(kind: str, name: str, namespace: str = "hami-system") -> Object:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, **({"namespace": namespace} if namespace else {})}}


OBJECTS = (
    an_object("Service", "hami-nats"),
    an_object("StatefulSet", "hami-nats"),
    an_object("ClusterRoleBinding", "hami-registry", ""),
    an_object("Deployment", "hami-registry"),
    an_object("ConfigMap", "BAD_NAME"),
)


def test_what_cannot_be_changed_in_place_is_told_with_its_object_and_nothing_of_its_content() -> None:
    found = rehearsal.refused(IMMUTABLE, OBJECTS)
    assert [str(each.object) for each in found] == [
        "StatefulSet hami-system/hami-nats",
        "ClusterRoleBinding hami-registry",
        "Service hami-system/hami-nats",
    ]
    assert all(each.immutable for each in found)
    assert str(found[0]) == 'StatefulSet.apps "hami-nats" is invalid: spec.volumeClaimTemplates: Invalid value: …: field is immutable'
    assert not any("password" in str(each) for each in found)


def test_older_servers_word_it_in_another_way() -> None:
    (found,) = rehearsal.refused(OLDER, OBJECTS)
    assert found.immutable
    assert str(found.object) == "StatefulSet hami-system/hami-nats"


def test_other_refusals_are_no_changes_in_place() -> None:
    invalid, forbidden, missing, there = rehearsal.refused(OTHERS, OBJECTS)
    assert not any(each.immutable for each in (invalid, forbidden, missing, there))
    assert str(invalid.object) == "ConfigMap hami-system/BAD_NAME"
    assert (
        str(forbidden)
        == 'deployments.apps "hami-registry" is forbidden: User "alice" cannot get resource "deployments" in API group "apps"'
    )
    assert str(missing) == 'namespaces "hami-system" not found'
    assert [each.exists for each in (invalid, forbidden, missing, there)] == [False, False, False, True]


def test_a_text_that_is_not_kubectls_is_passed_on() -> None:
    (found,) = rehearsal.refused("error: You must be logged in to the server (Unauthorized)", OBJECTS)
    assert (found.object, str(found)) == (None, "error: You must be logged in to the server (Unauthorized)")
