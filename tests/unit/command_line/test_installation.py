"""What an installation is about to do."""

from __future__ import annotations

import json

import pytest

from hami_cli import installation
from hami_cli.installation import Images

TABLE = """\
bindings                                       v1                                true         Binding
configmaps                        cm           v1                                true         ConfigMap
deployments                       deploy       apps/v1                           true         Deployment
validatingadmissionpolicies                    admissionregistration.k8s.io/v1   false        ValidatingAdmissionPolicy
"""
OBJECTS = """\
{apiVersion: v1, kind: ConfigMap, metadata: {name: c}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: d, namespace: n}}
---
{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: s, namespace: n}}
"""


def test_the_bus_is_waited_for_before_who_speaks_over_it() -> None:
    plan = installation.plan(OBJECTS)
    assert [str(each) for each in plan.workloads] == ["StatefulSet n/s", "Deployment n/d"]
    assert plan.workloads[0].resource == "statefulset.apps/s"
    assert plan.workloads[0].place == ("--namespace=n",)


def test_kinds_are_read_whether_or_not_they_have_short_names() -> None:
    assert installation.served(TABLE) == {
        ("", "Binding"): "bindings",
        ("", "ConfigMap"): "configmaps",
        ("apps", "Deployment"): "deployments.apps",
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy"): "validatingadmissionpolicies.admissionregistration.k8s.io",
    }


def test_what_the_cluster_lacks_is_named_with_who_brings_it() -> None:
    plan = installation.plan(OBJECTS)
    (lacking,) = plan.lacking(installation.served(TABLE))
    assert "StatefulSet (apps): it takes Kubernetes 1.30" in lacking
    assert not list(plan.lacking([*installation.served(TABLE), ("apps", "StatefulSet")]))
    (of_others,) = installation.plan("{apiVersion: cert-manager.io/v1, kind: Issuer, metadata: {name: i}}").lacking(
        installation.served(TABLE)
    )
    assert "cert-manager: https://" in of_others


def test_kinds_that_an_overlay_defines_itself_are_not_lacking_and_not_rehearsed() -> None:
    definition = (
        "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: d}, spec: {group: g, names: {kind: K}}}"
    )
    plan = installation.plan(f"{definition}\n---\n{{apiVersion: g/v1, kind: K, metadata: {{name: k}}}}")
    assert not list(plan.lacking([("apiextensions.k8s.io", "CustomResourceDefinition")]))
    assert [each["kind"] for each in plan.rehearsable] == ["CustomResourceDefinition"]


@pytest.mark.parametrize(
    ("version", "tag"),
    [("v1.34.2", "v1.34.2"), ("v1.34.2-gke.1007000", "v1.34.2"), ("v1.31.0+k3s1", "v1.31.0"), ("v1.32.5-eks-5d4a308+x", "v1.32.5")],
)
def test_kube_scheduler_is_of_the_clusters_version(version: str, tag: str) -> None:
    assert installation.server_version(json.dumps({"serverVersion": {"gitVersion": version}})) == tag
    assert installation.server_version("{}") == ""


def test_images_are_the_overlays_own_unless_others_are_wanted() -> None:
    assert Images().replaced() == []
    assert {"name": "hami/webhook", "newName": "r.example/h/webhook"} in Images(prefix="r.example/h/").replaced()
    assert Images(tag="2").replaced()[0] == {"name": "hami/node-agent", "newTag": "2"}
    assert Images(kube_scheduler="v1.34.2").replaced() == [{"name": "registry.k8s.io/kube-scheduler", "newTag": "v1.34.2"}]
