"""Which pods hold what, and which wait, as the scheduler tells it to the page."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from hami_protocol import holdings as protocol
from hami_protocol import subjects
from hami_protocol.holdings import Holdings, HoldingsQuestion
from hami_runtime.bus.memory import MAX_MESSAGE_BYTES
from hami_scheduler import holding, questions
from hami_scheduler.service import Scheduler
from tests.builders import a_device
from tests.contract.scheduler.world import World, asked, place, settle, story


def all_pages(scheduler: Scheduler) -> list[Holdings]:
    pages = [scheduler.holdings(HoldingsQuestion())]
    while pages[-1].next:
        pages.append(scheduler.holdings(HoldingsQuestion(after=pages[-1].next)))
    return pages


@story
async def test_a_pod_holds_what_it_is_charged_and_nothing_once_it_is_gone(world: World) -> None:
    await world.node("n1")
    async with world.scheduler() as scheduler:
        first, second = await world.pod("p1", gpu=1, gpumem=2000, gpucores=30), await world.pod("p2", gpu=1, gpumem=1000)
        await place(scheduler, first)
        asked(scheduler, second)
        (page,) = all_pages(scheduler)
        found = {each.pod.name: (each.node, each.phase, each.charges[0].memory_mib, each.charges[0].cores) for each in page.holdings}
        assert found == {"p1": ("n1", "bound", 2000, 30), "p2": ("n1", "reserved", 1000, 0)}
        await world.delete(first)
        await world.delete(second)
        assert all_pages(scheduler)[0].holdings == ()


@story
async def test_a_pod_waits_from_its_refusal_until_it_is_placed_or_gone(world: World) -> None:
    async with world.scheduler() as scheduler:
        await world.node("n1")
        big, other = await world.pod("big", gpu=1, gpumem=30000), await world.pod("other", gpu=1, gpumem=40000)
        asked(scheduler, big)
        asked(scheduler, other)
        (page,) = all_pages(scheduler)
        assert [(each.pod.name, each.reasons) for each in page.waiting] == [
            ("other", {"1/1 CardInsufficientMemory": 1}),
            ("big", {"1/1 CardInsufficientMemory": 1}),
        ]
        assert (page.waiting_count, "40000" in page.waiting[0].summary, bool(page.waiting[0].since)) == (2, True, True)
        await world.node("n2", a_device("GPU-n2", memory_mib=32768))
        assert await place(scheduler, big, "n1", "n2") == "n2"
        await world.delete(other)
        assert all_pages(scheduler)[0].waiting_count == 0


def test_pages_are_of_whole_nodes_and_have_everything_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "PAGE_BYTES", 400)

    @story
    async def told(world: World) -> None:
        for number in range(5):
            await world.node(f"n{number}")
        async with world.scheduler() as scheduler:
            for number in range(10):
                await place(scheduler, await world.pod(f"p{number}", gpu=1, gpumem=1000), f"n{number % 5}")
            await asyncio.sleep(0)
            pages = all_pages(scheduler)
            names = [each.pod.name for page in pages for each in page.holdings]
            assert len(pages) > 2
            assert sorted(names) == [f"p{number}" for number in range(10)]
            nodes = [{each.node for each in page.holdings} for page in pages]
            assert all(not one & other for place, one in enumerate(nodes) for other in nodes[place + 1 :])

    told()


def test_those_that_wait_fit_into_one_message_and_all_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 2 * protocol.PAGE_BYTES < MAX_MESSAGE_BYTES  # an answer, which no stream keeps
    monkeypatch.setattr(holding, "PAGE_BYTES", 700)

    @story
    async def told(world: World) -> None:
        await world.node("n1")
        async with world.scheduler() as scheduler:
            for number in range(5):
                asked(scheduler, await world.pod(f"p{number}", gpu=1, gpumem=30000))
            (page,) = all_pages(scheduler)
            assert 0 < len(page.waiting) < 5
            assert page.waiting_count == 5

    told()


@story
async def test_the_bus_is_answered_and_what_cannot_be_read_is_said(world: World) -> None:
    await world.node("n1")
    async with world.scheduler() as scheduler:
        stop = asyncio.Event()
        answering = asyncio.create_task(questions.answer_on_bus(scheduler, world.bus, stop))
        await settle()
        assert msgspec.json.decode(await world.bus.request(subjects.ASK_HOLDINGS, b"", timeout_seconds=1), type=Holdings).next == ""
        for body in (b"rubbish", b'{"after": 1}', b'{"other": ""}', b"[" * 100_000):
            assert b"cannot be read" in await world.bus.request(subjects.ASK_HOLDINGS, body, timeout_seconds=1)
        stop.set()
        await answering
