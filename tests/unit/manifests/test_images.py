"""Each service has an image: its command, run by nobody, made of its own packages and of locked ones."""

import os
import re
from pathlib import Path

import pytest
import yaml

from tests.dockerfile import PROJECT, ROOT, copied, labels, line_of, stages
from tests.unit.manifests.conftest import OVERLAYS, SERVICES, build
from tools import images

WHEEL = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
LIBRARIES = {path for path in WHEEL if path.startswith("libs/")}


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_starts_its_service_as_nobody(service: str) -> None:
    assert next(user for _, stage in line_of(service) for user in stage.all("USER")) == "65532:65532"
    assert stages()[service].all("ENTRYPOINT") == [f'["hami-{service}"]']
    assert f"hami-{service}" in PROJECT["project"]["scripts"]


@pytest.mark.parametrize("target", images.TARGETS)
def test_an_image_is_made_from_files_that_are_there(target: str) -> None:
    ignored = {line.rstrip("/") for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")}
    for source in [*copied(f"{target}-files"), *copied(target)]:
        assert (ROOT / source).exists(), source
        assert source not in ignored


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_has_the_libraries_and_its_own_packages_alone(service: str) -> None:
    sources = copied(f"{service}-files")
    given = {path for path in WHEEL if any(path == source or path.startswith(f"{source}/") for source in sources)}
    assert given == LIBRARIES | {path for path in WHEEL if path.startswith(f"services/{service}/")}
    assert {PROJECT["project"]["readme"], "LICENSE"} <= set(sources)


def test_the_rigs_image_has_everything_that_the_wheel_has() -> None:
    sources = copied("rig-files")
    for path in WHEEL:
        assert any(path == source or path.startswith(f"{source}/") for source in sources), path


@pytest.mark.parametrize("target", images.TARGETS)
def test_an_image_depends_on_what_its_service_names(target: str) -> None:
    runs = " ".join(rest for _, stage in line_of(f"{target}-files") for rest in stage.all("RUN"))
    wanted = PROJECT["project"]["optional-dependencies"][target]
    assert (f"--extra {target}" in runs) == bool(wanted)
    copies = [rest for rest in stages()[target].all("COPY") if rest.startswith(f"--from={target}-files")]
    assert any("/layers/needs" in rest for rest in copies) == bool(wanted)


def test_everything_in_an_image_is_locked() -> None:
    for name, stage in stages().items():
        for run in stage.all("RUN"):
            for command in re.findall(r"layer\.sh [^&]*", run):
                assert "--constraint requirements.lock" in command or "--no-deps --no-index" in command, name
            for command in re.findall(r"uv build [^&]*", run):
                assert "--build-constraint requirements.lock" in command, name
            for command in re.findall(r"(?<!uv )pip install [^&]*", run):
                assert "--require-hashes" in command, name
    for name, lock in (("uv", "requirements.lock"), ("hatchling", "requirements.lock"), ("ziglang", "requirements-shim.lock")):
        assert re.search(rf"^{name}==", (ROOT / lock).read_text(), re.MULTILINE)


@pytest.mark.parametrize("target", images.TARGETS)
def test_an_image_says_what_it_is(target: str) -> None:
    found = {key.removeprefix("org.opencontainers.image."): value for key, value in labels(target).items()}
    assert found.keys() == {"version", "revision", "source", "licenses", "title", "description"}
    assert found["licenses"] == PROJECT["project"]["license"]
    arguments = next(stage for name, stage in line_of(target) if name == "runtime").all("ARG")
    assert f"VERSION={PROJECT['project']['version']}" in arguments


def test_bases_are_arguments_with_a_host_so_that_a_digest_may_take_their_place() -> None:
    text = (ROOT / images.DOCKERFILE).read_text()
    arguments = dict(line.split("=", 1) for line in re.findall(r"^ARG (\w+_IMAGE=\S+)$", text, re.MULTILINE))
    assert arguments
    known = stages()
    for stage in known.values():
        assert stage.base in known or stage.base in {f"${{{name}}}" for name in arguments}
    for image in arguments.values():
        assert re.fullmatch(r"[a-z.]+\.[a-z]+/.+:.+", image), image


def test_the_agents_image_has_the_shim_where_the_agent_looks_for_it() -> None:
    from hami_node_agent.settings import Settings

    path = Settings(node_name="n").shim_source
    assert f"--from=shim {path} {path}" in stages()["node-agent"].all("COPY")
    assert any(f'libvgpu.so" {path}' in run for run in stages()["shim"].all("RUN"))


@pytest.mark.parametrize("name", OVERLAYS)
def test_an_overlay_runs_the_images_of_its_version(name: str) -> None:
    wanted = {f"hami/{service}:{PROJECT['project']['version']}" for service in SERVICES}
    found = {
        container["image"]
        for pod in build(f"overlays/{name}").pods.values()
        for container in [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]
    }
    assert {image for image in found if image.startswith("hami/")} == wanted


def test_an_overlay_pins_an_image_by_digest(tmp_path: Path) -> None:
    digest = f"sha256:{'a' * 64}"
    images_of = [{"name": f"hami/{service}", "newName": f"registry.example/hami/{service}", "digest": digest} for service in SERVICES]
    base = os.path.relpath(ROOT / "deploy/kustomize/overlays/minimal", tmp_path.resolve())
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump({"resources": [base], "images": images_of}))
    found = {
        container["image"]
        for pod in build(tmp_path).pods.values()
        for container in [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]
    }
    assert {image for image in found if "hami/" in image} == {f"registry.example/hami/{service}@{digest}" for service in SERVICES}


