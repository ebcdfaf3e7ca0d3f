"""Our images, built from the Dockerfile as it is: what is in them, and how they start in a container that may do nothing."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from hami_rig import profile
from hami_rig.supervisor import Rig
from tests.dockerfile import PROJECT
from tests.images import bases, building, contents, tools
from tests.images.building import SERVICES, TARGETS, tag
from tests.images.tools import FOLDER, run
from tools import images

pytestmark = [pytest.mark.images, pytest.mark.timeout(900)]

COMPILERS = re.compile(r"(gcc|g\+\+|cc|c\+\+|clang|tcc|ld|as|zig|make|go|rustc)(-[\d.]+)?")
INDEXES = ("etc/pip.conf", "etc/uv/uv.toml", "root/.pip", "root/.config", "root/.netrc", "root/.pypirc", "root/.cache")
MEGABYTE = 1_000_000
NOBODY = "65532:65532"
USERS = {"webhook": NOBODY, "scheduler": NOBODY, "registry": NOBODY, "node-agent": "0:0"}
"""As the manifests run them."""
LOCKED_DOWN = ("--read-only", "--read-only-tmpfs=false", "--cap-drop=all", "--security-opt=no-new-privileges", "--network=host")
TRIES = 300
PAUSE_SECONDS = 0.2


@pytest.fixture(scope="module", params=TARGETS)
def target(request: pytest.FixtureRequest) -> str:
    building.build(request.param)
    return str(request.param)


@pytest.fixture
def root(target: str) -> Iterator[Path]:
    with contents.mounted(tag(target)) as path:
        yield path


class TestContents:
    def test_there_is_no_compiler(self, root: Path) -> None:
        programs = [path.name for folder in ("usr/bin", "usr/local/bin", "bin", "opt/hami/bin") for path in (root / folder).iterdir()]
        assert not [name for name in programs if COMPILERS.fullmatch(name)]

    def test_nothing_is_left_of_how_it_was_built(self, target: str, root: Path) -> None:
        assert not [path for path in INDEXES if (root / path).exists()]
        assert not [
            path for path in ("source", "layers", "before", "wheels", "opt/hami/bin/uv", "usr/local/bin/uv") if (root / path).exists()
        ]
        environment = {line.partition("=")[0] for line in contents.inspected(tag(target))["Config"]["Env"]}
        base = {line.partition("=")[0] for line in contents.inspected(bases.SLIM)["Config"]["Env"]}
        assert environment - base == {"PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"}

    def test_an_image_has_its_own_packages_and_programs_alone(self, target: str, root: Path) -> None:
        packages = {path.name for path in root.glob("opt/hami/lib/python3.*/site-packages/hami_*")}
        programs = {path.name for path in (root / "opt/hami/bin").glob("*hami*")}
        libraries = {"hami_protocol", "hami_devices", "hami_runtime"}
        if target == "rig":
            assert packages > libraries
            assert programs == set(PROJECT["project"]["scripts"])
        else:
            assert packages == libraries | {f"hami_{target.replace('-', '_')}"}
            assert programs == {f"hami-{target}", *(["hami-auth-callout"] if target == "registry" else [])}

    def test_what_is_installed_is_roots_and_nobody_elses_to_write(self, root: Path) -> None:
        for path, (mode, owner, _) in contents.files(root / "opt/hami").items():
            assert owner == "0:0", path
            assert int(mode, 8) & 0o022 == 0 or mode.startswith("0o12"), (path, mode)

    def test_bytecode_is_there_and_does_not_depend_on_times_of_files(self, root: Path) -> None:
        caches = list(root.glob("opt/hami/lib/python3.*/site-packages/hami_runtime/**/*.pyc"))
        assert caches
        assert {cache.read_bytes()[4:8] for cache in caches} == {b"\x01\0\0\0"}  # by hash of the source, unchecked

    def test_it_is_small_beside_its_base(self, target: str) -> None:
        size = (contents.inspected(tag(target))["Size"] - contents.inspected(bases.SLIM)["Size"]) / MEGABYTE
        print(f"{target}: {size:.0f} MB beside its base")
        assert size < (200 if target in SERVICES else 350)

    def test_it_names_its_version_source_and_licence_and_runs_as_nobody(self, target: str) -> None:
        config = contents.inspected(tag(target))["Config"]
        labels = {key.removeprefix("org.opencontainers.image."): value for key, value in config["Labels"].items()}
        assert labels.keys() >= {"version", "revision", "source", "licenses", "title", "description"}
        assert labels["version"] == images.version()
        assert labels["licenses"] == "Apache-2.0"
        assert labels["revision"] == images.labels().get("REVISION", "unknown") or re.fullmatch(r"[0-9a-f]{40}", labels["revision"])
        assert config["User"] == NOBODY


def test_the_agents_image_has_the_shim_against_an_old_glibc() -> None:
    building.build("node-agent")
    with contents.mounted(tag("node-agent")) as root:
        library = root / "opt/hami/lib/libvgpu.so"
        versions = {
            tuple(map(int, each.split("."))) for each in re.findall(rb"GLIBC_([\d.]+)\0".decode(), library.read_bytes().decode("latin-1"))
        }
        assert versions
        assert max(versions) <= (2, 17)
        assert "cuMemAlloc_v2" in library.read_bytes().decode("latin-1")


def test_an_image_built_anew_without_a_cache_has_the_same_files() -> None:
    """With the agent's image everything is built: the common layer, one of its own, the packages, the shim."""
    building.build("node-agent")
    again = "localhost/hami/again:test"
    run(*building.command("node-agent", again, version=images.version(), cache=False))
    try:
        with contents.mounted(tag("node-agent")) as first, contents.mounted(again) as second:
            one, two = contents.files(first), contents.files(second)
        assert {path: (one.get(path), two.get(path)) for path in one.keys() | two.keys() if one.get(path) != two.get(path)} == {}
    finally:
        run("buildah", "rmi", again)


