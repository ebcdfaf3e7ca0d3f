"""What the doctor finds of the services: every failure says what to do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from hami_cli import service_checks
from hami_cli.checks import Check, Outcome
from hami_protocol.kubernetes import Lease, LeaseSpec, ObjectMeta, Pod, PodSpec
from hami_runtime.kube.accounts import AGENT_NAMESPACE
from hami_runtime.kube.calls import CALLS
from hami_runtime.kube.cluster import ClusterError

NOW = datetime(2026, 1, 1, 12, 0, 0, 500_000, tzinfo=UTC)
SERVER = NOW.replace(microsecond=0)


def outcomes(found: list[Check]) -> list[tuple[str, Outcome]]:
    for check in found:
        assert check.outcome in {Outcome.OK, Outcome.UNKNOWN} or check.remedy
    return [(check.what, check.outcome) for check in found]


@pytest.mark.parametrize("account", CALLS)
def test_every_call_of_a_service_is_asked_about(account: str) -> None:
    needed = service_checks.needed(account, "hami-system")
    assert len(needed) == sum(max(len(call.names), 1) for call in CALLS[account])
    assert service_checks.service_rights(account, dict.fromkeys(needed, True)).outcome is Outcome.OK


def test_a_right_that_is_lacking_is_named() -> None:
    needed = service_checks.needed("hami-scheduler", "hami-system")
    lacking = [access for access in needed if access.subresource == "binding"]
    check = service_checks.service_rights("hami-scheduler", {access: access not in lacking for access in needed})
    assert (check.outcome, check.detail) == (Outcome.FAILED, "it may not create pods/binding")
    assert "rbac.yaml" in check.remedy


def test_of_many_rights_that_are_lacking_a_few_are_named() -> None:
    check = service_checks.service_rights("hami-scheduler", dict.fromkeys(service_checks.needed("hami-scheduler", "n"), False))
    assert check.detail.endswith("more")
    assert len(check.detail) < 250


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Pod(metadata=ObjectMeta(name="p"), spec=PodSpec(scheduler_name="hami-scheduler")), Outcome.OK),
        (Pod(metadata=ObjectMeta(name="p"), spec=PodSpec(scheduler_name="default-scheduler")), Outcome.FAILED),
        (ClusterError('Internal error occurred: failed calling webhook "vgpu.hami.io": x509: unknown authority', code=500), Outcome.FAILED),
        (ClusterError('admission webhook "vgpu.hami.io" denied the request: exceeding resource quota', code=403), Outcome.OK),
        (ClusterError("pods is forbidden: violates PodSecurity", code=403), Outcome.WARNING),
    ],
)
def test_whether_a_pod_comes_to_our_scheduler(outcome: Pod | ClusterError, expected: Outcome) -> None:
    assert outcomes([service_checks.admission("nvidia.com/gpu", outcome)]) == [("admission", expected)]


@pytest.mark.parametrize(
    ("off_seconds", "expected"),
    [
        (0, Outcome.OK),
        (4, Outcome.OK),
        (-4, Outcome.OK),
        (20, Outcome.WARNING),
        (-20, Outcome.WARNING),
        (90, Outcome.FAILED),
        (-90, Outcome.FAILED),
    ],
)
def test_the_api_servers_clock(off_seconds: int, expected: Outcome) -> None:
    server = SERVER + timedelta(seconds=off_seconds)
    assert outcomes(list(service_checks.clocks(server, NOW, NOW + timedelta(milliseconds=20), []))) == [("clock", expected)]


def test_a_nodes_clock_that_is_ahead_is_named() -> None:
    leases = [
        Lease(metadata=ObjectMeta(name=name), spec=LeaseSpec(renew_time=renewed))
        for name, renewed in (
            ("right", "2026-01-01T11:59:55.000000Z"),
            ("fast", "2026-01-01T12:01:00.000000Z"),
            ("odd", "soon"),
            ("new", None),
        )
    ]
    found = list(service_checks.clocks(SERVER, NOW, NOW, leases))
    assert outcomes(found) == [("clock", Outcome.OK), ("clock of fast", Outcome.FAILED)]
    assert "60 s ahead" in found[1].detail


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ({}, []),
        ({"a": "1", "b": "1"}, [Outcome.OK]),
        ({"a": "1", "b": "2"}, [Outcome.WARNING]),
        ({"a": "1", "b": ""}, [Outcome.FAILED]),
        ({"a": "", "b": ""}, [Outcome.FAILED]),
        ({"a": "1", "b": "2", "c": ""}, [Outcome.FAILED, Outcome.WARNING]),
    ],
)
def test_the_shim_on_each_node(versions: dict[str, str], expected: list[Outcome]) -> None:
    assert [outcome for _, outcome in outcomes(list(service_checks.shims(versions)))] == expected


def test_a_node_that_should_register_and_does_not_is_named() -> None:
    assert outcomes(list(service_checks.silent(["a", "b"], ["a", "c"]))) == [("agent on b", Outcome.FAILED)]


def test_a_right_of_another_namespace_is_asked_about_there() -> None:
    (pods,) = [access for access in service_checks.needed("hami-auth-callout", "hami-system") if access.resource == "pods"]
    assert (pods.verb, pods.namespace) == ("get", AGENT_NAMESPACE)
