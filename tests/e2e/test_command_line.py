"""Every command against a running rig, its output compared: what it shows is what the cluster has."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from html import escape
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from hami_cli.places import FILE_NAME
from hami_protocol import keys
from hami_runtime.kube.cluster import NODES
from tests.e2e.conftest import CARD_MIB, World, a_pod, runs, waits
from tests.e2e.shell import Shell

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]
UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@pytest_asyncio.fixture(loop_scope="session")
async def shell(world: World) -> AsyncIterator[Shell]:
    """A rig with two pods that run and one that fits nowhere."""
    places = {
        "nats_url": world.rig.nats_url,
        "scheduler_url": world.rig.scheduler_url,
        "registry_url": world.rig.registry_url,
        "folder": str(world.rig.folder),
    }
    (world.rig.folder / FILE_NAME).write_text(json.dumps(places))
    await world.apply(a_pod("one", mib=3000, cores=20, pool="cdi"), a_pod("two", mib=4000, pool="locked"), a_pod("huge", mib=CARD_MIB + 1))
    await world.running("one", "two")
    await world.until("huge", waits)
    yield Shell(world.rig.kubeconfig)


@pytest.fixture
def at_a_distance(world: World, shell: Shell) -> Shell:
    """The same rig as who has no way to the bus sees it: what is on it, the registry says."""
    return shell.where(HAMI_REGISTRY_URL=world.rig.registry_url)


async def test_what_is_booked_waits_and_was_found_is_shown_to_people_and_programs(world: World, shell: Shell) -> None:
    nodes, cards, pods, summary, explained, diagnosed = await shell.each(
        "top", "top cards -o json", "top pods", "summary", "explain huge -o yaml", "diagnose huge"
    )
    assert nodes.rows()[1:] == [
        ["cdi", "ok", "2", "3000", "65536", "5", "%", "10", "%", "1"],
        ["locked", "ok", "2", "4000", "65536", "6", "%", "0", "%", "1"],
    ]
    booked = {(card["node"], card["allocatedMemoryMib"]): card["uuid"] for card in json.loads(cards.out)}
    one, two = booked["cdi", 3000], booked["locked", 4000]
    assert [words[:8] for words in pods.rows()[1:3]] == [
        ["default", "one", "main", "cdi", one, "share", "3000", "20"],
        ["default", "two", "main", "locked", two, "share", "4000", "-"],
    ]
    assert pods.rows(after="NAMESPACE")[5][:2] == ["default", "huge"]
    assert "2 nodes, 4 cards. Memory: 7000 of 131072 MiB booked (5 %). Cores: 20 of 400 (5 %). Spread: even." in summary.out
    assert msgspec.yaml.decode(explained.out)["reasons"] == {"2/2 CardInsufficientMemory": 2}
    assert diagnosed.code == 3
    assert "no card has so much memory free" in diagnosed.out
    assert "read in: the scheduler's verdict: 0/2 nodes fit" in diagnosed.out
    assert f"would fit: {CARD_MIB} MiB or less" in diagnosed.out
    assert "next:    hami explain huge -n default" in diagnosed.out


async def test_what_is_wrong_is_found_wherever_a_pod_is_stopped(world: World, shell: Shell) -> None:
    template = {"metadata": {"labels": {"app": "refused"}}, "spec": a_pod("x", cores=101)["spec"]}
    spec = {"selector": {"matchLabels": {"app": "refused"}}, "template": template}
    await world.apply(
        a_pod("astray", pool="nowhere"),
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "refused", "namespace": "default"}, "spec": spec},
    )
    await world.until("astray", waits)
    for name, cause, read_from in (
        ("astray", "node selector or affinity matches no node", "condition PodScheduled"),
        ("refused-1", "the request for devices cannot be read or is not allowed", "event FailedCreate"),
    ):
        (finding,) = await shell.findings(name)
        assert (finding["cause"], finding["readFrom"]) == (cause, read_from)
        assert finding["nextCommand"].startswith("kubectl get ")
    await world.kubectl("delete", "replicaset", "refused", "--timeout=20s")


async def test_a_pods_way_and_the_log_are_told(world: World, shell: Shell) -> None:
    pod = await world.pod("one")
    traced, gone, listed, recent = await shell.each("trace one -o json", "trace never-was", "events -o json", "events --since 1d")
    way = json.loads(traced.out)
    assert (way["uid"], way["traceId"]) == (pod.metadata.uid, pod.metadata.annotations[keys.TRACE_PARENT].split("-")[1])
    bus = [step["text"].split()[0] for step in way["steps"] if step["source"] == "bus"]
    assert bus == ["assigned", "allocating", "success"]
    assert way["steps"][0] == {"time": pod.metadata.creation_timestamp, "source": "pod", "text": "created"}
    assert (gone.code, gone.err) == (1, "hami trace: there is no pod default/never-was, and the log of the last 7 days has none\n")
    mine = [event["type"] for event in map(json.loads, listed.out.splitlines()) if event["pod"]["uid"] == pod.metadata.uid]
    assert mine == ["pod_assigned", "pod_allocating", "allocation_succeeded"]
    assert f"allocating  default/one to cdi: main 3000 MiB 20 % of {UUID.search(traced.out)[0]}" in recent.out  # type: ignore[index]


async def test_who_has_no_way_to_the_bus_is_told_the_same_by_the_registry(world: World, shell: Shell, at_a_distance: Shell) -> None:
    for command in (
        "top cards -o json",
        "top pods",
        "summary",
        "report -o json",
        "diagnose huge -o json",
        "trace one -o json",
        "trace never-was",
        "events -o json",
        "events -n default --since 1d",
        "events -n elsewhere",
    ):
        for _ in range(5):  # what is used may be measured between the two looks
            there, here = await at_a_distance.hami(*command.split()), await shell.hami(*command.split())
            if _timeless(there.out) == _timeless(here.out):
                break
        assert _timeless(there.out) == _timeless(here.out)
        assert (there.code, there.err) == (here.code, here.err)
    doctor = await at_a_distance.hami("doctor", "-o", "json")
    assert {check["what"]: check["outcome"] for check in json.loads(doctor.out) if check["outcome"] != "ok"} == {}
    assert f"the registry at {world.rig.registry_url} answers" in doctor.out


async def test_what_comes_is_followed_by_either_way(world: World, shell: Shell, at_a_distance: Shell) -> None:
    for number, way in enumerate((shell, at_a_distance)):
        name = f"followed-{number}"
        async with way.following("events", "--follow", "--since", "1h") as lines:
            await anext(line async for line in lines if "default/one" in line)  # it listens
            await world.apply(a_pod(name, mib=100))
            mine = (line.split()[2] async for line in lines if f"default/{name}" in line)
            assert [await anext(mine) for _ in range(3)] == ["assigned", "allocating", "success"]
        await world.running(name)


async def test_a_registry_that_does_not_answer_is_no_secret(shell: Shell) -> None:
    gone = shell.where(HAMI_REGISTRY_URL="http://127.0.0.1:1")
    events, top, diagnosed, doctor = await gone.each("events", "top cards -o json", "diagnose huge", "doctor -o json")
    assert (events.code, events.err.partition(": connection")[0]) == (
        1,
        "hami events: the registry at http://127.0.0.1:1: the log: http://127.0.0.1:1",
    )
    assert (top.code, len(json.loads(top.out))) == (0, 4), "nodes and pods say what is booked"
    assert "read in: condition PodScheduled" in diagnosed.out
    (bad,) = [check for check in json.loads(doctor.out) if check["outcome"] == "failed"]
    assert (doctor.code, bad["what"]) == (3, "bus")


def _timeless(text: str) -> str:
    """Without the time at which it was asked."""
    return re.sub(r'"time": "[^"]+"', "", text)


async def test_a_report_has_the_same_figures_in_every_form(shell: Shell, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    as_json, text, markdown, html = await shell.each("report -o json", "report", "report -o markdown", f"report -o html --file {page}")
    found = json.loads(as_json.out)
    assert found["totals"] | {"waiting": 1, "pods": 2, "cards": 4, "allocatedMemoryMib": 7000} == found["totals"]
    assert "8. Key findings and caveats" in text.out
    assert "| default | 2 | 7000 | 6.8 | 100.0 % | 20 | 100.0 % | two, one |" in markdown.out
    assert (html.code, html.out) == (0, "")
    assert escape(found["summary"]) in page.read_text()


async def test_a_pasted_metrics_page_says_what_the_live_cluster_says(world: World, shell: Shell) -> None:
    port = world.rig.ports["scheduler"]["health"]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
    page = (await reader.read()).decode().partition("\r\n\r\n")[2]
    writer.close()
    pasted = await shell.hami("summary", "--metrics", "-", "-o", "json", given=page)
    live = await shell.hami("summary", "-o", "json")
    same = ("cardCount", "allocatedMemoryMib", "namespaces", "pods")
    assert [json.loads(pasted.out)[key] for key in same] == [json.loads(live.out)[key] for key in same]


async def test_where_pods_would_go_with_nodes_added(shell: Shell) -> None:
    question = msgspec.yaml.encode(a_pod("big", mib=CARD_MIB + 1)).decode()
    alone = await shell.hami("simulate", "-f", "-", given=question)
    added = await shell.hami("simulate", "-f", "-", "--add-nodes", "a100-80gb=1", "-o", "json", given=question)
    assert (alone.code, alone.out.splitlines()[0]) == (3, "0 of 1 pods would be placed, on 2 nodes")
    assert f"largest free {CARD_MIB}" in alone.out
    assert (added.code, json.loads(added.out)["pods"][0]["node"]) == (0, "a100-80gb-0")


async def test_no_new_pod_comes_to_a_cordoned_card_until_it_is_back(world: World, shell: Shell) -> None:
    cards = json.loads((await shell.hami("top", "cards", "-o", "json")).out)
    on_cdi = [card["uuid"] for card in cards if card["node"] == "cdi"]
    first = await shell.hami("cordon", on_cdi[0])
    assert (first.code, first.out) == (0, f"{on_cdi[0]} on cdi cordoned\n")
    assert (await shell.hami("cordon", on_cdi[0])).out == f"{on_cdi[0]} on cdi cordoned already\n"
    await shell.hami("cordon", on_cdi[1])
    assert (await world.cluster.get(NODES, "cdi")).metadata.annotations[keys.DEVICE_CORDON] == ",".join(on_cdi)
    await world.apply(a_pod("later", mib=100, pool="cdi"))
    await world.until("later", waits)
    for card in on_cdi:
        assert (await shell.hami("uncordon", card)).out == f"{card} on cdi takes new pods\n"
    assert keys.DEVICE_CORDON not in (await world.cluster.get(NODES, "cdi")).metadata.annotations
    await world.until("later", runs)
    assert "no node has a card 'x'" in (await shell.hami("cordon", "x")).err


async def test_an_installation_that_is_as_it_must_be_has_nothing_to_mend(world: World, shell: Shell) -> None:
    whole, astray = await shell.each("doctor -o json", "doctor -o json --nats nats://127.0.0.1:1")
    found = {check["what"]: check["outcome"] for check in json.loads(whole.out)}
    assert set(found.values()) == {"ok"}, found
    assert {"API server", "rights", "webhook vgpu.hami.io", "bus", "streams", "scheduler", "registry", "agents"} <= found.keys()
    assert whole.code == 0
    as_program = await shell.program("doctor")
    assert (as_program.code, as_program.err) == (0, "")
    assert as_program.out.startswith("ok       API server: http://")
    assert "\x1b" not in as_program.out, "colours are for terminals"
    (bad,) = [check for check in json.loads(astray.out) if check["outcome"] == "failed"]
    assert (astray.code, bad["what"]) == (3, "bus")
    assert bad["remedy"]


async def test_a_bill_counts_nothing_twice_however_often_it_is_made(world: World, shell: Shell, tmp_path: Path) -> None:
    await world.kubectl("delete", "pod", "one", "--timeout=20s")
    program = Path(__file__).parents[2] / "examples/subscribers/bill_gpu_hours.py"
    database = tmp_path / "bill.db"

    async def bill() -> None:
        arguments = ["--nats", world.rig.nats_url, "--database", str(database), "--once"]
        process = await asyncio.create_subprocess_exec(sys.executable, program, *arguments, stdout=asyncio.subprocess.PIPE)
        out, _ = await process.communicate()
        assert process.returncode == 0
        assert out.decode().startswith("default "), out

    def spans() -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(database)) as opened:
            return opened.execute("SELECT uid, pod, cards, began, ended FROM spans ORDER BY began, uid").fetchall()

    await bill()
    first = spans()
    await bill()
    assert spans() == first
    (one,) = [span for span in first if span[1] == "one" and span[2] == 0.2][-1:]
    assert one[4] is not None
    assert [span[4] for span in first if span[1] == "two"][-1] is None
