"""Registration text and JSON: the protocol page's examples, the reference's own, and that encoder and decoder are inverse."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_protocol import registration
from hami_protocol.devices import MigProfile, Placement, RegisteredDevice
from hami_protocol.errors import RecordError

PAGE_NVIDIA = (
    "GPU-00552014-5c87-89ac-b1a6-7b53aa24b0ec,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true:"
    "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true:"
)
PAGE_MLU = (
    "MLU-45013011-2257-0000-0000-000000000000,10,23308,0,MLU-MLU370-X4,0,false:"
    "MLU-54043011-2257-0000-0000-000000000000,10,23308,0,MLU-MLU370-X4,0,false:"
)
P4 = "G,10,7680,100,NVIDIA-Tesla P4,0,true"

names = st.text(st.characters(exclude_characters=",:;", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)
numbers = st.integers(0, 2**31 - 1)
text_devices = st.builds(
    RegisteredDevice,
    uuid=names.filter(lambda name: not name.lstrip().startswith(("[", "{"))),
    index=numbers,
    shares=numbers,
    memory_mib=numbers,
    cores=numbers,
    type=names,
    numa=st.integers(-1, 100),
    healthy=st.booleans(),
    mode=names,
)
device_lists = st.lists(text_devices, min_size=1, max_size=5, unique_by=lambda device: device.uuid)


@pytest.mark.parametrize(
    "text", [pytest.param(PAGE_NVIDIA, id="annotations of nodes nvidia"), pytest.param(PAGE_MLU, id="annotations of nodes mlu")]
)
@pytest.mark.example("annotations of nodes")
def test_the_protocol_pages_examples_are_read_and_written_to_the_letter(text: str) -> None:
    devices = registration.decode(text)
    assert len(devices) == 2
    assert [device.index for device in devices] == [0, 1]
    assert registration.encode_text(devices) == text


@pytest.mark.departs("an empty text registers no device, which is no error: the reference writes it where a vendor has none")
@pytest.mark.example("registration 1 empty")
@pytest.mark.parametrize("text", ["", " ", "null", ":", "[]"])
def test_an_empty_registration_has_no_device(text: str) -> None:
    assert registration.decode(text) == ()


@pytest.mark.example("registration")
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        pytest.param("a", "no ':'", id="registration 1 a"),
        pytest.param(",", "no ':'", id="registration 1 comma"),
        pytest.param(",:", "2 fields", id="registration 3"),
        pytest.param("garbage:", "no fields", id="registration 4"),
        pytest.param(f"{P4},-1,hami-core:", "index", id="registration 7"),
        pytest.param("G,10,7680,100,NVIDIA-Tesla P4:", "5 fields", id="registration 8"),
        pytest.param("G,10,7680,100,NVIDIA-Tesla P4,0,notabool:", "health", id="registration 9 health"),
        pytest.param("G,x,7680,100,NVIDIA-Tesla P4,0,true:", "count", id="registration 9 count"),
        pytest.param("G,10,x,100,NVIDIA-Tesla P4,0,true:", "memory", id="registration 9 memory"),
        pytest.param("G,10,7680,x,NVIDIA-Tesla P4,0,true:", "cores", id="registration 9 cores"),
        pytest.param("G,10,7680,100,NVIDIA-Tesla P4,x,true:", "numa", id="registration 9 numa"),
        pytest.param(f"{P4},x,hami-core:", "index", id="registration 9 index"),
        pytest.param(f"{P4}:{P4}:", "twice", id="the same device twice"),
        pytest.param("G,10,99999999999,100,T,0,true:", "memory", id="memory over 32 bits"),
        pytest.param(",10,7680,100,T,0,true:", "no id", id="no id"),
    ],
)
def test_what_is_no_registration_is_refused_with_the_place_and_the_reason(text: str, complaint: str) -> None:
    with pytest.raises(RecordError, match="device registration, at character") as caught:
        registration.decode(text)
    assert complaint in str(caught.value)


@pytest.mark.example("registration")
@pytest.mark.parametrize("text", [pytest.param(":", id="registration 2 one"), pytest.param("::", id="registration 2 two")])
def test_separators_alone_are_an_empty_list(text: str) -> None:
    assert registration.decode(text) == ()


@pytest.mark.example("registration")
def test_seven_fields_mean_a_shared_device_at_its_place() -> None:
    device = registration.decode(f"{P4}:")[0]
    assert (device.shares, device.memory_mib, device.cores, device.index, device.mode) == (10, 7680, 100, 0, "hami-core")


@pytest.mark.departs("7 fields: the index is the place in the list, where the reference's reader says 0 for every device")
@pytest.mark.example("registration")
def test_the_second_device_of_seven_fields_has_index_one() -> None:
    assert [device.index for device in registration.decode(f"{P4}:{P4.replace('G', 'H', 1)}:")] == [0, 1]


@pytest.mark.example("registration")
def test_nine_fields_carry_index_and_mode() -> None:
    text = f"{P4},1,hami-core:"
    assert registration.decode(text)[0].index == 1
    assert registration.encode_text(registration.decode(text)) == text


@pytest.mark.parametrize("word", ["1", "t", "T", "TRUE", "true", "True"])
def test_every_spelling_of_true_is_read(word: str) -> None:
    assert registration.decode(f"G,10,7680,100,T,0,{word}:")[0].healthy


@pytest.mark.parametrize("word", ["0", "f", "F", "FALSE", "false", "False"])
def test_every_spelling_of_false_is_read(word: str) -> None:
    assert not registration.decode(f"G,10,7680,100,T,0,{word}:")[0].healthy


def test_an_unusual_mode_or_index_needs_nine_fields() -> None:
    device = registration.decode(f"{P4}:")[0]
    other = RegisteredDevice(uuid="H", index=3, shares=1, memory_mib=1, cores=100, type="T")
    assert registration.encode_text([device]).count(",") == 6
    assert registration.encode_text([device, other]).count(",") == 16


def test_separators_in_a_model_name_are_replaced() -> None:
    device = RegisteredDevice(uuid="G", shares=1, memory_mib=1, cores=100, type="NVIDIA A,B:C;D")
    text = registration.encode_text([device])
    assert registration.decode(text)[0].type == "NVIDIA A-B-C-D"


@pytest.mark.example("assignment text")
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            '[{"index":1,"id":"id-1","count":1,"devmem":1024,"devcore":10,"type":"type","numa":0,"health":true}]', id="assignment text 5"
        ),
        pytest.param('[{"id":"id-1","index":1,"count":1,"devmem":1024,"devcore":10,"type":"type","health":true}]', id="registration JSON"),
        pytest.param('[{"ID":"id-1","Index":1,"COUNT":1,"Devmem":1024,"devcore":10,"type":"type","health":true}]', id="keys in any case"),
    ],
)
def test_json_is_read_after_defaulting(text: str) -> None:
    assert registration.decode(text) == (
        RegisteredDevice(uuid="id-1", index=1, shares=1, memory_mib=1024, cores=10, type="type", healthy=True),
    )


@pytest.mark.example("assignment text")
def test_an_empty_json_list_is_written_and_read() -> None:
    assert registration.encode_json([]) == "[]"
    assert registration.decode("[]") == ()


@pytest.mark.example("assignment text")
def test_a_mig_profile_is_written_as_the_reference_writes_it() -> None:
    profile = MigProfile(name="1g.5gb", memory_mib=4864, cores=15, slice_count=1, placements=(Placement(start=6, size=1),))
    device = RegisteredDevice(uuid="G", shares=7, memory_mib=40960, cores=100, type="NVIDIA A100", mode="mig", mig_profiles=(profile,))
    text = registration.encode_json([device])
    assert '{"name":"1g.5gb","memoryMB":4864,"core":15,"sliceCount":1,"placements":[{"start":6,"size":1}]}' in text
    assert registration.decode(text) == (device,)


@pytest.mark.example("assignment text")
def test_six_fields_are_refused() -> None:
    with pytest.raises(RecordError, match="6 fields"):
        registration.decode("GPU-ebe7,10,7680,100,NVIDIA-Tesla P4,0:")


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[1]",
        "[{}]",
        '[{"id":1}]',
        "[" * 5000,
        '[{"id":"a","count":-1}]',
        '[{"id":"a","devmem":99999999999}]',
        '[{"id":"a"},{"id":"a"}]',
    ],
)
def test_json_that_is_no_registration_is_refused(text: str) -> None:
    with pytest.raises(RecordError):
        registration.decode(text)


@given(device_lists)
def test_text_encoding_is_undone_by_decoding(devices: list[RegisteredDevice]) -> None:
    assert list(registration.decode(registration.encode_text(devices))) == devices


@given(device_lists)
def test_json_encoding_is_undone_by_decoding(devices: list[RegisteredDevice]) -> None:
    assert list(registration.decode(registration.encode_json(devices))) == devices


@given(st.text() | st.text(alphabet=',:;[]{}"0123456789truefalse-GPU'))
def test_any_text_is_a_registration_or_refused(text: str) -> None:
    try:
        devices = registration.decode(text)
    except RecordError:
        return
    assert all(device.uuid for device in devices)
