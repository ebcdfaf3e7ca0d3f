"""Bodies of requests that both adapters of the cluster port send, with the preconditions that keep them off a namesake. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from hami_protocol.devices import PodRef
from hami_runtime.kube.cluster import Body


def with_preconditions(body: Body, *, uid: str = "", resource_version: str = "") -> Body:
    """``body`` with what it is meant for in its metadata."""
    guards = {key: value for key, value in (("uid", uid), ("resourceVersion", resource_version)) if value}
    return {**body, "metadata": {**(body.get("metadata") or {}), **guards}} if guards else body


def delete_options(*, uid: str = "", grace_seconds: int | None = None) -> Body:
    """A DeleteOptions."""
    options: Body = {"apiVersion": "v1", "kind": "DeleteOptions"}
    if uid:
        options["preconditions"] = {"uid": uid}
    if grace_seconds is not None:
        options["gracePeriodSeconds"] = grace_seconds
    return options


def binding(pod: PodRef, node: str, *, annotations: Mapping[str, str], labels: Mapping[str, str], resource_version: str = "") -> Body:
    """A Binding whose annotations and labels the API server merges into the pod."""
    metadata: Body = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}
    if annotations:
        metadata["annotations"] = dict(annotations)
    if labels:
        metadata["labels"] = dict(labels)
    if resource_version:
        metadata["resourceVersion"] = resource_version
    return {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": {"apiVersion": "v1", "kind": "Node", "name": node}}


def eviction(pod: PodRef) -> Body:
    """An Eviction of exactly that pod."""
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": {"preconditions": {"uid": pod.uid}},
    }
