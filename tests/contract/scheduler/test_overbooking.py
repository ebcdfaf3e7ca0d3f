"""A card of which pods hold more than it has is reported once, and again only when it was well in between."""

from __future__ import annotations

import asyncio

from tests.builders import a_device
from tests.contract.scheduler.world import World, place, story


async def overbooked(world: World) -> list[str]:
    await asyncio.sleep(2)
    return [message for name, reason, message in await world.events() if (name, reason) == ("n1", "CardOverbooked")]


@story
async def test_a_card_that_was_replaced_by_a_smaller_one_is_reported(world: World) -> None:
    await world.node("n1", a_device("GPU-A", memory_mib=8000))
    async with world.scheduler() as scheduler:
        pods = [await world.pod(f"p{number}", gpu=1, gpumem=3000) for number in range(2)]
        assert [await place(scheduler, pod) for pod in pods] == ["n1", "n1"]
        assert await overbooked(world) == []
        await world.node("n1", a_device("GPU-A", memory_mib=4000))
        (message,) = await overbooked(world)
        assert "more of card GPU-A than it has: 6000 of 4000 MiB" in message
        assert scheduler.picture.overbooking.count == 1
        assert len(await overbooked(world)) == 1
        await world.finish(pods[0])
        await overbooked(world)
        assert scheduler.picture.overbooking.count == 0


@story
async def test_shares_beyond_a_lowered_split_count_are_reported(world: World) -> None:
    await world.node("n1", a_device("GPU-A", shares=10))
    async with world.scheduler() as scheduler:
        for number in range(3):
            assert await place(scheduler, await world.pod(f"p{number}", gpu=1, gpumem=10)) == "n1"
        await world.node("n1", a_device("GPU-A", shares=2))
        (message,) = await overbooked(world)
        assert "3 of 2 shares" in message
