"""Who we are for NATS: user and password, a token, or a ``.creds`` file. Files are read at every connection, so they may be rotated."""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from hami_runtime.settings import ProcessSettings

_BLOCK = re.compile(r"-+BEGIN (?P<what>[A-Z ]+)-+\s+(?P<text>\S+)\s+-+END ")
_SEED_PREFIX_BYTES = 2
_SEED_BYTES = 32


class CredentialsError(ValueError):
    """A credentials file that cannot be used; the message names it."""


class Credentials(Struct, frozen=True, kw_only=True):
    """What to present; the first that is set, in this order: ``creds_file``, user and password, ``token_file``, ``token``."""

    user: str = ""
    password: str = ""
    token: str = ""
    token_file: str = ""
    """As a projected service-account token, for the auth callout."""
    creds_file: str = ""
    """A user's JWT and the seed of its key, as ``nsc`` writes them."""

    @classmethod
    def of(cls, settings: ProcessSettings) -> Credentials:
        """What a process's settings say."""
        return cls(
            user=settings.nats_user,
            password=settings.nats_password,
            token=settings.nats_token,
            token_file=settings.nats_token_file,
            creds_file=settings.nats_credentials,
        )

    def connect_options(self) -> dict[str, Any]:
        """What nats-py's ``connect`` wants.

        Raises:
            CredentialsError: a file cannot be read, or is none.
        """
        try:
            if self.creds_file:
                return _from_creds(self.creds_file, Path(self.creds_file).read_text())
            if self.user:
                return {"user": self.user, "password": self.password}
            if self.token_file:
                return {"token": Path(self.token_file).read_text().strip()}
        except (OSError, UnicodeDecodeError) as exc:
            raise CredentialsError(f"NATS credentials cannot be read: {exc}") from exc
        return {"token": self.token} if self.token else {}


def tls_context(settings: ProcessSettings) -> Callable[[], ssl.SSLContext] | None:
    """What makes the TLS context that a process's settings ask for, None where they ask for none. It reads the files anew each time.

    Raises:
        OSError: a file cannot be read now, or is no certificate or key.
    """
    if not settings.nats_ca:
        return None

    def make() -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=settings.nats_ca)
        if settings.nats_certificate:
            context.load_cert_chain(settings.nats_certificate, settings.nats_key or None)
        return context

    make()  # who is told of a wrong path at the start need not look for it in the log
    return make


def _from_creds(name: str, text: str) -> dict[str, Any]:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # only whoever has such a file needs it

    blocks = {found["what"]: found["text"] for found in _BLOCK.finditer(text)}
    jwt, seed = blocks.get("NATS USER JWT"), blocks.get("USER NKEY SEED")
    if not jwt or not seed:
        raise CredentialsError(f"{name}: no user JWT with a key's seed in it; accepted: a .creds file")
    try:
        raw = base64.b32decode(seed + "=" * (-len(seed) % 8))
        key = Ed25519PrivateKey.from_private_bytes(raw[_SEED_PREFIX_BYTES : _SEED_PREFIX_BYTES + _SEED_BYTES])
    except ValueError as exc:
        raise CredentialsError(f"{name}: the key's seed cannot be read") from exc
    return {
        "user_jwt_cb": lambda: bytearray(jwt.encode()),
        "signature_cb": lambda nonce: base64.b64encode(key.sign(nonce.encode())),
    }
