"""The web page's API over HTTP, with the real scheduler and the real registry behind it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest
from yarl import URL

from hami_devices.catalog import Catalog
from hami_protocol import keys, subjects
from hami_protocol.envelope import Message
from hami_protocol.events import PodAllocating, PodRefused
from hami_registry.service import Registry
from hami_registry.web import bundle, facts, feed
from hami_registry.web.handlers import MOST_QUESTION_BYTES
from hami_runtime.clock import SystemClock
from hami_runtime.kube.access import AccessReviewer
from hami_runtime.kube.cluster import ACCESS_REVIEWS, NODES, PODS
from hami_runtime.kube.login import TOKEN_HEADER
from hami_runtime.kube.memory import MemoryCluster
from hami_runtime.kube.readers import Readers
from tests.builders import a_ref
from tests.contract.scheduler.world import World
from tests.web.scene import CARDS, Scene, scene

Answer = tuple[int, Any]


class Client:
    """A browser, as far as it asks the API."""

    def __init__(self, shown: Scene, session: aiohttp.ClientSession) -> None:
        self.shown = shown
        self.session = session

    async def get(self, path: str, **headers: str) -> Answer:
        async with self.session.get(self.shown.url + path, headers=headers) as answer:
            return answer.status, await answer.json()

    async def simulate(self, body: bytes, content_type: str = "application/json") -> Answer:
        async with self.session.post(f"{self.shown.url}v1/page/simulate", data=body, headers={"Content-Type": content_type}) as answer:
            return answer.status, await answer.json()

    async def overview(self, holds: Callable[[Any], object]) -> Any:
        """The overview, once ``holds``."""
        found = None
        async with asyncio.timeout(20):
            while found is None or not holds(found):
                _, found = await self.get("v1/page/overview")
                await asyncio.sleep(0.05)
        return found


@asynccontextmanager
async def looking(**options: Any) -> AsyncIterator[Client]:
    async with scene(**options) as shown, aiohttp.ClientSession() as session:
        yield Client(shown, session)


async def changes(stream: aiohttp.ClientResponse) -> AsyncIterator[Any]:
    """What a stream tells."""
    async with asyncio.timeout(20):
        async for line in stream.content:
            if line.startswith(b"data: "):
                yield msgspec.json.decode(line[6:])


def booked(overview: Any) -> dict[str, int]:
    return {node["name"]: node["bookedMemoryMib"] for node in overview["nodes"]}


async def test_what_is_placed_is_shown_per_node_card_and_pod() -> None:
    async with looking() as client:
        await client.shown.add_node("n1", *CARDS[1])
        await client.shown.add_node("n2", *CARDS[1])
        await client.overview(lambda found: len(found["nodes"]) == 2)
        pod, node = await client.shown.run_pod("p1", "n1", gpu=1, gpumem=3000, gpucores=30)
        assert node == "n1"
        found = await client.overview(lambda found: booked(found) == {"n1": 3000, "n2": 0} and len(found["log"]) == 3)
        assert [line["type"] for line in found["log"]] == ["pod_assigned", "pod_allocating", "allocation_succeeded"]
        assert found["caveats"] == []
        status, detail = await client.get("v1/page/nodes/n1")
        assert status == 200
        (card,) = [card for card in detail["cards"] if card["pods"]]
        (held,) = card["pods"]
        assert (held["name"], held["memoryMib"], held["cores"], held["phase"]) == ("p1", 3000, 30, "allocated")
        status, day = await client.get(f"v1/page/card?node=n1&uuid={card['uuid']}")
        assert [(span["name"], span["end"]) for span in day["spans"]] == [("p1", None)]
        await client.shown.end_pod(pod, "n1")
        after = await client.overview(lambda found: booked(found)["n1"] == 0)
        _, past = await client.get(f"v1/page/overview?at={after['now'] - 0.0001}")
        assert booked(past)["n1"] in {0, 3000}
        _, past = await client.get(f"v1/page/overview?at={held['since'] + 0.0005}")
        assert booked(past)["n1"] == 3000
        _, detail = await client.get(f"v1/page/nodes/n1?at={held['since'] + 0.0005}")
        assert [pod["name"] for card in detail["cards"] for pod in card["pods"]] == ["p1"]


async def test_a_moment_of_the_past_has_the_devices_of_that_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(feed, "LOOK_ALONE_SECONDS", 0.0)
    async with looking() as client:
        await client.shown.add_node("n1", *CARDS[1])
        before = await client.overview(lambda found: found["nodes"])
        await client.shown.add_node("n2", *CARDS[1])
        two = await client.overview(lambda found: len(found["nodes"]) == 2)
        await client.shown.world.admin.patch(NODES, "n1", {"metadata": {"annotations": {keys.DEVICE_CORDON: "GPU-n1-01"}}})
        await client.shown.world.admin.delete(NODES, "n2")
        now = await client.overview(lambda found: [node["status"] for node in found["nodes"]] == ["cordoned"])
        assert now["begins"] <= now["devicesSince"] <= before["now"]
        for moment, statuses in ((before["now"], {"n1": "ok"}), (two["now"], {"n1": "ok", "n2": "ok"}), (now["now"], {"n1": "cordoned"})):
            _, past = await client.get(f"v1/page/overview?at={moment}")
            assert {node["name"]: node["status"] for node in past["nodes"]} == statuses
        status, gone = await client.get(f"v1/page/nodes/n2?at={two['now']}")
        assert (status, len(gone["cards"])) == (200, CARDS[1][2])
        assert (await client.get(f"v1/page/nodes/n2?at={before['now']}"))[0] == 404
        assert (await client.get("v1/page/nodes/n2"))[0] == 404


async def test_a_pod_that_fits_nowhere_waits_with_its_reasons_until_it_is_gone() -> None:
    async with looking() as client:
        await client.shown.add_node("n1", *CARDS[1])
        await client.overview(lambda found: found["nodes"])
        _, node = await client.shown.run_pod("big", gpu=1, gpumem=99999)
        assert not node
        found = await client.overview(lambda found: found["waiting"])
        (waits,) = found["waiting"]
        assert (waits["pod"]["name"], waits["reasons"]) == ("big", {"4/4 CardInsufficientMemory": 1})
        assert "99999" in waits["summary"]
        async with client.session.get(f"{client.shown.url}v1/page/changes"):  # the scheduler is asked more often while somebody looks
            await client.shown.world.admin.delete(PODS, "big", namespace="default", grace_seconds=0)
            await client.overview(lambda found: found["waitingCount"] == 0)


async def test_changes_are_told_as_they_happen() -> None:
    async with looking() as client:
        await client.shown.add_node("n1", *CARDS[1])
        await client.overview(lambda found: found["nodes"])
        async with client.session.get(f"{client.shown.url}v1/page/changes") as stream:
            assert stream.headers["Content-Type"] == "text/event-stream"
            await client.shown.run_pod("p1", gpu=1, gpumem=3000)
            told: set[str] = set()
            booking = 0
            async for change in changes(stream):
                told |= {line["type"] for line in change["log"]}
                booking = next((node["bookedMemoryMib"] for node in change["nodes"]), booking)
                if booking == 3000 and told == {"pod_assigned", "pod_allocating", "allocation_succeeded"}:
                    break


async def test_a_cordoned_card_and_a_node_that_is_gone_are_told_of() -> None:
    async with looking() as client:
        await client.shown.add_node("n1", *CARDS[1])
        await client.shown.add_node("n2", *CARDS[1], **{keys.DEVICE_CORDON: "GPU-n2-01"})
        await client.overview(lambda found: [node["status"] for node in found["nodes"]] == ["ok", "cordoned"])
        _, detail = await client.get("v1/page/nodes/n2")
        assert [card["status"] for card in detail["cards"]] == ["ok", "cordoned", "ok", "ok"]
        async with client.session.get(f"{client.shown.url}v1/page/changes") as stream:
            await client.shown.world.admin.delete(NODES, "n2")
            async for change in changes(stream):
                if change["gone"] == ["n2"]:
                    break
        assert (await client.get("v1/page/nodes/n2"))[0] == 404


async def test_the_scheduler_is_asked_what_would_happen() -> None:
    async with looking() as client:
        await client.shown.add_node("n1", *CARDS[1])
        found = await client.overview(lambda found: found["nodes"])
        nvidia = next(each for each in found["resources"] if each["deviceType"] == "nvidia")
        limits = {nvidia["count"]: "1", nvidia["memory"]: "40000"}
        pod = {
            "metadata": {"name": "asked", "namespace": "default"},
            "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
        }
        status, answer = await client.simulate(msgspec.json.encode({"pods": [pod], "copies": 6}))
        assert (status, answer["placedCount"], answer["pods"][0]["node"]) == (200, 4, "n1")
        assert "40000" in answer["pods"][5]["summary"]
        assert booked((await client.get("v1/page/overview"))[1]) == {"n1": 0}


@pytest.mark.parametrize(
    ("body", "content_type", "status", "reason"),
    [
        (b"{}", "text/plain", 415, "accepted: application/json"),
        (b"rubbish", "application/json", 400, "cannot be read"),
        (b'{"pods": []}', "application/json", 400, "cannot be read"),
        (b"[" * 100_000, "application/json", 400, "cannot be read"),
        (b"x" * (MOST_QUESTION_BYTES + 1), "application/json", 413, f"over the limit of {MOST_QUESTION_BYTES} bytes"),
    ],
)
async def test_a_question_that_makes_no_sense_is_refused_with_why(body: bytes, content_type: str, status: int, reason: str) -> None:
    async with looking() as client:
        await client.overview(lambda found: not found["caveats"])
        found, answer = await client.simulate(body, content_type)
        assert (found, reason in answer["error"]) == (status, True)


async def test_without_the_scheduler_the_page_says_so_and_shows_what_the_log_has() -> None:
    async with looking(scheduling=False) as client:
        await client.shown.add_node("n1", *CARDS[1])
        await client.shown.run_pod("p1", "n1", gpu=1, gpumem=3000)
        found = await client.overview(lambda found: booked(found) == {"n1": 3000} and "nobody" in "".join(found["caveats"]))
        assert "the scheduler did not say who holds what" in found["caveats"][0]
        status, answer = await client.simulate(b"{}")
        assert (status, "does not answer" in answer["error"]) == (503, True)


async def test_pods_of_before_the_log_come_from_the_scheduler() -> None:
    async with looking() as client:
        await client.shown.add_node("n1", *CARDS[1])
        await client.overview(lambda found: found["nodes"])
        await client.shown.run_pod("old", gpu=1, gpumem=3000)
        await client.shown.world.bus.purge(subjects.ALLOCATIONS, subjects.ALL_ALLOCATIONS)
        cluster = MemoryCluster(client.shown.world.store)
        registry = Registry(client.shown.world.bus, cluster, SystemClock(), Catalog(), identity="late", namespace="kube-system")
        page, stop = registry.page(), asyncio.Event()
        running = asyncio.create_task(page.run(stop))
        async with asyncio.timeout(10):
            while not page.overview().nodes:  # noqa: ASYNC110 - polled as a browser does
                await asyncio.sleep(0.05)
        (node,) = page.overview().nodes
        assert (node.name, node.booked_memory_mib, node.status) == ("n1", 3000, "away")  # this replica has not heard of its devices
        stop.set()
        await running


@pytest.mark.parametrize("at", ["x", "nan", "inf", "-inf", "1e400", "9" * 50 + "x"])
async def test_a_moment_that_is_none_is_refused(at: str) -> None:
    async with looking() as client:
        for path in ("v1/page/overview", "v1/page/nodes/n1"):
            status, answer = await client.get(f"{path}?at={at}")
            assert status == 400
            assert answer["error"].startswith("at: ")


async def test_a_moment_that_lies_too_far_back_or_has_not_come_is_the_nearest_that_can_be_told_of() -> None:
    async with looking() as client:
        for at, nearest in (("-1", "begins"), ("0", "begins"), ("9e99", "now")):
            status, found = await client.get(f"v1/page/overview?at={at}")
            assert status == 200
            assert found["time"] == pytest.approx(found[nearest], abs=1)


async def test_what_is_not_there_is_not_found() -> None:
    async with looking() as client:
        assert (await client.get("v1/page/nodes/n1"))[0] == 404
        assert (await client.get("v1/page/card?node=n1&uuid=GPU-A"))[0] == 404
        for path in ("nothing.js", "../api.py", "%2e%2e/api.py", "..%2fapi.py", "package.json", "page/app.js"):
            async with client.session.get(URL(client.shown.url + path, encoded=True)) as answer:
                assert answer.status == 404


class Clerk(MemoryCluster):
    """An API server at which alice may do anything, bob may list nodes, and nobody else may do anything."""

    async def create(self, kind: Any, body: Any, *, namespace: str | None = None) -> Any:
        answer = await super().create(kind, body, namespace=namespace)
        if kind == ACCESS_REVIEWS:
            user, resource = body["spec"]["user"], body["spec"]["resourceAttributes"]["resource"]
            answer = {**answer, "status": {"allowed": user == "alice" or (user == "bob" and resource == "nodes")}}
        return answer


async def test_who_may_list_nodes_and_pods_sees_the_page_by_either_header() -> None:
    readers = Readers(AccessReviewer(Clerk(World(SystemClock()).store), SystemClock()))
    async with looking(authorize=readers) as client:
        paths = ("v1/page/overview", "v1/page/changes", "v1/page/nodes/n1", "v1/page/card?node=n1&uuid=x")
        for path in paths:
            assert (await client.get(path))[0] == 401
            assert (await client.get(path, Authorization="Basic YWxpY2U="))[0] == 401
            status, answer = await client.get(path, Authorization="Bearer bob")
            assert (status, answer["error"]) == (403, "bob may not list pods")
            assert (await client.get(path, **{TOKEN_HEADER: "carol"}))[0] == 403
        assert (await client.simulate(b"{}"))[0] == 401
        for headers in ({"Authorization": "Bearer alice"}, {TOKEN_HEADER: "alice"}):
            assert (await client.get("v1/page/overview", **headers))[0] == 200
        assert (await client.get("v1/inventory", Authorization="bearer bob"))[0] == 200
        assert (await client.get("v1/inventory"))[0] == 401
        async with client.session.get(client.shown.url) as answer:  # the page itself says nothing about the cluster
            assert answer.status == 200


async def test_a_listener_that_asks_for_no_token_answers_to_this_machines_names_alone() -> None:
    async with looking() as client:
        port = client.shown.url.rpartition(":")[2].rstrip("/")
        for host in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}", f"LOCALHOST:{port}"):
            assert (await client.get("v1/page/overview", Host=host))[0] == 200
        for host in ("evil.example", f"127.0.0.1.evil.example:{port}", "127.evil.example", "10.0.0.1"):
            for path in ("v1/page/overview", "v1/inventory", ""):
                assert (await client.get(path, Host=host))[0] == 421


async def test_who_does_not_keep_up_is_let_go_and_listeners_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "MOST_LISTENERS", 1)
    async with looking() as client, client.session.get(f"{client.shown.url}v1/page/changes") as stream:
        assert (await client.get("v1/page/changes"))[0] == 503
        monkeypatch.setattr(feed, "MOST_UNREAD", 0)
        await client.shown.add_node("n1", *CARDS[1])
        async with asyncio.timeout(10):
            await stream.content.read()  # to its end


async def test_tenants_text_stays_text_in_json() -> None:
    async with looking(scheduling=False) as client:
        await client.overview(lambda found: "did not say" in "".join(found["caveats"]))
        hostile = "</script><img src=x onerror=alert(1)>\u2028"
        await client.shown.say(PodRefused(pod=a_ref(), summary=hostile, node_count=1, reasons={hostile: 1}))
        found = await client.overview(lambda found: found["waiting"])
        assert found["waiting"][0]["summary"] == hostile
        async with client.session.get(f"{client.shown.url}v1/page/overview") as answer:
            assert answer.headers["Content-Type"].startswith("application/json")
            assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_a_message_that_cannot_be_read_is_passed_over() -> None:
    async with looking() as client:
        subject = subjects.grant("n1", "default", "p1")
        await client.shown.world.bus.publish(Message(subject=subject, data=b"rubbish"))
        pod = a_ref()
        await client.shown.say(PodAllocating(pod=pod, node="n1", assignments=(), bind_time_seconds=0))
        found = await client.overview(lambda found: found["log"])
        assert {line["uid"] for line in found["log"]} == {pod.uid}


async def test_a_fault_over_one_message_keeps_none_of_the_others_away(monkeypatch: pytest.MonkeyPatch) -> None:
    told = facts.log_line

    def broken(event: Any, **details: Any) -> Any:
        if event.pod.name == "poison":
            raise RuntimeError("broken")
        return told(event, **details)

    monkeypatch.setattr(facts, "log_line", broken)
    async with looking() as client:
        for name in ("poison", "p1"):
            await client.shown.say(PodAllocating(pod=a_ref(name), node="n1", assignments=(), bind_time_seconds=0))
        found = await client.overview(lambda found: found["log"])
        assert {line["pod"] for line in found["log"]} == {"p1"}  # the scheduler may say at once that it is gone


async def test_the_page_is_served_compressed_and_asked_for_again_only_where_it_changed() -> None:
    async with looking() as client:
        async with client.session.get(client.shown.url, headers={"Accept-Encoding": "gzip"}) as answer:
            assert answer.headers["Content-Encoding"] == "gzip"
            assert answer.headers["Content-Security-Policy"] == bundle.POLICY
            tag = answer.headers["ETag"]
            html = await answer.text()
        async with client.session.get(client.shown.url, headers={"If-None-Match": tag}) as answer:
            assert answer.status == 304
        async with client.session.get(client.shown.url, headers={"Accept-Encoding": "identity"}) as answer:
            assert await answer.text() == html
        for file in re.findall(r'(?:src|href)="([^"#]+)"', html):
            async with client.session.get(client.shown.url + file) as answer:
                assert answer.status == 200


def test_the_page_is_small_and_names_no_other_host() -> None:
    files = bundle.assets()
    assert sum(len(asset.compressed) for asset in files.values()) < 40_000
    for name, asset in files.items():
        found = asset.content.decode().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"(?:https?:)?//[a-z0-9-]+\.", found), name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|\bstyle=", found), name
    modules = {name for name in files if name.endswith(".js")}
    html = files["index.html"].content.decode()
    assert set(re.findall(r'(?:href|src)="([a-z-]+\.js)"', html)) == modules  # each is fetched at once, none after another
