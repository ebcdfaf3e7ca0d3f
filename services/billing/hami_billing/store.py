"""The ledger's database, through SQLAlchemy Core: SQLite by default, PostgreSQL by URL. Calls block; the service makes them in a thread.

Whatever an event changes is written in one transaction with the event's place in its stream, so that a crash loses both or neither.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self

import msgspec
import sqlalchemy as sa

from hami_billing.core import cards as card_rules
from hami_billing.core import holds as hold_rules
from hami_billing.core.bill import Window
from hami_billing.core.values import Card, Hold, PodState
from hami_protocol.events import AllocationEvent, DevicesReported, Event, LivenessChanged

_METADATA = sa.MetaData()
_POSITIONS = sa.Table(
    "positions",
    _METADATA,
    sa.Column("stream", sa.String(64), primary_key=True),
    sa.Column("sequence", sa.BigInteger, nullable=False),
)
_PODS = sa.Table(
    "pods",
    _METADATA,
    sa.Column("uid", sa.String(64), primary_key=True),
    sa.Column("node", sa.String(253), nullable=False),
    sa.Column("generation", sa.BigInteger, nullable=False),
    sa.Column("ended", sa.Boolean, nullable=False),
    sa.Column("changed", sa.BigInteger, nullable=False, index=True),
)
_HOLDS = sa.Table(
    "holds",
    _METADATA,
    sa.Column("uid", sa.String(64), primary_key=True),
    sa.Column("vendor", sa.String(64), primary_key=True),
    sa.Column("card", sa.String(253), primary_key=True),
    sa.Column("began", sa.BigInteger, primary_key=True),
    sa.Column("ended", sa.BigInteger, index=True),
    sa.Column("namespace", sa.String(63), nullable=False),
    sa.Column("pod", sa.String(253), nullable=False),
    sa.Column("node", sa.String(253), nullable=False),
    sa.Column("slots", sa.BigInteger, nullable=False),
    sa.Column("memory_mib", sa.BigInteger, nullable=False),
    sa.Column("cores", sa.BigInteger, nullable=False),
)
_CARDS = sa.Table(
    "cards",
    _METADATA,
    sa.Column("card", sa.String(253), primary_key=True),
    sa.Column("node", sa.String(253), primary_key=True),
    sa.Column("device_type", sa.String(64), primary_key=True),
    sa.Column("began", sa.BigInteger, primary_key=True),
    sa.Column("ended", sa.BigInteger, index=True),
    sa.Column("model", sa.String(253), nullable=False),
    sa.Column("memory_mib", sa.BigInteger, nullable=False),
    sa.Column("cores", sa.BigInteger, nullable=False),
    sa.Column("slots", sa.BigInteger, nullable=False),
    sa.Column("healthy", sa.Boolean, nullable=False),
    sa.Column("registers", sa.Boolean, nullable=False),
)


DatabaseUnavailable = (sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.TimeoutError)
"""The database cannot be reached, or not written to, now: whoever writes tries again."""


class Store:
    """The tables, made where they are missing."""

    def __init__(self, url: str) -> None:
        """Open the database at ``url``, as ``sqlite:////data/ledger.db`` or ``postgresql+psycopg://user@host/hami``."""
        self._engine = sa.create_engine(url)
        if self._engine.dialect.name == "sqlite":
            sa.event.listen(self._engine, "connect", _prepare_sqlite)
        _METADATA.create_all(self._engine)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        self._engine.dispose()

    def position(self, stream: str) -> int:
        """The sequence up to which a stream is in the ledger; 0 for nothing."""
        with self._engine.connect() as connection:
            found = connection.execute(sa.select(_POSITIONS.c.sequence).where(_POSITIONS.c.stream == stream)).scalar()
        return int(found or 0)

    def take(self, stream: str, events: Iterable[tuple[int, Event | None, int]]) -> None:
        """Write what a batch of events changes, and that the stream is in the ledger up to the last of them, or nothing of it.

        Args:
            stream: whose they are.
            events: sequence, event, and when it happened; None for a message that cannot be read.
        """
        with self._engine.begin() as connection:
            last = 0
            for sequence, event, when in events:
                last = sequence
                if isinstance(event, DevicesReported | LivenessChanged):
                    _take_devices(connection, event, when)
                elif isinstance(event, AllocationEvent):
                    _take_allocation(connection, event, when)
            connection.execute(sa.delete(_POSITIONS).where(_POSITIONS.c.stream == stream))
            connection.execute(sa.insert(_POSITIONS).values(stream=stream, sequence=last))

    def begin_anew(self, stream: str) -> None:
        """Forget how far a stream was read: it has come back shorter. What is taken again changes nothing."""
        with self._engine.begin() as connection:
            connection.execute(sa.delete(_POSITIONS).where(_POSITIONS.c.stream == stream))

    def read(self, window: Window) -> tuple[list[Card], list[Hold]]:
        """The cards and holds that a bill of ``window`` needs: every row of the cards that existed, and the holds in the window."""
        overlaps = (_HOLDS.c.began < window.end) & (_HOLDS.c.ended.is_(None) | (_HOLDS.c.ended > window.begin))
        with self._engine.connect() as connection:
            registered = connection.execute(sa.select(_CARDS).where(_CARDS.c.began < window.end).order_by(_CARDS.c.began))
            cards = [Card(**row) for row in registered.mappings()]
            held = connection.execute(sa.select(_HOLDS).where(overlaps).order_by(_HOLDS.c.began, _HOLDS.c.uid))
            return cards, [Hold(**row) for row in held.mappings()]

    def forget(self, before: int) -> int:
        """Remove what had ended before a time; how many rows that were."""
        with self._engine.begin() as connection:
            return sum(
                connection.execute(statement).rowcount
                for statement in (
                    sa.delete(_HOLDS).where(_HOLDS.c.ended < before),
                    sa.delete(_CARDS).where(_CARDS.c.ended < before),
                    sa.delete(_PODS).where(_PODS.c.ended & (_PODS.c.changed < before)),
                )
            )


