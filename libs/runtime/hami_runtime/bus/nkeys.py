"""NATS' keys, Ed25519 in an encoding of its own, and the JWTs that they sign. Pure.

A public key says by its first letter whose it is (``A`` an account, ``N`` a server, ``U`` a user). A text that cannot be read, is of another
kind or is not signed by who it names raises ``KeyFault``, and the message never repeats it: it may be a secret.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from enum import IntEnum
from typing import Any

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_SEED = 18 << 3
_KEY_BYTES = 32
_CHECKSUM_BYTES = 2
_MAX_JWT_BYTES = 1 << 20
_HEADER = {"typ": "JWT", "alg": "ed25519-nkey"}


class KeyFault(ValueError):  # noqa: N818 - reads as the condition it names
    """A key or a JWT that cannot be used."""


class Kind(IntEnum):
    """Whose a key is, by the first byte of its encoding."""

    ACCOUNT = 0
    SERVER = 13 << 3
    USER = 20 << 3


class SigningKey:
    """A key pair."""

    def __init__(self, kind: Kind, private: Ed25519PrivateKey) -> None:
        self._kind = kind
        self._private = private

    @classmethod
    def new(cls, kind: Kind) -> SigningKey:
        """A key that nobody else has."""
        return cls(kind, Ed25519PrivateKey.generate())

    @classmethod
    def from_seed(cls, seed: str) -> SigningKey:
        """The key whose ``seed`` this is.

        Raises:
            KeyFault: it is no seed.
        """
        raw = _decoded(seed.strip(), "a key's seed")
        if len(raw) != 2 + _KEY_BYTES or raw[0] & 0xF8 != _SEED:
            raise KeyFault("a key's seed cannot be read; accepted: as `nsc` and `nk` write them, beginning with S")
        kind = (raw[0] & 7) << 5 | raw[1] >> 3
        if kind not in {*Kind}:
            raise KeyFault("a key's seed is of a kind that is not used here; accepted: of an account, a server or a user")
        return cls(Kind(kind), Ed25519PrivateKey.from_private_bytes(raw[2:]))

    @property
    def kind(self) -> Kind:
        """Whose it is."""
        return self._kind

    @property
    def public(self) -> str:
        """The public half, as it is named to others."""
        raw = self._private.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        return _encoded(bytes([self._kind]) + raw)

    @property
    def seed(self) -> str:
        """The secret half."""
        raw = self._private.private_bytes(serialization.Encoding.Raw, serialization.PrivateFormat.Raw, serialization.NoEncryption())
        return _encoded(bytes([_SEED | self._kind >> 5, (self._kind & 31) << 3]) + raw)

    def sign(self, data: bytes) -> bytes:
        """The signature of ``data``."""
        return self._private.sign(data)

    def jwt(self, claims: dict[str, Any]) -> str:
        """``claims`` as a JWT of this key: its issuer and id are added."""
        body = {"iss": self.public, **claims}
        body["jti"] = base64.b32encode(hashlib.sha256(msgspec.json.encode(body)).digest()).rstrip(b"=").decode()
        signed = ".".join(_base64url(msgspec.json.encode(part)) for part in (_HEADER, body))
        return f"{signed}.{_base64url(self.sign(signed.encode()))}"


def is_public(text: str, kind: Kind) -> bool:
    """Whether ``text`` is a public key of that kind."""
    try:
        raw = _decoded(text, "a public key")
    except KeyFault:
        return False
    return len(raw) == 1 + _KEY_BYTES and raw[0] == kind


def read_jwt(text: bytes, issuer: Kind) -> bytes:
    """The claims of a JWT, as JSON, once its signature is found to be that of the ``iss`` that it names.

    Raises:
        KeyFault: it is no JWT, its issuer is of another kind, or the signature is not its issuer's.
    """
    signed, _, signature = text.rpartition(b".")
    parts = signed.split(b".")
    if len(text) > _MAX_JWT_BYTES or len(parts) != 2:
        raise KeyFault("no JWT; accepted: three parts in base64url")
    try:
        head, body = (base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4)) for part in parts)
        algorithm = msgspec.json.decode(head, type=_Head).alg
        named = msgspec.json.decode(body, type=_Issued).iss
        if algorithm != _HEADER["alg"] or not is_public(named, issuer):
            raise KeyFault(f"a JWT of another kind; accepted: {_HEADER['alg']} of {issuer.name.lower()}")
        key = Ed25519PublicKey.from_public_bytes(_decoded(named, "a public key")[1:])
        key.verify(base64.urlsafe_b64decode(signature + b"=" * (-len(signature) % 4)), signed)
    except (binascii.Error, UnicodeError, msgspec.DecodeError) as exc:
        raise KeyFault("a JWT cannot be read") from exc
    except InvalidSignature as exc:
        raise KeyFault("a JWT is not signed by whom it names") from exc
    return body


class _Head(msgspec.Struct):
    alg: str


class _Issued(msgspec.Struct):
    iss: str


def _decoded(text: str, what: str) -> bytes:
    try:
        raw = base64.b32decode(text + "=" * (-len(text) % 8))
    except ValueError as exc:
        raise KeyFault(f"{what} cannot be read") from exc
    if len(raw) <= _CHECKSUM_BYTES or _checksum(raw[:-_CHECKSUM_BYTES]) != raw[-_CHECKSUM_BYTES:]:
        raise KeyFault(f"{what} cannot be read: its checksum is wrong")
    return raw[:-_CHECKSUM_BYTES]


def _encoded(raw: bytes) -> str:
    return base64.b32encode(raw + _checksum(raw)).rstrip(b"=").decode()


def _checksum(raw: bytes) -> bytes:
    """CRC-16 with the polynomial of XMODEM, its low byte first."""
    return binascii.crc_hqx(raw, 0).to_bytes(_CHECKSUM_BYTES, "little")


def _base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
