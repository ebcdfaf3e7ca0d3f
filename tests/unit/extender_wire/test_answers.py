"""What kube-scheduler is answered: Go's names, every key always there."""

import msgspec

from hami_scheduler import wire

POD = {"metadata": {"name": "v0", "namespace": "default", "uid": "6994728a"}, "spec": {"containers": []}, "status": {}}


def test_a_filter_answer_has_every_key() -> None:
    answer = wire.FilterAnswer(node_names=["m1"], failed={"m3": "no GPU"}, unresolvable={"m2": "never"})
    assert msgspec.json.decode(wire.encode_filter(answer)) == {
        "Nodes": None,
        "NodeNames": ["m1"],
        "FailedNodes": {"m3": "no GPU"},
        "FailedAndUnresolvableNodes": {"m2": "never"},
        "Error": "",
    }


def test_an_error_comes_with_null_candidates() -> None:
    assert msgspec.json.decode(wire.encode_filter(wire.FilterAnswer(error="no"))) == {
        "Nodes": None,
        "NodeNames": None,
        "FailedNodes": None,
        "FailedAndUnresolvableNodes": None,
        "Error": "no",
    }


def test_binding_and_priorities_have_gos_names() -> None:
    assert wire.encode_binding("") == b'{"Error":""}'
    assert wire.encode_priorities([wire.HostPriority(host="m1", score=3)]) == b'[{"Host":"m1","Score":3}]'


def test_preempt_leaves_the_candidates_as_they_are() -> None:
    meta = {"m1": {"Pods": [{"UID": "6994728a"}], "NumPDBViolations": 1}}
    args = wire.decode_preemption(msgspec.json.encode({"Pod": POD, "NodeNameToVictims": None, "NodeNameToMetaVictims": meta}))
    assert msgspec.json.decode(wire.encode_preemption(wire.unchanged(args))) == {"NodeNameToMetaVictims": meta}


def test_preempt_answers_whole_victims_by_their_uids() -> None:
    victims = {"m1": {"Pods": [POD], "NumPDBViolations": 0}}
    args = wire.decode_preemption(msgspec.json.encode({"Pod": POD, "NodeNameToVictims": victims, "NodeNameToMetaVictims": None}))
    assert msgspec.json.decode(wire.encode_preemption(wire.unchanged(args))) == {
        "NodeNameToMetaVictims": {"m1": {"Pods": [{"UID": "6994728a"}], "NumPDBViolations": 0}}
    }
