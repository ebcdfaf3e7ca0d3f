"""The command line as a user types it at a real API server, with a kubeconfig and nothing else: all goes through its service proxy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
import pytest_asyncio

from hami_protocol import keys
from hami_runtime.kube.cluster import NODES
from tests.cluster.conftest import CARD_MIB
from tests.cluster.harness.installation import Installation
from tests.cluster.harness.proxied import behind_the_proxy
from tests.cluster.world import World, a_container, a_pod, shares_of, waits
from tests.e2e.shell import Said, Shell

pytestmark = pytest.mark.asyncio(loop_scope="session")
TOO_MUCH = CARD_MIB + 1


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def proxied(installation: Installation) -> AsyncIterator[Installation]:
    """The installation, with replicas that the API server's proxy leads to."""
    async with behind_the_proxy(installation):
        yield installation


@pytest_asyncio.fixture(loop_scope="session")
async def shell(world: World, proxied: Installation) -> AsyncIterator[Shell]:
    """Of an administrator, beside a pod that runs and one that fits nowhere."""
    await world.apply(a_pod("one", a_container(mib=3000, cores=20)), a_pod("huge", a_container(mib=TOO_MUCH)))
    await world.running("one")
    await world.until("huge", waits)
    yield Shell(proxied.kubeconfig)


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
    assert json.loads(waiting.out)["reasons"] == {"4/4 CardInsufficientMemory": 1, "node selector does not match": 1}
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


async def test_what_comes_is_followed_through_the_api_server(world: World, shell: Shell) -> None:
    async with shell.following("events", "--follow", "--since", "1h") as lines:
        assert " default/" in await anext(lines)  # it listens
        await world.apply(a_pod("followed", a_container(mib=100)))
        mine = (line.split()[2] async for line in lines if "default/followed" in line)
        assert [await anext(mine) for _ in range(3)] == ["assigned", "allocating", "success"]


async def test_a_running_pod_is_given_another_size(world: World, shell: Shell) -> None:
    said = await shell.hami("resize", "one", "--memory-mib", "4000", "-o", "json")
    assert said.code == 0, said
    assert [share["memoryMib"] for share in json.loads(said.out)["assignments"][0]["containers"][0]["shares"]] == [4000]
    await world.until("one", lambda pod: [share.memory_mib for (share,) in shares_of(pod).values()] == [4000])
    summary = json.loads((await shell.hami("summary", "-o", "json")).out)
    assert (summary["cardCount"], summary["allocatedMemoryMib"]) == (8, 4000)


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


@asynccontextmanager
async def allowed(world: World, *bindings: str) -> AsyncIterator[Shell]:
    """Of a tenant with these roles besides his own, each as ``rolebinding NAMESPACE ROLE`` or ``clusterrolebinding ROLE``."""
    for number, binding in enumerate(bindings):
        kind, *namespace, role = binding.split()
        which = ("-n", *namespace, "--role", role) if namespace else ("--clusterrole", role)
        await world.kubectl("create", kind, f"test-{number}", *which, "--user", "tenant")
    try:
        yield Shell(world.installation.plane.kubeconfig("tenant"))
    finally:
        for number, binding in enumerate(bindings):
            kind, *namespace, _ = binding.split()
            await world.kubectl("delete", kind, f"test-{number}", *(("-n", *namespace) if namespace else ()))


async def test_the_two_roles_for_readers_are_all_that_one_needs_to_read(world: World, shell: Shell) -> None:
    commands = ("top", "summary", "explain huge", "diagnose huge", "trace one -o json", "events -o json", "events -n default")
    async with allowed(world, "rolebinding hami-system hami-reader", "clusterrolebinding hami-reader") as reader:
        await ends_with(0, reader, "events")
        for mine, others in zip(await shell.each(*commands), await reader.each(*commands), strict=True):
            assert (others.code, others.out, others.err) == (mine.code, mine.out, mine.err)
        report = json.loads((await reader.hami("report", "-o", "json")).out)
        assert (report["totals"]["pods"], report["waiting"][0]["pod"]) == (1, "huge")
        assert not [caveat for caveat in report["caveats"] if "not reached" in caveat]
        question = msgspec.yaml.encode(a_pod("huge-too", a_container(mib=TOO_MUCH))).decode()
        assert (await reader.hami("simulate", "-f", "-", given=question)).code == 3


async def test_a_tenant_reads_of_his_own_pods_and_of_no_others(world: World, shell: Shell) -> None:
    async with allowed(world, "rolebinding hami-system hami-reader") as tenant:
        await ends_with(0, tenant, "explain", "huge")
        everybodys = await ends_with(1, tenant, "events")
        explained, own, others = await tenant.each("explain huge", "events -n default", "events -n kube-system")
        assert (explained.code, f"largest free {CARD_MIB}" in explained.out) == (0, True)
        assert (own.code, "default/one to cdi" in own.out) == (0, True)
        assert (everybodys.code, "tenant may not list pods" in everybodys.err) == (1, True)
        assert (others.code, "tenant may not list pods in namespace kube-system" in others.err) == (1, True)


async def test_who_may_not_is_told_so_in_one_line(world: World, shell: Shell) -> None:
    tenant = Shell(world.installation.plane.kubeconfig("tenant"))
    log = await ends_with(1, tenant, "events", said="services/proxy")
    top, own = await tenant.each("top", "diagnose huge")
    assert top.code == 1
    assert top.err.startswith("hami top: ")
    assert "forbidden" in top.err.lower()
    assert "Traceback" not in top.err + own.err + log.err


async def ends_with(code: int, shell: Shell, *command: str, said: str = "") -> Said:
    """What a command says, once the API server and our services, who keep answers for a while, know of a right that was given or taken."""
    for _ in range(60):
        answer = await shell.hami(*command)
        if answer.code == code and said in answer.err:
            return answer
        await asyncio.sleep(0.5)
    pytest.fail(f"{command}: {answer}")
