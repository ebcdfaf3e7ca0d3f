"""Answers to reviews: whose token is this, and may somebody do something. Pure.

A token names its user (see ``identity``); everybody may do everything.
"""

from collections.abc import Mapping
from typing import Any

from hami_rig.apiserver.identity import user_of_token
from hami_rig.apiserver.served import Review
from hami_runtime.kube.store_objects import Object

__all__ = ["answered"]


def answered(review: Review, body: Mapping[str, Any], administrator_token: str) -> Object:
    """Return the review with its answer in the status."""
    head: Object = {"kind": review.kind, "apiVersion": f"{review.group}/v1", "metadata": {}}
    spec = body.get("spec")
    spec = spec if isinstance(spec, Mapping) else {}
    if review.kind != "TokenReview":
        return {**head, "spec": dict(spec), "status": {"allowed": True}}
    token = spec.get("token")
    found = user_of_token(token, administrator_token) if isinstance(token, str) and token else None
    status: Object = {"user": {}, "error": "invalid bearer token"}
    if found is not None:
        status = {"authenticated": True, "user": found.info, "audiences": spec.get("audiences") or []}
    return {**head, "spec": dict(spec), "status": status}
