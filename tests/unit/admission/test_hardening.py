"""Rules that a tenant meets: no label of a pod weakens one, and who is adopted is judged as ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from hami_devices.admission import PrivilegedPolicy
from hami_devices.config import DeviceConfig, NvidiaConfig
from hami_devices.requests import MOST_CONTAINERS
from hami_protocol import keys
from hami_protocol.kubernetes import Pod
from hami_webhook import registration
from hami_webhook.registration import Endpoint
from hami_webhook.wire import GroupResource
from tests.unit.admission.conftest import Desk, a_container, a_pod, a_quota

PRIVILEGED = {"securityContext": {"privileged": True}}
IGNORED = {"labels": {keys.WEBHOOK: keys.WEBHOOK_IGNORE}}
CAREFUL = DeviceConfig(nvidia=NvidiaConfig(overwrite_env=True))
VOID = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}


class TestThePodsOwnLabel:
    """``hami.io/webhook: ignore`` on a pod is the tenant's."""

    def test_it_opens_no_way_past_the_refusal_of_privileged_containers(self, desk: Desk) -> None:
        pod = a_pod(a_container(gpu="1", **PRIVILEGED), metadata=IGNORED)
        assert not desk.mutate(pod).allowed
        assert not desk.validate(pod).allowed

    def test_nor_past_a_quota(self, desk: Desk) -> None:
        desk.quotas.quota_changed(None, a_quota(limits_mem="1000"))
        assert not desk.mutate(a_pod(a_container(gpu="1", mem="4000"), metadata=IGNORED)).allowed

    def test_nor_past_what_empties_the_environment_of_idle_containers(self, make_desk: Callable[..., Desk]) -> None:
        found = make_desk(CAREFUL).mutated(a_pod(a_container(), metadata=IGNORED))
        assert found["spec"]["containers"][0]["env"] == [VOID]

    @pytest.mark.departs("the label hami.io/webhook: ignore opts namespaces out; on a pod, where a tenant writes it, it has no effect")
    def test_a_share_is_ours_with_the_label_too(self, desk: Desk) -> None:
        assert desk.mutated(a_pod(a_container(gpu="1"), metadata=IGNORED))["spec"]["schedulerName"] == "hami-scheduler"

    @pytest.mark.parametrize("side", ["Mutating", "Validating"])
    def test_the_api_server_sends_such_pods_and_leaves_out_namespaces_alone(self, side: Any) -> None:
        body = registration.configuration(
            side, Endpoint(url="https://x"), b"", resources=["r"], system_keys=[], trusted_users=[], failure_policy="Fail", all_pods=False
        )
        (webhook,) = body["webhooks"]
        assert "objectSelector" not in webhook
        assert "namespaceSelector" in webhook


FIELDS: dict[str, Any] = {
    "operation": "UPDATE",
    "sub_resource": "ephemeralcontainers",
    "resource": GroupResource(version="v1", resource="pods"),
}


class TestEphemeralContainers:
    def debugged(self, **container: Any) -> dict[str, Any]:
        return a_pod(
            a_container(gpu="1"), ephemeralContainers=[{"name": "old", "image": "x"}, {"name": "debug", "image": "x", **container}]
        )

    def before(self) -> dict[str, Any]:
        return a_pod(a_container(gpu="1"), ephemeralContainers=[{"name": "old", "image": "x"}])

    def test_a_new_one_is_given_no_device_where_idle_containers_are_not(self, make_desk: Callable[..., Desk]) -> None:
        found = make_desk(CAREFUL).mutated(self.debugged(), old=self.before(), **FIELDS)
        old, debug = found["spec"]["ephemeralContainers"]
        assert debug["env"] == [VOID]
        assert "env" not in old  # it cannot be changed any more

    def test_a_privileged_one_is_refused_where_privileged_pods_are(self, make_desk: Callable[..., Desk]) -> None:
        desk = make_desk(privileged=PrivilegedPolicy.POD)
        for decide in (desk.mutate, desk.validate):
            assert not decide(self.debugged(**PRIVILEGED), old=self.before(), **FIELDS).allowed
            assert decide(self.debugged(), old=self.before(), **FIELDS).allowed

    def test_the_api_server_sends_them(self) -> None:
        body = registration.configuration(
            "Mutating",
            Endpoint(url="https://x"),
            b"",
            resources=["r"],
            system_keys=[],
            trusted_users=[],
            failure_policy="Fail",
            all_pods=True,
        )
        assert ["pods/ephemeralcontainers"] in [rule["resources"] for rule in body["webhooks"][0]["rules"]]


