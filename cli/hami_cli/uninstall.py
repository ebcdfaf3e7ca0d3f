"""``hami uninstall``: removes an installation, and what it has left on nodes. ``removal`` decides what, and in which order."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from hami_cli import cluster_facts, installation, pruning, removal
from hami_cli.exits import CommandError, run
from hami_cli.installation import Object, Ref
from hami_cli.kubectl import Kubectl, tell
from hami_cli.places import ContextOption, KubeconfigOption
from hami_cli.removal import CALLED, CLEAN_UP, Installation
from hami_devices.catalog import Catalog
from hami_runtime.kube.accounts import AGENT_NAMESPACE

SCHEDULER: Final = "hami-scheduler"
LOOK_SECONDS: Final = 2.0
POLICIES_SECONDS: Final = 30.0
"""How long API servers may still enforce an admission policy that was deleted."""


def uninstall(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be removed, and what would stay.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Although pods hold shares: these cannot restart a container any more.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    image: Annotated[str, typer.Option(help="The agents' image, to clean nodes up with; default: the one that the agents run.")] = "",
    timeout: Annotated[int, typer.Option(help="How many seconds each step may take.", min=1)] = 300,
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
) -> None:
    """Remove HAMi from a cluster: objects, namespaces, records on nodes and files on nodes.

    It refuses while pods hold shares. What is left of an installation that was deleted in another way is removed too.
    Exits with 1 where something could not be removed.

    [bold]Examples[/]

    $ hami uninstall --dry-run

    $ hami uninstall --yes
    """
    run("uninstall", _uninstall(Kubectl(kubeconfig, context), dry_run=dry_run, force=force, yes=yes, image=image, timeout_seconds=timeout))


async def _uninstall(kubectl: Kubectl, *, dry_run: bool, force: bool, yes: bool, image: str, timeout_seconds: float) -> None:
    catalog = Catalog()
    found = await _look(kubectl)
    if problems := list(pruning.of_helm(found.objects)):
        raise CommandError(f"{problems[0]}; after it, hami uninstall removes what is left on nodes")
    volumes = await kubectl.objects("persistentvolumes")
    staying = list(removal.staying(found, volumes, catalog))
    _preview(found, staying)
    running = removal.holding(found.pods, catalog)
    if dry_run:
        return
    if running and not force:
        raise CommandError(f"nothing was removed: {removal.refusal(running)}")
    if not yes and not (sys.stdin.isatty() and typer.confirm("remove all of this?", err=True)):
        raise CommandError("nothing was removed; --yes removes it without a question")
    failures = await _remove(kubectl, found, removal.image(found.agent, image or "hami/node-agent"), timeout_seconds)
    if left := removal.waiting(found.pods, SCHEDULER):
        tell(f"pods that wait for {SCHEDULER} stay Pending until they are deleted: {removal.shown(left)}")
    for each in staying:
        tell(f"stays: {each}")
    if failures:
        raise CommandError("some of it could not be removed:\n" + "\n".join(f"  - {each}" for each in failures))
    tell("uninstalled")


async def _look(kubectl: Kubectl) -> Installation:
    tell("looking at the cluster")
    objects = await cluster_facts.labelled(kubectl, await cluster_facts.served(kubectl))
    namespaces = await kubectl.objects("namespaces", f"--selector={installation.SELECTOR}")
    return Installation(
        objects=tuple(objects),
        namespaces=tuple(each["metadata"]["name"] for each in namespaces),
        nodes=tuple(await kubectl.objects("nodes")),
        pods=tuple(await kubectl.objects("pods", "--all-namespaces")),
    )


def _preview(found: Installation, staying: Sequence[str]) -> None:
    for each in found.refs:
        tell(f"to be removed: {each}")
    for name, keys in found.annotated().items():
        tell(f"to be removed: annotations {', '.join(keys)} of node {name}")
    if served := found.served():
        tell(f"to be removed: files of the agents on {removal.shown(served)}")
    for name in found.namespaces:
        tell(f"to be removed: Namespace {name}, with all that is in it")
    for text in staying:
        tell(f"to stay: {text}")


async def _remove(kubectl: Kubectl, found: Installation, image: str, timeout_seconds: float) -> list[str]:
    called = [each for each in found.refs if each.kind in CALLED]
    workloads = [each for each in found.refs if each.kind in installation.WAITED_FOR]
    rest = [each for each in found.refs if each not in {*called, *workloads}]
    await _delete(kubectl, [*called, *workloads], timeout_seconds)
    failures = await _clean_nodes(kubectl, found, image, timeout_seconds)
    failures += await _forget(kubectl, "annotate", found.annotated())
    failures += await _forget(kubectl, "label", found.labelled())
    await _delete(kubectl, rest, timeout_seconds)
    for name in found.namespaces:
        tell(f"deleting Namespace {name}")
        await kubectl.read("delete", "namespace", name, "--ignore-not-found", f"--timeout={timeout_seconds:.0f}s")
    return failures


async def _delete(kubectl: Kubectl, refs: Sequence[Ref], timeout_seconds: float) -> None:
    for each in refs:
        tell(f"deleting {each}")
        options = ("--ignore-not-found", "--cascade=foreground", f"--timeout={timeout_seconds:.0f}s")
        await kubectl.read("delete", each.resource, *each.place, *options)


async def _clean_nodes(kubectl: Kubectl, found: Installation, image: str, timeout_seconds: float) -> list[str]:
    """Run a pod on every node that an agent has served; what went wrong, by node."""
    nodes = found.served()
    if not nodes:
        return []
    namespace, made = await _namespace(kubectl, found)
    bodies = [removal.pod(node, namespace, image, found.agent) for node in nodes]
    tell(f"removing the agents' files from {removal.shown(nodes)}")
    await kubectl.read("create", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": bodies}))
    try:
        return await _ended(kubectl, namespace, nodes, timeout_seconds)
    finally:
        place = [f"--namespace={namespace}", f"--selector={CLEAN_UP}", "--wait=false", "--grace-period=1"]
        await kubectl.ended("delete", "pods", *place)
        if made:
            await kubectl.ended("delete", "namespace", namespace, f"--timeout={timeout_seconds:.0f}s")


async def _namespace(kubectl: Kubectl, found: Installation) -> tuple[str, bool]:
    """Where clean-up pods run, and whether it was made for them: the agents' own namespace, which lets them reach the host's folders."""
    if found.agent:
        return str(found.agent["metadata"]["namespace"]), False
    if AGENT_NAMESPACE in found.namespaces:
        return AGENT_NAMESPACE, False
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": CLEAN_UP, "labels": labels}}
    await kubectl.read("apply", "-f", "-", given=json.dumps(body))
    return CLEAN_UP, True


async def _ended(kubectl: Kubectl, namespace: str, nodes: Sequence[str], timeout_seconds: float) -> list[str]:
    deadline = time.monotonic() + timeout_seconds
    while True:
        pods: list[Object] = await kubectl.objects("pods", f"--namespace={namespace}", f"--selector={CLEAN_UP}")
        outcomes = {each["spec"]["nodeName"]: removal.outcome(each) for each in pods}
        going = [node for node in nodes if outcomes.get(node) is None]
        if not going or time.monotonic() > deadline:
            failed = [f"files on {node}: {reason}" for node, reason in outcomes.items() if reason]
            return failed + [f"files on {node}: not removed after {timeout_seconds:.0f} s; is kubelet there?" for node in going]
        tell(f"{len(nodes) - len(going)} of {len(nodes)} nodes are clean")
        await asyncio.sleep(LOOK_SECONDS)


async def _forget(kubectl: Kubectl, verb: str, keys: dict[str, list[str]]) -> list[str]:
    """Remove annotations or labels from nodes; again for a while, since a policy that was deleted is enforced a little longer."""
    deadline, failures = time.monotonic() + POLICIES_SECONDS, []
    for node, names in keys.items():
        tell(f"removing {', '.join(names)} from node {node}")
        if problem := await _forgotten(kubectl, [verb, "node", node, *(f"{key}-" for key in names)], deadline):
            failures.append(f"records of node {node}: {problem}")
    return failures


async def _forgotten(kubectl: Kubectl, command: Sequence[str], deadline: float) -> str:
    """What keeps ``command`` from succeeding until the deadline; empty where it has."""
    while True:
        done = await kubectl.ended(*command)
        if not done.code or time.monotonic() > deadline:
            return done.err if done.code else ""
        await asyncio.sleep(LOOK_SECONDS)
