"""What a node's agent answers on ``subjects.ask_agent``: whether it serves pods. The question has no body."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from hami_protocol.errors import ProtocolError


class AgentAnswer(Struct, frozen=True, kw_only=True, rename="camel"):
    """The agent is there."""

    not_serving: Annotated[str, Meta(max_length=256)] = ""
    """Why it serves no new pods now; empty where it serves them."""


_DECODER = msgspec.json.Decoder(AgentAnswer)


def decode(data: bytes) -> AgentAnswer:
    """The answer in ``data``.

    Raises:
        ProtocolError: it is none.
    """
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ProtocolError(f"agent's answer: {exc}") from exc
