"""What an installation needs of a cluster, read off its objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from hami_cli import installation, prerequisites
from hami_cli.prerequisites import Has
from tests.unit.manifests.conftest import OVERLAYS, Object, build

READY = {("Secret", "hami-system", "hami-auth-callout"): frozenset({"issuer", "seed"})}


def a_plan(*objects: Object) -> installation.Plan:
    return installation.Plan(objects=objects)


def a_workload(spec: Object, kind: str = "Deployment", **more: Any) -> Object:
    body = {"template": {"spec": {"containers": [{"name": "c"}], **spec}}, **more}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "w", "namespace": "n"}, "spec": body}


def has(
    keys: Mapping[tuple[str, str, str], frozenset[str] | None] | None = None,
    *,
    storage_classes: Mapping[str, bool] | None = None,
    claims: frozenset[tuple[str, str]] = frozenset(),
    version: str = "v1.37.2",
) -> Has:
    labels = ({"gpu": "on"},)
    return Has(keys=keys or {}, storage_classes=storage_classes or {}, claims=claims, node_labels=labels, version=version)


def problems(plan: installation.Plan, found: Has) -> list[str]:
    return list(prerequisites.problems(prerequisites.needs(plan), found))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_cluster_that_has_all_gets_every_overlay(overlay: str) -> None:
    plan = a_plan(*build(f"overlays/{overlay}").objects)
    assert not problems(plan, has(READY, storage_classes={"standard": True}))
    assert not list(prerequisites.notices(prerequisites.needs(plan), has(READY)))


def test_what_production_needs_is_found_in_its_objects_alone() -> None:
    found = problems(a_plan(*build("overlays/production").objects), has(storage_classes={"slow": False}, version="v1.29.4"))
    assert len(found) == 3
    assert "v1.29.4; this overlay needs 1.30" in found[0]
    assert "Secret hami-system/hami-auth-callout does not exist" in found[1]
    assert "hami install --make-key" in found[1]
    assert "no StorageClass is the default (there is slow)" in found[2]


MOUNTS = {
    "a volume": {"volumes": [{"name": "v", "secret": {"secretName": "s"}}]},
    "a volume's item": {"volumes": [{"name": "v", "secret": {"secretName": "s", "items": [{"key": "k", "path": "p"}]}}]},
    "a projected volume": {"volumes": [{"name": "v", "projected": {"sources": [{"secret": {"name": "s"}}]}}]},
    "a variable": {"containers": [{"name": "c", "env": [{"name": "E", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}]},
    "a variable of an init container": {
        "initContainers": [{"name": "i", "env": [{"name": "E", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}]
    },
    "all variables": {"containers": [{"name": "c", "envFrom": [{"secretRef": {"name": "s"}}]}]},
    "pulling images": {"imagePullSecrets": [{"name": "s"}]},
}


@pytest.mark.parametrize("name", MOUNTS)
def test_a_secret_is_needed_wherever_a_pod_names_it(name: str) -> None:
    plan = a_plan(a_workload(MOUNTS[name]))
    (missing,) = problems(plan, has())
    assert "Secret n/s does not exist, and Deployment n/w cannot start without" in missing
    there = {("Secret", "n", "s"): frozenset({"k"})}
    assert not problems(plan, has(there))
    made = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "n"}}
    assert not problems(a_plan(a_workload(MOUNTS[name]), made), has())


def test_what_is_optional_or_made_by_a_certificate_is_not_needed() -> None:
    optional = a_workload({"volumes": [{"name": "v", "configMap": {"name": "m", "optional": True}}]})
    certificate = {"apiVersion": "cert-manager.io/v1", "kind": "Certificate", "metadata": {"name": "c", "namespace": "n"}}
    of_certificate = a_workload({"volumes": [{"name": "v", "secret": {"secretName": "s"}}]})
    assert not problems(a_plan(optional, of_certificate, {**certificate, "spec": {"secretName": "s"}}), has())


def test_a_secret_without_a_key_that_is_named_is_not_enough() -> None:
    plan = a_plan(a_workload(MOUNTS["a variable"]))
    (missing,) = problems(plan, has({("Secret", "n", "s"): frozenset({"other"})}))
    assert "Secret n/s lacks the keys k" in missing


def test_a_secret_that_may_not_be_read_is_noted_and_no_problem() -> None:
    plan = a_plan(a_workload(MOUNTS["a variable"]))
    unread = has({("Secret", "n", "s"): None})
    assert not problems(plan, unread)
    (notice,) = prerequisites.notices(prerequisites.needs(plan), unread)
    assert "you may not read it" in notice


def test_volumes_need_their_class_unless_they_are_there() -> None:
    def claiming(storage_class: str) -> installation.Plan:
        template = {"metadata": {"name": "data"}, "spec": {"storageClassName": storage_class} if storage_class else {}}
        return a_plan(a_workload({}, "StatefulSet", replicas=2, volumeClaimTemplates=[template]))

    (missing,) = problems(claiming("fast"), has(storage_classes={"slow": True}))
    assert "StorageClass fast, which does not exist" in missing
    assert not problems(claiming("fast"), has(storage_classes={"fast": False}))
    assert problems(claiming(""), has(claims=frozenset({("n", "data-w-0")})))
    assert not problems(claiming(""), has(claims=frozenset({("n", "data-w-0"), ("n", "data-w-1")})))


def test_nodes_that_nobody_has_labelled_are_noted() -> None:
    plan = a_plan(a_workload({"nodeSelector": {"gpu": "on", "pool": "a"}}, "DaemonSet"))
    (notice,) = prerequisites.notices(prerequisites.needs(plan), has())
    assert "kubectl label node NODE gpu=on pool=a" in notice
