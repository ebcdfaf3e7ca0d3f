"""Who gets a user of the bus, and what that user may do."""

import json
import re
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hami_protocol import subjects
from hami_registry.callout import claims, main
from hami_registry.callout.claims import Issued, Refused
from hami_runtime.bus.filters import matches
from hami_runtime.bus.nkeys import KeyFault, Kind, SigningKey, read_jwt
from hami_runtime.bus.signing_secret import new_secret
from hami_runtime.kube.access import User

AGENT = "system:serviceaccount:hami-node-agent:hami-node-agent"
SERVER = SigningKey.new(Kind.SERVER)
ACCOUNT = SigningKey.new(Kind.ACCOUNT)
CLIENT = SigningKey.new(Kind.USER).public
TOKEN = "a.secret.token"
TYPES = ("nvidia", "mlu")
NODES = st.from_regex(re.compile(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?(\.[a-z0-9]{1,8})?", re.ASCII), fullmatch=True)


def asked(key: SigningKey = SERVER, **changes: Any) -> bytes:
    nats = {
        "server_id": {"id": "NSERVER", "name": "hami-nats-0"},
        "user_nkey": CLIENT,
        "client_info": {"host": "10.0.0.1", "name": "hami-node-agent-node-1"},
        "connect_opts": {"auth_token": TOKEN, "protocol": 1},
        **changes,
    }
    return key.jwt({"aud": claims.AUDIENCE, "sub": "A", "nats": nats}).encode()


def said(judgement: Issued | Refused, **changes: Any) -> dict[str, Any]:
    options: dict[str, Any] = {"account": "HAMI", "now": 1000.5, "user_seconds": 60.0, **changes}
    answer = claims.answer(claims.read(asked()), judgement, ACCOUNT, **options)
    found: dict[str, Any] = json.loads(read_jwt(answer, Kind.ACCOUNT))
    return found


def user(node: str) -> dict[str, Any]:
    judged = claims.judge(User(name=AGENT), node, agent=AGENT, device_types=TYPES)
    assert isinstance(judged, Issued)
    found: dict[str, Any] = json.loads(read_jwt(said(judged)["nats"]["jwt"].encode(), Kind.ACCOUNT))
    return found


def test_a_question_is_read_and_never_shows_its_token() -> None:
    question = claims.read(asked())
    assert (question.server, question.user, question.token) == ("NSERVER", CLIENT, TOKEN)
    assert (question.client, question.host) == ("hami-node-agent-node-1", "10.0.0.1")
    assert TOKEN not in repr(question)


@pytest.mark.parametrize(
    "data",
    [
        asked(ACCOUNT),
        asked(user_nkey="UNONE"),
        asked(user_nkey=ACCOUNT.public),
        asked(server_id={}),
        asked()[:-4] + b"AAAA",
        SERVER.jwt({"aud": "somebody", "nats": {"server_id": {"id": "N"}, "user_nkey": CLIENT}}).encode(),
    ],
    ids=["not a server's", "no key", "no user's key", "no server", "another signature", "another audience"],
)
def test_a_question_that_no_server_asks_is_none(data: bytes) -> None:
    with pytest.raises(KeyFault):
        claims.read(data)


@given(st.one_of(st.binary(max_size=200), st.lists(st.binary(max_size=40), min_size=3, max_size=3).map(b".".join)))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with pytest.raises(KeyFault):
        claims.read(data)


@pytest.mark.parametrize("token", ["", "x" * 20_000])
def test_the_api_server_is_not_asked_about_what_can_be_no_token(token: str) -> None:
    refused = claims.worth_asking(claims.read(asked(connect_opts={"auth_token": token})))
    assert isinstance(refused, Refused)
    assert "x" * 100 not in refused.reason


def test_what_may_be_a_token_is_asked_about() -> None:
    assert claims.worth_asking(claims.read(asked())) is None


@pytest.mark.parametrize(
    ("shown", "node", "reason"),
    [
        (None, "", "does not know the token"),
        (User(name="system:serviceaccount:hami-system:hami-registry"), "node-1", "hami-registry's; accepted"),
        (User(name="system:serviceaccount:default:hami-node-agent"), "node-1", "default:hami-node-agent's; accepted"),
        (User(name=AGENT), "", "names no pod on a node"),
        (User(name=AGENT), "node_1", "cannot be part of a subject"),
        (User(name=AGENT), "*", "cannot be part of a subject"),
    ],
)
def test_nobody_but_an_agent_gets_a_user(shown: User | None, node: str, reason: str) -> None:
    refused = claims.judge(shown, node, agent=AGENT, device_types=TYPES)
    assert isinstance(refused, Refused)
    assert reason in refused.reason
    answer = said(refused)["nats"]
    assert answer["error"] == refused.reason
    assert "jwt" not in answer


def test_an_answer_is_for_the_server_and_the_user_that_were_asked_about() -> None:
    answer = said(Refused(reason="no"))
    assert (answer["sub"], answer["aud"], answer["iss"]) == (CLIENT, "NSERVER", ACCOUNT.public)


def test_a_user_belongs_to_its_account_and_ends() -> None:
    found = user("node-1")
    assert (found["sub"], found["aud"], found["iss"]) == (CLIENT, "HAMI", ACCOUNT.public)
    assert (found["iat"], found["exp"]) == (1000, 1060)


@given(NODES, NODES)
def test_a_user_speaks_and_hears_for_its_own_node_alone(node: str, other: str) -> None:
    rights = user(node)["nats"]

    def may(what: str, subject: str) -> bool:
        return any(matches(pattern, subject) for pattern in rights[what]["allow"])

    for name in {node, other}:
        own = name == node
        assert may("pub", subjects.devices(name, "nvidia")) is own
        assert not may("pub", subjects.devices(name, "invented"))
        assert may("pub", subjects.outcome(name, "default", "p")) is own
        assert may("sub", f"hami.v1.granted.{subjects.token(name)}.default.p") is own
        assert may("pub", subjects.usage(name)) is own
        assert may("sub", f"{subjects.inbox(name)}.answer.1") is own
        assert not may("pub", subjects.grant(name, "default", "p"))
        assert not may("pub", subjects.liveness(name, "nvidia"))
    assert not may("sub", "_INBOX.answer.1")
    assert not any("CONSUMER" in each or "STREAM" in each for each in rights["pub"]["allow"])
    assert 0 < rights["payload"] <= subjects.MAX_MESSAGE_BYTES
    assert 0 < rights["subs"] < 100


def test_a_new_secret_has_the_two_halves_of_one_account_key() -> None:
    halves = yaml.safe_load(new_secret())["stringData"]
    assert main.signing_key(halves["seed"]).public == halves["issuer"]
    assert halves["issuer"].startswith("A")
