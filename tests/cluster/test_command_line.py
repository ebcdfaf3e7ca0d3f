"""The command line as a user types it at a real API server, with a kubeconfig and the addresses that port-forwarding gives."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio

from hami_protocol import keys
from hami_runtime.kube.cluster import NODES
from tests.cluster.conftest import CARD_MIB
from tests.cluster.world import World, a_container, a_pod, shares_of, waits
from tests.e2e.shell import Shell

pytestmark = pytest.mark.asyncio(loop_scope="session")
TOO_MUCH = CARD_MIB + 1


@pytest_asyncio.fixture(loop_scope="session")
async def shell(world: World) -> AsyncIterator[Shell]:
    """Of an administrator, beside a pod that runs and one that fits nowhere."""
    await world.apply(a_pod("one", a_container(mib=3000, cores=20)), a_pod("huge", a_container(mib=TOO_MUCH)))
    await world.running("one")
    await world.until("huge", waits)
    places = {"NATS_URL": world.installation.nats_url, "HAMI_SCHEDULER_URL": world.installation.scheduler_url}
    yield Shell(world.installation.kubeconfig, **places)


async def test_what_is_there_who_waits_and_why(world: World, shell: Shell) -> None:
    one = await world.pod("one")
    ((share,),) = shares_of(one).values()
    nodes, pods, placed, waiting, diagnosed = await shell.each(
        "top", "top pods -o json", "explain one", "explain huge -o json", "diagnose huge"
    )
    assert [row[:4] for row in nodes.rows()[1:]] == [["cdi", "ok", "4", "3000"], ["locked", "ok", "4", "0"]]
    assert [(held["pod"], held["uuid"], held["memoryMib"]) for held in json.loads(pods.out)] == [("one", share.uuid, 3000)]
    assert "default/one  Running  cdi\nbound to cdi, the only one that fits, of " in placed.out
    assert f"main 3000 MiB 20 % of {share.uuid}" in placed.out
    assert json.loads(waiting.out)["reasons"] == {"4/4 CardInsufficientMemory": 2}  # cards alone are judged, on every node
    assert diagnosed.code == 3
    assert f"needs {TOO_MUCH} MiB on one card, largest free {CARD_MIB}" in diagnosed.out


async def test_a_pods_way_the_log_and_the_report(world: World, shell: Shell) -> None:
    one = await world.pod("one")
    traced, listed, report, text = await shell.each("trace one -o json", "events -o json --since 1h", "report -o json", "report")
    way = json.loads(traced.out)
    words = [step["text"].split()[0] for step in way["steps"] if step["source"] == "bus"]
    assert (way["uid"], words) == (one.metadata.uid, ["assigned", "allocating", "success"])
    assert {"Pulled:", "Created:", "Started:"} <= {step["text"].split()[0] for step in way["steps"] if step["source"] == "event"}
    mine = [event["type"] for event in map(json.loads, listed.out.splitlines()) if event["pod"]["uid"] == one.metadata.uid]
    assert mine == ["pod_assigned", "pod_allocating", "allocation_succeeded"]
    totals = json.loads(report.out)["totals"]
    assert (totals["cards"], totals["allocatedMemoryMib"], totals["pods"], totals["waiting"]) == (8, 3000, 1, 1)
    assert "8. Key findings and caveats" in text.out


async def test_what_would_be_with_other_nodes(shell: Shell) -> None:
    question = msgspec.yaml.encode(a_pod("huge-too", a_container(mib=TOO_MUCH), pool="a100")).decode()
    alone = await shell.hami("simulate", "-f", "-", given=question)
    added = await shell.hami("simulate", "-f", "-", "--add-nodes", "a100-80gb=2", "-o", "json", given=question)
    assert (alone.code, added.code) == (3, 0)
    assert json.loads(added.out)["pods"][0]["node"].startswith("a100-80gb-")


async def test_a_cordoned_card_takes_no_new_pod(world: World, shell: Shell) -> None:
    for card in world.installation.cards["cdi"]:
        assert (await shell.hami("cordon", card)).out == f"{card} on cdi cordoned\n"
    await world.apply(a_pod("later", a_container(mib=100)))
    await world.until("later", waits)
    assert "cards cordoned" in (await shell.hami("explain", "later")).out
    for card in world.installation.cards["cdi"]:
        assert (await shell.hami("uncordon", card)).out == f"{card} on cdi takes new pods\n"
    assert keys.DEVICE_CORDON not in (await world.cluster.get(NODES, "cdi")).metadata.annotations
    await world.running("later")


async def test_doctor_finds_the_installation_sound(world: World, shell: Shell) -> None:
    said = await shell.hami("doctor", "-o", "json", "--scheduler-config", str(world.installation.folder / "kube-scheduler.yaml"))
    found = {check["what"]: (check["outcome"], check["detail"]) for check in json.loads(said.out)}
    assert {what: each for what, each in found.items() if each[0] == "failed"} == {}
    assert {"API server", "rights", "webhook vgpu.hami.io", "bus", "streams", "scheduler", "registry", "agents"} <= found.keys()
    assert said.code == 0


async def test_who_may_not_read_nodes_is_told_so_in_one_line(world: World, shell: Shell) -> None:
    tenant = Shell(world.installation.plane.kubeconfig("tenant"))
    top, own = await tenant.hami("top"), await tenant.hami("diagnose", "huge")
    assert top.code == 1
    assert top.err.startswith("hami top: ")
    assert "forbidden" in top.err.lower()
    assert "Traceback" not in top.err + own.err
