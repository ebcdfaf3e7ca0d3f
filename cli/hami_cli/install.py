"""``hami install``: applies an overlay of the manifests with kubectl and waits until everything runs. ``--dry-run`` prints what would be applied."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from hami_cli import installation
from hami_cli.exits import CommandError, run
from hami_cli.installation import Images, Plan
from hami_cli.places import ContextOption, KubeconfigOption
from hami_rig.kubectl import program

FOLDERS: Final = (Path(__file__).parent / "kustomize", Path(__file__).resolve().parents[2] / "deploy" / "kustomize")
"""Where the manifests are: in the wheel, or in a checkout."""


def install(
    overlay: Annotated[str, typer.Option(help="minimal, rig, production, or a folder of your own.")] = "minimal",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be applied; needs no cluster.")] = False,
    images: Annotated[str, typer.Option(help="Where the services' images are, as registry.example/hami; default: hami/…")] = "",
    tag: Annotated[str, typer.Option(help="Their tag; default: this version.")] = "",
    kube_scheduler: Annotated[str, typer.Option(help="kube-scheduler's version, as v1.34.2; default: the cluster's own.")] = "",
    wait: Annotated[bool, typer.Option(help="Wait until everything runs.")] = True,
    timeout: Annotated[int, typer.Option(help="How many seconds each part may take for that.", min=1)] = 300,
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
) -> None:
    """Install HAMi on a cluster, or bring an installation up to this version. Applied again it changes nothing.

    [bold]Examples[/]

    $ hami install --dry-run

    $ hami install --overlay production --images registry.example/hami
    """
    given = Images(prefix=images, tag=tag, kube_scheduler=kube_scheduler)
    run("install", _install(_folder(overlay), given, _kubectl(kubeconfig, context), dry_run=dry_run, wait=wait, timeout_seconds=timeout))


def _folder(overlay: str) -> Path:
    """The folder of an overlay, by its name or path."""
    if "/" in overlay or overlay == ".":
        folder = Path(overlay).resolve()
        if not (folder / "kustomization.yaml").exists():
            raise typer.BadParameter(f"{overlay}: no kustomization.yaml in it; accepted: a folder that has one", param_hint="--overlay")
        return folder
    for each in FOLDERS:
        if (each / "overlays" / overlay / "kustomization.yaml").exists():
            return (each / "overlays" / overlay).resolve()
    known = sorted({path.name for each in FOLDERS if each.exists() for path in (each / "overlays").iterdir()})
    raise typer.BadParameter(f"{overlay}: there is none; accepted: {', '.join(known)}, or the path of a folder", param_hint="--overlay")


def _kubectl(kubeconfig: str, context: str) -> list[str]:
    return [program(), *(["--kubeconfig", kubeconfig] if kubeconfig else []), *(["--context", context] if context else [])]


async def _install(overlay: Path, images: Images, kubectl: Sequence[str], *, dry_run: bool, wait: bool, timeout_seconds: int) -> None:
    if dry_run:
        sys.stdout.write(await _rendered(overlay, images, kubectl))
        return
    served = installation.served(await _said([*kubectl, "api-resources", "--no-headers"]))
    if not images.kube_scheduler:
        version = installation.server_version(await _said([*kubectl, "version", "--output=json"]))
        images = msgspec.structs.replace(images, kube_scheduler=version)
    text = await _rendered(overlay, images, kubectl)
    plan = installation.plan(text)
    if lacking := plan.lacking(served):
        raise CommandError(lacking)
    await _apply(kubectl, text, plan)
    if wait:
        for workload in plan.workloads:
            _tell(f"waiting for {workload.name}")
            waiting = ["--namespace", workload.namespace, "rollout", "status", workload.name, f"--timeout={timeout_seconds}s"]
            await _said([*kubectl, *waiting])
    _tell("installed; now label the nodes that have cards (kubectl label node NODE gpu=on), and look it over: hami doctor")


async def _rendered(overlay: Path, images: Images, kubectl: Sequence[str]) -> str:
    """The overlay's objects, with other images where that is wanted."""
    with tempfile.TemporaryDirectory(prefix="hami-install-") as folder:
        _write(Path(folder), overlay, images)
        return await _said([*kubectl, "kustomize", folder])


def _write(folder: Path, overlay: Path, images: Images) -> None:
    """An overlay over the overlay: kustomize finds others by relative paths alone."""
    content = {"resources": [os.path.relpath(overlay, folder.resolve())], "images": images.replaced()}
    (folder / "kustomization.yaml").write_bytes(msgspec.yaml.encode(content))


async def _apply(kubectl: Sequence[str], text: str, plan: Plan) -> None:
    """Apply, and say of each object what became of it."""
    async with _running([*kubectl, "apply", "-f", "-"], given=text) as process:
        assert process.stdout is not None  # noqa: S101 - it was asked for
        done = 0
        async for line in process.stdout:
            done += 1
            _tell(f"[{done}/{plan.count}] {line.decode(errors='replace').strip()}")
        await _ended(process, "kubectl apply")


async def _said(command: Sequence[str]) -> str:
    """What a command prints.

    Raises:
        CommandError: it failed; the text is what it said.
    """
    async with _running(command) as process:
        assert process.stdout is not None  # noqa: S101 - it was asked for
        output = await process.stdout.read()
        await _ended(process, " ".join(command[:3]))
    return output.decode(errors="replace")


@asynccontextmanager
async def _running(command: Sequence[str], *, given: str = "") -> AsyncIterator[asyncio.subprocess.Process]:
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
    except FileNotFoundError as exc:
        raise CommandError("kubectl is not here; install it, or this program with its rig: pip install 'hami[rig]'") from exc
    feeding = asyncio.create_task(_feed(process, given))
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        feeding.cancel()


async def _feed(process: asyncio.subprocess.Process, given: str) -> None:
    assert process.stdin is not None  # noqa: S101 - it was asked for
    process.stdin.write(given.encode())
    process.stdin.close()


async def _ended(process: asyncio.subprocess.Process, what: str) -> None:
    assert process.stderr is not None  # noqa: S101 - it was asked for
    errors = (await process.stderr.read()).decode(errors="replace").strip()
    if await process.wait():
        raise CommandError(f"{what}: {errors}")
    if errors:
        _tell(errors)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
