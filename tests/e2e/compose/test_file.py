"""docker-compose.yml is accepted by docker-compose, and what it names is there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml

from tests import debian

ROOT = Path(__file__).parents[3]
FILE = ROOT / "docker-compose.yml"


def test_grafana_finds_prometheus_and_the_dashboards() -> None:
    services = yaml.safe_load(FILE.read_text())["services"]
    mounts = dict(reversed(mount.split(":")[:2]) for mount in services["grafana"]["volumes"])
    (source,) = yaml.safe_load((ROOT / mounts["/etc/grafana/provisioning"] / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert any(each.endswith(":9090") for each in services["prometheus"]["command"])
    (provider,) = yaml.safe_load((ROOT / mounts["/etc/grafana/provisioning"] / "dashboards" / "hami.yaml").read_text())["providers"]
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    folder = ROOT / mounts[provider["options"]["path"]]
    assert (folder / home.removeprefix(provider["options"]["path"]).lstrip("/")).exists()


def test_what_is_mounted_and_built_is_there() -> None:
    for name, service in yaml.safe_load(FILE.read_text())["services"].items():
        for mount in service.get("volumes", ()):
            source = mount.partition(":")[0]
            assert not source.startswith(".") or (ROOT / source).exists(), name
        if "build" in service:
            assert (ROOT / service["build"]["dockerfile"]).exists()
        assert service["image"].rpartition(":")[2] not in {"", "latest"}, name


IMPORTED = (
    "attr", "certifi", "chardet", "charset-normalizer", "distro", "docker", "dockerpty", "docopt", "dotenv", "idna", "jsonschema",
    "pkg-resources", "pyrsistent", "requests", "six", "texttable", "urllib3", "websocket", "yaml",
)  # fmt: skip
"""What docker-compose needs of Python's packages."""


def test_docker_compose_accepts_the_file() -> None:
    program = debian.program("docker-compose", "docker-compose", *(f"python3-{name}" for name in IMPORTED))
    command, environ = [program], dict(os.environ)
    if program.startswith(str(debian.UNPACKED)):
        environ["PYTHONPATH"] = str(debian.UNPACKED / "docker-compose" / "usr/lib/python3/dist-packages")
        command = [sys.executable, "-W", "ignore", program]
    done = subprocess.run([*command, "--file", FILE, "config"], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(yaml.safe_load(done.stdout)["services"]) == set(yaml.safe_load(FILE.read_text())["services"])
