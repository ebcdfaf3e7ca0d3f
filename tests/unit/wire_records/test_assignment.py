"""What a pod holds, as text: worked examples, alignment with the pod's containers, and emptying step by step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_protocol import assignment
from hami_protocol.devices import ContainerKind, ContainerShares, DeviceShare, VendorAssignment
from hami_protocol.errors import RecordError

APP, INIT = ContainerKind.APP, ContainerKind.INIT


def share(uuid: str, kind: str = "NVIDIA", memory_mib: int = 1000, cores: int = 30) -> DeviceShare:
    return DeviceShare(uuid=uuid, type=kind, memory_mib=memory_mib, cores=cores)


names = st.text(st.characters(exclude_characters=",:;", exclude_categories=["Cs"]), min_size=1, max_size=12)
shares = st.builds(DeviceShare, uuid=names, type=names, memory_mib=st.integers(0, 2**31 - 1), cores=st.integers(0, 2**31 - 1))
entry_lists = st.lists(st.lists(shares, max_size=3).map(tuple), max_size=5).map(tuple)


@pytest.mark.example("allocation text")
@pytest.mark.parametrize(
    ("entries", "text"),
    [
        pytest.param(((share("test1", "DCU", 2048, 1),),), "test1,DCU,2048,1:;", id="allocation text 1"),
        pytest.param(((), (share("device-0", "MLU", 256000, 1),)), ";device-0,MLU,256000,1:;", id="allocation text 2"),
        pytest.param(((share("U1"), share("U2")),), "U1,NVIDIA,1000,30:U2,NVIDIA,1000,30:;", id="allocation text 3"),
        pytest.param(
            ((share("G-a", memory_mib=3000, cores=0),), (share("G-a", memory_mib=5000, cores=0),)),
            "G-a,NVIDIA,3000,0:;G-a,NVIDIA,5000,0:;",
            id="allocation text 4",
        ),
        pytest.param(
            ((share("GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448", memory_mib=3000, cores=0),),),
            "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448,NVIDIA,3000,0:;",
            id="annotations of pods",
        ),
        pytest.param(
            ((share("UUID1", "Type1"), share("UUID2", "Type1")),), "UUID1,Type1,1000,30:UUID2,Type1,1000,30:;", id="assignment text 2"
        ),
    ],
)
def test_examples_are_written_and_read_to_the_letter(entries: assignment.Entries, text: str) -> None:
    assert assignment.encode_entries(entries) == text
    assert assignment.decode_entries(text) == entries


@pytest.mark.departs("an entry per ';': encoder and decoder are inverse, where the reference's reader adds an empty entry at the end")
@pytest.mark.example("assignment text")
@pytest.mark.parametrize(
    ("text", "count"),
    [
        pytest.param("GPU-8dcd,NVIDIA,500,3:;GPU-ebe7,NVIDIA,500,3:;", 2, id="assignment text 1"),
        pytest.param("", 0, id="assignment text 3"),
    ],
)
def test_there_are_as_many_entries_as_containers(text: str, count: int) -> None:
    assert len(assignment.decode_entries(text)) == count


@pytest.mark.example("assignment text")
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        pytest.param("uuid,type,100:;", "accepted: uuid,type,memory,cores", id="assignment text 4"),
        pytest.param("a,b,x,1:;", "memory is 'x'", id="memory"),
        pytest.param("a,b,1,x:;", "cores is 'x'", id="cores"),
        pytest.param("a,b,-1,1:;", "memory is '-1'", id="negative memory"),
        pytest.param("a,b,99999999999,1:;", "memory", id="over 32 bits"),
        pytest.param(",b,1,1:;", "no device", id="no uuid"),
        pytest.param("garbage;", "no device", id="garbage"),
    ],
)
def test_what_is_no_assignment_is_refused_with_the_place_and_the_reason(text: str, complaint: str) -> None:
    with pytest.raises(RecordError, match="pod assignment, at character") as caught:
        assignment.decode_entries(text)
    assert complaint in str(caught.value)


def test_the_place_of_an_error_is_the_place_in_the_text() -> None:
    with pytest.raises(RecordError) as caught:
        assignment.decode_entries("a,b,1,1:;c,d,1,oops:;")
    assert caught.value.position == len("a,b,1,1:;c,d,1,")


@pytest.mark.departs("emptying does not lengthen the text")
@pytest.mark.example("assignment text")
def test_containers_are_emptied_one_by_one_until_nothing_is_left() -> None:
    text = "A,NVIDIA,1,0:;B,NVIDIA,2,0:;"
    once = assignment.served(text, 0)
    assert once == ";B,NVIDIA,2,0:;"
    assert not assignment.all_served(once)
    assert assignment.served(once, 1) == ";;"
    assert assignment.all_served(";;")


@pytest.mark.example("annotations of pods")
def test_a_pod_of_one_container_ends_with_a_bare_semicolon() -> None:
    assert assignment.served("GPU-a,NVIDIA,3000,0:;", 0) == ";"


def test_emptying_what_is_not_there_is_refused() -> None:
    with pytest.raises(RecordError, match="no entry for container 1"):
        assignment.served("A,NVIDIA,1,0:;", 1)


def test_entries_belong_to_the_pods_containers_in_order() -> None:
    found = assignment.decode(";A,NVIDIA,1,0:;", "NVIDIA", [("init", INIT), ("main", APP)])
    assert found == VendorAssignment(
        vendor="NVIDIA",
        containers=(
            ContainerShares(container="init", kind=INIT),
            ContainerShares(container="main", kind=APP, shares=(DeviceShare(uuid="A", type="NVIDIA", memory_mib=1, cores=0),)),
        ),
    )
    assert assignment.encode(found) == ";A,NVIDIA,1,0:;"


def test_a_shorter_text_of_the_reference_is_aligned_with_the_containers_that_ask() -> None:
    found = assignment.decode("A,NVIDIA,1,0:;", "NVIDIA", [("init", INIT), ("main", APP)], asking=[False, True])
    assert [bool(container.shares) for container in found.containers] == [False, True]


def test_a_longer_text_of_the_reference_is_read_while_the_rest_is_empty() -> None:
    found = assignment.decode("A,NVIDIA,1,0:;;;;", "NVIDIA", [("main", APP)])
    assert len(found.containers) == 1


def test_devices_for_containers_that_are_not_there_are_refused() -> None:
    with pytest.raises(RecordError, match="the pod has 1"):
        assignment.decode("A,NVIDIA,1,0:;B,NVIDIA,1,0:;", "NVIDIA", [("main", APP)])


@given(entry_lists)
def test_reading_undoes_writing(entries: assignment.Entries) -> None:
    assert assignment.decode_entries(assignment.encode_entries(entries)) == entries


@given(st.text() | st.text(alphabet=",:;0123456789abc-"))
def test_any_text_is_an_assignment_or_refused(text: str) -> None:
    try:
        entries = assignment.decode_entries(text)
    except RecordError:
        return
    assert assignment.decode_entries(assignment.encode_entries(entries)) == entries


@given(entry_lists.filter(lambda entries: len(entries) > 0), st.randoms())
def test_serving_every_container_in_any_order_leaves_nothing(entries: assignment.Entries, rng: object) -> None:
    text = assignment.encode_entries(entries)
    order = list(range(len(entries)))
    rng.shuffle(order)  # type: ignore[attr-defined]
    for place in order:
        text = assignment.served(text, place)
    assert text == ";" * len(entries)


SIDECAR = ContainerKind.SIDECAR


@pytest.mark.departs("a shortened record is aligned with the containers that ask; the reference reads its own by position, and oversells")
@pytest.mark.parametrize(
    ("entries", "containers", "holders"),
    [
        pytest.param("A", "i- a+", "1", id="v2.10: an init container asks for nothing"),
        pytest.param("A", "a- a+", "1", id="v2.10: an application before it asks for nothing"),
        pytest.param("AB", "i- a+ a- a+", "13", id="v2.10: two that ask, with others between"),
        pytest.param("AB", "i+ a- a+", "02", id="v2.10: an init container asks too"),
        pytest.param("A", "s- a+ a-", "1", id="v2.10: a sidecar asks for nothing"),
        pytest.param("A-", "i- a+ a-", "1", id="v2.7: an entry per application"),
        pytest.param("A", "i+ a+", "1", id="v2.7: an init container asks, and is not in the record"),
        pytest.param("AB", "i+ i- a+ a+", "23", id="v2.7: two applications"),
        pytest.param("-A", "i- a- a+", "2", id="v2.7: the second application"),
        pytest.param("-A", "i+ a- a+", "2", id="v2.7: the second application, an init container asks"),
        pytest.param("A", "a+ a-", "0", id="a last entry that is left out"),
        pytest.param("A", "a+ a+", "0", id="emptied at the end: nothing fits, so by position"),
    ],
)
def test_a_shortened_record_is_aligned_so_that_those_who_ask_hold_something(entries: str, containers: str, holders: str) -> None:
    text = "".join(";" if entry == "-" else f"{entry},NVIDIA,1,0:;" for entry in entries)
    kinds = {"i": INIT, "s": SIDECAR, "a": APP}
    named = [(f"c{place}", kinds[each[0]]) for place, each in enumerate(containers.split())]
    found = assignment.decode(text, "NVIDIA", named, asking=[each[1] == "+" for each in containers.split()])
    assert "".join(str(place) for place, container in enumerate(found.containers) if container.shares) == holders


@given(st.lists(st.tuples(st.sampled_from([APP, INIT, SIDECAR]), st.booleans()), min_size=1, max_size=6))
def test_what_the_references_newest_release_leaves_out_is_found_again(pod: list[tuple[ContainerKind, bool]]) -> None:
    held = [(share(f"G{place}"),) if asks else () for place, (_, asks) in enumerate(pod)]
    text = assignment.encode_entries(tuple(entry for entry in held if entry))
    named = [(f"c{place}", kind) for place, (kind, _) in enumerate(pod)]
    found = assignment.decode(text, "NVIDIA", named, asking=[asks for _, asks in pod])
    assert [container.shares for container in found.containers] == held
