"""The stubs are those of the proto files, and these are kubelet's wire format."""

from __future__ import annotations

import runpy
from pathlib import Path

from hami_node_agent.api import deviceplugin_pb2, podresources_pb2

SCRIPT = Path(__file__).parents[3] / "services" / "node-agent" / "generate_stubs.py"


def test_the_committed_stubs_are_current(tmp_path: Path) -> None:
    script = runpy.run_path(str(SCRIPT))
    assert script["stale"](script["generate"](tmp_path)) == []


def test_methods_have_kubelets_paths() -> None:
    services = {**deviceplugin_pb2.DESCRIPTOR.services_by_name, **podresources_pb2.DESCRIPTOR.services_by_name}
    assert {f"{service.full_name}/{method.name}" for service in services.values() for method in service.methods} == {
        "v1beta1.Registration/Register",
        "v1beta1.DevicePlugin/GetDevicePluginOptions",
        "v1beta1.DevicePlugin/ListAndWatch",
        "v1beta1.DevicePlugin/GetPreferredAllocation",
        "v1beta1.DevicePlugin/Allocate",
        "v1beta1.DevicePlugin/PreStartContainer",
        "v1.PodResourcesLister/List",
        "v1.PodResourcesLister/Get",
    }


def test_fields_have_kubelets_numbers() -> None:
    messages = deviceplugin_pb2.DESCRIPTOR.message_types_by_name
    numbers = {name: {field.name: field.number for field in message.fields} for name, message in messages.items() if message.fields}
    assert numbers == {
        "DevicePluginOptions": {"pre_start_required": 1, "get_preferred_allocation_available": 2},
        "RegisterRequest": {"version": 1, "endpoint": 2, "resource_name": 3, "options": 4},
        "ListAndWatchResponse": {"devices": 1},
        "TopologyInfo": {"nodes": 1},
        "NUMANode": {"ID": 1},
        "Device": {"ID": 1, "health": 2, "topology": 3},
        "PreferredAllocationRequest": {"container_requests": 1},
        "ContainerPreferredAllocationRequest": {"available_deviceIDs": 1, "must_include_deviceIDs": 2, "allocation_size": 3},
        "PreferredAllocationResponse": {"container_responses": 1},
        "ContainerPreferredAllocationResponse": {"deviceIDs": 1},
        "AllocateRequest": {"container_requests": 1},
        "ContainerAllocateRequest": {"devices_ids": 1},
        "AllocateResponse": {"container_responses": 1},
        "ContainerAllocateResponse": {"envs": 1, "mounts": 2, "devices": 3, "annotations": 4, "cdi_devices": 5},
        "CDIDevice": {"name": 1},
        "Mount": {"container_path": 1, "host_path": 2, "read_only": 3},
        "DeviceSpec": {"container_path": 1, "host_path": 2, "permissions": 3},
        "PreStartContainerRequest": {"devices_ids": 1},
    }
