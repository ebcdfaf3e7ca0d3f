"""Which objects of an installation go when it is changed."""

from __future__ import annotations

from typing import Any

import pytest

from hami_cli import installation, pruning
from hami_cli.installation import PART_OF, Object
from tests.unit.manifests.conftest import OVERLAYS, Manifests, build
from tests.unit.manifests.test_components import with_all


def found(body: Object, **metadata: Any) -> Object:
    """As the API server has an object that kubectl applied."""
    annotations = {pruning.APPLIED: "{}"} | metadata.pop("annotations", {})
    return body | {"metadata": body["metadata"] | {"annotations": annotations} | metadata}


def plan_of(manifests: Manifests) -> installation.Plan:
    return installation.Plan(objects=tuple(manifests.objects))


@pytest.mark.parametrize("manifests", [*(f"overlays/{each}" for each in OVERLAYS), "everything else"])
def test_every_object_can_be_found_again(manifests: str) -> None:
    built = with_all() if manifests == "everything else" else build(manifests)
    for each in built.objects:
        assert each["metadata"]["labels"][PART_OF] == "hami", (each["kind"], each["metadata"]["name"])
        group = each["apiVersion"].rpartition("/")[0]
        assert (group, each["kind"]) in pruning.KINDS or each["kind"] == "Namespace"


def test_a_component_that_takes_rights_away_takes_them_from_an_installation_that_has_them() -> None:
    before = [found(each) for each in build("overlays/minimal").objects]
    gone = pruning.superfluous(before, plan_of(with_all()))
    assert [str(each) for each in gone] == ["RoleBinding hami-system/hami-webhook", "Role hami-system/hami-webhook"]


def test_from_production_to_minimal_what_is_called_goes_first_and_generated_maps_go_too() -> None:
    before = [found(each) for each in build("overlays/production").objects]
    gone = pruning.superfluous(before, plan_of(build("overlays/minimal")))
    kinds = list(dict.fromkeys(each.kind for each in gone))
    assert kinds[:2] == ["ValidatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy"]
    assert {"Deployment", "Certificate", "Issuer", "PodMonitor", "PrometheusRule", "PodDisruptionBudget"} < set(kinds)
    names = [each.name for each in gone if each.kind == "ConfigMap"]
    assert sum(name.startswith("hami-nats-") for name in names) == 1


def test_what_others_made_stays() -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": "n", "labels": {PART_OF: "hami"}}}
    nothing = installation.Plan(objects=())
    assert pruning.superfluous([found(body)], nothing)
    assert not pruning.superfluous([body], nothing)  # made by a service
    assert not pruning.superfluous([found(body, ownerReferences=[{"kind": "Deployment"}])], nothing)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "hami-system"}}
    assert not pruning.superfluous([found(namespace)], nothing)


def test_what_helm_installed_is_helms() -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "annotations": {pruning.HELM: "shares"}}}
    (refusal,) = pruning.of_helm([body, body])
    assert "release shares" in refusal
    assert not list(pruning.of_helm([found(body | {"metadata": {"name": "m"}})]))


def test_only_kinds_that_a_cluster_serves_are_asked_for() -> None:
    assert pruning.resources({("apps", "Deployment"): "deployments.apps", ("batch", "Job"): "jobs.batch"}) == "deployments.apps"
