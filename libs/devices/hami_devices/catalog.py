"""All vendors of one installation, under its configuration: the way in for webhook, scheduler, registry and node-agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hami_devices import admission, records, requests
from hami_devices.config import ConfigError, DeviceConfig
from hami_devices.misspellings import Misspelling, misspellings
from hami_devices.model import PodRequest
from hami_devices.vendor import Granted, Vendor
from hami_devices.vendors import (
    amd,
    ascend,
    biren,
    cambricon,
    enflame,
    hygon,
    iluvatar,
    kunlun,
    metax,
    metax_sgpu,
    mthreads,
    neuron,
    nvidia,
    vastai,
)
from hami_protocol import assignment, keys
from hami_protocol.devices import RegisteredDevice, VendorAssignment
from hami_protocol.kubernetes import Pod


def _configured(config: DeviceConfig) -> tuple[Vendor, ...]:
    """Every vendor that has a resource to ask for, in order of detection.

    Raises:
        ConfigError: two resources, or two vendors, have one name.
    """
    vendors = (
        nvidia.vendor(config.nvidia),
        cambricon.vendor(config.cambricon),
        hygon.vendor(config.hygon),
        metax.vendor(config.metax),
        metax_sgpu.vendor(config.metax),
        enflame.whole(config.enflame),
        enflame.sliced(config.enflame),
        kunlun.whole(config.kunlun),
        kunlun.shared(config.kunlun),
        neuron.vendor(config.awsneuron),
        *(ascend.vendor(chip, soft_split=config.vnpus.soft_split) for chip in config.vnpus.configs),
        *(iluvatar.vendor(chip) for chip in config.iluvatars),
        mthreads.vendor(config.mthreads),
        amd.vendor(config.amd),
        biren.vendor(config.biren),
        vastai.vendor(config.vastai),
    )
    named = tuple(vendor for vendor in vendors if vendor.count_resource)
    for what, names in (
        ("resources are named", [name for vendor in named for name in vendor.resources]),
        ("vendors have the common word", [vendor.name for vendor in named]),
        ("vendors have the device type", [vendor.device_type for vendor in named]),
    ):
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ConfigError(f"device configuration: two {what} {twice}; accepted: a name of its own for each")
    return named


class Catalog:
    """The vendors, in order of detection, and what they make of a pod. Holds nothing else and never changes."""

    def __init__(
        self,
        config: DeviceConfig = DeviceConfig(),  # noqa: B008  # frozen
        *,
        node_policy: str = "binpack",
        device_policy: str = "spread",
        more: Sequence[Vendor] = (),
    ) -> None:
        """All vendors under ``config``.

        Args:
            config: names of resources, and defaults.
            node_policy: for pods that name none.
            device_policy: for pods that name none.
            more: vendors that are no part of this package.
        """
        self.vendors: tuple[Vendor, ...] = (*_configured(config), *more)
        self.config = config
        self._node_policy = node_policy
        self._device_policy = device_policy
        self._by_name = {vendor.name: vendor for vendor in self.vendors}
        self._by_device_type = {vendor.device_type: vendor for vendor in self.vendors}
        self.managed_resources: tuple[str, ...] = tuple(name for vendor in self.vendors for name in vendor.resources)
        self.system_pod_keys: frozenset[str] = keys.SYSTEM_POD_KEYS | {key for vendor in self.vendors for key in vendor.system_keys}

    def vendor(self, name: str) -> Vendor:
        """The vendor with this common word.

        Raises:
            KeyError: there is none.
        """
        return self._by_name[name]

    def by_device_type(self, device_type: str) -> Vendor | None:
        """The vendor whose node annotations have this ``<type>``; None where nobody has."""
        return self._by_device_type.get(device_type)

    def read_pod(self, pod: Pod) -> PodRequest:
        """What ``pod`` asks.

        Raises:
            RequestError: something in it cannot be read; the text names the field.
        """
        return requests.read_pod(pod, self.vendors, node_policy=self._node_policy, device_policy=self._device_policy)

    def mutations(self, pod: Pod) -> tuple[admission.Mutation, ...]:
        """What the webhook changes on ``pod``.

        Raises:
            RequestError: something in it cannot be read; the text names the field.
        """
        return admission.mutations(pod, self.vendors)

    def annotated_requests(self, pod: Pod) -> tuple[requests.AnnotatedRequest, ...]:
        """Resources of ours that ``pod`` asks for in annotations, where nobody reads them."""
        return requests.annotated_requests(pod.metadata.annotations, self.vendors)

    def misspellings(self, pod: Pod) -> tuple[Misspelling, ...]:
        """The names in ``pod`` that no component reads."""
        return misspellings(pod, self.vendors)

    def read_assignments(self, pod: Pod) -> tuple[VendorAssignment, ...]:
        """What ``pod`` holds, by its annotations; nothing of a vendor whose annotation it does not have.

        Raises:
            RecordError: an annotation cannot be read, or is missing on a pod that was bound with one.
        """
        records.check_present(pod, self.vendors)
        found = (records.read_assignment(pod, vendor) for vendor in self.vendors if vendor.allocated_key in pod.metadata.annotations)
        return tuple(held for held in found if held is not None)

    def assignment_annotations(self, assignments: Sequence[VendorAssignment]) -> dict[str, str]:
        """The annotations that say what a pod was given: the log, and what is still to be handed out."""
        annotations: dict[str, str] = {}
        for given in assignments:
            text = assignment.encode(given)
            annotations.update(dict.fromkeys(self.vendor(given.vendor).assignment_keys, text))
        if text := records.instances_text(assignments):
            annotations[keys.MIG_ALLOCATIONS] = text
        return annotations

    def plugin_annotations(
        self, pod: Pod, node: str, assignments: Sequence[VendorAssignment], devices: Mapping[str, RegisteredDevice], *, time_ns: int
    ) -> dict[str, str]:
        """What the vendors' own device plugins read on a pod besides.

        Args:
            pod: as it was admitted.
            node: where it goes.
            assignments: what it is given there.
            devices: the node's, by UUID.
            time_ns: now, in Unix nanoseconds.
        """
        annotations: dict[str, str] = {}
        for given in assignments:
            vendor = self.vendor(given.vendor)
            if vendor.written is not None:
                annotations |= vendor.written(Granted(pod=pod, node=node, assignment=given, devices=devices, time_ns=time_ns))
        return annotations
