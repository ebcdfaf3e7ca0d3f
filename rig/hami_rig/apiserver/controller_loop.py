"""Carries out what ``controllers`` decides, as the controllers' own users and through admission, whenever something they look at has changed.

Pods that nobody owns cost nothing here: a namespace is looked at only when a ReplicaSet, a budget, an owned pod or a budgeted pod in it changes.
"""

import asyncio

import msgspec

from hami_rig.apiserver.calls import Call, Target
from hami_rig.apiserver.controllers import Command, Create, Delete, budget_report, owner_uid, replica_set_commands
from hami_rig.apiserver.identity import User, groups_of
from hami_rig.apiserver.objects import Objects
from hami_rig.apiserver.served import SERVED
from hami_runtime.kube.store import Change, ObjectStore
from hami_runtime.kube.store_errors import ApiError
from hami_runtime.kube.store_objects import Object
from hami_runtime.kube.store_resources import EVENTS, POD_DISRUPTION_BUDGETS, PODS, REPLICA_SETS, Resource
from hami_runtime.kube.store_selectors import Selection

__all__ = ["ControllerLoop"]

_SETTLE_SECONDS = 0.01
_RETRY_SECONDS = 1.0


class ControllerLoop:
    """The controllers of one server."""

    def __init__(self, store: ObjectStore, objects: Objects) -> None:
        self._store = store
        self._objects = objects
        self._changed: set[str] = set()
        self._wake = asyncio.Event()
        store.subscribe(self._notice)

    def _notice(self, change: Change) -> None:
        namespace = change.now.body["metadata"].get("namespace", "")
        if change.resource == PODS:
            if owner_uid(change.now.body) is None and not self._select(POD_DISRUPTION_BUDGETS, namespace):
                return
        elif change.resource not in (REPLICA_SETS, POD_DISRUPTION_BUDGETS):
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
        pods, replica_sets = self._select(PODS, namespace), self._select(REPLICA_SETS, namespace)
        alive = {each["metadata"]["uid"] for each in replica_sets}
        commands: list[Command] = []
        for pod in pods:
            owner = owner_uid(pod)
            if owner and owner not in alive and not pod["metadata"].get("deletionTimestamp"):
                commands.append(Delete(pod))
        for each in replica_sets:
            commands += replica_set_commands(each, [pod for pod in pods if owner_uid(pod) == each["metadata"]["uid"]])
        commands += [budget_report(each, pods) for each in self._select(POD_DISRUPTION_BUDGETS, namespace)]
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
        metadata = command.body["metadata"]
        if isinstance(command, Create):
            await self._objects.create(_call("create", namespace, "", "replicaset-controller", command.body), [])
        elif isinstance(command, Delete):
            options = {"preconditions": {"uid": metadata["uid"]}}
            await self._objects.delete(_call("delete", namespace, metadata["name"], "generic-garbage-collector", options), [])
        else:
            self._store.merge_patch(command.resource, metadata["name"], {"status": command.status}, namespace, subresource="status")

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


def _why(refused: ApiError) -> str:
    return f"Error creating: {refused.message}"


def _call(verb: str, namespace: str, name: str, controller: str, body: Object) -> Call:
    """A controller's request about a pod."""
    user = f"system:serviceaccount:kube-system:{controller}"
    return Call(
        verb=verb,
        target=Target(served=SERVED[(PODS.group, PODS.plural)], namespace=namespace, name=name),
        query={},
        user=User(name=user, groups=groups_of(user)),
        user_agent="rig-controllers",
        content_type="application/json",
        body=msgspec.json.encode(body),
    )
