"""What a pod's environment says is what its service reads: every variable is known, every value accepted, every port the one that is named."""

import re
from typing import Any

import pytest
import yaml

from hami_node_agent.settings import Settings as AgentSettings
from hami_registry.callout import responder
from hami_registry.callout.settings import Settings as CalloutSettings
from hami_registry.settings import Settings as RegistrySettings
from hami_rig.scheduler import configuration
from hami_runtime import settings
from hami_runtime.bus.signing_secret import new_secret
from hami_scheduler.settings import Settings as SchedulerSettings
from hami_webhook.settings import Settings as WebhookSettings
from tests.unit.manifests.conftest import AUTH_CALLOUT, OVERLAYS, Manifests, build

Object = dict[str, Any]
SETTINGS = {
    "node-agent": AgentSettings,
    "install-shim": AgentSettings,
    "auth-callout": CalloutSettings,
    "registry": RegistrySettings,
    "extender": SchedulerSettings,
    "webhook": WebhookSettings,
}
GIVEN = {"metadata.namespace": "hami-system", "metadata.name": "hami-x-0", "spec.nodeName": "node-1", "status.podIP": "10.0.0.7"}


def environment(container: Object) -> dict[str, str]:
    """The variables as kubelet would set them."""
    found: dict[str, str] = {}
    for each in container.get("env", ()):
        value = each["value"] if "value" in each else GIVEN[each["valueFrom"]["fieldRef"]["fieldPath"]]
        for name, earlier in found.items():
            value = value.replace(f"$({name})", earlier)
        found[each["name"]] = value
    return found


def ours() -> list[tuple[str, str, str]]:
    return [
        (overlay, workload, container["name"])
        for overlay in OVERLAYS
        for workload, pod in build(f"overlays/{overlay}").pods.items()
        for container in [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]
        if container["image"].startswith("hami/")
    ]


@pytest.mark.parametrize(("overlay_name", "workload", "name"), ours())
def test_a_service_accepts_its_environment(overlay_name: str, workload: str, name: str) -> None:
    pod = build(f"overlays/{overlay_name}").pods[workload]
    (container,) = [each for each in [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]] if each["name"] == name]
    read = settings.load(SETTINGS[name], environment(container))
    ports = {port["name"]: port["containerPort"] for port in container.get("ports", ())}
    if ports:
        assert read.health_host == "0.0.0.0"
        assert ports.pop("metrics") == read.health_port
        assert ports.pop("webhook", 0) == getattr(read, "webhook_port", 0)
        if "api" in ports:  # beyond the pod: over TLS, and for who shows a token
            assert (ports.pop("api"), read.api_tls, read.api_open) == (read.api_port, True, False)  # type: ignore[attr-defined]
        if "extender" in ports:
            assert isinstance(read, SchedulerSettings)
            assert ports.pop("extender") == read.extender_port
        assert not ports
    mounts = {mount["mountPath"] for mount in container.get("volumeMounts", ())}
    files = [read.nats_ca, read.nats_certificate, read.nats_key, read.nats_token_file]
    if isinstance(read, CalloutSettings):
        files.append(read.signing_key_file)
    for path in files:
        assert not path or path.rpartition("/")[0] in mounts
    if isinstance(read, AgentSettings) and container["args"] == ["run"]:
        assert {f"{read.hook_path}/vgpu", read.plugin_folder, read.pod_resources_socket.rpartition("/")[0], read.cdi_folder} <= mounts
        assert read.containerd_config.rpartition("/")[0] in mounts
        assert {f"{read.driver_root_mount}/usr", f"{read.driver_root_mount}/dev"} <= mounts


def test_the_extender_is_where_kube_scheduler_calls_it(overlay: Manifests) -> None:
    containers = {each["name"]: each for each in overlay.pods["hami-scheduler"]["spec"]["containers"]}
    read = settings.load(SchedulerSettings, environment(containers["extender"]))
    (found,) = [each for each in overlay.of("ConfigMap") if each["metadata"]["name"].startswith("hami-kube-scheduler")]
    called = configuration.load(found["data"]["kube-scheduler.yaml"])
    scheme = "https" if read.extender_certificate else "http"
    assert called.extenders[0].url_prefix == f"{scheme}://127.0.0.1:{read.extender_port}"
    assert called.extenders[0].timeout_seconds > read.bind_timeout_seconds
    assert [profile.scheduler_name for profile in called.profiles] == [settings.load(WebhookSettings, {}).scheduler_name]


