"""How pods run: as nobody, with a read-only root and no capability, with probes, requests and a priority. Exceptions are listed here, in full."""

import copy
from typing import Any

import pytest

from tests.unit.manifests.conftest import AUTH_CALLOUT, OVERLAYS, SERVICES, Manifests, build

Object = dict[str, Any]
CRITICAL = "system-cluster-critical"
HOST_FOLDERS = {
    "/var/lib/kubelet/device-plugins": "rw",  # our socket beside kubelet's, and kubelet's checkpoint
    "/var/lib/kubelet/pod-resources": "rw",  # a socket cannot be connected to through a read-only mount
    "/var/run/cdi": "rw",  # CDI specs
    "/usr/local/vgpu": "rw",  # the shim, grants and what containers use
    "/etc/containerd": "ro",  # whether the runtime speaks CDI
    "/usr": "ro",  # the driver's libraries and programs
    "/dev": "ro",  # which device nodes there are
}


def containers(pod: Object) -> list[Object]:
    return [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]


def all_containers() -> list[tuple[str, str, str]]:
    return [
        (overlay, workload, container["name"])
        for overlay in OVERLAYS
        for workload, pod in build(f"overlays/{overlay}").pods.items()
        for container in containers(pod)
    ]


@pytest.fixture(params=all_containers(), ids="/".join)
def placed(request: pytest.FixtureRequest) -> tuple[str, Object, Object]:
    """Workload, pod and container."""
    overlay, workload, name = request.param
    pod = build(f"overlays/{overlay}").pods[workload]
    (container,) = [each for each in containers(pod) if each["name"] == name]
    return workload, pod, container


def test_a_container_can_gain_nothing_and_write_nowhere_but_where_it_says(placed: tuple[str, Object, Object]) -> None:
    _, _, container = placed
    secured = copy.deepcopy(container["securityContext"])
    added = {
        "install-shim": ["SYS_PTRACE"],  # it looks which library processes of the host have mapped
        "node-agent": ["DAC_OVERRIDE"],  # it removes what any user may have made in a container's folder
    }
    if container["name"] in added:
        assert secured["capabilities"] == {"drop": ["ALL"], "add": added[container["name"]]}
        secured["capabilities"] = {"drop": ["ALL"]}
    assert secured == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


def test_a_pod_runs_as_nobody_unless_it_works_on_its_host(placed: tuple[str, Object, Object]) -> None:
    workload, pod, _ = placed
    secured = pod["spec"]["securityContext"]
    assert secured["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not any(pod["spec"].get(key) for key in ("hostNetwork", "hostIPC"))
    if workload == "hami-node-agent":
        assert secured["runAsUser"] == 0  # the folders of kubelet and CDI are root's
        assert pod["spec"]["hostPID"] is True  # install-shim
        return
    assert secured["runAsNonRoot"] is True
    assert secured["runAsUser"] > 0
    assert "hostPID" not in pod["spec"]
    assert not [volume for volume in pod["spec"].get("volumes", ()) if "hostPath" in volume]


def test_the_agent_sees_of_its_host_what_it_needs_and_no_more(production: Manifests) -> None:
    pod = production.pods["hami-node-agent"]
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["spec"]["volumes"] if "hostPath" in volume}
    mounted = {
        (paths[mount["name"]], "ro" if mount.get("readOnly") else "rw")
        for container in containers(pod)
        for mount in container["volumeMounts"]
        if mount["name"] in paths
    }
    assert mounted == set(HOST_FOLDERS.items())
    assert set(paths.values()) == set(HOST_FOLDERS)


def test_a_container_says_what_it_needs_and_has_an_end_to_its_memory(placed: tuple[str, Object, Object]) -> None:
    _, _, container = placed
    assert set(container["resources"]["requests"]) == {"cpu", "memory"}
    assert set(container["resources"]["limits"]) == {"memory"}  # who is held back in time holds up all pods


def test_whoever_serves_is_asked_whether_he_does(placed: tuple[str, Object, Object]) -> None:
    _, _, container = placed
    if container["name"] in {"install-shim", "reloader"}:
        return
    ports = {port["name"] for port in container["ports"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["port"] in ports
    if container["image"].startswith("hami/"):
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
        assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"  # not ready is no reason to be started again


def test_a_pod_is_placed_before_those_who_wait_for_it(placed: tuple[str, Object, Object]) -> None:
    workload, pod, _ = placed
    assert pod["spec"]["priorityClassName"] == ("system-node-critical" if workload == "hami-node-agent" else CRITICAL)


def test_a_container_names_a_version_of_its_image(placed: tuple[str, Object, Object]) -> None:
    _, _, container = placed
    name, _, tag = container["image"].partition(":")
    assert name
    assert tag not in {"", "latest"}


def test_a_pod_gets_no_variables_of_services_that_nobody_asked_for(placed: tuple[str, Object, Object]) -> None:
    assert placed[1]["spec"]["enableServiceLinks"] is False


def test_a_pod_gets_no_token_that_it_does_not_use(production: Manifests) -> None:
    assert production.pods["hami-nats"]["spec"]["automountServiceAccountToken"] is False
    assert {pod["spec"].get("serviceAccountName") for pod in production.pods.values()} == {
        None,
        AUTH_CALLOUT,
        *(f"hami-{each}" for each in SERVICES),
    }


def test_a_process_has_the_time_that_it_takes_to_stop(overlay: Manifests) -> None:
    for pod in overlay.pods.values():
        for container in pod["spec"]["containers"]:
            grace = next((float(each["value"]) for each in container.get("env", ()) if each["name"] == "HAMI_GRACE_SECONDS"), 10.0)
            assert pod["spec"]["terminationGracePeriodSeconds"] > grace
