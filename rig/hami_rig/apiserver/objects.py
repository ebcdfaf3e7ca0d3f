"""The verbs on objects: takes a body through defaults, admission and validation, and lets the store decide. Knows no HTTP.

Every write has one order: decode, default, mutating admission, validation, validating admission, store. A patch that another write overtakes on
its way through admission is made again on the new version, unless the client named the version it wants to change.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from hami_rig.apiserver import apply, bodies
from hami_rig.apiserver.admission import Admission
from hami_rig.apiserver.calls import Call
from hami_rig.apiserver.patches import json_patched, strategically_merged
from hami_rig.apiserver.validation import check_created, check_updated
from hami_rig.apiserver.webhook_rules import Attempt, Operation
from hami_runtime.kube.store import Deletion, ObjectStore, Stored
from hami_runtime.kube.store_errors import ApiError, Cause
from hami_runtime.kube.store_objects import Object, merged, with_metadata
from hami_runtime.kube.store_resources import NAMESPACES, Resource

__all__ = ["Objects", "Outcome"]

_TRIES = 5
_IMMORTAL_NAMESPACES = ("default", "kube-public", "kube-system")
_PATCH_OPTIONS = Resource(group="meta.k8s.io", plural="", kind="PatchOptions")
_SUCCESS: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}


class Outcome(Struct, frozen=True, kw_only=True):
    """What a write came to: an object, or a Status."""

    code: int
    stored: Stored | None = None
    status: Object | None = None


class Objects:
    """Carries out calls on objects. Every refusal is an ``ApiError``; warnings for the client are added to ``warnings``."""

    def __init__(self, store: ObjectStore, admission: Admission, now: Callable[[], datetime]) -> None:
        self._store = store
        self._admission = admission
        self._now = now

    async def create(self, call: Call, warnings: list[str]) -> Outcome:
        """Create an object, bind a pod, or evict one."""
        match call.target.subresource:
            case "binding":
                return await self._bind(call, warnings)
            case "eviction":
                return await self._evict(call, warnings)
        return Outcome(code=201, stored=await self._create(call, bodies.read(call, warnings), warnings))

    async def update(self, call: Call, warnings: list[str]) -> Outcome:
        """Replace an object."""
        target = call.target
        resource = target.served.resource
        body = bodies.read(call, warnings)
        current = self._store.get(resource, target.name, target.namespace)
        preview = self._store.replace(resource, target.name, body, target.namespace, dry_run=True).body
        admitted = await self._admitted_update(call, current, preview, warnings)
        given = body.get("metadata") or {}
        final = with_metadata(admitted, uid=given.get("uid"), resourceVersion=given.get("resourceVersion"))
        stored = self._store.replace(resource, target.name, final, target.namespace, dry_run=call.dry_run)
        return Outcome(code=200, stored=stored)

    async def patch(self, call: Call, warnings: list[str]) -> Outcome:
        """Apply a patch of any of the four kinds to an object or its status."""
        target = call.target
        resource, part = target.served.resource, _part(target.subresource)
        document = bodies.document(call)
        for _ in range(_TRIES):
            current = self._store.find(resource, target.name, target.namespace)
            body = self._patched(call, current, document, warnings)
            if current is None:
                return Outcome(code=201, stored=await self._create(call, body, warnings))
            preview = self._store.patched(resource, current, body, subresource=part, dry_run=True).body
            admitted = await self._admitted_update(call, current, preview, warnings)
            if self._store.find(resource, target.name, target.namespace) is current:
                return Outcome(code=200, stored=self._store.patched(resource, current, admitted, subresource=part, dry_run=call.dry_run))
        raise ApiError.modified(resource, target.name)

    async def delete(self, call: Call, warnings: list[str]) -> Outcome:
        """Delete one object."""
        target = call.target
        resource = target.served.resource
        options = bodies.delete_options(call)
        if resource == NAMESPACES and target.name in _IMMORTAL_NAMESPACES:
            raise ApiError.forbidden(resource, target.name, "this namespace may not be deleted")
        current = self._store.get(resource, target.name, target.namespace)
        await self._admit_deletion(call, current, options, warnings)
        dry_run = call.dry_run or options.get("dryRun") == ["All"]
        return _deleted(resource, self._store.delete(resource, target.name, target.namespace, options, dry_run=dry_run))

    # How

    async def _create(self, call: Call, body: Object, warnings: list[str]) -> Stored:
        target = call.target
        resource = target.served.resource
        if resource.namespaced:
            self._store.get(NAMESPACES, target.namespace)
            body = {**body, "metadata": {"namespace": target.namespace, **(body.get("metadata") or {})}}
        attempt = _attempt(call, "CREATE", {"metadata": {}, **body}, None, "CreateOptions")
        attempt = await self._admission.mutated(attempt, warnings, lambda changed: bodies.normal(resource, changed))
        created = attempt.object or {}
        check_created(resource, created)
        await self._admission.validate(attempt, warnings)
        return self._store.create(resource, created, target.namespace, dry_run=call.dry_run)

    async def _bind(self, call: Call, warnings: list[str]) -> Outcome:
        target = call.target
        binding = bodies.special(call, "V1Binding", kind="Binding", apiVersion="v1")
        _must_name(target.name, binding)
        attempt = _attempt(call, "CREATE", binding, None, "CreateOptions")
        attempt = await self._admission.mutated(attempt, warnings, lambda changed: changed)
        await self._admission.validate(attempt, warnings)
        self._store.bind(target.name, attempt.object or {}, target.namespace, dry_run=call.dry_run)
        return Outcome(code=201, status={**_SUCCESS, "code": 201})

    async def _evict(self, call: Call, warnings: list[str]) -> Outcome:
        target = call.target
        eviction = bodies.special(call, "V1Eviction", kind="Eviction", apiVersion="policy/v1")
        _must_name(target.name, eviction)
        await self._admission.validate(_attempt(call, "CREATE", eviction, None, "CreateOptions"), warnings)
        dry_run = call.dry_run or (eviction.get("deleteOptions") or {}).get("dryRun") == ["All"]
        self._store.evict(target.name, eviction, target.namespace, dry_run=dry_run)
        return Outcome(code=201, status={**_SUCCESS, "code": 201})

    async def _admitted_update(self, call: Call, current: Stored, body: Object, warnings: list[str]) -> Object:
        resource = call.target.served.resource
        attempt = _attempt(call, "UPDATE", body, current.body, "UpdateOptions" if call.verb == "update" else "PatchOptions")
        attempt = await self._admission.mutated(attempt, warnings, lambda changed: bodies.normal(resource, changed))
        admitted = attempt.object or {}
        check_updated(resource, current.body, admitted, subresource=call.target.subresource)
        await self._admission.validate(attempt, warnings)
        return (
            apply.written_by_update(resource, call.target.served.type, current.body, admitted, manager=call.manager, now=self._now())
            if call.content_type != bodies.APPLY
            else admitted
        )

    async def _admit_deletion(self, call: Call, current: Stored, options: Object, warnings: list[str]) -> None:
        attempt = _attempt(call, "DELETE", None, current.body, "DeleteOptions", **options)
        attempt = await self._admission.mutated(attempt, warnings, lambda changed: changed)
        await self._admission.validate(attempt, warnings)

    def _patched(self, call: Call, current: Stored | None, document: Any, warnings: list[str]) -> Object:
        served = call.target.served
        if call.content_type == bodies.APPLY:
            return self._applied(call, current, document, warnings)
        if current is None:
            raise ApiError.not_found(served.resource, call.target.name)
        if call.content_type == "application/json-patch+json":
            body = json_patched(current.body, document)
        elif not isinstance(document, Mapping):
            why = "json: cannot unmarshal array into Go value of type map[string]interface {}"
            raise ApiError.bad_request(f"error decoding patch: {why}")
        elif call.content_type == "application/merge-patch+json":
            body = merged(current.body, document)
        else:
            body = strategically_merged(served.type, current.body, document)
        return bodies.patched(call, body, warnings)

    def _applied(self, call: Call, current: Stored | None, document: Any, warnings: list[str]) -> Object:
        target = call.target
        served = target.served
        if not call.query.get("fieldManager"):
            cause = Cause("fieldManager", "FieldValueRequired", "Required value: is required for apply patch")
            raise ApiError.invalid(_PATCH_OPTIONS, "", [cause])
        if not isinstance(document, Mapping) or document.get("kind") != served.resource.kind:
            raise ApiError.bad_request(f"an applied document must be a {served.resource.kind} with its apiVersion and kind")
        wanted = bodies.received(call, document, warnings, with_defaults=False)
        wanted["metadata"] = {"name": target.name, **(wanted.get("metadata") or {})}
        forced = call.query.get("force") in ("true", "1")
        before = current.body if current else None
        body = apply.applied(served.resource, served.type, before, wanted, manager=call.manager, force=forced, now=self._now())
        return bodies.normal(served.resource, body)


def _attempt(call: Call, operation: Operation, body: Object | None, old: Object | None, options: str, **given: Any) -> Attempt:
    target = call.target
    dry_run = {"dryRun": ["All"]} if call.dry_run else {}
    return Attempt(
        operation=operation,
        resource=target.served.resource,
        subresource=target.subresource,
        namespace=target.namespace,
        name=target.name or ((body or {}).get("metadata") or {}).get("name") or "",
        user=call.user,
        dry_run=call.dry_run,
        kind=(body or old or {}).get("kind", target.served.resource.kind),
        object=body,
        old=old,
        options={"kind": options, "apiVersion": "meta.k8s.io/v1", **given, **dry_run},
    )


def _must_name(name: str, body: Object) -> None:
    if body["metadata"].get("name") != name:
        raise ApiError.bad_request(f"name in URL does not match name in {body['kind']} object")


def _part(subresource: str) -> Literal["", "status"]:
    return "status" if subresource == "status" else ""


def _deleted(resource: Resource, deletion: Deletion) -> Outcome:
    """A deletion answers with the object while there is one to look at, else with a Status."""
    if not deletion.gone or resource.graceful:
        return Outcome(code=200, stored=deletion.last)
    metadata = deletion.last.body["metadata"]
    group = {"group": resource.group} if resource.group else {}
    details = {"name": metadata["name"], **group, "kind": resource.plural, "uid": metadata["uid"]}
    return Outcome(code=200, status={**_SUCCESS, "details": details})