class TestAdoptedSchedulers:
    REFUSED = (
        a_pod(a_container(gpu="1", **PRIVILEGED), schedulerName="volcano"),
        a_pod(a_container(gpu="1"), schedulerName="volcano", nodeName="n1"),
        a_pod(a_container(gpu="1", mem="-5"), schedulerName="volcano"),
    )

    @pytest.mark.parametrize("pod", REFUSED, ids=["privileged", "node assigned", "unreadable"])
    def test_their_pods_are_judged_as_ours(self, make_desk: Callable[..., Desk], pod: dict[str, Any]) -> None:
        desk = make_desk(adopted_schedulers=frozenset({"volcano"}))
        assert not desk.mutate(pod).allowed
        assert not desk.validate(pod).allowed

    def test_their_quota_binds_too(self, make_desk: Callable[..., Desk]) -> None:
        desk = make_desk(adopted_schedulers=frozenset({"volcano"}))
        desk.quotas.quota_changed(None, a_quota(limits_mem="1000"))
        assert not desk.mutate(a_pod(a_container(gpu="1", mem="4000"), schedulerName="volcano")).allowed

    def test_and_left_to_their_scheduler(self, make_desk: Callable[..., Desk]) -> None:
        decision = make_desk(adopted_schedulers=frozenset({"volcano"})).mutate(a_pod(a_container(gpu="1"), schedulerName="volcano"))
        assert decision.allowed
        assert not decision.patch

    @pytest.mark.parametrize("pod", REFUSED, ids=["privileged", "node assigned", "unreadable"])
    def test_pods_of_others_are_none_of_ours(self, desk: Desk, pod: dict[str, Any]) -> None:
        """They get nothing: nobody adopts them, and the agent finds no grant."""
        assert desk.mutate(pod).allowed


class TestContainers:
    @pytest.mark.parametrize(("count", "allowed"), [(MOST_CONTAINERS, True), (MOST_CONTAINERS + 1, False), (5000, False)])
    def test_a_pod_that_asks_for_devices_has_a_bounded_number(self, desk: Desk, count: int, allowed: bool) -> None:
        inits = tuple(a_container(f"i{number}") for number in range(2))
        pod = a_pod(*(a_container(f"c{number}", gpu="1", mem="1") for number in range(count - 2)), inits=inits)
        for decision in (desk.mutate(pod), desk.validate(pod)):
            assert decision.allowed is allowed, decision.message
            assert (
                allowed
                or decision.message
                == f"spec.containers: {count} containers; accepted: at most {MOST_CONTAINERS} in a pod that asks for devices"
            )

    def test_one_that_asks_for_none_has_any(self, desk: Desk) -> None:
        assert desk.mutate(a_pod(*(a_container(f"c{number}") for number in range(5000)))).allowed


OFF = [{"name": "CUDA_DISABLE_CONTROL", "value": "true"}]


class TestDisableControl:
    @pytest.mark.parametrize(("allowed", "env", "whole"), [(False, OFF, False), (True, OFF, True), (True, [], False)])
    def test_a_container_that_switches_its_limits_off_is_booked_whole_cards(
        self, make_desk: Callable[..., Desk], allowed: bool, env: list[dict[str, str]], whole: bool
    ) -> None:
        desk = make_desk(DeviceConfig(nvidia=NvidiaConfig(allow_disable_control=allowed)))
        pod = msgspec.convert(a_pod(a_container(gpu="1", mem="1000", cores="10", env=env)), Pod)
        ((request,),) = [container.requests for container in desk.catalog.read_pod(pod).containers]
        assert (request.whole, request.cores == 100, request.memory_mib) == (whole, whole, 0 if whole else 1000)

    def test_and_its_quota_is_charged_so(self, make_desk: Callable[..., Desk]) -> None:
        desk = make_desk(DeviceConfig(nvidia=NvidiaConfig(allow_disable_control=True)))
        desk.quotas.quota_changed(None, a_quota(limits_cores="50"))
        assert desk.mutate(a_pod(a_container(gpu="1", mem="10", cores="10"))).allowed
        assert not desk.mutate(a_pod(a_container(gpu="1", mem="10", cores="10", env=OFF))).allowed


DEFAULT = {"type": "RuntimeDefault"}


class TestSeccomp:
    def profile(self, desk: Desk, container: dict[str, Any], **spec: Any) -> Any:
        return desk.mutated(a_pod(container, **spec))["spec"]["containers"][0].get("securityContext", {}).get("seccompProfile")

    def test_a_container_with_a_share_that_names_none_gets_the_runtimes(self, make_desk: Callable[..., Desk]) -> None:
        desk = make_desk(confine=True)
        assert self.profile(desk, a_container(gpu="1", mem="1000")) == DEFAULT
        context = {"securityContext": {"runAsUser": 5}}
        found = desk.mutated(a_pod(a_container(gpu="1", mem="1000", **context), a_container("idle")))["spec"]["containers"]
        assert found[0]["securityContext"] == {"runAsUser": 5, "seccompProfile": DEFAULT}
        assert "securityContext" not in found[1]

    def test_what_a_pod_or_container_names_is_kept(self, make_desk: Callable[..., Desk]) -> None:
        desk, own = make_desk(confine=True), {"seccompProfile": {"type": "Unconfined"}}
        assert self.profile(desk, a_container(gpu="1", mem="1000", securityContext=own)) == {"type": "Unconfined"}
        assert self.profile(desk, a_container(gpu="1", mem="1000"), securityContext=own) is None

    def test_whole_cards_and_other_containers_keep_theirs(self, make_desk: Callable[..., Desk]) -> None:
        desk = make_desk(confine=True)
        assert self.profile(desk, a_container(gpu="1")) is None
        assert self.profile(desk, a_container()) is None
        assert self.profile(make_desk(confine=False), a_container(gpu="1", mem="1000")) is None

    def test_a_second_review_changes_nothing_more(self, make_desk: Callable[..., Desk]) -> None:
        desk = make_desk(confine=True)
        once = desk.mutated(a_pod(a_container(gpu="1", mem="1000")))
        assert desk.mutated(once) == once
