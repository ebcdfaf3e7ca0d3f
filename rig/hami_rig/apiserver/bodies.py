"""From the bytes of a request to an object of its kind: parsed, checked against the kind's fields, defaulted. Pure."""

from collections.abc import Mapping
from typing import Any

import msgspec

from hami_rig.apiserver.calls import Call
from hami_rig.apiserver.defaults import defaulted
from hami_rig.apiserver.protobuf import CONTENT_TYPE, from_protobuf
from hami_rig.apiserver.schema import decoded, root_type, type_named
from hami_runtime.kube.store_errors import ApiError
from hami_runtime.kube.store_objects import Object
from hami_runtime.kube.store_resources import Resource

__all__ = ["APPLY", "delete_options", "document", "normal", "patched", "read", "received", "special"]

APPLY = "application/apply-patch+yaml"
"""What kubectl and client libraries send under this name is JSON, and only that is read."""
_JSON = ("application/json", "")
_PATCHES = ("application/merge-patch+json", "application/strategic-merge-patch+json", "application/json-patch+json", APPLY)


def document(call: Call) -> Any:
    """Return the parsed body.

    Raises:
        ApiError: 400 if it cannot be parsed, 415 if it is in a format that is not read here.
    """
    accepted = _PATCHES if call.verb == "patch" else (*_JSON, CONTENT_TYPE)
    if call.content_type not in accepted:
        raise ApiError(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})
    try:
        if call.content_type == CONTENT_TYPE:
            return from_protobuf(call.body)
        return msgspec.json.decode(call.body)
    except (msgspec.DecodeError, ValueError, RecursionError) as garbled:
        kind = call.target.served.resource.kind
        raise ApiError.bad_request(
            f"the object provided is unrecognized (must be of type {kind}): couldn't get version/kind; json parse error: {garbled}"
        ) from garbled


def read(call: Call, warnings: list[str]) -> Object:
    """Return the object in the body, of the kind that the path says, as it is stored.

    Raises:
        ApiError: 400 or 415 if there is none.
    """
    served = call.target.served
    kind = served.resource.kind
    body = document(call)
    if not isinstance(body, Mapping):
        raise ApiError.bad_request(f"the object provided is unrecognized (must be of type {kind}): it is no object")
    given, version = body.get("kind") or kind, body.get("apiVersion") or served.resource.group_version
    if given != kind:
        cannot = f'{given} in version "{version}" cannot be handled as a {kind}'
        raise ApiError.bad_request(f"{cannot}: converting (v1.{given}) to (core.{kind}): unknown conversion")
    if version != served.resource.group_version:
        message = f"the API version in the data ({version}) does not match the expected API version ({served.resource.group_version})"
        raise ApiError.bad_request(message)
    return {**received(call, body, warnings), "kind": kind, "apiVersion": served.resource.group_version}


def received(call: Call, body: Mapping[str, Any], warnings: list[str], *, with_defaults: bool = True) -> Object:
    """Return a body of the call's kind as it is stored; unknown fields are dropped, warned of, or refused as ``fieldValidation`` says.

    Raises:
        ApiError: 400 if a value has the wrong type, or with ``Strict`` if a field is unknown.
    """
    served = call.target.served
    known, unknown = decoded(served.type, body)
    mode = call.query.get("fieldValidation") or "Warn"
    if unknown and mode == "Strict":
        kind = served.resource.kind
        listed = ", ".join(f'unknown field "{path}"' for path in unknown)
        message = f'{kind} in version "{served.resource.version}" cannot be handled as a {kind}: strict decoding error: {listed}'
        raise ApiError.bad_request(message)
    if mode == "Warn":
        warnings += [f'unknown field "{path}"' for path in unknown]
    return defaulted(served.resource, known) if with_defaults else known


def patched(call: Call, body: Mapping[str, Any], warnings: list[str]) -> Object:
    """Return what a patch made of an object, as it is stored.

    Raises:
        ApiError: 422 if that is no object of the call's kind any more, or as ``received`` with ``Strict``.
    """
    served = call.target.served
    for member, wanted in (("kind", served.resource.kind), ("apiVersion", served.resource.group_version)):
        if body.get(member) != wanted:
            raise _not_patchable(body, f"the patch must leave {member} {wanted} as it is")
    try:
        return received(call, body, warnings)
    except ApiError as refused:
        if call.query.get("fieldValidation") == "Strict" and "strict decoding error" in refused.message:
            raise
        raise _not_patchable(body, refused.message.split(": ", 1)[-1]) from refused


def _not_patchable(body: Mapping[str, Any], why: str) -> ApiError:
    value = msgspec.json.encode(msgspec.json.encode(body).decode()).decode()
    cause = {"reason": "FieldValueInvalid", "message": f"Invalid value: {value}: {why}", "field": "patch"}
    return ApiError(422, "Invalid", f' "" is invalid: patch: Invalid value: {value}: {why}', {"causes": [cause]})


def normal(resource: Resource, body: Mapping[str, Any]) -> Object:
    """Return a stored body that somebody has changed, decoded and defaulted again."""
    return defaulted(resource, decoded(root_type(resource), body)[0])


def special(call: Call, type_name: str, **fixed: str) -> Object:
    """Return the body of a subresource that has a kind of its own."""
    body, _ = decoded(type_named(type_name), document(call))
    return {"metadata": {}, **body, **fixed}


def delete_options(call: Call) -> Object:
    """Return the ``DeleteOptions`` of a request, from its body and its query."""
    options, _ = decoded(type_named("V1DeleteOptions"), document(call) if call.body.strip() else {})
    if grace := call.query.get("gracePeriodSeconds"):
        if not grace.lstrip("-").isdigit():
            raise ApiError.bad_request(f"gracePeriodSeconds: {grace} is not a number of seconds")
        options["gracePeriodSeconds"] = int(grace)
    return {key: value for key, value in options.items() if key not in ("kind", "apiVersion")}
