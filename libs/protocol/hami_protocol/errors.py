"""What goes wrong when a record, a quantity or an event cannot be read. One base, so that a caller can fence what it cannot read."""

from __future__ import annotations

from hami_protocol.plain_text import plain


class ProtocolError(ValueError):
    """A record of the protocol that nobody can read. It never counts as zero: whoever meets it fences or refuses.

    Its text is plain: it quotes what tenants have written, and goes into Events, logs and messages.
    """

    def __init__(self, text: str = "") -> None:
        super().__init__(plain(text))


class RecordError(ProtocolError):
    """Text that is not the record it should be.

    Attributes:
        record: which record, as ``device registration`` or ``pod assignment``.
        position: offset in characters of the part that cannot be read.
        reason: what is wrong there, with the value found and the form accepted.
    """

    def __init__(self, record: str, position: int, reason: str) -> None:
        super().__init__(f"{record}, at character {position}: {reason}")
        self.record = record
        self.position = position
        self.reason = reason


class QuantityError(ProtocolError):
    """A quantity that is refused.

    Attributes:
        field: path of the field, as ``spec.containers[0].resources.limits[nvidia.com/gpumem]``; empty where the caller adds it.
        given: the value as it was found.
        accepted: the forms that are accepted, for a person.
    """

    def __init__(self, field: str, given: object, accepted: str) -> None:
        super().__init__(f"{field or 'quantity'}: {given!r} is not accepted; accepted: {accepted}")
        self.field = field
        self.given = given
        self.accepted = accepted


class EventError(ProtocolError):
    """A message from the bus that is no event of ours. The consumer terminates it, logs its subject and counts it."""
