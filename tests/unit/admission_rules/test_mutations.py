"""What the webhook changes on a container, in NVIDIA's order, and nothing when asked again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hami_devices.admission import AddEnv, Mutation, SetLimit, SetRuntimeClass
from hami_devices.catalog import Catalog
from hami_devices.config import DeviceConfig, NvidiaConfig
from hami_devices.requests import RequestError
from hami_protocol.kubernetes import EnvVar, Pod, ResourceRequirements
from tests.builders import CORES, COUNT, PERCENT, a_container, a_pod, example

PATH = "spec.containers[0]"
ALL_CORES = SetLimit(path=PATH, resource=CORES, value="100")


DEFAULTS = NvidiaConfig()


def changes(config: NvidiaConfig = DEFAULTS, **container: Any) -> tuple[Mutation, ...]:
    return Catalog(DeviceConfig(nvidia=config)).mutations(a_pod("p1", a_container(**container)))


@pytest.mark.parametrize(
    ("container", "result"),
    [
        example("NVIDIA 375", {"gpu": 1}, (ALL_CORES,)),
        example("NVIDIA 376", {"gpu": 1, "percent": 100}, (ALL_CORES,)),
        example("NVIDIA 376 requests", {"requests": {COUNT: "1", PERCENT: "100"}}, (ALL_CORES,)),
        example("NVIDIA 377", {"gpu": 1, "percent": 50}, ()),
        example("NVIDIA 378", {"gpu": 1, "mem": 8192}, ()),
        example("NVIDIA 379", {"gpu": 1, "cores": 70}, ()),
        example("NVIDIA 380", {"requests": {COUNT: "1", CORES: "55"}}, ()),
        example("NVIDIA 381", {"cores": 1}, (SetLimit(path=PATH, resource=COUNT, value="1"),)),
        example("NVIDIA 383", {"gpu": 1, "mem": 1, "priority": 5}, (AddEnv(path=PATH, name="CUDA_TASK_PRIORITY", value="5"),)),
        example("webhook 89 admission", {"gpu": 1}, (ALL_CORES,)),
        example("webhook 90 percent", {"gpu": 1, "percent": 50}, ()),
        example("webhook 90 memory", {"gpu": 1, "mem": 8192}, ()),
        pytest.param({"gpu": 1, "percent": 0}, (ALL_CORES,), id="A2 0 percent is unset"),
        pytest.param({"mem": 1000}, (SetLimit(path=PATH, resource=COUNT, value="1"),), id="memory alone"),
        pytest.param({"gpu": 0}, (), id="no card"),
        pytest.param({"cpu": 1}, (), id="not ours"),
    ],
)
def test_containers_are_completed(container: dict[str, Any], result: tuple[Mutation, ...]) -> None:
    assert changes(**container) == result


@pytest.mark.parametrize(
    ("percent", "accepted"),
    [
        example("webhook 88 0", 0, True),
        example("webhook 88 100", 100, True),
        example("webhook 88 101", 101, False),
        example("webhook 88 150", 150, False),
        example("NVIDIA 382", 101, False),
    ],
)
def test_percentages_over_a_hundred_are_refused(percent: int, accepted: bool) -> None:
    if accepted:
        changes(gpu=1, percent=percent)
        return
    with pytest.raises(RequestError) as refused:
        changes(gpu=1, percent=percent)
    assert refused.value.field == f"{PATH}.resources.limits[{PERCENT}]"


def test_the_core_policy_goes_to_containers_with_cards_only() -> None:
    config = NvidiaConfig(core_policy="force")
    assert changes(config, gpu=1, mem=1) == (AddEnv(path=PATH, name="GPU_CORE_UTILIZATION_POLICY", value="force"),)
    assert changes(config) == ()


def test_other_containers_are_kept_from_cards_where_configured() -> None:
    config = NvidiaConfig(overwrite_env=True)
    assert changes(config) == (AddEnv(path=PATH, name="NVIDIA_VISIBLE_DEVICES", value="none"),)
    assert changes(config, gpu=1, mem=1) == ()


def test_the_runtime_class_is_set_once_and_never_over_the_user_s() -> None:
    catalog = Catalog(DeviceConfig(nvidia=NvidiaConfig(runtime_class="nvidia")))
    two = (a_container("a", gpu=1, mem=1), a_container("b", gpu=1, mem=1))
    assert catalog.mutations(a_pod("p1", *two)) == (SetRuntimeClass(name="nvidia"),)
    assert catalog.mutations(a_pod("p1", *two, runtime_class_name="own")) == ()
    assert catalog.mutations(a_pod("p1", a_container())) == ()


def test_init_containers_and_sidecars_are_completed_too() -> None:
    pod = a_pod("p1", a_container("main"), inits=[a_container("init", gpu=1), a_container("side", sidecar=True, gpu=1)])
    assert [change.path for change in Catalog().mutations(pod) if isinstance(change, SetLimit)] == [
        "spec.initContainers[0]",
        "spec.initContainers[1]",
    ]


def applied(pod: Pod, mutations: tuple[Mutation, ...]) -> Pod:
    container = pod.spec.containers[0]
    limits, env = dict(container.resources.limits or {}), list(container.env or ())
    runtime_class = pod.spec.runtime_class_name
    for mutation in mutations:
        match mutation:
            case SetLimit():
                limits[mutation.resource] = mutation.value
            case AddEnv():
                env.append(EnvVar(name=mutation.name, value=mutation.value))
            case SetRuntimeClass():
                runtime_class = mutation.name
    changed = msgspec.structs.replace(container, resources=ResourceRequirements(limits=limits), env=tuple(env))
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, containers=(changed,), runtime_class_name=runtime_class))


@pytest.mark.parametrize("container", [{"gpu": 1, "priority": 3}, {"cores": 5}, {"percent": 100}, {"cpu": 1}])
def test_asking_again_gives_nothing_more_to_do_and_the_same_request(container: dict[str, Any]) -> None:
    catalog = Catalog(DeviceConfig(nvidia=NvidiaConfig(core_policy="force", overwrite_env=True, runtime_class="nvidia")))
    pod = a_pod("p1", a_container(**container))
    changed = applied(pod, catalog.mutations(pod))
    assert catalog.mutations(changed) == ()
    assert catalog.read_pod(changed) == catalog.read_pod(pod)