def test_an_extender_that_others_reach_shows_a_certificate_and_asks_for_one(overlay: Manifests) -> None:
    containers = {each["name"]: each for each in overlay.pods["hami-scheduler"]["spec"]["containers"]}
    read = settings.load(SchedulerSettings, environment(containers["extender"]))
    if overlay.one("Deployment", "hami-scheduler")["spec"]["replicas"] == 1:
        assert read.extender_host == "127.0.0.1"
        return
    assert read.extender_client_ca
    assert read.advertise_url == f"https://{GIVEN['status.podIP']}:{read.extender_port}"
    (found,) = [each for each in overlay.of("ConfigMap") if each["metadata"]["name"].startswith("hami-kube-scheduler")]
    (extender,) = yaml.safe_load(found["data"]["kube-scheduler.yaml"])["extenders"]
    shown = extender["tlsConfig"]
    assert extender["enableHTTPS"] is True
    assert (shown["caFile"], shown["certFile"], shown["keyFile"]) == (
        read.extender_client_ca,
        read.extender_certificate,
        read.extender_key,
    )
    assert shown["serverName"] == read.extender_server_name
    assert shown["serverName"] in overlay.one("Certificate", "hami-extender")["spec"]["dnsNames"]
    for container in containers.values():
        assert shown["certFile"].rpartition("/")[0] in {mount["mountPath"] for mount in container["volumeMounts"]}


def test_streams_are_kept_on_as_many_servers_as_there_are(overlay: Manifests) -> None:
    servers = overlay.one("StatefulSet", "hami-nats")["spec"]["replicas"]
    for workload, name in (("hami-scheduler", "extender"), ("hami-registry", "registry")):
        (container,) = [each for each in overlay.pods[workload]["spec"]["containers"] if each["name"] == name]
        assert settings.load(SETTINGS[name], environment(container)).nats_replicas == servers


def test_the_servers_of_the_bus_know_each_other(production: Manifests) -> None:
    nats = production.one("StatefulSet", "hami-nats")
    (found,) = [each for each in production.of("ConfigMap") if each["metadata"]["name"].startswith("hami-nats")]
    routes = re.findall(r"nats://([^:\"]+):(\d+)", found["data"]["cluster.conf"])
    headless = production.one("Service", nats["spec"]["serviceName"])
    domain = f"{headless['metadata']['name']}.hami-system.svc"
    assert [name for name, _ in routes] == [f"hami-nats-{number}.{domain}" for number in range(nats["spec"]["replicas"])]
    assert {int(port) for _, port in routes} == {port["port"] for port in headless["spec"]["ports"] if port["name"] == "cluster"}
    assert f"*.{domain}" in production.one("Certificate", "hami-nats-server")["spec"]["dnsNames"]


def test_an_agent_shows_the_bus_a_token_that_the_callout_asks_about_and_nobody_else_takes(production: Manifests) -> None:
    pod = production.pods["hami-node-agent"]["spec"]
    (volume,) = [each for each in pod["volumes"] if "projected" in each]
    (source,) = volume["projected"]["sources"]
    token = source["serviceAccountToken"]
    assert token["audience"] == responder.TOKEN_AUDIENCE
    containers = {each["name"]: each for each in pod["containers"]}
    read = settings.load(AgentSettings, environment(containers["node-agent"]))
    (mount,) = [each for each in containers["node-agent"]["volumeMounts"] if each["name"] == volume["name"]]
    assert read.nats_token_file == f"{mount['mountPath']}/{token['path']}"
    asks = settings.load(CalloutSettings, environment(production.pods[AUTH_CALLOUT]["spec"]["containers"][0]))
    assert (asks.agent_namespace, asks.agent_account) == (production.namespace("hami-node-agent"), pod["serviceAccountName"])
    assert asks.user_seconds <= token["expirationSeconds"]


def test_who_issues_users_and_who_believes_him_have_the_two_halves_of_one_secret(production: Manifests) -> None:
    secret = yaml.safe_load(new_secret())
    (issuer,) = [each for each in production.pods["hami-nats"]["spec"]["containers"][0]["env"] if each["name"] == "AUTH_ISSUER"]
    (volume,) = [each for each in production.pods[AUTH_CALLOUT]["spec"]["volumes"] if each["name"] == "signing-key"]
    named = issuer["valueFrom"]["secretKeyRef"]
    assert named["name"] == volume["secret"]["secretName"] == secret["metadata"]["name"]
    assert {named["key"], *(item["key"] for item in volume["secret"]["items"])} == set(secret["stringData"])
    assert secret["metadata"]["namespace"] == "hami-system"


def test_a_webhook_is_called_where_it_listens(overlay: Manifests) -> None:
    service = overlay.one("Service", "hami-webhook")
    for each in overlay.of("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        called = each["webhooks"][0]["clientConfig"]["service"]
        assert (called["name"], called["namespace"], called["port"]) == ("hami-webhook", "hami-system", service["spec"]["ports"][0]["port"])
        assert "caBundle" not in each["webhooks"][0]["clientConfig"]  # an empty one would undo the webhook's at each apply
