"""What a container and a pod ask, read once and strictly. What cannot be read is refused with its field's path; it is never zero.

Limits first, then requests; where both are present they say the same. 0 memory and 0 percent are unset; 0 devices is no request. Memory
wins over a percentage. A container that says nothing of memory asks for whole devices (or the configured default), and then for all of
their compute unless it says otherwise: the reader gives the defaults that admission writes, so that both see the same request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, NamedTuple, NoReturn, TypeVar

from hami_devices.model import ContainerRequest, DeviceRequest, PodRequest, Selectors, Weights
from hami_devices.quota_scopes import traits_of
from hami_devices.selectors import read_selectors
from hami_devices.vendor import Asking, Vendor
from hami_protocol import keys, quantities
from hami_protocol.errors import ProtocolError, QuantityError
from hami_protocol.kubernetes import Container, Pod, Quantity
from hami_protocol.pods import containers_in_order

NODE_POLICIES: Final = ("binpack", "spread")
T = TypeVar("T")
NO_ANNOTATIONS: Final[Mapping[str, str]] = MappingProxyType({})
_WEIGHT_NAMES: Final = ("slot", "core", "memory")
MOST_CONTAINERS: Final = 128
"""Init containers included, in a pod that asks for devices: each is decided on, recorded and served by itself."""
_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})


class RequestError(ProtocolError):
    """What a pod asks cannot be read, or makes no sense. The pod is refused; it is never taken to ask for nothing.

    Attributes:
        field: path of the field, as ``spec.containers[0].resources.limits[nvidia.com/gpumem]``.
        reason: what was given and what is accepted.
    """

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class Found(NamedTuple):
    """A quantity as it stands in a container."""

    value: Quantity
    field: str

    def read(self, parse: Callable[..., T], **options: int) -> T:
        """The number that ``parse`` makes of it.

        Raises:
            RequestError: it makes none.
        """
        try:
            return parse(self.value, field=self.field, **options)
        except QuantityError as exc:
            raise RequestError(self.field, f"{exc.given!r} is not accepted; accepted: {exc.accepted}") from exc


def quantity(container: Container, path: str, resource: str) -> Found | None:
    """What ``container`` asks of ``resource``, from its limits, else from its requests; None where neither names it.

    Raises:
        RequestError: both name it and differ.
    """
    if not resource:
        return None
    limits = container.resources.limits or {}
    requests = container.resources.requests or {}
    if resource not in limits:
        return Found(requests[resource], f"{path}.resources.requests[{resource}]") if resource in requests else None
    found = Found(limits[resource], f"{path}.resources.limits[{resource}]")
    if resource in requests and requests[resource] != found.value and not _same(requests[resource], found.value):
        field = f"{path}.resources.requests[{resource}]"
        raise RequestError(field, f"{_shown(requests[resource])} where limits have {_shown(found.value)}; accepted: the same in both")
    return found


def _same(one: Quantity, other: Quantity) -> bool:
    try:
        return quantities.exact(one) == quantities.exact(other)
    except QuantityError:
        return False


def _shown(value: object) -> str:
    return repr(str(value)[:64])


def read_container(
    vendor: Vendor, container: Container, path: str, annotations: Mapping[str, str] = NO_ANNOTATIONS
) -> DeviceRequest | None:
    """What ``container`` asks of ``vendor``; None where it asks for none. ``annotations`` are the pod's.

    Raises:
        RequestError: a quantity cannot be read, or memory or cores are asked without a device.
    """
    return _read(vendor, container, path, annotations) if asked_vendors((vendor,), container) else None


def _read(vendor: Vendor, container: Container, path: str, annotations: Mapping[str, str]) -> DeviceRequest | None:
    asking = Asking(vendor=vendor, container=container, path=path, annotations=annotations)
    request = vendor.read(asking) if vendor.read is not None else read_plainly(asking)
    if request is not None and vendor.disable_env and switched_off(container, vendor.disable_env):
        return replace(request, memory_mib=0, memory_percent=100, cores=100)  # nothing holds it: nobody else is placed beside it
    return request


def switched_off(container: Container, variable: str) -> bool:
    """Whether the container's own environment sets ``variable`` to a value that Go's ``strconv.ParseBool`` reads as true."""
    values = [each.value for each in container.env or () if each.name == variable]
    return bool(values) and values[-1] in _TRUE


def asked_vendors(vendors: Sequence[Vendor], container: Container) -> list[Vendor]:
    """Those of ``vendors`` of which the container names a resource."""
    named = {*(container.resources.limits or ()), *(container.resources.requests or ())}
    return [vendor for vendor in vendors if not named.isdisjoint(vendor.resources)] if named else []


def read_plainly(asking: Asking, *, cores: int | None = None) -> DeviceRequest | None:
    """What a container asks of a vendor that takes the request as it is written.

    Args:
        asking: which container, of whom.
        cores: of each device, where it is not the container's to say.

    Raises:
        RequestError: a quantity cannot be read, or memory or cores are asked without a device.
    """
    vendor, container, path = asking.vendor, asking.container, asking.path
    devices = read_count(asking)
    memory = quantity(container, path, vendor.memory_resource)
    percent = quantity(container, path, vendor.memory_percent_resource)
    memory_mib = memory.read(quantities.parse_memory_mib, unit_mib=vendor.memory_unit_mib) if memory else 0
    memory_percent = percent.read(quantities.parse_percent) if percent else 0
    cores_percent = read_cores(asking) if cores is None else cores
    if devices is None and (memory or percent or cores_percent is not None):
        devices = vendor.default_count or missing_count(asking)
    if not devices:
        return None
    if not memory_mib and not memory_percent:
        memory_mib = vendor.default_memory_mib
        memory_percent = 0 if memory_mib else 100
    elif memory_mib:
        memory_percent = 0
    if cores_percent is None:
        cores_percent = vendor.whole_device_cores if memory_percent == 100 else vendor.default_cores
    return DeviceRequest(
        vendor=vendor.name,
        count=devices,
        memory_mib=memory_mib,
        memory_percent=memory_percent,
        cores=cores_percent,
        rules=vendor.rules,
    )


def read_count(asking: Asking) -> int | None:
    """How many devices are asked for; None where nothing is said.

    Raises:
        RequestError: it cannot be read.
    """
    found = quantity(asking.container, asking.path, asking.vendor.count_resource)
    return None if found is None else found.read(quantities.parse_count)


def missing_count(asking: Asking) -> NoReturn:
    """Refuse a container that says of how much, and not of how many.

    Raises:
        RequestError: always.
    """
    field = f"{asking.path}.resources.limits[{asking.vendor.count_resource}]"
    raise RequestError(field, "missing; accepted: how many devices the rest is asked of")


def refused(asking: Asking, resource: str, accepted: str) -> RequestError:
    """The error that says what of ``resource`` is accepted."""
    found = quantity(asking.container, asking.path, resource)
    if found is None:
        return RequestError(f"{asking.path}.resources.limits[{resource}]", f"missing; accepted: {accepted}")
    return RequestError(found.field, f"{_shown(found.value)} is not accepted; accepted: {accepted}")


def read_memory(asking: Asking) -> int | None:
    """The MiB that are asked, of each device; None where nothing is said.

    Raises:
        RequestError: they cannot be read.
    """
    found = quantity(asking.container, asking.path, asking.vendor.memory_resource)
    return None if found is None else found.read(quantities.parse_memory_mib, unit_mib=asking.vendor.memory_unit_mib)


def read_cores(asking: Asking) -> int | None:
    """The percentage of cores that is asked; None where nothing is said.

    Raises:
        RequestError: it cannot be read, or is less than the vendor gives.
    """
    found = quantity(asking.container, asking.path, asking.vendor.cores_resource)
    if found is None:
        return None
    cores = found.read(quantities.parse_percent)
    if cores < asking.vendor.least_cores:
        raise RequestError(found.field, f"{_shown(found.value)} is not accepted; accepted: {asking.vendor.least_cores} to 100")
    return cores


def read_pod(pod: Pod, vendors: Sequence[Vendor], *, node_policy: str, device_policy: str) -> PodRequest:
    """What ``pod`` asks: of which vendors, on which devices, by which policies (those given where it names none).

    Raises:
        RequestError: something in it cannot be read.
    """
    _refuse_too_many_containers(pod, vendors)
    containers: list[ContainerRequest] = []
    asked: set[str] = set()
    annotations = pod.metadata.annotations
    for container, kind, path in containers_in_order(pod):
        named = asked_vendors(vendors, container)
        requests = tuple(request for vendor in named if (request := _read(vendor, container, path, annotations)) is not None)
        asked.update(request.vendor for request in requests)
        containers.append(ContainerRequest(name=container.name, kind=kind, requests=requests))
    if not asked:
        return PodRequest(containers=tuple(containers), priority=pod.spec.priority or 0)
    selectors: dict[str, Selectors] = {}
    for vendor in vendors:
        if vendor.name in asked and (chosen := _selectors(vendor, annotations)) != Selectors():
            selectors[vendor.name] = chosen
    wanted = _text(annotations, keys.NODE_POLICY) or node_policy
    return PodRequest(
        containers=tuple(containers),
        selectors=selectors,
        node_policy=wanted if wanted in NODE_POLICIES else NODE_POLICIES[0],
        device_policy=_text(annotations, keys.DEVICE_POLICY) or device_policy,
        weights=read_weights(annotations.get(keys.SCORING_WEIGHTS)),
        priority=pod.spec.priority or 0,
        traits=traits_of(pod),
    )


def _refuse_too_many_containers(pod: Pod, vendors: Sequence[Vendor]) -> None:
    count = len(pod.spec.containers) + len(pod.spec.init_containers or ())
    if count > MOST_CONTAINERS and any(asked_vendors(vendors, container) for container, _, _ in containers_in_order(pod)):
        raise RequestError("spec.containers", f"{count} containers; accepted: at most {MOST_CONTAINERS} in a pod that asks for devices")


def _text(annotations: Mapping[str, str], key: str) -> str:
    text = annotations.get(key, "").strip()
    if len(text) > 256:
        raise RequestError(annotation_field(key), f"{len(text)} characters; accepted: at most 256")
    return text


def _selectors(vendor: Vendor, annotations: Mapping[str, str]) -> Selectors:
    try:
        return read_selectors(vendor.selector_keys, annotations)
    except QuantityError as exc:
        raise RequestError(exc.field, f"{exc.given!r} is not accepted; accepted: {exc.accepted}") from exc


def annotation_field(key: str) -> str:
    """Field path of an annotation."""
    return f"metadata.annotations[{key}]"


def read_weights(text: str | None) -> Weights:
    """The weights in annotation ``hami.io/device-scoring-weights``, as ``slot=1,core=1,memory=3``; all 1 where there is none.

    Raises:
        RequestError: not exactly the three, each once, none negative, one positive.
    """
    if text is None:
        return Weights()
    found: dict[str, int] = {}
    if len(text) > 256:
        raise _bad_weights(text, "at most 256 characters")
    for entry in text.split(","):
        name, _, number = (part.strip() for part in entry.partition("="))
        if name not in _WEIGHT_NAMES:
            raise _bad_weights(text, "expected slot, core, and memory weights")
        if name in found:
            raise _bad_weights(text, f'duplicate "{name}" weight')
        digits = number.removeprefix("-")
        if not digits.isascii() or not digits.isdigit() or len(digits) > 9:
            raise _bad_weights(text, f'"{name}" weight must be a whole number')
        if number.startswith("-"):
            raise _bad_weights(text, f'"{name}" weight must not be negative')
        found[name] = int(number)
    if len(found) != len(_WEIGHT_NAMES):
        raise _bad_weights(text, "expected slot, core, and memory weights")
    if not any(found.values()):
        raise _bad_weights(text, "at least one weight must be positive")
    return Weights(slots=found["slot"], cores=found["core"], memory=found["memory"])


def _bad_weights(text: str, detail: str) -> RequestError:
    return RequestError(annotation_field(keys.SCORING_WEIGHTS), f"{text[:256]!r} is not accepted: {detail}")


class AnnotatedRequest(NamedTuple):
    """A resource that was written as an annotation, where nobody reads it (HAMi#2862)."""

    annotation: str
    resource: str

    def __str__(self) -> str:
        return (
            f"{annotation_field(self.annotation)} has no effect; "
            f"ask in spec.containers[*].resources.limits[{self.resource}] of the container that needs it"
        )


def annotated_requests(annotations: Mapping[str, str], vendors: Sequence[Vendor]) -> tuple[AnnotatedRequest, ...]:
    """The resources of ours that ``annotations`` name, in the vendors' order."""
    return tuple(AnnotatedRequest(name, name) for vendor in vendors for name in vendor.resources if name in annotations)
