"""Settings of webhook and registry, and the objects that come of them."""

from __future__ import annotations

from typing import Any

import pytest

from hami_devices.catalog import Catalog
from hami_registry.settings import Settings as RegistrySettings
from hami_runtime.settings import SettingsError, load
from hami_webhook.registration import Endpoint, configuration, trust_patch
from hami_webhook.review import PrivilegedPolicy
from hami_webhook.settings import Settings

SCHEDULER = "system:serviceaccount:hami-system:hami-scheduler"


def a_configuration(side: Any = "Mutating", **options: Any) -> dict[str, Any]:
    given = {
        "resources": ["nvidia.com/gpu"],
        "system_keys": ["hami.io/vgpu-node"],
        "trusted_users": [SCHEDULER],
        "failure_policy": "Fail",
        "all_pods": False,
        **options,
    }
    return configuration(side, Endpoint(service="hami-webhook", namespace="hami-system"), b"CA", **given)


def test_our_service_accounts_are_trusted_by_default() -> None:
    policy = load(Settings, {"HAMI_NAMESPACE": "hami-system"}).policy(Catalog())
    assert policy.trusted_users == {SCHEDULER, "system:serviceaccount:hami-system:hami-registry"}
    assert load(Settings, {"HAMI_TRUSTED_USERS": "a, b"}).policy(Catalog()).trusted_users == {"a", "b"}


def test_a_vendors_writer_gets_that_vendors_keys() -> None:
    policy = load(Settings, {"HAMI_VENDOR_WRITERS": "system:serviceaccount:x:y=NVIDIA"}).policy(Catalog())
    assert policy.vendor_writers == {
        "system:serviceaccount:x:y": {"hami.io/vgpu-devices-allocated", "hami.io/vgpu-devices-to-allocate"},
    }
    with pytest.raises(ValueError, match="no vendor 'Voodoo'; accepted: NVIDIA"):
        load(Settings, {"HAMI_VENDOR_WRITERS": "x=Voodoo"}).policy(Catalog())


@pytest.mark.parametrize(
    ("settings", "environ", "message"),
    [
        (Settings, {"HAMI_VENDOR_WRITERS": "nobody"}, "HAMI_VENDOR_WRITERS: 'nobody' is not accepted; accepted: user=VENDOR"),
        (Settings, {"HAMI_WEBHOOK_URL": "http://x"}, "accepted: an https:// URL"),
        (Settings, {"HAMI_CERTIFICATE_FILE": "x"}, "one is empty"),
        (Settings, {"HAMI_PRIVILEGED": "never"}, "accepted: one of container, pod, allow"),
        (Settings, {"HAMI_SCHEDULAR_NAME": "x"}, "the nearest known one is HAMI_SCHEDULER_NAME"),
        (RegistrySettings, {"HAMI_API_OPEN": "true", "HAMI_API_HOST": "0.0.0.0"}, "accepted: a loopback address"),
        (RegistrySettings, {"HAMI_LEGACY_HANDSHAKES": "true"}, "the nearest known one is HAMI_LEGACY_HANDSHAKE"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(settings: Any, environ: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match="HAMI_") as refused:
        load(settings, environ)
    assert message in str(refused.value)


def test_values_are_read() -> None:
    settings = load(Settings, {"HAMI_PRIVILEGED": "pod", "HAMI_EXEMPT_NAMESPACES": "kube-system,ops", "HAMI_REGISTER": "false"})
    policy = settings.policy(Catalog())
    assert (policy.privileged, policy.exempt_namespaces, settings.register) == (PrivilegedPolicy.POD, {"kube-system", "ops"}, False)


@pytest.mark.parametrize(
    ("environ", "endpoint"),
    [
        ({}, Endpoint(url="https://127.0.0.1:4443")),
        ({"HAMI_WEBHOOK_URL": "https://hooks.example:443/"}, Endpoint(url="https://hooks.example:443/")),
        ({"HAMI_SERVICE_NAME": "w", "HAMI_NAMESPACE": "n"}, Endpoint(service="w", namespace="n")),
    ],
)
def test_where_the_api_server_reaches_us(environ: dict[str, str], endpoint: Endpoint) -> None:
    assert load(Settings, environ).endpoint(4443) == endpoint


def test_the_mutating_side_sees_what_asks_for_us_and_nothing_of_kube_system() -> None:
    (webhook,) = a_configuration()["webhooks"]
    assert webhook["clientConfig"] == {
        "service": {"name": "hami-webhook", "namespace": "hami-system", "path": "/webhook", "port": 443},
        "caBundle": "Q0E=",
    }
    assert [(rule["resources"], rule["operations"]) for rule in webhook["rules"]] == [
        (["pods"], ["CREATE"]),
        (["pods/ephemeralcontainers"], ["UPDATE"]),
    ]
    assert all((rule["apiGroups"], rule["apiVersions"], rule["scope"]) == ([""], ["v1"], "*") for rule in webhook["rules"])
    assert {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]} in webhook["namespaceSelector"][
        "matchExpressions"
    ]
    assert "'nvidia.com/gpu'" in webhook["matchConditions"][0]["expression"]
    assert webhook["sideEffects"] == "None"


def test_it_sees_all_pods_where_the_device_configuration_changes_them() -> None:
    assert "matchConditions" not in a_configuration(all_pods=True)["webhooks"][0]


def test_the_validating_side_leaves_our_own_writers_alone_and_the_opt_out_label_does_not_hide_from_it() -> None:
    (webhook,) = a_configuration("Validating")["webhooks"]
    assert webhook["matchConditions"][1]["expression"] == f"!(request.userInfo.username in ['{SCHEDULER}'])"
    assert "objectSelector" not in webhook
    assert [rule["operations"] for rule in webhook["rules"]] == [["CREATE", "UPDATE"], ["CREATE"]]


def test_registrations_are_patched_only_where_they_differ() -> None:
    wanted = a_configuration()
    found = a_configuration(failure_policy="Ignore")
    del found["webhooks"][0]["clientConfig"]["service"]["port"]  # as an API server may leave out a default
    assert trust_patch(found, wanted) is None
    found["webhooks"].insert(0, {"name": "somebody.else"})
    found["webhooks"][1]["clientConfig"]["caBundle"] = ""
    patch = trust_patch(found, wanted)
    assert patch is not None
    assert [webhook["name"] for webhook in patch["webhooks"]] == ["somebody.else", "vgpu.hami.io"]
    assert patch["webhooks"][1]["failurePolicy"] == "Ignore"
    assert trust_patch({"webhooks": []}, wanted) == {"webhooks": wanted["webhooks"]}
