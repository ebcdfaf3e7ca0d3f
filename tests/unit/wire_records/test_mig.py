"""MIG allocations as text."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_devices.catalog import Catalog
from hami_protocol import keys, mig
from hami_protocol.devices import ContainerKind, ContainerShares, DeviceShare, MigInstance, Placement, VendorAssignment
from hami_protocol.errors import RecordError
from hami_protocol.mig import MigAllocation, MigIdentity
from tests.builders import a_container, a_pod

ONE = '[{"containerIndex":0,"deviceIndex":0,"gpuUUID":"GPU-a","profile":"1g.5gb","placement":{"start":6,"size":1}}]'
INSTANCE = MigInstance(profile="1g.5gb", placement=Placement(start=6, size=1))


def test_the_text_is_the_protocols() -> None:
    allocation = MigAllocation(container=0, device=0, gpu="GPU-a", instance=INSTANCE)
    assert mig.encode((allocation,)) == ONE
    assert mig.decode(ONE) == (allocation,)
    assert mig.decode("") == ()
    assert mig.encode(()) == ""


@pytest.mark.example("MIG instances 54")
def test_ids_of_zero_are_ids() -> None:
    text = ONE[:-2] + ',"migUUID":"MIG-x","gpuInstanceID":4,"computeInstanceID":0}]'
    (found,) = mig.decode(text)
    assert found.identity == MigIdentity(uuid="MIG-x", gpu_instance=4, compute_instance=0)
    assert mig.encode((found,)) == text


@pytest.mark.example("MIG instances 53")
@pytest.mark.parametrize(
    ("text", "error"),
    [
        (ONE[:-1] + "," + ONE[1:], "duplicate MIG allocation for container 0 device 0"),
        (ONE[:-2] + ',"migUUID":"MIG-x"}]', "MIG allocation 0 has partial runtime identity"),
        (ONE[:-2] + ',"gpuInstanceID":0,"computeInstanceID":0}]', "MIG allocation 0 has partial runtime identity"),
        (ONE.replace(":0,", ":-1,", 1), ">= 0"),
        (ONE.replace("GPU-a", ""), "length >= 1"),
        (ONE.replace("1g.5gb", ""), "length >= 1"),
        (ONE.replace('"size":1', '"size":0'), ">= 1"),
        ("{}", "Expected `array`"),
        ("[" * 10_000, "MIG allocations"),
        ("[null]", "Expected `object`"),
    ],
)
def test_what_cannot_be_read_is_refused(text: str, error: str) -> None:
    with pytest.raises(RecordError, match=error):
        mig.decode(text)


@given(st.text(alphabet='[]{}",:0123456789abeGPUU-containerIndexdevice', max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(RecordError):
        assert mig.decode(mig.encode(mig.decode(text))) == mig.decode(text)


def test_a_pods_instances_go_into_its_annotations_and_back() -> None:
    share = DeviceShare(uuid="GPU-a", type="NVIDIA", memory_mib=5120, cores=14, instance=INSTANCE)
    held = VendorAssignment(
        vendor="NVIDIA",
        containers=(
            ContainerShares(container="i", kind=ContainerKind.INIT),
            ContainerShares(container="main", kind=ContainerKind.APP, shares=(share,)),
        ),
    )
    written = Catalog().assignment_annotations((held,))
    assert written[keys.MIG_ALLOCATIONS] == ONE.replace('"containerIndex":0', '"containerIndex":1')
    pod = a_pod("p", a_container("main", gpu=1, mem=5000), inits=(a_container("i"),), annotations=written)
    assert Catalog().read_assignments(pod) == (held,)
    stray = {**written, keys.MIG_ALLOCATIONS: ONE}
    (found,) = Catalog().read_assignments(a_pod("p", a_container("main", gpu=1), inits=(a_container("i"),), annotations=stray))
    assert found.containers[1].shares[0].instance is None
