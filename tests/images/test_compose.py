"""docker-compose.yml, typed as its comment shows, with podman-compose: in real containers, from our images."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import yaml

from tests.cluster.harness import ports
from tests.images import bases, building, composing, tools

pytestmark = [pytest.mark.images, pytest.mark.timeout(1800)]

COMMANDS = composing.commands()
SHELL = "docker compose exec shell "


@pytest.fixture(scope="module")
def said() -> Iterator[dict[str, str]]:
    """What each command of the comment prints, in order; after the first, everything is healthy."""
    building.build()
    bases.provide(bases.NATS)
    port, found = ports.free(), {}
    try:
        for command in COMMANDS[:-1]:
            found[command.removeprefix(SHELL)] = composing.podman_compose(command, nats_port=port)
            if command.startswith("docker compose up"):
                composing.healthy()
        yield found
    except tools.ToolError as exc:
        pytest.fail(f"{exc}\n{composing.logs()}")
    finally:
        composing.podman_compose(COMMANDS[-1], nats_port=port)
        assert composing.left() == {"containers": [], "volumes": [], "networks": [], "pods": []}


def test_the_comment_goes_from_nothing_to_nothing() -> None:
    assert COMMANDS[0] == "docker compose up --build --wait"
    assert COMMANDS[-1] == "docker compose down --volumes"
    assert all(command.startswith(SHELL) for command in COMMANDS[1:-1])


def test_every_service_but_the_monitoring_runs(said: dict[str, str]) -> None:
    services = yaml.safe_load(composing.FILE.read_text())["services"]
    running = {name.removeprefix(f"{composing.PROJECT}_").rpartition("_")[0] for name in composing.running()}
    assert running == {name for name, service in services.items() if "profiles" not in service}
    assert services.keys() - running == {"prometheus", "grafana"}


def test_pods_with_a_share_run(said: dict[str, str]) -> None:
    rows = [line.split() for line in said["kubectl get pods -o wide"].splitlines()[1:]]
    assert {(row[0], row[2]) for row in rows} == {("enforced", "Running"), ("first-share", "Running")}


def test_a_program_gets_its_limit_and_no_more(said: dict[str, str]) -> None:
    result = json.loads(said["kubectl logs enforced"].splitlines()[0])
    assert (result["asked_mib"], result["allocated_mib"], result["total_mib"]) == (2000, 1000, 1000)


def test_the_command_line_shows_what_was_granted(said: dict[str, str]) -> None:
    assert any(line.split()[:2] == ["node-a", "ok"] for line in said["hami top"].splitlines())
    assert "success     default/enforced" in said["hami events"]
    assert "success     default/first-share" in said["hami events"]


def test_the_doctor_finds_nothing_wrong(said: dict[str, str]) -> None:
    (answer,) = [text for command, text in said.items() if command.startswith("hami doctor")]
    assert not [line for line in answer.splitlines() if line.split()[0] not in {"ok", "unknown"}]
    assert "shim: version" in answer