def test_compose_builds_the_images_of_its_version() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"].values()
    built = {service["image"]: service["build"] for service in services if "build" in service}
    assert built.keys() == {f"hami/{target}:{images.version()}" for target in images.TARGETS}
    for image, how in built.items():
        assert how == {"context": ".", "dockerfile": images.DOCKERFILE, "target": image.partition("/")[2].partition(":")[0]}


class TestMakeImages:
    @pytest.mark.parametrize(
        ("remote", "address"),
        [
            ("git@forge.example:team/hami.git", "https://forge.example/team/hami"),
            ("ssh://git@forge.example/team/hami.git", "https://forge.example/team/hami"),
            ("https://user:secret@forge.example/team/hami.git", "https://forge.example/team/hami"),
            ("https://forge.example/team/hami", "https://forge.example/team/hami"),
            ("/srv/git/hami", ""),
            ("", ""),
        ],
    )
    def test_the_source_is_a_web_address_without_anybodys_password(self, remote: str, address: str) -> None:
        assert images.address(remote) == address

    @pytest.mark.parametrize(
        ("working", "chosen"), [({"docker", "buildah"}, "docker"), ({"podman", "buildah"}, "podman"), ({"buildah"}, "buildah")]
    )
    def test_the_first_engine_that_works_is_used(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, working: set[str], chosen: str
    ) -> None:
        self.install(monkeypatch, tmp_path, {name: name in working for name in images.ENGINES})
        assert images.engine() == chosen

    def test_without_an_engine_each_ones_reason_is_given_and_what_to_install(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.install(monkeypatch, tmp_path, {"docker": False})
        with pytest.raises(images.NoEngineError) as caught:
            images.engine()
        assert "docker: installed, but `docker info` fails: no daemon" in str(caught.value)
        assert "buildah: not installed" in str(caught.value)
        assert "apt-get install buildah" in str(caught.value)
        assert images.main(["rig"]) == 1

    def test_an_image_that_does_not_exist_is_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            images.main(["schedular"])
        assert "no image 'schedular'; accepted: scheduler, webhook" in capsys.readouterr().err

    def test_each_image_is_built_with_its_version_and_revision(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.install(monkeypatch, tmp_path, {"docker": True})
        monkeypatch.setenv("SOURCE_DATE_EPOCH", "1000")
        monkeypatch.setattr(images, "_git", lambda word, *_: {"rev-parse": "abc", "remote": "https://forge.example/hami"}[word])
        assert images.main(["--repository", "registry.example/hami", "webhook"]) == 0
        (build,) = [line for line in (tmp_path / "calls").read_text().splitlines() if line.startswith("build")]
        version = images.version()
        assert f"--file {images.DOCKERFILE} --target webhook --tag registry.example/hami/webhook:{version} " in build
        for argument in (f"VERSION={version}", "REVISION=abc", "SOURCE=https://forge.example/hami", "SOURCE_DATE_EPOCH=1000"):
            assert f"--build-arg {argument}" in build

    @staticmethod
    def install(monkeypatch: pytest.MonkeyPatch, folder: Path, engines: dict[str, bool]) -> None:
        """Engines that record how they are called; those that do not work fail as docker does without its daemon."""
        for name, works in engines.items():
            program = folder / name
            program.write_text(f'#!/bin/sh\necho "$@" >>{folder}/calls\n{"exit 0" if works else "echo no daemon >&2; exit 1"}\n')
            program.chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))
