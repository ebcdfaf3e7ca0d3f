"""What NATS asks when somebody connects, whether he is a node's agent, and what is answered. Pure.

Invariants: a user is issued for a node's agent and for nobody else, with the rights of the node that the API server names, never of one that the
client names; it ends after ``user_seconds``. A refusal says why, and never repeats what was shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from hami_protocol import subjects
from hami_protocol.errors import ProtocolError
from hami_runtime.bus import nkeys, permissions
from hami_runtime.bus.nkeys import KeyFault, Kind, SigningKey
from hami_runtime.bus.permissions import Permissions
from hami_runtime.kube.access import User

AUDIENCE: Final = "nats-authorization-request"
_VERSION: Final = 2
_MAX_TOKEN_CHARACTERS: Final = 16 * 1024


class _Server(Struct, frozen=True):
    id: str


class _Client(Struct, frozen=True):
    host: str = ""
    name: str = ""


class _Shown(Struct, frozen=True):
    auth_token: str = ""


class _Asked(Struct, frozen=True):
    server_id: _Server
    user_nkey: str
    client_info: _Client = _Client()
    connect_opts: _Shown = _Shown()


class _Claims(Struct, frozen=True):
    aud: str
    nats: _Asked


_CLAIMS = msgspec.json.Decoder(_Claims)


class Question(Struct, frozen=True, kw_only=True):
    """Somebody connects to a server of the bus."""

    server: str
    """The server's id, to which the answer is addressed."""
    user: str
    """The public key of the user that the answer is about."""
    token: str
    """What the client showed, empty where nothing."""
    client: str
    """How the client calls itself; for logs alone."""
    host: str
    """Where it connects from; for logs alone."""

    def __repr__(self) -> str:
        """Without the token."""
        return f"Question(server={self.server!r}, user={self.user!r}, client={self.client!r}, host={self.host!r})"


class Issued(Struct, frozen=True, kw_only=True):
    """A user of the bus."""

    node: str
    may: Permissions


class Refused(Struct, frozen=True, kw_only=True):
    """Why there is none."""

    reason: str


def read(data: bytes) -> Question:
    """The question that a server sent.

    Raises:
        KeyFault: it is none, or is not signed by a server.
    """
    try:
        claims = _CLAIMS.decode(nkeys.read_jwt(data, Kind.SERVER))
    except msgspec.DecodeError as exc:
        raise KeyFault("an authorization request cannot be read") from exc
    asked = claims.nats
    if claims.aud != AUDIENCE or not nkeys.is_public(asked.user_nkey, Kind.USER):
        raise KeyFault(f"no authorization request; accepted: one for {AUDIENCE} that names a user's key")
    return Question(
        server=asked.server_id.id,
        user=asked.user_nkey,
        token=asked.connect_opts.auth_token,
        client=asked.client_info.name,
        host=asked.client_info.host,
    )


def worth_asking(question: Question) -> Refused | None:
    """Why the API server need not be asked about what was shown, None where it must be."""
    if not question.token:
        return Refused(reason="no token was shown; accepted: a service account's token (HAMI_NATS_TOKEN_FILE)")
    if len(question.token) > _MAX_TOKEN_CHARACTERS:
        return Refused(reason=f"a token of {len(question.token)} characters was shown; accepted: up to {_MAX_TOKEN_CHARACTERS}")
    return None


def judge(user: User | None, node: str, *, agent: str, device_types: Sequence[str]) -> Issued | Refused:
    """Whether the client gets a user, and with which rights.

    Args:
        user: whose token was shown, as the API server says; None where it says nobody's.
        node: the node that the token's pod is on, empty where it is on none.
        agent: the user's name that agents have.
        device_types: of which agents may report devices.
    """
    if user is None:
        return Refused(reason="the API server does not know the token: it is expired, for somebody else, or none")
    if user.name != agent:
        return Refused(reason=f"the token is {user.name}'s; accepted: {agent}'s")
    if not node:
        return Refused(reason="the token names no pod on a node; accepted: one that is bound to a pod, as kubelet projects them")
    try:
        return Issued(node=node, may=permissions.node_agent(node, device_types=device_types))
    except ProtocolError as exc:
        return Refused(reason=str(exc))


def answer(question: Question, judgement: Issued | Refused, key: SigningKey, *, account: str, now: float, user_seconds: float) -> bytes:
    """What the server is told.

    Args:
        question: what it asked.
        judgement: what was decided.
        key: the account's key, whose public half the server's configuration names as issuer.
        account: of NATS, that the user belongs to.
        now: seconds since 1970, as servers' clocks have them.
        user_seconds: how long the user lives; the server then ends the connection.
    """
    said: dict[str, Any] = {"type": "authorization_response", "version": _VERSION}
    if isinstance(judgement, Refused):
        said["error"] = judgement.reason
    else:
        said["jwt"] = _user(question.user, judgement, key, account, int(now), int(now + user_seconds))
    return key.jwt({"sub": question.user, "aud": question.server, "iat": int(now), "nats": said}).encode()


def _user(public: str, issued: Issued, key: SigningKey, account: str, now: int, until: int) -> str:
    may = issued.may
    rights = {
        "pub": {"allow": list(may.publish), "deny": list(may.deny_publish)},
        "sub": {"allow": list(may.subscribe)},
        **({"resp": {"max": 1, "ttl": permissions.ANSWER_SECONDS * 10**9}} if may.answers else {}),
        "subs": may.max_subscriptions,
        "payload": may.max_payload_bytes,
        "data": -1,
        "type": "user",
        "version": _VERSION,
    }
    name = f"hami-node-agent/{subjects.token(issued.node)}"
    return key.jwt({"sub": public, "aud": account, "name": name, "iat": now, "exp": until, "nats": rights})
