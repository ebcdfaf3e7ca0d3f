"""Which webhooks a request is sent to, and what an answer means. Pure.

Decides by the rules, selectors and order of webhook configurations; leaves the call itself to ``admission``. Invariants: webhook configurations
are never sent to webhooks, so a broken one can always be removed; an answer that is not one for this very request counts as a failed call.
CEL is not evaluated: every ``matchCondition`` counts as met, so a webhook may be sent more than a real server would send it.
"""

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import jsonpatch
import msgspec
from msgspec import Struct

from hami_rig.apiserver.identity import User
from hami_runtime.kube.store_errors import ApiError
from hami_runtime.kube.store_objects import Object
from hami_runtime.kube.store_resources import MUTATING_WEBHOOKS, NAMESPACES, VALIDATING_WEBHOOKS, Resource
from hami_runtime.kube.store_selectors import label_selector_matches

__all__ = ["Attempt", "Operation", "WebhookFailed", "answer_of", "matching", "patched", "review_of"]

Operation = Literal["CREATE", "UPDATE", "DELETE"]


class WebhookFailed(Exception):  # noqa: N818 - the server's own word for a call that came to nothing
    """The webhook could not be called, or did not answer as it must; its failure policy decides what that means."""


class Attempt(Struct, frozen=True, kw_only=True):
    """What somebody wants to do to an object."""

    operation: Operation
    resource: Resource
    subresource: str
    namespace: str
    name: str
    user: User
    dry_run: bool
    kind: str
    """Kind of the body: the resource's own, or ``Binding``."""
    object: Object | None
    old: Object | None
    options: Object


def matching(configurations: Iterable[Mapping[str, Any]], attempt: Attempt, namespace_labels: Mapping[str, str]) -> Iterator[Object]:
    """Yield the webhooks that the attempt is sent to, in order."""
    if attempt.resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
        return
    for configuration in configurations:
        for webhook in configuration.get("webhooks") or ():
            if _is_asked(webhook, attempt, namespace_labels):
                yield webhook


def _is_asked(webhook: Mapping[str, Any], attempt: Attempt, namespace_labels: Mapping[str, str]) -> bool:
    if not any(_rule_matches(rule, attempt) for rule in webhook.get("rules") or ()):
        return False
    if (attempt.resource.namespaced or attempt.resource == NAMESPACES) and not label_selector_matches(
        webhook.get("namespaceSelector") or {}, namespace_labels
    ):
        return False
    bodies = [body for body in (attempt.object, attempt.old) if body is not None]
    selector = webhook.get("objectSelector") or {}
    return any(label_selector_matches(selector, body["metadata"].get("labels") or {}) for body in bodies)


def _rule_matches(rule: Mapping[str, Any], attempt: Attempt) -> bool:
    def names(member: str, value: str) -> bool:
        return bool({"*", value} & set(rule.get(member) or ()))

    scope = {"Namespaced": True, "Cluster": False}.get(rule.get("scope", "*"))
    if scope is not None and scope != attempt.resource.namespaced:
        return False
    resource, subresource = attempt.resource, attempt.subresource
    if not (names("operations", attempt.operation) and names("apiGroups", resource.group) and names("apiVersions", resource.version)):
        return False
    asked = f"{resource.plural}/{subresource}" if subresource else resource.plural
    wildcards = {"*/*", f"{resource.plural}/*", f"*/{subresource}"} if subresource else {"*", "*/*", f"{resource.plural}/*"}
    return bool({asked, *wildcards} & set(rule.get("resources") or ()))


def review_of(attempt: Attempt, uid: str) -> Object:
    """Return the AdmissionReview that the webhook gets."""
    group, version = attempt.resource.group, attempt.resource.version
    kind = {"group": "policy" if attempt.kind == "Eviction" else group, "version": version, "kind": attempt.kind}
    resource = {"group": group, "version": version, "resource": attempt.resource.plural}
    request: Object = {"uid": uid, "kind": kind, "resource": resource, "requestKind": kind, "requestResource": resource}
    if attempt.subresource:
        request |= {"subResource": attempt.subresource, "requestSubResource": attempt.subresource}
    if attempt.name:
        request["name"] = attempt.name
    if attempt.namespace:
        request["namespace"] = attempt.namespace
    request |= {
        "operation": attempt.operation,
        "userInfo": attempt.user.info,
        "object": attempt.object,
        "oldObject": attempt.old,
        "dryRun": attempt.dry_run,
        "options": attempt.options,
    }
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}


def answer_of(webhook_name: str, uid: str, body: bytes) -> Object:
    """Return the webhook's response if it lets the request through.

    Raises:
        WebhookFailed: it is not an answer to this request.
        ApiError: the webhook refuses, with the code and reason it gives.
    """
    try:
        review = msgspec.json.decode(body)
        response = review.get("response") if isinstance(review, dict) else None
    except msgspec.DecodeError as garbled:
        raise WebhookFailed(f"received invalid webhook response: {garbled}") from garbled
    if not isinstance(response, dict):
        raise WebhookFailed("received invalid webhook response: webhook response was absent")
    if response.get("uid") != uid:
        raise WebhookFailed(f'received invalid webhook response: expected response.uid="{uid}", got "{response.get("uid", "")}"')
    if response.get("allowed") is True:
        return response
    status = response.get("status")
    status = status if isinstance(status, dict) else {}
    denied = f'admission webhook "{webhook_name}" denied the request'
    why = status.get("message") or status.get("reason")
    message = f"{denied}: {why}" if why else f"{denied} without explanation"
    code = status.get("code")
    raise ApiError(
        code if isinstance(code, int) and 400 <= code < 600 else 400, str(status.get("reason") or ""), message, status.get("details")
    )


def patched(target: Object, response: Mapping[str, Any]) -> Object:
    """Return the object after the JSON patch of a response.

    Raises:
        ApiError: 500 if the patch is none, or does not apply.
    """
    if not response.get("patch"):
        return target
    try:
        if response.get("patchType") != "JSONPatch":
            raise ValueError(f"unsupported patch type {response.get('patchType')}, only JSONPatch is accepted")
        operations = msgspec.json.decode(base64.b64decode(response["patch"], validate=True))
        result = jsonpatch.apply_patch(target, operations)
        if not isinstance(result, dict):
            raise TypeError("the patched object is no object")
    except (
        jsonpatch.JsonPatchException,
        jsonpatch.JsonPointerException,
        msgspec.DecodeError,
        binascii.Error,
        TypeError,
        ValueError,
        KeyError,
        IndexError,
        AttributeError,
    ) as refused:
        raise _internal(str(refused)) from refused
    return result


def failed(webhook_name: str, why: str) -> ApiError:
    """The refusal of a request whose webhook failed, where its failure policy is ``Fail``."""
    return _internal(f'failed calling webhook "{webhook_name}": {why}')


def _internal(why: str) -> ApiError:
    return ApiError(500, "InternalError", f"Internal error occurred: {why}", {"causes": [{"message": why}]})
