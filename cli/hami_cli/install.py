"""``hami install``: applies an overlay with kubectl once the API server is known to accept all of it, then prunes and waits.

``installation`` is the plan, ``prerequisites`` what it needs, ``rehearsal`` what a dry run refuses, ``pruning`` what is superfluous.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
import yaml
from msgspec import Struct

from hami_cli import api_server_ports, cluster_facts, installation, prerequisites, pruning, rehearsal, rollout
from hami_cli.exits import CommandError, run
from hami_cli.installation import Images, Plan, Ref
from hami_cli.kubectl import Kubectl, tell
from hami_cli.places import ContextOption, KubeconfigOption
from hami_runtime.bus import signing_secret

FOLDERS: Final = (Path(__file__).parent / "kustomize", Path(__file__).resolve().parents[2] / "deploy" / "kustomize")
"""Where the manifests are: in the wheel, or in a checkout."""


class _Wanted(Struct, frozen=True, kw_only=True):
    """What the user asked for."""

    overlay: Path
    images: Images
    wait: bool
    timeout_seconds: int
    replace: bool
    make_key: bool


class _Rehearsed(Struct, frozen=True, kw_only=True):
    """What a dry run says."""

    problems: tuple[str, ...]
    replaced: tuple[Ref, ...]
    """Objects that have to be deleted first."""


def install(
    overlay: Annotated[str, typer.Option(help="minimal, rig, production, or a folder of your own.")] = "minimal",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print exactly what would be applied, and name what would be deleted.")
    ] = False,
    images: Annotated[str, typer.Option(help="Where the services' images are, as registry.example/hami; default: hami/…")] = "",
    tag: Annotated[str, typer.Option(help="Their tag; default: this version.")] = "",
    kube_scheduler: Annotated[
        str, typer.Option(help="kube-scheduler's version, as v1.34.2; default: the cluster's own. With --dry-run no cluster is asked then.")
    ] = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="Delete and create anew what cannot be changed in place, as a StatefulSet that gets a volume.")
    ] = False,
    make_key: Annotated[
        bool, typer.Option("--make-key", help="Make the Secret with the key that agents' users are signed with, where it is missing.")
    ] = False,
    wait: Annotated[bool, typer.Option(help="Wait until everything runs.")] = True,
    timeout: Annotated[int, typer.Option(help="How many seconds each part may take for that, and each deletion.", min=1)] = 300,
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
) -> None:
    """Install HAMi on a cluster, change an installation to another overlay, or bring it up to this version.

    Nothing is applied unless the cluster has all that the overlay needs and the API server accepts every object of it in a dry run.
    Objects of the installation that the overlay has no more are deleted. Applied again it changes nothing.

    [bold]Examples[/]

    $ hami install --dry-run

    $ hami install --overlay production --make-key --images registry.example/hami
    """
    given = Images(prefix=images, tag=tag, kube_scheduler=kube_scheduler)
    wanted = _Wanted(overlay=_folder(overlay), images=given, wait=wait, timeout_seconds=timeout, replace=replace, make_key=make_key)
    kubectl = Kubectl(kubeconfig, context)
    run("install", _preview(kubectl, wanted) if dry_run else _install(kubectl, wanted))


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


async def _preview(kubectl: Kubectl, wanted: _Wanted) -> None:
    """Print what would be applied; name what would be deleted, where a cluster is asked."""
    if wanted.images.kube_scheduler:
        sys.stdout.write(await _rendered(kubectl, wanted))
        return
    text = await _rendered(kubectl, wanted, await _version(kubectl), await cluster_facts.api_server_ports(kubectl))
    found = await cluster_facts.labelled(kubectl, await cluster_facts.served(kubectl))
    sys.stdout.write(text)
    for each in pruning.superfluous(found, installation.plan(text)):
        tell(f"# would delete {each}: the overlay has it no more")


async def _install(kubectl: Kubectl, wanted: _Wanted) -> None:
    tell("looking at the cluster")
    version = await _version(kubectl)
    text = await _rendered(kubectl, wanted, version, await cluster_facts.api_server_ports(kubectl))
    plan = installation.plan(text)
    needs = prerequisites.needs(plan)
    served = await cluster_facts.served(kubectl)
    has = await cluster_facts.read(kubectl, needs, served, version)
    found = await cluster_facts.labelled(kubectl, served)
    makes_key = wanted.make_key and prerequisites.lacks(needs, has, signing_secret.NAME)
    if makes_key:
        needs = needs.without(signing_secret.NAME)
    superfluous = pruning.superfluous(found, plan)
    problems = [*plan.lacking(served), *prerequisites.problems(needs, has), *pruning.of_helm(found)]
    replaced: tuple[Ref, ...] = ()
    if not problems:
        rehearsed = await _rehearse(kubectl, plan, superfluous, replace=wanted.replace)
        problems, replaced = list(rehearsed.problems), rehearsed.replaced
    if problems:
        raise CommandError("nothing was applied:\n" + "\n".join(f"  - {each}" for each in problems))
    for notice in prerequisites.notices(needs, has):
        tell(f"note: {notice}")
    await _apply(kubectl, plan, text, replaced, makes_key=makes_key, timeout_seconds=wanted.timeout_seconds)
    if wanted.wait:
        for workload in plan.workloads:
            await rollout.wait(kubectl, workload, wanted.timeout_seconds)
    await delete(kubectl, superfluous, why="the overlay has it no more", timeout_seconds=wanted.timeout_seconds)
    tell("installed; look it over: hami doctor")


async def _version(kubectl: Kubectl) -> str:
    """The API server's version, as kube-scheduler's tag.

    Raises:
        CommandError: it does not answer.
    """
    try:
        return installation.server_version(await kubectl.read("version", "--output=json"))
    except CommandError as exc:
        raise CommandError(f"{exc}\nto print the manifests without a cluster: hami install --dry-run --kube-scheduler v1.34.2") from exc


async def _rendered(kubectl: Kubectl, wanted: _Wanted, version: str = "", ports: frozenset[int] = frozenset()) -> str:
    """The overlay's objects, with other images where that is wanted, and with NetworkPolicies that allow the API server's ``ports``."""
    images = wanted.images if wanted.images.kube_scheduler else msgspec.structs.replace(wanted.images, kube_scheduler=version)
    text = await _built(kubectl, wanted.overlay, images=images.replaced())
    patches = api_server_ports.patches(installation.plan(text).objects, ports)
    return await _built(kubectl, wanted.overlay, images=images.replaced(), patches=patches) if patches else text


async def _built(kubectl: Kubectl, overlay: Path, **more: Any) -> str:
    """What kustomize makes of an overlay over ``overlay``."""
    with tempfile.TemporaryDirectory(prefix="hami-install-") as folder:
        _write(Path(folder), {"resources": [overlay], **more})
        return await kubectl.read("kustomize", folder)


def _write(folder: Path, content: dict[str, Any]) -> None:
    """A kustomization; it finds others by relative paths alone."""
    relative = {"resources": [os.path.relpath(each, folder.resolve()) for each in content["resources"]]}
    (folder / "kustomization.yaml").write_bytes(msgspec.yaml.encode(content | relative))


async def _rehearse(kubectl: Kubectl, plan: Plan, superfluous: Sequence[Ref], *, replace: bool) -> _Rehearsed:
    """Apply and delete in a dry run.

    No object can be rehearsed in a namespace that does not exist: missing ones are created first, and deleted again where something is refused.
    """
    missing = [each for each in plan.namespaces if not await kubectl.objects("namespaces", each)]
    if missing:
        tell(f"creating {', '.join(missing)}, to rehearse the rest in it")
        await kubectl.read("create", "-f", "-", given=_text(each for each in plan.objects if _is_namespace(each, missing)))
    tell(f"rehearsing {len(plan.objects)} objects")
    problems, replaced = await _rehearse_apply(kubectl, plan, replace=replace)
    for each in superfluous:
        done = await kubectl.ended("delete", each.resource, *each.place, "--dry-run=server", "--ignore-not-found")
        problems += [f"{each} is to be deleted: {done.err}"] if done.code else []
    if problems and missing:
        await kubectl.ended("delete", "namespace", *missing, "--wait=false")
        tell(f"deleted {', '.join(missing)} again")
    return _Rehearsed(problems=tuple(problems), replaced=tuple(replaced))


async def _rehearse_apply(kubectl: Kubectl, plan: Plan, *, replace: bool) -> tuple[list[str], list[Ref]]:
    done = await kubectl.ended("apply", "--dry-run=server", "-f", "-", given=_text(plan.rehearsable))
    refused = rehearsal.refused(done.err, plan.objects) if done.code else []
    replaced = [each.object for each in refused if replace and each.immutable and each.object]
    if not replaced:
        return [_problem(each) for each in refused], []
    anew = await kubectl.ended(
        "create", "--dry-run=server", "-f", "-", given=_text(each for each in plan.objects if installation.ref(each) in replaced)
    )
    others = [each for each in refused if each.object not in replaced]
    others += [each for each in rehearsal.refused(anew.err, plan.objects) if not each.exists]
    return [_problem(each) for each in others], replaced


def _problem(refused: rehearsal.Refused) -> str:
    if not refused.immutable:
        return str(refused)
    remedy = "this cannot be changed in place: --replace deletes the object and creates it anew"
    if refused.object and refused.object.kind == "StatefulSet":
        remedy += "; its volumes stay, and what its pods keep elsewhere is lost"
    return f"{refused}. {remedy}"


async def _apply(kubectl: Kubectl, plan: Plan, text: str, replaced: Sequence[Ref], *, makes_key: bool, timeout_seconds: int) -> None:
    """Apply, and report on each object."""
    if makes_key:
        tell(f"creating the Secret {signing_secret.NAME}")
        await kubectl.read("create", "-f", "-", given=signing_secret.new_secret())
    await delete(kubectl, replaced, why="it is created anew", timeout_seconds=timeout_seconds)
    done = 0
    async for line in kubectl.lines("apply", "-f", "-", given=text):
        done += 1
        tell(f"[{done}/{len(plan.objects)}] {line}")


async def delete(kubectl: Kubectl, refs: Sequence[Ref], *, why: str, timeout_seconds: int) -> None:
    """Delete objects one by one, each with all that depends on it; one that is gone already is passed over.

    Raises:
        CommandError: an object is still there after ``timeout_seconds``, as where the controller that removes its finalizer does not run.
    """
    options = ("--ignore-not-found", "--cascade=foreground", f"--timeout={timeout_seconds}s")
    for each in refs:
        tell(f"deleting {each}: {why}")
        await kubectl.read("delete", each.resource, *each.place, *options)


def _text(objects: Iterable[installation.Object]) -> str:
    return yaml.safe_dump_all(list(objects))


def _is_namespace(body: installation.Object, names: Sequence[str]) -> bool:
    return body["kind"] == "Namespace" and body["metadata"]["name"] in names
