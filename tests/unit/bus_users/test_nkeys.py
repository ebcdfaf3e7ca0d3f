"""Keys of NATS and what they sign."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_runtime.bus.nkeys import KeyFault, Kind, SigningKey, is_public, read_jwt

SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
PUBLIC = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"
"""The pair that NATS' own documents show."""


def test_a_pair_that_nats_made_is_read() -> None:
    key = SigningKey.from_seed(f"{SEED}\n")
    assert (key.kind, key.public, key.seed) == (Kind.USER, PUBLIC, SEED)
    assert is_public(PUBLIC, Kind.USER)
    assert not is_public(PUBLIC, Kind.ACCOUNT)


@pytest.mark.parametrize(("kind", "letter"), [(Kind.ACCOUNT, "A"), (Kind.SERVER, "N"), (Kind.USER, "U")])
def test_a_new_key_shows_whose_it_is_and_is_found_again_by_its_seed(kind: Kind, letter: str) -> None:
    key = SigningKey.new(kind)
    assert key.public.startswith(letter)
    assert key.seed.startswith(f"S{letter}")
    assert SigningKey.from_seed(key.seed).public == key.public


@given(st.text(max_size=80))
def test_any_text_is_a_seed_or_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(KeyFault) as caught:
        SigningKey.from_seed(text)
    assert len(text.strip()) < 6 or text not in str(caught.value)


@given(st.integers(0, len(PUBLIC) - 1), st.sampled_from("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"))
def test_a_key_with_another_letter_in_it_is_none(place: int, letter: str) -> None:
    changed = PUBLIC[:place] + letter + PUBLIC[place + 1 :]
    assert is_public(changed, Kind.USER) is (changed == PUBLIC)


@given(st.dictionaries(st.text(max_size=8), st.integers() | st.text(max_size=20), max_size=4))
def test_what_is_signed_is_read_again(claims: dict[str, int | str]) -> None:
    key = SigningKey.new(Kind.ACCOUNT)
    found = json.loads(read_jwt(key.jwt({"nats": claims}).encode(), Kind.ACCOUNT))
    assert found["nats"] == claims
    assert found["iss"] == key.public


def test_what_somebody_else_signed_in_ones_name_is_refused() -> None:
    one, other = SigningKey.new(Kind.ACCOUNT), SigningKey.new(Kind.ACCOUNT)
    head, body, _ = one.jwt({"sub": "x"}).split(".")
    forged = other.sign(f"{head}.{body}".encode())
    text = f"{head}.{body}.{base64.urlsafe_b64encode(forged).decode()}"
    with pytest.raises(KeyFault, match="not signed by whom"):
        read_jwt(text.encode(), Kind.ACCOUNT)
