"""Each service may do exactly what it does."""

from typing import Any

import pytest

from hami_runtime.kube import accounts
from hami_runtime.kube.calls import BUILT_IN, CALLS, Call
from tests.unit.manifests.conftest import AUTH_CALLOUT, SERVICES, Manifests, build

Object = dict[str, Any]
WRITES = {"create", "update", "patch", "delete", "deletecollection"}


def calls(role: Object, account: str) -> set[Call]:
    namespace = role["metadata"].get("namespace", "") if role["kind"] == "Role" else ""
    elsewhere = "" if namespace == accounts.namespace_of(account) else namespace
    return {
        Call(verb, resource, group, frozenset(rule.get("resourceNames", ())), namespaced=role["kind"] == "Role", namespace=elsewhere)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def granted(manifests: Manifests, account: str) -> tuple[set[Call], set[str]]:
    """What an account may do, and which roles of Kubernetes' own it has."""
    roles = {
        (role["kind"], role["metadata"].get("namespace"), role["metadata"]["name"]): role for role in manifests.of("Role", "ClusterRole")
    }
    allowed: set[Call] = set()
    built_in: set[str] = set()
    for binding in manifests.of("RoleBinding", "ClusterRoleBinding"):
        if {"kind": "ServiceAccount", "name": account, "namespace": accounts.namespace_of(account)} in binding["subjects"]:
            kind, name = binding["roleRef"]["kind"], binding["roleRef"]["name"]
            key = kind, binding["metadata"].get("namespace") if kind == "Role" else None, name
            if key in roles:
                allowed |= calls(roles[key], account)
            else:
                built_in.add(name)
    return allowed, built_in


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_may_do_what_it_does_and_nothing_else(service: str) -> None:
    allowed, built_in = granted(build(f"base/{service}"), f"hami-{service}")
    assert allowed == CALLS[f"hami-{service}"]
    assert built_in == BUILT_IN.get(f"hami-{service}", set())


def test_the_auth_callout_may_ask_who_somebody_is_and_nothing_else(production: Manifests) -> None:
    allowed, built_in = granted(production, AUTH_CALLOUT)
    assert allowed == CALLS[AUTH_CALLOUT]
    assert not built_in


def test_no_right_is_given_to_anybody_else(overlay: Manifests) -> None:
    there = {account["metadata"]["name"]: account["metadata"]["namespace"] for account in overlay.of("ServiceAccount")}
    assert there.keys() - {AUTH_CALLOUT} == {f"hami-{service}" for service in SERVICES}
    for binding in overlay.of("RoleBinding", "ClusterRoleBinding"):
        (subject,) = binding["subjects"]
        assert (subject["kind"], subject["namespace"]) == ("ServiceAccount", there[subject["name"]])


def test_an_agent_reads_its_own_certificate_for_the_bus_and_no_other_secret(production: Manifests) -> None:
    allowed, _ = granted(production, accounts.AGENT)
    of_secrets = {call for call in allowed if call.resource == "secrets"}
    (container,) = production.pods[accounts.AGENT]["spec"]["containers"]
    (secret,) = [each["value"] for each in container["env"] if each["name"] == "HAMI_NATS_SECRET"]
    namespace, _, name = secret.partition("/")
    assert of_secrets == {Call("get", "secrets", names=frozenset({name}), namespaced=True, namespace=accounts.SYSTEM_NAMESPACE)}
    assert allowed - of_secrets == CALLS[accounts.AGENT]
    (role,) = [each for each in production.of("Role") if each["metadata"]["name"] == accounts.AGENT]
    (certificate,) = [each for each in production.of("Certificate") if each["spec"]["secretName"] == name]
    assert role["metadata"]["namespace"] == certificate["metadata"]["namespace"] == namespace


def test_no_right_has_a_wildcard(overlay: Manifests) -> None:
    for role in overlay.of("Role", "ClusterRole"):
        for rule in role["rules"]:
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]], role["metadata"]["name"]


def test_the_agent_writes_nothing_but_events() -> None:
    allowed, _ = granted(build("base/node-agent"), "hami-node-agent")
    assert {call.resource for call in allowed if call.verb in WRITES} == {"events"}


def test_who_patches_pods_does_not_bind_and_who_binds_does_not_patch_pods() -> None:
    scheduler, _ = granted(build("base/scheduler"), "hami-scheduler")
    registry, _ = granted(build("base/registry"), "hami-registry")
    assert Call("patch", "pods") not in scheduler
    assert Call("create", "pods/binding") not in registry


@pytest.mark.parametrize("service", SERVICES)
def test_secrets_are_the_webhooks_alone(service: str) -> None:
    allowed, _ = granted(build(f"base/{service}"), f"hami-{service}")
    assert service == "webhook" or not {call for call in allowed if call.resource == "secrets"}
