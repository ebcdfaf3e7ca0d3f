"""What the webhook changes on a pod that asks for devices: values, which it turns into JSON Patch. Decided here, per vendor, in order.

Applying the result and asking again gives nothing more to do, so that a second call of the webhook changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct

from hami_devices.model import PodRequest
from hami_devices.requests import asked_vendors, quantity, read_container
from hami_devices.vendor import Asking, Vendor
from hami_protocol import quantities
from hami_protocol.kubernetes import Container, Pod
from hami_protocol.pods import containers_in_order

_WHOLE_CORES: Final = 100


class SetLimit(Struct, frozen=True, kw_only=True):
    """Set ``resources.limits[resource]`` of the container at ``path``, and ``resources.requests[resource]`` where there is one."""

    path: str
    """As ``spec.containers[0]``."""
    resource: str
    value: str


class AddEnv(Struct, frozen=True, kw_only=True):
    """Append an environment variable to the container at ``path``; the last one of a name is the one that counts."""

    path: str
    name: str
    value: str


class SetRuntimeClass(Struct, frozen=True, kw_only=True):
    """Set ``spec.runtimeClassName``."""

    name: str


class SetAnnotation(Struct, frozen=True, kw_only=True):
    """Set ``metadata.annotations[name]``."""

    name: str
    value: str


class SetSeccomp(Struct, frozen=True, kw_only=True):
    """Set ``securityContext.seccompProfile`` of the container at ``path`` to ``RuntimeDefault``."""

    path: str


Mutation = SetLimit | AddEnv | SetRuntimeClass | SetAnnotation | SetSeccomp


class PrivilegedPolicy(StrEnum):
    """Which privileged containers are refused. A privileged container sees every card of its node, whatever it was given."""

    CONTAINER = "container"
    """One that asks for a share itself."""
    POD = "pod"
    """Any container of a pod that asks for a share."""
    ALLOW = "allow"
    """None."""


def refused_privileged(pod: Pod, asked: PodRequest, policy: PrivilegedPolicy) -> str | None:
    """The name of the first privileged container that ``policy`` refuses; None where it refuses none."""
    if policy is PrivilegedPolicy.ALLOW or not asked.asks:
        return None
    whole_pod = policy is PrivilegedPolicy.POD
    for (container, _, _), request in zip(containers_in_order(pod), asked.containers, strict=True):
        if _privileged(container) and (whole_pod or request.requests):
            return container.name
    added = pod.spec.ephemeral_containers or ()
    return next((container.name for container in added if whole_pod and _privileged(container)), None)


def _privileged(container: Container) -> bool:
    return bool(container.security_context and container.security_context.privileged)


def confined(pod: Pod, asked: PodRequest) -> Iterator[SetSeccomp]:
    """The seccomp profile of each container with a share that has none: without one, a user namespace lets it mount over its grant.

    Containers with whole cards keep what they have: nothing limits them that they could get round.
    """
    of_pod = pod.spec.security_context
    if of_pod is not None and of_pod.seccomp_profile is not None:
        return
    for (container, _, path), request in zip(containers_in_order(pod), asked.containers, strict=True):
        own = container.security_context
        if any(not each.whole or each.cores < _WHOLE_CORES for each in request.requests) and not (own and own.seccomp_profile):
            yield SetSeccomp(path=path)


def idle_environment(container: Container, path: str, vendors: Sequence[Vendor]) -> tuple[Mutation, ...]:
    """What keeps a container that asks for nothing from being given every device, where vendors are configured so."""
    return tuple(change for vendor in vendors for change in _env(container, path, vendor.idle_env))


def mutations(pod: Pod, vendors: Sequence[Vendor]) -> tuple[Mutation, ...]:
    """What to change on ``pod``, container by container, each vendor in turn.

    Raises:
        RequestError: something that the pod asks cannot be read.
    """
    changes: list[Mutation] = []
    runtime_class = pod.spec.runtime_class_name
    careful = [vendor for vendor in vendors if vendor.idle_env]
    for container, _, path in containers_in_order(pod):
        asked = [
            (vendor, request)
            for vendor in asked_vendors(vendors, container)
            if (request := read_container(vendor, container, path, pod.metadata.annotations)) is not None
        ]
        opened = {vendor.visible_env for vendor, _ in asked}
        idle = dict(item for vendor in careful for item in vendor.idle_env if item[0] not in opened)
        changes.extend(_env(container, path, tuple(idle.items())))
        for vendor, request in asked:
            changes.extend(_priority(vendor, container, path))
            changes.extend(_env(container, path, vendor.device_env))
            if vendor.mutate is not None:
                asking = Asking(vendor=vendor, container=container, path=path, annotations=pod.metadata.annotations)
                changes.extend(change for change in vendor.mutate(asking, request) if change not in changes)
            elif quantity(container, path, vendor.count_resource) is None:
                changes.append(SetLimit(path=path, resource=vendor.count_resource, value=str(request.count)))
            if request.whole and vendor.sets_default_cores and quantity(container, path, vendor.cores_resource) is None:
                changes.append(SetLimit(path=path, resource=vendor.cores_resource, value=str(request.cores)))
            if not runtime_class and vendor.runtime_class:
                runtime_class = vendor.runtime_class
                changes.append(SetRuntimeClass(name=runtime_class))
    return tuple(changes)


def resized(asking: Asking, resource: str, value: int) -> Iterator[Mutation]:
    """The change that makes ``resource`` be ``value``; none where it is."""
    found = quantity(asking.container, asking.path, resource)
    if found is None or found.read(quantities.exact) != value:
        yield SetLimit(path=asking.path, resource=resource, value=str(value))


def with_env(container: Container, path: str, name: str, value: str) -> Iterator[Mutation]:
    """The change that gives the container this environment variable; none where it has it."""
    return _env(container, path, ((name, value),))


def _priority(vendor: Vendor, container: Container, path: str) -> Iterator[Mutation]:
    found = quantity(container, path, vendor.priority_resource)
    if found is not None and vendor.priority_env:
        yield from _env(container, path, ((vendor.priority_env, str(found.read(quantities.parse_count))),))


def _env(container: Container, path: str, variables: tuple[tuple[str, str], ...]) -> Iterator[Mutation]:
    for name, value in variables:
        last = next((env for env in reversed(container.env or ()) if env.name == name), None)
        if last is None or last.value_from is not None or last.value != value:
            yield AddEnv(path=path, name=name, value=value)
