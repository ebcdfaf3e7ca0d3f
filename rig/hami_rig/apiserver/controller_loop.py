"""Carries out what ``controllers`` decides, as the controllers' own users and through admission, whenever something they own has changed.

Pods that nobody owns cost nothing here: a namespace is looked at only when a controller, an owned pod or a budgeted pod in it changes.
"""

import asyncio
from collections.abc import Callable, Iterable
from datetime import datetime

import msgspec

from hami_rig.apiserver.calls import Call, Target
from hami_rig.apiserver.controllers import (
    Command,
    Create,
    Delete,
    budget_commands,
    deployment_commands,
    job_commands,
    owner_uid,
    replica_set_commands,
)
from hami_rig.apiserver.identity import User, groups_of
from hami_rig.apiserver.objects import Objects
from hami_rig.apiserver.served import SERVED
from hami_runtime.kube.store import Change, ObjectStore
from hami_runtime.kube.store_errors import ApiError
from hami_runtime.kube.store_objects import Object
from hami_runtime.kube.store_resources import DEPLOYMENTS, EVENTS, JOBS, POD_DISRUPTION_BUDGETS, PODS, REPLICA_SETS, Resource
from hami_runtime.kube.store_selectors import Selection

__all__ = ["ControllerLoop"]

_OWNERS = (DEPLOYMENTS, REPLICA_SETS, JOBS)
_SETTLE_SECONDS = 0.01
_RETRY_SECONDS = 1.0


class ControllerLoop:
    """The controllers of one server."""

    def __init__(self, store: ObjectStore, objects: Objects, now: Callable[[], datetime]) -> None:
        self._store = store
        self._objects = objects
        self._now = now
        self._changed: set[str] = set()
        self._wake = asyncio.Event()
        store.subscribe(self._notice)

    def _notice(self, change: Change) -> None:
        namespace = change.now.body["metadata"].get("namespace", "")
        if change.resource == PODS:
            if owner_uid(change.now.body) is None and not self._select(POD_DISRUPTION_BUDGETS, namespace):
                return
        elif change.resource not in (*_OWNERS, POD_DISRUPTION_BUDGETS):
            return
        self._changed.add(namespace)
        self._wake.set()

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(_SETTLE_SECONDS)
            namespaces, self._changed = self._changed, set()
            self._wake.clear()
            for namespace in sorted(namespaces):
                for command in self._decided(namespace):
                    await self._try(command, namespace)

    def _decided(self, namespace: str) -> list[Command]:
        pods = self._select(PODS, namespace)
        replica_sets, jobs = self._select(REPLICA_SETS, namespace), self._select(JOBS, namespace)
        deployments = self._select(DEPLOYMENTS, namespace)
        alive = {each["metadata"]["uid"] for each in (*deployments, *replica_sets, *jobs)}
        commands: list[Command] = []
        for resource, bodies in ((PODS, pods), (REPLICA_SETS, replica_sets)):
            orphans = (each for each in bodies if (uid := owner_uid(each)) and uid not in alive)
            commands += [Delete(resource, each) for each in orphans if not each["metadata"].get("deletionTimestamp")]
        for each in deployments:
            commands += deployment_commands(each, _owned(each, replica_sets))
        for each in replica_sets:
            commands += replica_set_commands(each, _owned(each, pods))
        for each in jobs:
            commands += job_commands(each, _owned(each, pods), self._now())
        for each in self._select(POD_DISRUPTION_BUDGETS, namespace):
            commands += budget_commands(each, pods)
        return commands

    async def _try(self, command: Command, namespace: str) -> None:
        try:
            await self._carry_out(command, namespace)
        except ApiError as refused:
            if isinstance(command, Create):
                self._report(command, namespace, refused)
                asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._again, namespace)

    def _again(self, namespace: str) -> None:
        self._changed.add(namespace)
        self._wake.set()

    async def _carry_out(self, command: Command, namespace: str) -> None:
        if isinstance(command, Create):
            controller = f"{command.owner['kind'].lower()}-controller"
            call = _call("create", command.resource, namespace, "", controller, command.body)
            await self._objects.create(call, [])
        elif isinstance(command, Delete):
            metadata = command.body["metadata"]
            options = {"preconditions": {"uid": metadata["uid"]}}
            call = _call("delete", command.resource, namespace, metadata["name"], "generic-garbage-collector", options)
            await self._objects.delete(call, [])
        else:
            name = command.body["metadata"]["name"]
            self._store.merge_patch(command.resource, name, command.patch, namespace, subresource="status" if command.subresource else "")

    def _report(self, command: Create, namespace: str, refused: ApiError) -> None:
        """Tell why pods are missing, once, with a count."""
        owner = command.owner
        metadata = owner["metadata"]
        name = f"{metadata['name']}.failed-create"
        if known := self._store.find(EVENTS, name, namespace):
            self._store.merge_patch(EVENTS, name, {"count": known.body["count"] + 1, "message": _why(refused)}, namespace)
            return
        subject = {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "namespace": namespace,
            "name": metadata["name"],
            "uid": metadata["uid"],
        }
        event = {
            "reason": "FailedCreate",
            "message": _why(refused),
            "type": "Warning",
            "count": 1,
            "source": {"component": "rig-controllers"},
        }
        self._store.create(EVENTS, {"metadata": {"name": name}, "involvedObject": subject, **event}, namespace)

    def _select(self, resource: Resource, namespace: str) -> list[Object]:
        return [stored.body for stored in self._store.select(resource, Selection(namespace=namespace))]


def _owned(owner: Object, bodies: Iterable[Object]) -> list[Object]:
    return [each for each in bodies if owner_uid(each) == owner["metadata"]["uid"]]


def _why(refused: ApiError) -> str:
    return f"Error creating: {refused.message}"


def _call(verb: str, resource: Resource, namespace: str, name: str, controller: str, body: Object) -> Call:
    user = f"system:serviceaccount:kube-system:{controller}"
    return Call(
        verb=verb,
        target=Target(served=SERVED[(resource.group, resource.plural)], namespace=namespace, name=name),
        query={},
        user=User(name=user, groups=groups_of(user)),
        user_agent="rig-controllers",
        content_type="application/json",
        body=msgspec.json.encode(body),
    )