PROGRAMS = [*((service, f"hami-{service}") for service in SERVICES), ("registry", "hami-auth-callout"), ("rig", "hami")]


@pytest.mark.parametrize(("target", "program"), PROGRAMS, indirect=["target"])
class TestStart:
    def test_help_and_version_are_printed(self, target: str, program: str) -> None:
        user = USERS.get(target, NOBODY)
        entry = [] if program == f"hami-{target}" else [f"--entrypoint={program}"]
        for argument, expected in (
            ("--help", "Usage: hami" if target == "rig" else f"usage: {program}"),
            ("--version", f"{program} {images.version()}"),
        ):
            said = run("podman", "run", "--rm", *LOCKED_DOWN, f"--user={user}", *entry, tag(target), argument)
            assert expected in said


def test_the_rigs_image_has_kubectl_nats_and_the_examples() -> None:
    building.build("rig")
    said = run(
        "podman", "run", "--rm", *LOCKED_DOWN, tag("rig"), "sh", "-c", "kubectl version --client && nats-server --version && ls examples"
    )
    assert "Client Version" in said
    assert "nats-server: v" in said
    assert "first-share.yaml" in said


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def rig() -> AsyncIterator[Rig]:
    """A rig of one node, whose services are replaced by containers."""
    building.build(*SERVICES)
    async with Rig(profile.parse("nodes: [{name: node-a, devices: {count: 1}}]")) as started:
        yield started


@contextmanager
def container(image: str, *arguments: str) -> Iterator[str]:
    """A running container; what it logged is shown if the test fails."""
    name = run("podman", "run", "--detach", *LOCKED_DOWN, *arguments, image).strip()
    try:
        yield name
    finally:
        print(subprocess.run(["podman", "logs", name], env=tools.environ(), capture_output=True, text=True, check=False))
        run("podman", "rm", "--force", "--time=0", name)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("process", ["webhook", "scheduler", "registry", "node-agent-node-a"])
async def test_a_service_becomes_ready_and_stops_when_it_is_told(rig: Rig, process: str) -> None:
    service = process.removesuffix("-node-a")
    replaced = rig.processes[process]
    await replaced.stop(grace_seconds=5.0)
    environ = {key: value for key, value in replaced.environ.items() if key.startswith("HAMI_") and key != "HAMI_READY_FILE"}
    kubeconfig = environ["HAMI_KUBECONFIG"]
    volumes = [f"--volume={kubeconfig}:{kubeconfig}:ro"]
    if service == "node-agent":
        volumes = [f"--volume={rig.folder}:{rig.folder}", f"--volume={FOLDER}/empty:/usr/local/vgpu"]
        (FOLDER / "empty").mkdir(exist_ok=True)
    flags = [f"--user={USERS[service]}", *volumes, *(f"--env={key}={value}" for key, value in environ.items())]
    with container(tag(service), *flags) as name:
        await _ready(f"http://127.0.0.1:{environ['HAMI_HEALTH_PORT']}/readyz", name)
        await asyncio.to_thread(run, "podman", "stop", "--time=30", name)
        state = run("podman", "inspect", "--format={{.State.ExitCode}} {{.State.OOMKilled}}", name).split()
        assert state == ["0", "false"]
    await replaced.start()
    await replaced.ready(timeout_seconds=60.0)


async def _ready(url: str, name: str) -> None:
    said = ""
    async with aiohttp.ClientSession() as session:
        for _ in range(TRIES):
            try:
                async with session.get(url) as response:
                    said = await response.text()
                    if response.status == 200:
                        return
            except aiohttp.ClientError as exc:
                said = str(exc)
            assert run("podman", "inspect", "--format={{.State.Running}}", name).strip() == "true", said
            await asyncio.sleep(PAUSE_SECONDS)
    pytest.fail(f"{url}: {said}")
