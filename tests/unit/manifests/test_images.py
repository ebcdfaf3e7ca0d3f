"""Each service has an image: its command, run by nobody, from files that are there."""

import re
import tomllib

import pytest

from tests.unit.manifests.conftest import KUSTOMIZE, OVERLAYS, SERVICES, build

ROOT = KUSTOMIZE.parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def instructions(service: str) -> list[tuple[str, str]]:
    """Instruction and the rest of its line, continued lines joined."""
    text = (ROOT / "deploy" / "docker" / f"{service}.Dockerfile").read_text()
    lines = (line for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#"))
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_starts_its_service_as_nobody(service: str) -> None:
    last = dict(instructions(service))
    assert last["USER"] == "65532:65532"
    assert last["ENTRYPOINT"] == f'["hami-{service}"]'
    assert f"hami-{service}" in PROJECT["project"]["scripts"]
    assert service in PROJECT["project"]["optional-dependencies"]
    assert f"--extra {service} " in " ".join(f"{rest} " for word, rest in instructions(service) if word == "RUN")


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_is_made_from_files_that_are_there(service: str) -> None:
    ignored = {line.rstrip("/") for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")}
    for word, rest in instructions(service):
        if word == "COPY" and not rest.startswith("--from="):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert source not in ignored


@pytest.mark.parametrize("service", [*SERVICES, "rig"])
def test_an_image_is_built_from_everything_that_the_wheel_includes(service: str) -> None:
    copied = [source for word, rest in instructions(service) if word == "COPY" for source in rest.split()[:-1]]
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    for needed in [*wheel["packages"], *wheel["force-include"], PROJECT["project"]["readme"]]:
        assert any(needed == source or needed.startswith(f"{source}/") for source in copied), needed


@pytest.mark.parametrize("service", SERVICES)
def test_everything_in_an_image_is_locked(service: str) -> None:
    runs = " && ".join(rest for word, rest in instructions(service) if word == "RUN")
    for command in re.findall(r"uv pip install [^&]*", runs):
        assert "--constraint requirements.lock" in command or ("--no-deps" in command and "--build-constraint requirements.lock" in command)
    for command in re.findall(r"(?<!uv )pip install [^&]*", runs):
        assert "--require-hashes" in command
    for name, lock in (("uv", "requirements.lock"), ("hatchling", "requirements.lock"), ("ziglang", "requirements-shim.lock")):
        assert re.search(rf"^{name}==", (ROOT / lock).read_text(), re.MULTILINE)


def test_the_agents_image_has_the_shim_where_the_agent_looks_for_it() -> None:
    from hami_node_agent.settings import Settings

    assert f"/opt/hami/lib/libvgpu.so {Settings(node_name='n').shim_source}" in " ".join(rest for _, rest in instructions("node-agent"))


@pytest.mark.parametrize("name", OVERLAYS)
def test_an_overlay_runs_the_images_of_its_version(name: str) -> None:
    wanted = {f"hami/{service}:{PROJECT['project']['version']}" for service in SERVICES}
    found = {
        container["image"]
        for pod in build(f"overlays/{name}").pods.values()
        for container in [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]
    }
    assert {image for image in found if image.startswith("hami/")} == wanted