def _take_allocation(connection: sa.Connection, event: AllocationEvent, when: int) -> None:
    pod = event.pod
    row = connection.execute(sa.select(_PODS).where(_PODS.c.uid == pod.uid)).mappings().first()
    state = PodState(node=row["node"], generation=row["generation"], ended=row["ended"]) if row else None
    changes = hold_rules.apply(state, event, when)
    if changes is None:
        return
    if changes.ends:
        is_open = (_HOLDS.c.uid == pod.uid) & _HOLDS.c.ended.is_(None)
        connection.execute(sa.delete(_HOLDS).where(is_open & (_HOLDS.c.began >= when)))
        connection.execute(sa.update(_HOLDS).where(is_open).values(ended=when))
    values = {**msgspec.structs.asdict(changes.state), "changed": when}
    if row:
        connection.execute(sa.update(_PODS).where(_PODS.c.uid == pod.uid).values(**values))
    else:
        connection.execute(sa.insert(_PODS).values(uid=pod.uid, **values))
    for hold in changes.opens:
        connection.execute(sa.insert(_HOLDS).values(**msgspec.structs.asdict(hold)))


def _take_devices(connection: sa.Connection, event: DevicesReported | LivenessChanged, when: int) -> None:
    of_node = (_CARDS.c.node == event.node) & (_CARDS.c.device_type == event.device_type) & _CARDS.c.ended.is_(None)
    open_cards = [Card(**row) for row in connection.execute(sa.select(_CARDS).where(of_node)).mappings()]
    latest = max((card.began for card in open_cards), default=0)
    when = max(when, latest)  # clocks of two publishers differ
    changes = card_rules.apply(open_cards, event, when)
    if changes.ends:
        ended = of_node & _CARDS.c.card.in_(changes.ends)
        connection.execute(sa.delete(_CARDS).where(ended & (_CARDS.c.began >= when)))
        connection.execute(sa.update(_CARDS).where(ended).values(ended=when))
    for card in changes.begins:
        connection.execute(sa.insert(_CARDS).values(**msgspec.structs.asdict(card)))


def _prepare_sqlite(connection: object, _record: object) -> None:
    """Readers do not wait for the writer, and what is committed survives a crash of the machine."""
    cursor = connection.cursor()  # type: ignore[attr-defined]
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()
