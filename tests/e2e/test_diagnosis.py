"""``hami diagnose`` at a running rig: whatever stops a pod, brought about by real means, is found with its cause, its source and the next command."""

from __future__ import annotations

import asyncio
import json

import pytest
import pytest_asyncio

from tests.e2e.conftest import CARD_MIB, World, a_pod
from tests.e2e.registry_of_images import registry_of_images
from tests.e2e.shell import PAUSE_SECONDS, TRIES, Shell
from tests.e2e.troubles import IMAGES, a_controller, a_quota, a_share, by_the_back_door, causes, unplaceable

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]
QUOTA = "the namespace's quota is used up"
NOT_HANDED_OUT = "the node-agent or kubelet could not hand the devices out"


@pytest_asyncio.fixture(loop_scope="session")
async def shell(world: World) -> Shell:
    return Shell(world.rig.kubeconfig, NATS_URL=world.rig.nats_url, HAMI_SCHEDULER_URL=world.rig.scheduler_url)


async def test_what_keeps_a_pod_from_being_placed(world: World, shell: Shell) -> None:
    troubles = unplaceable(CARD_MIB, 2)
    await world.apply(*(each.pod for each in troubles))
    for each in troubles:
        found = causes(await shell.findings(each.name))
        assert found == {each.cause: each.read_from}, each.name


async def test_cards_that_are_full_cordoned_or_in_use(world: World, shell: Shell) -> None:
    await world.apply(*(a_pod(f"half-{number}", mib=100, cores=60) for number in range(4)))
    await world.running(*(f"half-{number}" for number in range(4)))
    await world.apply(a_pod("more", cores=60), a_pod("whole", mib=CARD_MIB, cores=100))
    assert causes(await shell.findings("more")) == {"no card has so many cores free": "the scheduler's verdict"}
    assert "the scheduler's verdict" in causes(await shell.findings("whole")).values()


async def test_why_an_image_is_not_pulled(world: World, shell: Shell) -> None:
    async with registry_of_images() as images:
        await world.apply(*(a_share(name, image=image) for name, image in images.items()))
        for name, cause in IMAGES.items():
            (finding,) = await shell.findings(name)
            assert finding["cause"] == cause
            assert finding["object"] == f"pod/default/{name}/main"
            assert finding["readFrom"] == "state waiting"
            assert images[name] in finding["text"]
            pulled = await world.kubectl("get", "events", "--field-selector", f"involvedObject.name={name},reason=Failed", "-o", "name")
            assert pulled


async def test_devices_that_nobody_granted_are_not_handed_out(world: World, shell: Shell) -> None:
    await world.apply(by_the_back_door("forged-locked", "locked"), by_the_back_door("forged-cdi", "cdi"))
    for name in ("forged-locked", "forged-cdi"):
        found = await shell.findings(name)
        assert NOT_HANDED_OUT in causes(found), found
        assert found[0]["nextCommand"] == f"hami trace {name} -n default"


async def test_a_quota_that_is_used_up_is_found_wherever_it_stops_a_pod(world: World, shell: Shell) -> None:
    await world.apply(a_quota("few", 1000), a_controller("refused", a_share("x", mib=1001)))
    assert causes(await shell.findings("refused-1")) == {QUOTA: "event FailedCreate"}
    await world.kubectl("delete", "replicaset", "refused", "--timeout=20s")
    await world.kubectl("delete", "resourcequota", "few")
    cards = [card["uuid"] for card in json.loads((await shell.hami("top", "cards", "-o", "json")).out) if card["node"] == "cdi"]
    for card in cards:
        await shell.hami("cordon", card)
    await world.apply(a_pod("waits", mib=900, pool="cdi"))
    assert causes(await shell.findings("waits"))["cards are cordoned"] == "the scheduler's verdict"
    await world.apply(a_quota("fewer", 800))  # less than was there when it was let in
    for card in cards:
        await shell.hami("uncordon", card)
    found: dict[str, str] = {}
    for _ in range(TRIES):
        found = causes(await shell.findings("waits"))
        if QUOTA in found:
            break
        await asyncio.sleep(PAUSE_SECONDS)
    await world.kubectl("delete", "resourcequota", "fewer")
    assert found.get(QUOTA) == "the scheduler's verdict", found
