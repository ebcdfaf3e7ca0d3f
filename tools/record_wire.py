"""Record one message of every event into tests/contract/wire, named after the version that wrote it. Recorded files are never changed."""

import json
import sys
from pathlib import Path

from hami_protocol import envelope, events
from hami_protocol.devices import (
    AllocationMode,
    ContainerKind,
    ContainerShares,
    DeviceShare,
    PodRef,
    RegisteredDevice,
    VendorAssignment,
)

POD = PodRef(namespace="default", name="train-0", uid="6445a14b-0b47-4b83-8d6a-7a1f6c1f3f01")
NODE = "gpu-node.example"
GPU = "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448"
ASSIGNMENTS = (
    VendorAssignment(
        vendor="NVIDIA",
        containers=(
            ContainerShares(
                container="main",
                kind=ContainerKind.APP,
                shares=(DeviceShare(uuid=GPU, type="NVIDIA", memory_mib=3000, cores=30),),
            ),
        ),
    ),
)
EVENTS: tuple[events.Event, ...] = (
    events.DevicesReported(
        node=NODE,
        device_type="nvidia",
        generation=7,
        devices=(RegisteredDevice(uuid=GPU, shares=10, memory_mib=32768, cores=100, type="NVIDIA-Tesla V100-PCIE-32GB"),),
        allocation_mode=AllocationMode.CDI,
        shim_version="0.1.0",
    ),
    events.LivenessChanged(node=NODE, device_type="nvidia", alive=False, reason="no registration for 60 s"),
    events.PodAssigned(pod=POD, node=NODE, assignments=ASSIGNMENTS),
    events.AssignmentLapsed(pod=POD, node=NODE, reason="not bound in 30 s"),
    events.PodAllocating(pod=POD, node=NODE, assignments=ASSIGNMENTS, bind_time_seconds=1716199325),
    events.ShareResized(pod=POD, node=NODE, assignments=ASSIGNMENTS, generation=2),
    events.PodReleased(pod=POD, node=NODE, reason="Succeeded"),
    events.ContainerServed(pod=POD, node=NODE, container="main", vendor="NVIDIA", to_allocate=";"),
    events.AllocationSucceeded(pod=POD, node=NODE),
    events.AllocationFailed(pod=POD, node=NODE, reason="two pending grants fit"),
    events.ShareResizeApplied(pod=POD, node=NODE, assignments=ASSIGNMENTS, generation=2),
    events.ShareResizeRefused(pod=POD, node=NODE, generation=2, reason="container main uses 3500 MiB; accepted: at least that"),
    events.PodRefused(
        pod=POD,
        summary="asks 24576 MiB on one card; the largest free is 22576 MiB on gpu-node.example",
        node_count=1,
        reasons={"1/1 CardInsufficientMemory": 1},
        nearest=(events.NodeShortfall(node=NODE, reason="1/1 CardInsufficientMemory", detail="needs 24576 MiB, largest free 22576"),),
    ),
    events.PodPlaced(pod=POD, node=NODE, fitting_node_count=1, node_count=1, score=12.5),
    events.NodeUsage(
        node=NODE,
        containers=(
            events.ContainerUsage(
                pod=POD,
                container="main",
                devices=(events.DeviceUsage(uuid=GPU, memory_used_mib=2048, memory_limit_mib=3000, sm_percent=28),),
            ),
        ),
    ),
)


def main(folder: Path, version: str) -> None:
    """Write what is not there yet."""
    for event in EVENTS:
        message = envelope.seal(
            event,
            event_id=f"recorded-{type(event).__name__}",
            source="/hami/recorder",
            time="2024-05-20T10:02:05Z",
            traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        )
        path = folder / f"{version}-{type(event).__struct_config__.tag}.json"
        if not path.exists():
            body = {"subject": message.subject, "headers": message.headers, "body": json.loads(message.data)}
            path.write_text(json.dumps(body, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
