"""Reads from a cluster what an installation is judged by. Decides nothing; ``prerequisites`` and ``pruning`` do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping

from hami_cli import api_server_ports as ports
from hami_cli import installation, pruning
from hami_cli.exits import CommandError
from hami_cli.installation import GroupKind, Object
from hami_cli.kubectl import Kubectl
from hami_cli.prerequisites import DEFAULT_CLASS, Has, Mount, Needs

Place = tuple[str, str, str]


async def served(kubectl: Kubectl) -> dict[GroupKind, str]:
    """What the API server serves; an aggregated API that is away is left out.

    Raises:
        CommandError: it does not answer.
    """
    done = await kubectl.ended("api-resources", "--no-headers")
    if not done.out:
        raise CommandError(f"kubectl api-resources: {done.err}")
    return installation.served(done.out)


async def labelled(kubectl: Kubectl, served: Mapping[GroupKind, str]) -> list[Object]:
    """All objects with the label of an installation.

    Raises:
        CommandError: they may not be listed.
    """
    return await kubectl.objects(pruning.resources(served), "--all-namespaces", f"--selector={installation.SELECTOR}")


async def api_server_ports(kubectl: Kubectl) -> frozenset[int]:
    """The ports at which the API server listens; none where they may not be read."""
    done = await kubectl.ended("get", "endpointslices", "--namespace=default", f"--selector={ports.SLICES}", "--output=json")
    return frozenset() if done.code else ports.listening(json.loads(done.out)["items"])


async def read(kubectl: Kubectl, needs: Needs, served: Iterable[GroupKind], version: str) -> Has:
    """What the cluster has of ``needs``; nothing of a kind that it does not serve.

    Raises:
        CommandError: it does not answer, or what is needed may not be listed.
    """
    volumes = bool(needs.claims) and {("storage.k8s.io", "StorageClass"), ("", "PersistentVolumeClaim")} <= set(served)
    classes = await kubectl.objects("storageclasses.storage.k8s.io") if volumes else []
    claims = await kubectl.objects("persistentvolumeclaims", "--all-namespaces") if volumes else []
    nodes = await kubectl.objects("nodes") if needs.nodes else []
    keys: dict[Place, frozenset[str] | None] = {}
    for found in await asyncio.gather(*(_keys(kubectl, each) for each in needs.mounts)):
        keys |= found
    return Has(
        keys=keys,
        storage_classes={each["metadata"]["name"]: _annotations(each).get(DEFAULT_CLASS) == "true" for each in classes},
        claims=frozenset((each["metadata"]["namespace"], each["metadata"]["name"]) for each in claims),
        node_labels=tuple(each["metadata"].get("labels") or {} for each in nodes),
        version=version,
    )


async def _keys(kubectl: Kubectl, mount: Mount) -> dict[Place, frozenset[str] | None]:
    place = mount.kind, mount.namespace, mount.name
    done = await kubectl.ended("get", mount.kind, mount.name, f"--namespace={mount.namespace}", "--ignore-not-found", "--output=json")
    if done.code:
        if "(Forbidden)" in done.err:
            return {place: None}
        raise CommandError(f"kubectl get {mount.kind} {mount.name}: {done.err}")
    if not done.out.strip():
        return {}
    found = json.loads(done.out)
    return {place: frozenset([*(found.get("data") or {}), *(found.get("binaryData") or {})])}


def _annotations(body: Object) -> Mapping[str, str]:
    return body["metadata"].get("annotations") or {}
