"""docker-compose.yml in podman: its own commands, with podman-compose in place of `docker compose`.

Without systemd nobody runs health checks for podman: ``healthy`` does.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from typing import Final

from tests.images import tools
from tests.images.tools import ROOT, run

FILE: Final = ROOT / "docker-compose.yml"
PROJECT: Final = "hami-compose-test"
PROGRAM: Final = (sys.executable, "-m", "podman_compose", "--project-name", PROJECT)
SECONDS: Final = 900
TRIES: Final = 600
PAUSE_SECONDS: Final = 0.5


def commands() -> list[str]:
    """The commands in the comment at the top of the file."""
    comment = re.match(r"(?:#.*\n)+", FILE.read_text())
    assert comment
    return re.findall(r"^#   (docker compose .+)$", comment[0], re.MULTILINE)


def podman_compose(command: str, *, nats_port: int) -> str:
    """What a command prints, with podman-compose.

    Raises:
        ToolError: it failed.
    """
    words = shlex.split(command)
    assert words[:2] == ["docker", "compose"], command
    match words[2]:
        case "exec":
            arguments = ["exec", "-T", *words[3:]]
        case "up":  # podman 4.3 cannot wait until a container is healthy: `healthy` does
            arguments = [*_build_arguments(), *(("--detach" if word == "--wait" else word) for word in words[2:])]
        case _:
            arguments = words[2:]
    environ = {**tools.environ(), "NATS_PORT": str(nats_port)}
    done = subprocess.run([*PROGRAM, *arguments], env=environ, cwd=ROOT, capture_output=True, text=True, check=False, timeout=SECONDS)
    if done.returncode:
        raise tools.ToolError(f"{command}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def healthy() -> list[str]:
    """Run every container's own health check until all succeed; the names of the containers."""
    for _ in range(TRIES):
        states = {name: _check(name) for name in _checked()}
        if states and all(states.values()):
            return sorted(states)
        time.sleep(PAUSE_SECONDS)
    raise tools.ToolError(f"not healthy: {[name for name, well in states.items() if not well]}\n{logs()}")


def running() -> list[str]:
    """The names of the running containers."""
    return run("podman", "ps", "--format", "{{.Names}}", "--filter", f"label=io.podman.compose.project={PROJECT}").split()


def left() -> dict[str, list[str]]:
    """What is there of the project: containers, volumes, networks and pods."""
    filters = ("--filter", f"label=io.podman.compose.project={PROJECT}")
    return {
        "containers": run("podman", "ps", "--all", "--quiet", *filters).split(),
        "volumes": run("podman", "volume", "ls", "--quiet", *filters).split(),
        "networks": run("podman", "network", "ls", "--quiet", *filters).split(),
        "pods": [name for name in run("podman", "pod", "ls", "--format", "{{.Name}}").split() if PROJECT in name],
    }


def logs() -> str:
    """The end of what each container logged, and its state."""
    names = run("podman", "ps", "--all", "--format", "{{.Names}} {{.Status}}", "--filter", f"label=io.podman.compose.project={PROJECT}")
    tails = [
        subprocess.run(
            ["podman", "logs", "--tail", "15", name.split()[0]], env=tools.environ(), capture_output=True, text=True, check=False
        )
        for name in names.splitlines()
    ]
    return "\n".join(f"=== {name}\n{tail.stdout}{tail.stderr}" for name, tail in zip(names.splitlines(), tails, strict=True))


def _checked() -> list[str]:
    """The containers that have a health check."""
    names = run("podman", "ps", "--all", "--format", "{{.Names}}", "--filter", f"label=io.podman.compose.project={PROJECT}").split()
    found = json.loads(run("podman", "container", "inspect", *names)) if names else []
    return [each["Name"] for each in found if each["Config"].get("Healthcheck")]


def _check(name: str) -> bool:
    return subprocess.run(["podman", "healthcheck", "run", name], env=tools.environ(), capture_output=True, check=False).returncode == 0


def _build_arguments() -> list[str]:
    """A build reaches the network and the index as this machine does."""
    return ["--podman-build-args", shlex.join(["--network=host", *tools.build_volumes()])]
