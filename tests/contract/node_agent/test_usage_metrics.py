"""What the agent shows of containers and cards has the names and labels of the reference's monitor, earlier ones only on request."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from hami_node_agent.metrics import UsageMetrics
from hami_protocol import keys, mig
from hami_protocol.devices import MigInstance, Placement
from hami_protocol.mig import MigAllocation, MigIdentity
from hami_runtime.telemetry import Telemetry
from tests.contract.node_agent.test_monitor import MIB, running, use
from tests.contract.node_agent.world import World, play

CARDS = """
devices:
  - {uuid: GPU-a, memory_mib: 24576, model: NVIDIA-A10, memory_used_mib: 700, busy_percent: 30}
"""
CONTAINER = ("node", "namespace", "pod", "container", "vdevice_index", "device_uuid")
OLD_CONTAINER = ("podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid")
CARD = ("node", "device_index", "device_uuid", "device_type")
OLD_CARD = ("nodeid", "deviceidx", "deviceuuid", "devicetype")
OF_CONTAINER = ("n1", "default", "p", "main", "0", "GPU-a")
"""The reference's have no node."""
OF_CARD = ("n1", "0", "GPU-a", "NVIDIA-A10")
IDENTITY = {"mig_uuid": "MIG-1", "profile": "1g.5gb", "gpu_instance_id": "7", "compute_instance_id": "0"}

Shown = dict[str, tuple[dict[str, str], float]]


async def shown(world: World, *, legacy: bool) -> Shown:
    """By metric, labels without the zone and value of its only series, a second after the last look."""
    agent, telemetry = world.agent, Telemetry("test")
    UsageMetrics(agent.monitor, node="n1", devices=agent.devices, pods=agent.pods, clock=world.clock).export(telemetry, legacy=legacy)
    found: Shown = {}
    for family in text_string_to_metric_families(telemetry.prometheus_text().decode()):
        for sample in family.samples:
            if sample.name != "hami_build_info":
                assert sample.name not in found
                assert sample.labels.pop("zone") == "vGPU"
                found[sample.name] = (sample.labels, sample.value)
    telemetry.close()
    return found


async def at_work(world: World) -> None:
    """A container that has used 300 MiB and launched, and holds an instance as its annotation says."""
    made = MigAllocation(
        container=0,
        device=0,
        gpu="GPU-a",
        instance=MigInstance(profile="1g.5gb", placement=Placement(start=0, size=1)),
        identity=MigIdentity(uuid="MIG-1", gpu_instance=7, compute_instance=0),
    )
    pod = await world.pod("p", main=[("GPU-a", 1000, 30)])
    name = await running(world, pod)
    await world.annotate(pod, {keys.MIG_ALLOCATIONS: mig.encode((made,))})
    for launches in (1, 2):
        use(world, name, 300, launches=launches)
        await world.agent.monitor.look()


def test_names_and_labels_are_those_of_the_references_monitor() -> None:
    async def scenario(world: World) -> None:
        await at_work(world)
        container, card = dict(zip(CONTAINER, OF_CONTAINER, strict=True)), dict(zip(CARD, OF_CARD, strict=True))
        assert await shown(world, legacy=False) == {
            "hami_vgpu_memory_used_bytes": (container, 300 * MIB),
            "hami_container_device_memory_bytes": (container, 300 * MIB),
            "hami_vgpu_memory_limit_bytes": (container, 1000 * MIB),
            "hami_vgpu_memory_context_bytes": (container, 0),
            "hami_vgpu_memory_module_bytes": (container, 0),
            "hami_vgpu_memory_buffer_bytes": (container, 300 * MIB),
            "hami_container_device_utilization_ratio": (container, 0),
            "hami_container_last_kernel_elapsed_seconds": (container, 0),
            "hami_host_gpu_memory_used_bytes": (card, 700 * MIB),
            "hami_host_gpu_utilization_ratio": (card, 30),
            "hami_host_gpu_memory_controller_utilization_ratio": ({name: card[name] for name in CARD[1:]}, 0),
            "hami_mig_device_info": (container | IDENTITY, 1),
        }

    play(scenario, cards=CARDS)


def test_earlier_names_come_beside_them() -> None:
    async def scenario(world: World) -> None:
        await at_work(world)
        container, card = dict(zip(OLD_CONTAINER, OF_CONTAINER[1:], strict=True)), dict(zip(OLD_CARD, OF_CARD, strict=True))
        parts = {"context": "0", "module": "0", "data": str(300 * MIB), "offset": "0"}
        new, both = await shown(world, legacy=False), await shown(world, legacy=True)
        assert {name: both[name] for name in both.keys() - new.keys()} == {
            "vGPU_device_memory_usage_in_bytes": (container, 300 * MIB),
            "vGPU_device_memory_limit_in_bytes": (container, 1000 * MIB),
            "Device_memory_desc_of_container": (container | parts, 300 * MIB),
            "Device_utilization_desc_of_container": (container, 0),
            "Device_last_kernel_of_container": (container, 0),
            "HostGPUMemoryUsage": (card, 700 * MIB),
            "HostCoreUtilization": (card, 30),
            "MigInfo": (container | {"instanceid": "7"}, 1),
        }

    play(scenario, cards=CARDS)
