"""MIG instances: made exactly where the scheduler said, taken away when nobody wants them, in both modes."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from hami_node_agent.discovery import uncut
from hami_node_agent.mig import Spot
from hami_node_agent.mig_hardware import FakeMig, profiles_of
from hami_node_agent.refusals import Refused
from hami_node_agent.sharing import Sharing
from hami_protocol import keys, mig
from hami_protocol.devices import AllocationMode, MigInstance, Placement, VendorAssignment
from hami_protocol.events import AllocationSucceeded, DevicesReported
from hami_protocol.kubernetes import Pod
from hami_protocol.mig import MigAllocation
from hami_runtime.kube.cluster import PODS
from tests.contract.node_agent.world import World, play

CDI, ENVVAR = AllocationMode.CDI, AllocationMode.ENVVAR
both_modes = pytest.mark.parametrize("mode", [CDI, ENVVAR])
TYPE = "NVIDIA-A100-SXM4-40GB"
CARDS = f"""
devices:
  - {{uuid: GPU-a, memory_mib: 40960, model: {TYPE}}}
  - {{uuid: GPU-b, memory_mib: 40960, model: {TYPE}}}
"""
PROFILES = {profile.name: profile for profile in profiles_of(TYPE)}


def at(profile: str, start: int) -> MigInstance:
    return MigInstance(profile=profile, placement=Placement(start=start, size=PROFILES[profile].placements[0].size))


def cards(*, types: dict[str, str] | None = None) -> dict[str, Any]:
    return {"cards": CARDS, "mig": FakeMig(types or {"GPU-a": TYPE, "GPU-b": TYPE}), "sharing": Sharing(mode="mig")}


async def cut_pod(world: World, name: str, /, **containers: tuple[str, MigInstance]) -> Pod:
    """A pod of which each container holds one instance."""
    sizes = {c: [(gpu, PROFILES[i.profile].memory_mib, PROFILES[i.profile].cores)] for c, (gpu, i) in containers.items()}
    plain = world.assignment({}, sizes, ())
    held = VendorAssignment(
        vendor="NVIDIA",
        containers=tuple(
            msgspec.structs.replace(
                each, shares=tuple(msgspec.structs.replace(s, instance=containers[each.container][1]) for s in each.shares)
            )
            for each in plain.containers
        ),
    )
    allocations = tuple(
        MigAllocation(container=place, device=0, gpu=gpu, instance=instance) for place, (gpu, instance) in enumerate(containers.values())
    )
    return await world.pod(name, written={keys.MIG_ALLOCATIONS: mig.encode(allocations)}, publish=held, **sizes)


async def run_pod(world: World, pod: Pod) -> dict[str, dict[str, str]]:
    answers = await world.kubelet.admit(world.agent, pod)
    for container in answers:
        await world.agent.pre_start(world.kubelet.ids(pod, container))
    return {name: world.environment(answer) for name, answer in answers.items()}


def there(world: World) -> list[str]:
    assert isinstance(world.mig, FakeMig)
    return sorted(f"{spot.gpu} {spot.instance.profile}@{spot.instance.placement.start}" for spot in world.mig._made)


@both_modes
def test_a_pods_instances_are_made_where_they_were_granted_and_said(mode: AllocationMode) -> None:
    async def scenario(world: World) -> None:
        pod = await cut_pod(world, "p1", a=("GPU-a", at("3g.20gb", 4)), b=("GPU-a", at("1g.5gb", 3)))
        found = await run_pod(world, pod)
        assert there(world) == ["GPU-a 1g.5gb@3", "GPU-a 3g.20gb@4"]
        made = {made.spot.instance.profile: made.identity.uuid for made in await world.mig.instances()}  # type: ignore[union-attr]
        visible = {name: env["NVIDIA_VISIBLE_DEVICES"] for name, env in found.items()}
        assert visible == ({"a": "void", "b": "void"} if mode is CDI else {"a": made["3g.20gb"], "b": made["1g.5gb"]})
        assert all("CUDA_DEVICE_MEMORY_LIMIT_0" not in env for env in found.values())
        await world.agent.outbox.wait_empty()
        (said,) = world.said(AllocationSucceeded)
        assert [each.identity.uuid for each in mig.decode(said.mig_allocations) if each.identity] == [made["3g.20gb"], made["1g.5gb"]]

    play(scenario, mode, **cards())


def test_cards_are_registered_with_what_the_configuration_allows_of_what_they_offer() -> None:
    async def scenario(world: World) -> None:
        await asyncio.sleep(1.0)
        report = world.said(DevicesReported)[-1]
        assert [device.uuid for device in report.devices] == ["GPU-a", "GPU-b"]
        card = report.devices[0]
        assert (card.mode, card.shares, card.cores, card.memory_mib) == ("mig", 7, 100, 40960)
        assert [profile.name for profile in card.mig_profiles] == ["1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb"]

    play(scenario, **cards())


def test_a_card_that_cannot_be_cut_is_left_out_and_the_others_are_served() -> None:
    mixed = CARDS + "  - {uuid: GPU-c, memory_mib: 16384, model: NVIDIA-Tesla T4}\n"

    async def scenario(world: World) -> None:
        await asyncio.sleep(1.0)
        assert [device.uuid for device in world.said(DevicesReported)[-1].devices] == ["GPU-a", "GPU-b"]
        assert [device.uuid for device in uncut(world.agent.devices.inventory, world.agent.devices.sharing)] == ["GPU-c"]

    play(scenario, **{**cards(), "cards": mixed})


@pytest.mark.example("MIG instances 56")
def test_cores_of_a_profile_are_its_part_of_the_largest_rounded_up() -> None:
    assert [profiles_of(TYPE)[place].cores for place in (0, 1, 2, 4)] == [15, 29, 43, 100]


@both_modes
def test_what_a_pod_leaves_is_taken_away_and_its_place_given_again(mode: AllocationMode) -> None:
    async def scenario(world: World) -> None:
        first = await cut_pod(world, "p1", main=("GPU-a", at("7g.40gb", 0)))
        await run_pod(world, first)
        await world.delete(first)
        world.kubelet.end(first)
        second = await cut_pod(world, "p2", main=("GPU-a", at("1g.5gb", 0)))
        await run_pod(world, second)
        assert there(world) == ["GPU-a 1g.5gb@0"]
        await world.phase(second, "Succeeded")
        await asyncio.sleep(6.0)
        assert there(world) == []

    play(scenario, mode, **cards())


@pytest.mark.example("MIG instances 55")
@pytest.mark.departs("a pod that is being deleted still runs, and keeps its instance")
def test_a_pod_that_is_being_deleted_keeps_its_instance() -> None:
    async def scenario(world: World) -> None:
        pod = await cut_pod(world, "p1", main=("GPU-a", at("2g.10gb", 0)))
        await run_pod(world, pod)
        await world.phase(pod, "Running")
        await world.admin.delete(PODS, "p1", namespace="default", grace_seconds=30)
        await asyncio.sleep(12.0)
        assert there(world) == ["GPU-a 2g.10gb@0"]

    play(scenario, **cards())


def test_an_instance_that_is_in_use_stays_and_holds_up_nobody() -> None:
    async def scenario(world: World) -> None:
        assert isinstance(world.mig, FakeMig)
        first = await cut_pod(world, "p1", main=("GPU-a", at("2g.10gb", 0)))
        await run_pod(world, first)
        world.mig.busy = {made.identity.uuid for made in await world.mig.instances()}
        await world.delete(first)
        await run_pod(world, await cut_pod(world, "p2", main=("GPU-a", at("2g.10gb", 2))))
        assert there(world) == ["GPU-a 2g.10gb@0", "GPU-a 2g.10gb@2"]
        world.mig.busy = set()
        await asyncio.sleep(6.0)
        assert there(world) == ["GPU-a 2g.10gb@2"]

    play(scenario, **cards())


def test_what_somebody_else_made_is_left_alone_and_a_pod_in_whose_way_it_is_is_refused() -> None:
    async def scenario(world: World) -> None:
        assert isinstance(world.mig, FakeMig)
        await world.mig.make(Spot("GPU-a", at("3g.20gb", 0)))
        await asyncio.sleep(12.0)
        pod = await cut_pod(world, "p1", main=("GPU-a", at("1g.5gb", 0)))
        with pytest.raises(Refused, match=r"no room for 1g\.5gb at 0 on GPU-a"):
            await run_pod(world, pod)
        assert there(world) == ["GPU-a 3g.20gb@0"]

    play(scenario, **cards())


def test_if_one_of_a_pods_instances_cannot_be_made_none_is_left() -> None:
    async def scenario(world: World) -> None:
        assert isinstance(world.mig, FakeMig)
        await world.mig.make(Spot("GPU-b", at("7g.40gb", 0)))
        pod = await cut_pod(world, "p1", a=("GPU-a", at("1g.5gb", 0)), b=("GPU-b", at("1g.5gb", 0)))
        with pytest.raises(Refused, match=r"no room for 1g\.5gb at 0 on GPU-b"):
            await run_pod(world, pod)
        assert there(world) == ["GPU-b 7g.40gb@0"]

    play(scenario, **cards())


@both_modes
def test_after_a_kill_instances_are_known_again_and_leftovers_taken_away(mode: AllocationMode) -> None:
    async def scenario(world: World) -> None:
        assert isinstance(world.mig, FakeMig)
        stays = await cut_pod(world, "stays", main=("GPU-a", at("2g.10gb", 0)))
        await run_pod(world, stays)
        goes = await cut_pod(world, "goes", main=("GPU-b", at("2g.10gb", 0)))
        await run_pod(world, goes)
        await world.kill()
        await world.delete(goes)
        made = len([call for call in world.mig.calls if call.startswith("make")])
        await world.start()
        await asyncio.sleep(6.0)
        assert there(world) == ["GPU-a 2g.10gb@0"]
        await world.agent.pre_start(world.kubelet.ids(stays, "main"))
        assert len([call for call in world.mig.calls if call.startswith("make")]) == made

    play(scenario, mode, **cards())


def test_a_pod_with_an_instance_is_refused_where_cards_cannot_be_cut() -> None:
    async def scenario(world: World) -> None:
        pod = await cut_pod(world, "p1", main=("GPU-a", at("1g.5gb", 0)))
        with pytest.raises(Refused, match="cannot be cut into MIG instances"):
            await run_pod(world, pod)

    play(scenario, cards=CARDS, sharing=Sharing(mode="mig"))


def test_what_was_made_half_before_a_kill_is_taken_away_and_made_anew() -> None:
    async def scenario(world: World) -> None:
        assert isinstance(world.mig, FakeMig)
        pod = await cut_pod(world, "p1", main=("GPU-a", at("2g.10gb", 0)))
        await run_pod(world, pod)
        (made,) = await world.mig.instances()
        await world.kill()
        world.mig.leave_half(made.spot)
        await world.start()
        await asyncio.sleep(6.0)
        assert there(world) == []
        await world.agent.pre_start(world.kubelet.ids(pod, "main"))
        assert [each.complete for each in await world.mig.instances()] == [True]

    play(scenario, CDI, **cards())


def test_what_somebody_else_made_half_is_left_alone() -> None:
    async def scenario(world: World) -> None:
        assert isinstance(world.mig, FakeMig)
        world.mig.leave_half(Spot("GPU-b", at("2g.10gb", 2)))
        await run_pod(world, await cut_pod(world, "p1", main=("GPU-a", at("2g.10gb", 0))))
        await asyncio.sleep(12.0)
        assert there(world) == ["GPU-a 2g.10gb@0", "GPU-b 2g.10gb@2"]

    play(scenario, **cards())
