"""An API server's memory: Kubernetes objects, one counter of versions, and the history that watches read. Synchronous, no I/O, no clock.

The in-memory cluster and the rig's API server are both built on it. What it decides: who wins a conflict, what a write may change,
when a deletion is complete, what a watcher sees. What it leaves to others: defaults, validation, admission, and every encoding.

Invariants:

- ``revision`` grows by one with every change, and no other way; an object's ``resourceVersion`` is the revision that wrote it.
- A write that changes nothing is no write: no revision, no event.
- A stored body is never modified, only replaced, so it may be shared freely and must be treated as frozen by whoever gets it.
- Time comes from ``now`` and chance from ``rng``: equal calls on equal stores give equal results.
"""

import random
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from hami_runtime.kube import store_pods
from hami_runtime.kube.store_errors import ApiError, Cause
from hami_runtime.kube.store_objects import (
    Object,
    copied,
    merged,
    prepared_for_create,
    prepared_for_update,
    timestamp,
    with_metadata,
)
from hami_runtime.kube.store_resources import NAMESPACES, POD_DISRUPTION_BUDGETS, PODS, RESOURCES, Resource
from hami_runtime.kube.store_selectors import EVERYTHING, Selection

__all__ = ["Change", "Deletion", "ObjectStore", "Stored", "WatchEvent", "selected"]

_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX_LENGTH = 5
_GENERATED_NAME_LENGTH = 63
_GENERATE_NAME_TRIES = 8
_SYSTEM_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")

EventType = Literal["ADDED", "MODIFIED", "DELETED"]


