"""Every folder builds alone, and what it builds is what the API server's schema asks for."""

import json
import warnings

import pytest

from tests.unit.manifests.conftest import BASES, OVERLAYS, build

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import kubernetes_validate

VERSIONS = ("1.30", kubernetes_validate.latest_version())
"""The oldest that the policies need, and the newest that is known."""
OF_OTHERS = {("cert-manager.io/v1", "Certificate"), ("cert-manager.io/v1", "Issuer"), ("monitoring.coreos.com/v1", "PodMonitor"),
             ("monitoring.coreos.com/v1", "PrometheusRule")}  # fmt: skip
"""Kinds that are not Kubernetes' own."""


FOLDERS = (*(f"base/{name}" for name in BASES), *(f"overlays/{name}" for name in OVERLAYS))


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_folder_builds_alone(folder: str) -> None:
    assert build(folder).objects


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_what_kubernetes_takes(version: str) -> None:
    different = {json.dumps(each): each for folder in FOLDERS for each in build(folder).objects}
    for each in different.values():
        if (each["apiVersion"], each["kind"]) not in OF_OTHERS:
            kubernetes_validate.validate(each, version, strict=True)


def test_an_object_with_a_misspelt_field_is_found() -> None:
    """The check above can fail."""
    deployment = build("base/registry").of("Deployment")[0]
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**deployment, "spec": {**deployment["spec"], "replica": 1}}, VERSIONS[0], strict=True)


@pytest.mark.parametrize("name", OVERLAYS)
def test_no_two_objects_are_the_same(name: str) -> None:
    identities = [
        (each["apiVersion"], each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"])
        for each in build(f"overlays/{name}").objects
    ]
    assert len(identities) == len(set(identities))


@pytest.mark.parametrize("name", OVERLAYS)
def test_every_object_says_whose_it_is(name: str) -> None:
    for each in build(f"overlays/{name}").objects:
        if each["kind"] not in {"ConfigMap", "Certificate", "Issuer", "NetworkPolicy"}:
            assert each["metadata"]["labels"]["app.kubernetes.io/part-of"] == "hami", each["metadata"]["name"]
