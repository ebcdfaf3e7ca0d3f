"""``hami diagnose`` on real Kubernetes: the texts of its own scheduler, kubelet and containerd are what the causes are read from."""

from __future__ import annotations

import pytest
import pytest_asyncio

from tests.cluster.conftest import CARD_MIB, CARDS
from tests.cluster.harness import images
from tests.cluster.world import World
from tests.e2e.registry_of_images import registry_of_images
from tests.e2e.shell import Shell
from tests.e2e.troubles import IMAGES, Manifest, a_controller, a_quota, a_share, by_the_back_door, causes, unplaceable

pytestmark = pytest.mark.asyncio(loop_scope="session")
TRIES = 200
"""Real containers take their time."""


@pytest_asyncio.fixture(loop_scope="session")
async def shell(world: World) -> Shell:
    """Of an administrator with the addresses of this machine."""
    places = {"NATS_URL": world.installation.nats_url, "HAMI_SCHEDULER_URL": world.installation.scheduler_url}
    return Shell(world.installation.kubeconfig, **places)


def started_wrong() -> dict[str, tuple[Manifest, str]]:
    """Pods that are placed and do not run: the pod and what is found."""

    def pod(name: str, *, network: bool = True, **container: object) -> Manifest:
        started = {"command": ["/bin/sh", "-c", "exit 3"], **container}
        return a_share(name, image=images.BUSYBOX, hostNetwork=network, container=started)

    lost = {"name": "LOST", "valueFrom": {"configMapKeyRef": {"name": "never-was", "key": "k"}}}
    volume = [{"name": "lost", "configMap": {"name": "never-was"}}]
    mounts = {"volumeMounts": [{"name": "lost", "mountPath": "/lost"}]}
    probe = {"exec": {"command": ["/bin/false"]}, "periodSeconds": 1}
    mounted = a_share("unmounted", image=images.BUSYBOX, hostNetwork=True, volumes=volume, container=mounts)
    return {
        "crashes": (pod("crashes"), "the program ends with an error"),
        "no-setting": (pod("no-setting", env=[lost]), "the container cannot be started"),
        "no-program": (pod("no-program", command=["/bin/never-was"]), "the container cannot be started"),
        "unmounted": (mounted, "a volume cannot be mounted"),
        "unwell": (pod("unwell", command=["/bin/sleep", "1000"], readinessProbe=probe), "a probe of the container fails"),
        "no-network": (pod("no-network", network=False), "the node cannot make the pod's sandbox"),  # these nodes have no plugin for it
    }


async def test_what_keeps_a_pod_from_being_placed(world: World, shell: Shell) -> None:
    claim = {"name": "data", "persistentVolumeClaim": {"claimName": "never-was"}}
    unclaimed = a_share("unclaimed", volumes=[claim])
    troubles = unplaceable(CARD_MIB, CARDS)
    await world.apply(unclaimed, *(each.pod for each in troubles))
    for each in troubles:
        assert causes(await shell.findings(each.name, tries=TRIES)).keys() == {each.cause}, each.name
    assert causes(await shell.findings("unclaimed", tries=TRIES)) == {
        "a volume claim that the pod names does not exist": "condition PodScheduled"
    }


async def test_why_an_image_is_not_pulled(world: World, shell: Shell) -> None:
    async with registry_of_images() as pulled:
        del pulled["foreign"]  # the harness's containerd has nothing to unpack with, and says so before it looks for a platform
        await world.apply(*(a_share(name, image=image, hostNetwork=True, nodeSelector={"pool": "cdi"}) for name, image in pulled.items()))
        for name in pulled:
            found = await shell.findings(name, tries=TRIES)
            assert causes(found).keys() == {IMAGES[name]}, f"{found}\n{await world.told(name)}"
            assert found[0]["object"].startswith(f"pod/default/{name}")


async def test_what_goes_wrong_on_the_node(world: World, shell: Shell) -> None:
    troubles = started_wrong()
    await world.apply(
        *(pod for pod, _ in troubles.values()), by_the_back_door("forged-locked", "locked"), by_the_back_door("forged-cdi", "cdi")
    )
    for name, (_, cause) in troubles.items():
        assert cause in causes(await shell.findings(name, tries=TRIES)), await world.told(name)
    for name in ("forged-locked", "forged-cdi"):
        found = await shell.findings(name, tries=TRIES)
        assert "the node-agent or kubelet could not hand the devices out" in causes(found), found


async def test_a_quota_that_is_used_up_is_in_the_controllers_events(world: World, shell: Shell) -> None:
    await world.apply(a_quota("few", 1000), a_controller("refused", a_share("x", mib=1001)))
    try:
        assert causes(await shell.findings("refused-1", tries=TRIES)) == {"the namespace's quota is used up": "event FailedCreate"}
    finally:
        await world.kubectl("delete", "resourcequota", "few")