class Stored:
    """One version of one object; its JSON is made once, when somebody first wants it."""

    __slots__ = ("_json", "body", "revision")

    def __init__(self, body: Object, revision: int) -> None:
        self.body = body
        self.revision = revision
        self._json: bytes | None = None

    @property
    def json(self) -> bytes:
        """The object as JSON, without a line end."""
        if self._json is None:
            self._json = msgspec.json.encode(self.body)
        return self._json


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One write: what was there before, and what is there now, or was last there if it was deleted."""

    type: EventType
    resource: Resource
    now: Stored
    before: Stored | None


class WatchEvent(msgspec.Struct, frozen=True):
    """A change as one watcher sees it."""

    type: EventType
    stored: Stored


class Deletion(msgspec.Struct, frozen=True):
    """What a delete request came to."""

    last: Stored
    gone: bool
    """False while a kubelet or a finalizer is waited for."""


def selected(change: Change, selection: Selection) -> WatchEvent | None:
    """Return the change as a watcher with this selection sees it: an object that starts to match is added, one that stops is deleted."""
    matches = change.type != "DELETED" and selection.matches(change.now.body)
    matched = change.before is not None and selection.matches(change.before.body)
    if matches:
        return WatchEvent("MODIFIED" if matched else "ADDED", change.now)
    if not matched or change.before is None:
        return None
    if change.type == "DELETED":
        return WatchEvent("DELETED", change.now)
    revision = change.now.revision
    return WatchEvent("DELETED", Stored(with_metadata(change.before.body, resourceVersion=str(revision)), revision))


class ObjectStore:
    """Kubernetes objects in memory. Every refusal is an ``ApiError`` with a complete ``Status``.

    Methods take the namespace of the request; it is ignored for kinds that have none. With ``dry_run`` they return the
    result and keep nothing.
    """

    def __init__(self, *, now: Callable[[], datetime], rng: random.Random, history: int = 8192) -> None:
        """Start with the namespaces that every cluster has.

        Args:
            now: the clock, timezone-aware.
            rng: where uids and the suffixes of generated names come from.
            history: how many changes are kept per kind for watches.
        """
        self._now = now
        self._rng = rng
        self._revision = 0
        self._objects: dict[Resource, dict[tuple[str, str], Stored]] = {resource: {} for resource in RESOURCES}
        self._in_order: dict[Resource, list[tuple[str, str]]] = {}
        self._history: dict[Resource, deque[Change]] = {resource: deque(maxlen=history) for resource in RESOURCES}
        self._compacted: dict[Resource, int] = dict.fromkeys(RESOURCES, 0)
        self._subscribers: list[Callable[[Change], None]] = []
        for name in _SYSTEM_NAMESPACES:
            self.create(NAMESPACES, {"metadata": {"name": name}})

    @property
    def revision(self) -> int:
        """The revision of the last change."""
        return self._revision

    # Reading

    def find(self, resource: Resource, name: str, namespace: str = "") -> Stored | None:
        """Return the object, or None if there is none."""
        return self._objects[resource].get(_key(resource, namespace, name))

    def get(self, resource: Resource, name: str, namespace: str = "") -> Stored:
        """Return the object.

        Raises:
            ApiError: 404 if there is none.
        """
        stored = self.find(resource, name, namespace)
        if stored is None:
            raise ApiError.not_found(resource, name)
        return stored

    def select(self, resource: Resource, selection: Selection = EVERYTHING) -> list[Stored]:
        """Return the selected objects in the order of namespace and name. They are those of ``revision``."""
        objects = self._objects[resource]
        if selection.namespace and (name := selection.exact("metadata.name")):
            stored = objects.get(_key(resource, selection.namespace, name))
            return [stored] if stored is not None and selection.matches(stored.body) else []
        if resource not in self._in_order:
            self._in_order[resource] = sorted(objects)
        keys = self._in_order[resource]
        if selection == EVERYTHING:
            return [objects[key] for key in keys]
        return [objects[key] for key in keys if selection.matches(objects[key].body)]

    # Watching

    def subscribe(self, callback: Callable[[Change], None]) -> Callable[[], None]:
        """Call ``callback`` after every change from now on, in order, until the returned function is called. It must not write."""
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)

    def events_since(self, resource: Resource, revision: int, selection: Selection = EVERYTHING) -> list[WatchEvent]:
        """Return what a watcher that has seen everything up to ``revision`` has missed.

        Raises:
            ApiError: 410 if the history no longer reaches back so far; 504 if there is no such revision yet.
        """
        if revision < self._compacted[resource]:
            raise ApiError.gone(revision, self._compacted[resource])
        if revision > self._revision:
            raise ApiError(
                504,
                "Timeout",
                f"Too large resource version: {revision}, current: {self._revision}",
                {"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}], "retryAfterSeconds": 1},
            )
        missed = []
        for change in reversed(self._history[resource]):
            if change.now.revision <= revision:
                break
            if event := selected(change, selection):
                missed.append(event)
        missed.reverse()
        return missed

    def compact(self) -> None:
        """Forget the history: whoever asks for an older revision has to list again."""
        for resource in RESOURCES:
            self._history[resource].clear()
            self._compacted[resource] = self._revision

    # Writing

    def create(self, resource: Resource, body: Mapping[str, Any], namespace: str = "", *, dry_run: bool = False) -> Stored:
        """Create an object, under a generated name if it only has ``generateName``.

        Raises:
            ApiError: 409 if the name is taken, 404 if the namespace does not exist, 403 if it is being deleted, 400 or 422
                if the object contradicts the request or has no name.
        """
        metadata = body.get("metadata") or {}
        if resource.namespaced:
            if (metadata.get("namespace") or namespace) != namespace:
                raise ApiError.bad_request("the namespace of the provided object does not match the namespace sent on the request")
            self._require_namespace(resource, metadata.get("name") or "", namespace)
        name = metadata.get("name") or self._generated_name(resource, metadata.get("generateName") or "", namespace)
        if not name:
            raise ApiError.invalid(
                resource, "", [Cause("metadata.name", "FieldValueRequired", "Required value: name or generateName is required")]
            )
        if metadata.get("resourceVersion"):
            raise ApiError(500, "", "resourceVersion should not be set on objects to be created")
        if self.find(resource, name, namespace) is not None:
            raise ApiError.already_exists(resource, name)
        uid = str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
        created = prepared_for_create(resource, body, name=name, namespace=namespace, uid=uid, now=self._now())
        return self._commit(resource, None, created, dry_run=dry_run)

    def replace(self, resource: Resource, name: str, body: Mapping[str, Any], namespace: str = "", *, dry_run: bool = False) -> Stored:
        """Replace an object. A uid or resource version in the body is a precondition.

        Raises:
            ApiError: 404, 409 if a precondition does not hold, or 422 for a kind that is only replaced with a resource version.
        """
        current = self.get(resource, name, namespace)
        metadata = body.get("metadata") or {}
        found = current.body["metadata"]
        if metadata.get("uid") not in (None, "", found["uid"]):
            raise self._precondition_failed(resource, current, "UID", metadata["uid"], found["uid"])
        if not metadata.get("resourceVersion") and not resource.unconditional_update:
            raise ApiError.must_name_version(resource, name)
        return self._update(resource, current, body, subresource="", dry_run=dry_run)

    def patched(
        self,
        resource: Resource,
        current: Stored,
        body: Mapping[str, Any],
        *,
        subresource: Literal["", "status"] = "",
        dry_run: bool = False,
    ) -> Stored:
        """Store what a patch made of ``current``; the way in for every kind of patch.

        Raises:
            ApiError: 409 if ``current`` is no longer the current version, or if the patch names another resource version; 422 if
                it names another uid.
        """
        metadata, found = body.get("metadata") or {}, current.body["metadata"]
        name = found["name"]
        if self.find(resource, name, found.get("namespace", "")) is not current:
            raise ApiError.modified(resource, name)
        uid = metadata.get("uid") or found["uid"]
        if uid != found["uid"] and metadata.get("resourceVersion") == found["resourceVersion"]:
            cause = Cause("metadata.uid", "FieldValueInvalid", f'Invalid value: "{uid}": field is immutable')
            raise ApiError.invalid(resource, name, [cause])
        return self._update(resource, current, body, subresource=subresource, dry_run=dry_run)

    def merge_patch(
        self,
        resource: Resource,
        name: str,
        patch: Mapping[str, Any],
        namespace: str = "",
        *,
        subresource: Literal["", "status"] = "",
    ) -> Stored:
        """Apply a merge patch (RFC 7396); a uid or resource version in its metadata is a precondition.

        Raises:
            ApiError: 404, or as ``patched``.
        """
        current = self.get(resource, name, namespace)
        return self.patched(resource, current, merged(current.body, patch), subresource=subresource)

    def bind(self, name: str, binding: Mapping[str, Any], namespace: str, *, dry_run: bool = False) -> Stored:
        """Carry out a pod's Binding: node, condition, and the Binding's annotations and labels in one write.

        Raises:
            ApiError: 404, 409 if the pod is not the one whose uid or resource version the Binding names, or as ``store_pods.bound``.
        """
        current = self.get(PODS, name, namespace)
        wanted, found = binding.get("metadata") or {}, current.body["metadata"]
        for member, what in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
            if wanted.get(member) and wanted[member] != found[member]:
                raise self._precondition_failed(PODS, current, what, wanted[member], found[member])
        return self._commit(PODS, current, store_pods.bound(current.body, copied(binding), self._now()), dry_run=dry_run)

    def evict(self, name: str, eviction: Mapping[str, Any], namespace: str, *, dry_run: bool = False) -> Deletion:
        """Delete a pod if its disruption budget, as far as its status has been counted, allows that.

        Raises:
            ApiError: 404, 409 as ``delete``, 429 if the budget does not allow it, 500 if the pod has more than one.
        """
        current = self.get(PODS, name, namespace)
        options = eviction.get("deleteOptions") or {}
        self._check_delete_preconditions(PODS, current, options)
        budgets = store_pods.budgets_of(current.body, (each.body for each in self._namespaced(POD_DISRUPTION_BUDGETS, namespace)))
        if len(budgets) > 1:
            raise ApiError(
                500,
                "InternalError",
                "Internal error occurred: This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
            )
        for budget in budgets:
            charged = store_pods.charged_budget(budget, current.body, self._now())
            stored = self.get(POD_DISRUPTION_BUDGETS, budget["metadata"]["name"], namespace)
            self._commit(POD_DISRUPTION_BUDGETS, stored, charged, dry_run=dry_run)
        if budgets:
            self._commit(PODS, current, store_pods.evicting(current.body, self._now()), dry_run=dry_run)
        return self.delete(PODS, name, namespace, {"gracePeriodSeconds": options.get("gracePeriodSeconds")}, dry_run=dry_run)

    def delete(
        self, resource: Resource, name: str, namespace: str = "", options: Mapping[str, Any] | None = None, *, dry_run: bool = False
    ) -> Deletion:
        """Delete an object as ``DeleteOptions`` say: at once, or mark it and wait for its kubelet and its finalizers.

        Raises:
            ApiError: 404, or 409 if a precondition does not hold.
        """
        options = options or {}
        current = self.get(resource, name, namespace)
        self._check_delete_preconditions(resource, current, options)
        if resource == NAMESPACES:
            return self._delete_namespace(current, dry_run=dry_run)
        marked, grace_seconds = self._marked(resource, current.body, options.get("gracePeriodSeconds"))
        if grace_seconds or marked["metadata"].get("finalizers"):
            return Deletion(self._commit(resource, current, marked, dry_run=dry_run), gone=False)
        if dry_run:
            return Deletion(Stored(marked, current.revision), gone=True)
        if resource.graceful and marked != current.body:
            current = self._commit(resource, current, marked, dry_run=False, removed_next=True)
        return Deletion(self._remove(resource, current), gone=True)

    # How

    def _update(
        self, resource: Resource, current: Stored, body: Mapping[str, Any], *, subresource: Literal["", "status"], dry_run: bool
    ) -> Stored:
        metadata, found = body.get("metadata") or {}, current.body["metadata"]
        name = found["name"]
        if not metadata.get("name"):
            raise ApiError.bad_request(f"the name of the object ({name} based on URL) was undeterminable: name must be provided")
        if metadata["name"] != name:
            raise ApiError.bad_request(f"the name of the object ({metadata['name']}) does not match the name on the URL ({name})")
        if metadata.get("namespace") not in (None, "", found.get("namespace")):
            raise ApiError.bad_request("the namespace of the provided object does not match the namespace sent on the request")
        if metadata.get("resourceVersion") not in (None, "", "0", found["resourceVersion"]):
            raise ApiError.modified(resource, name)
        if metadata.get("deletionTimestamp") not in (None, found.get("deletionTimestamp")):
            why = f'Invalid value: "{metadata["deletionTimestamp"]}": field is immutable'
            raise ApiError.invalid(resource, name, [Cause("metadata.deletionTimestamp", "FieldValueInvalid", why)])
        updated = prepared_for_update(resource, current.body, body, subresource=subresource)
        return self._commit(resource, current, updated, dry_run=dry_run)

    @staticmethod
    def _precondition_failed(resource: Resource, current: Stored, what: str, wanted: str, found: str) -> ApiError:
        metadata = current.body["metadata"]
        return ApiError.precondition_failed(
            resource, metadata["name"], metadata.get("namespace", ""), f"{what} in precondition: {wanted}, {what} in object meta: {found}"
        )

    def _marked(self, resource: Resource, body: Object, asked_seconds: int | None) -> tuple[Object, int]:
        """The object with its deletion marks, and the seconds that its kubelet still has; marks only ever move forward."""
        metadata = body["metadata"]
        if metadata.get("deletionTimestamp"):
            granted: int = metadata.get("deletionGracePeriodSeconds", 0)
            if asked_seconds is None or asked_seconds >= granted:
                return body, granted
            since = datetime.fromisoformat(metadata["deletionTimestamp"]) - timedelta(seconds=granted - asked_seconds)
            return with_metadata(body, deletionTimestamp=timestamp(since), deletionGracePeriodSeconds=asked_seconds), asked_seconds
        if not resource.graceful and not metadata.get("finalizers"):
            return body, 0
        seconds = store_pods.deletion_grace_seconds(body, asked_seconds) if resource.graceful else 0
        until = timestamp(self._now() + timedelta(seconds=seconds))
        generation = metadata["generation"] + 1 if "generation" in metadata else None
        return with_metadata(body, deletionTimestamp=until, deletionGracePeriodSeconds=seconds, generation=generation), seconds

    def _delete_namespace(self, current: Stored, *, dry_run: bool) -> Deletion:
        name = current.body["metadata"]["name"]
        if current.body["metadata"].get("deletionTimestamp") or dry_run:
            return Deletion(current, gone=False)
        marked = with_metadata(current.body, deletionTimestamp=timestamp(self._now()))
        terminating = self._commit(NAMESPACES, current, {**marked, "status": {"phase": "Terminating"}}, dry_run=False)
        for resource in RESOURCES:
            for stored in self._namespaced(resource, name):
                self.delete(resource, stored.body["metadata"]["name"], name)
        self._finish_namespace(name)
        return Deletion(terminating, gone=False)

    def _finish_namespace(self, name: str) -> None:
        """Remove a namespace that is being deleted once nothing is left in it."""
        namespace = self.find(NAMESPACES, name)
        if namespace is None or not namespace.body["metadata"].get("deletionTimestamp"):
            return
        if not any(self._namespaced(resource, name) for resource in RESOURCES):
            self._remove(NAMESPACES, namespace)

    def _namespaced(self, resource: Resource, namespace: str) -> list[Stored]:
        return self.select(resource, Selection(namespace=namespace)) if resource.namespaced else []

    def _require_namespace(self, resource: Resource, name: str, namespace: str) -> None:
        found = self.get(NAMESPACES, namespace)
        if found.body["metadata"].get("deletionTimestamp"):
            raise ApiError.forbidden(
                resource, name, f"unable to create new content in namespace {namespace} because it is being terminated"
            )

    def _generated_name(self, resource: Resource, prefix: str, namespace: str) -> str:
        if not prefix:
            return ""
        name = ""
        for _ in range(_GENERATE_NAME_TRIES):
            suffix = "".join(self._rng.choice(_SUFFIX_LETTERS) for _ in range(_SUFFIX_LENGTH))
            name = prefix[: _GENERATED_NAME_LENGTH - _SUFFIX_LENGTH] + suffix
            if self.find(resource, name, namespace) is None:
                break
        return name

    def _check_delete_preconditions(self, resource: Resource, current: Stored, options: Mapping[str, Any]) -> None:
        wanted = options.get("preconditions") or {}
        found = current.body["metadata"]
        if wanted.get("uid") and wanted["uid"] != found["uid"]:
            why = f"the UID in the precondition ({wanted['uid']}) does not match the UID in record ({found['uid']})."
            raise ApiError.kind_conflict(resource, found["name"], f"{why} The object might have been deleted and then recreated")
        if wanted.get("resourceVersion") and wanted["resourceVersion"] != found["resourceVersion"]:
            why = f"the ResourceVersion in the precondition ({wanted['resourceVersion']}) does not match the ResourceVersion in record"
            raise ApiError.kind_conflict(
                resource, found["name"], f"{why} ({found['resourceVersion']}). The object might have been modified"
            )

    def _commit(self, resource: Resource, current: Stored | None, body: Object, *, dry_run: bool, removed_next: bool = False) -> Stored:
        """The one way in: store a version, unless it equals the current one or is the end of a deletion that was waited for."""
        if current is not None:
            body = with_metadata(body, resourceVersion=current.body["metadata"]["resourceVersion"])
            if body == current.body:
                return current
            if dry_run:
                return Stored(body, current.revision)
        elif dry_run:
            return Stored(body, 0)
        if current is not None and not removed_next and _is_over(body):
            return self._remove(resource, current, last_body=body)
        self._revision += 1
        stored = Stored(with_metadata(body, resourceVersion=str(self._revision)), self._revision)
        key = _key(resource, body["metadata"].get("namespace", ""), body["metadata"]["name"])
        self._objects[resource][key] = stored
        if current is None:
            self._in_order.pop(resource, None)
        self._record(Change(type="ADDED" if current is None else "MODIFIED", resource=resource, now=stored, before=current))
        return stored

    def _remove(self, resource: Resource, current: Stored, last_body: Object | None = None) -> Stored:
        self._revision += 1
        last = Stored(with_metadata(last_body or current.body, resourceVersion=str(self._revision)), self._revision)
        metadata = current.body["metadata"]
        del self._objects[resource][_key(resource, metadata.get("namespace", ""), metadata["name"])]
        self._in_order.pop(resource, None)
        self._record(Change(type="DELETED", resource=resource, now=last, before=current))
        if resource.namespaced:
            self._finish_namespace(metadata["namespace"])
        return last

    def _record(self, change: Change) -> None:
        history = self._history[change.resource]
        if len(history) == history.maxlen:
            self._compacted[change.resource] = history[0].now.revision
        history.append(change)
        for subscriber in tuple(self._subscribers):
            subscriber(change)


def _is_over(body: Mapping[str, Any]) -> bool:
    """Whether a deletion that was waited for has nothing left to wait for."""
    metadata = body["metadata"]
    waits = metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds", 1)
    return bool(metadata.get("deletionTimestamp")) and not waits


def _key(resource: Resource, namespace: str, name: str) -> tuple[str, str]:
    return (namespace if resource.namespaced else "", name)
