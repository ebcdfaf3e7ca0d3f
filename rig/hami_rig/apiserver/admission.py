"""The way of a write through admission: service account, priority class, mutating webhooks, then validating ones, called over HTTPS.

Decides the order and what a failed call means; which webhooks are asked and what they answered is ``webhook_rules``'. Invariant: whatever a webhook
did to an object is checked and defaulted again before anybody else sees it.
"""

import asyncio
import base64
import binascii
import random
import ssl
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
import msgspec
from msgspec import structs

from hami_rig.apiserver.defaults import default_tolerations
from hami_rig.apiserver.webhook_rules import Attempt, WebhookFailed, answer_of, failed, matching, patched, review_of
from hami_runtime.kube.store import ObjectStore
from hami_runtime.kube.store_errors import ApiError
from hami_runtime.kube.store_objects import Object
from hami_runtime.kube.store_resources import MUTATING_WEBHOOKS, NAMESPACES, PODS, PRIORITY_CLASSES, VALIDATING_WEBHOOKS, Resource

__all__ = ["Admission"]

_LONGEST_ANSWER_BYTES = 8 * 1024 * 1024
_LONGEST_REASON_BYTES = 1024


class Admission:
    """Admits writes. One per server; owns the connections to the webhooks."""

    def __init__(self, store: ObjectStore, rng: random.Random) -> None:
        self._store = store
        self._rng = rng
        self._session: aiohttp.ClientSession | None = None
        self._trust: dict[str, ssl.SSLContext] = {}

    async def close(self) -> None:
        """Close the connections to the webhooks."""
        if self._session is not None:
            await self._session.close()

    async def mutated(self, attempt: Attempt, warnings: list[str], normal: Callable[[Object], Object]) -> Attempt:
        """Return the attempt with its object as the mutating side of admission leaves it; ``normal`` decodes and defaults a body.

        Raises:
            ApiError: it is refused.
        """
        if new_pod := _new_pod(attempt):
            attempt = structs.replace(attempt, object=default_tolerations(_classed(self._store, _with_account(new_pod))))
        elif changed_pod := _changed_pod(attempt):
            attempt = structs.replace(attempt, object=default_tolerations(changed_pod))
        asked: list[tuple[Object, Object | None]] = []
        for webhook in matching(self._configurations(MUTATING_WEBHOOKS), attempt, self._namespace_labels(attempt)):
            attempt = await self._ask(webhook, attempt, warnings, normal)
            asked.append((webhook, attempt.object))
        for webhook, left in asked:
            if webhook.get("reinvocationPolicy") == "IfNeeded" and attempt.object != left:
                attempt = await self._ask(webhook, attempt, warnings, normal)
        if asked and (new_pod := _new_pod(attempt)):
            attempt = structs.replace(attempt, object=_classed(self._store, new_pod))
        return attempt

    async def validate(self, attempt: Attempt, warnings: list[str]) -> None:
        """Ask the validating webhooks, all at once.

        Raises:
            ApiError: the first refusal, in the order of the configurations.
        """
        webhooks = list(matching(self._configurations(VALIDATING_WEBHOOKS), attempt, self._namespace_labels(attempt)))
        if not webhooks:
            return
        answers = await asyncio.gather(*(self._call(webhook, attempt, warnings) for webhook in webhooks), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    def _configurations(self, resource: Resource) -> list[Object]:
        return [stored.body for stored in self._store.select(resource)]

    def _namespace_labels(self, attempt: Attempt) -> Mapping[str, str]:
        if attempt.resource == NAMESPACES:
            labels: Mapping[str, str] = ((attempt.object or attempt.old or {}).get("metadata") or {}).get("labels") or {}
            return labels
        namespace = self._store.find(NAMESPACES, attempt.namespace)
        return namespace.body["metadata"].get("labels") or {} if namespace else {}

    async def _ask(self, webhook: Mapping[str, Any], attempt: Attempt, warnings: list[str], normal: Callable[[Object], Object]) -> Attempt:
        response = await self._call(webhook, attempt, warnings)
        if response is None or attempt.object is None:
            return attempt
        changed = patched(attempt.object, response)
        return attempt if changed == attempt.object else structs.replace(attempt, object=normal(changed))

    async def _call(self, webhook: Mapping[str, Any], attempt: Attempt, warnings: list[str]) -> Object | None:
        """Return the webhook's answer, or None if it failed and that is to be ignored."""
        uid = str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
        try:
            body = await self._post(webhook, msgspec.json.encode(review_of(attempt, uid)))
            response = answer_of(webhook["name"], uid, body)
        except WebhookFailed as failure:
            if webhook["failurePolicy"] == "Ignore":
                return None
            raise failed(webhook["name"], str(failure)) from failure
        given = response.get("warnings")
        warnings += [each for each in given if isinstance(each, str)] if isinstance(given, list) else []
        return response

    async def _post(self, webhook: Mapping[str, Any], review: bytes) -> bytes:
        seconds = webhook["timeoutSeconds"]
        url = webhook["clientConfig"]["url"]
        target = f"{url}{'&' if '?' in url else '?'}timeout={seconds}s"
        if self._session is None:
            self._session = aiohttp.ClientSession(headers={"User-Agent": "kube-apiserver-admission"})
        try:
            async with self._session.post(
                target,
                data=review,
                ssl=self._trusting(webhook["clientConfig"].get("caBundle", "")),
                timeout=aiohttp.ClientTimeout(total=seconds),
                headers={"Content-Type": "application/json", "Accept": "application/json, */*"},
            ) as response:
                body = await response.read()
                if not 200 <= response.status < 300:
                    said = (
                        body[:_LONGEST_REASON_BYTES].decode(errors="replace").strip() if response.content_type.startswith("text/") else ""
                    )
                    cause = f'an error on the server ("{said or "unknown"}") has prevented the request from succeeding'
                    raise WebhookFailed(f"failed to call webhook: {cause}")
        except TimeoutError as late:
            raise WebhookFailed(f'failed to call webhook: Post "{target}": context deadline exceeded') from late
        except (aiohttp.ClientError, OSError, ValueError) as unreachable:
            raise WebhookFailed(f'failed to call webhook: Post "{target}": {unreachable}') from unreachable
        if len(body) > _LONGEST_ANSWER_BYTES:
            raise WebhookFailed(f"received invalid webhook response: it is longer than {_LONGEST_ANSWER_BYTES} bytes")
        return body

    def _trusting(self, bundle: str) -> ssl.SSLContext:
        """The TLS settings that trust a ``caBundle``; the system's certificates if it is empty."""
        if bundle not in self._trust:
            try:
                authorities = base64.b64decode(bundle, validate=True).decode("ascii") if bundle else None
                self._trust[bundle] = ssl.create_default_context(cadata=authorities)
            except (ssl.SSLError, binascii.Error, UnicodeDecodeError) as unusable:
                raise WebhookFailed(f"failed to call webhook: unable to load root certificates: {unusable}") from unusable
        return self._trust[bundle]


def _new_pod(attempt: Attempt) -> Object | None:
    created = attempt.resource == PODS and attempt.operation == "CREATE" and not attempt.subresource
    return attempt.object if created else None


def _changed_pod(attempt: Attempt) -> Object | None:
    """A pod that is updated, with the priority that it was given once even if the update does not name it."""
    if attempt.resource != PODS or attempt.operation != "UPDATE" or attempt.subresource or attempt.object is None:
        return None
    before = (attempt.old or {}).get("spec") or {}
    kept = {name: before[name] for name in ("priority", "preemptionPolicy") if name in before}
    return {**attempt.object, "spec": {**kept, **attempt.object.get("spec", {})}}


def _with_account(pod: Object) -> Object:
    """Return a new pod with the service account that it runs as. Nobody makes it or looks for it here, and no token is mounted."""
    account = pod["spec"].get("serviceAccountName") or "default"
    return {**pod, "spec": {**pod["spec"], "serviceAccountName": account, "serviceAccount": account}}


def _classed(store: ObjectStore, pod: Object) -> Object:
    """Return a new pod with the priority of its class; refuse one that names a class that does not exist. No class is every pod's default here."""
    name = pod["metadata"].get("name") or ""
    spec = pod["spec"]
    wanted = spec.get("priorityClassName") or ""
    found = store.find(PRIORITY_CLASSES, wanted)
    if wanted and found is None:
        raise ApiError.forbidden(PODS, name, f"no PriorityClass with name {wanted} was found")
    priority = found.body.get("value", 0) if found else 0
    policy = found.body.get("preemptionPolicy") if found else None
    if spec.get("priority") not in (None, priority):
        why = "must not be provided in pod spec; priority admission controller computed"
        message = f"the integer value of priority ({spec['priority']}) {why} {priority} from the given PriorityClass name"
        raise ApiError.forbidden(PODS, name, message)
    preemption = policy or spec.get("preemptionPolicy", "PreemptLowerPriority")
    return {**pod, "spec": {**spec, "priority": priority, "preemptionPolicy": preemption}}
