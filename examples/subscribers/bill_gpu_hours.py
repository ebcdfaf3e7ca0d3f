"""Bills GPU hours per namespace from the log of allocations, and survives restarts without counting anything twice.

What a pod holds begins with its grant (``pod_allocating``) and ends when it is released, or when what was granted has failed; a resize closes one
span and opens another. Hours are of cards: a share of 25 % of a card's cores for an hour is 0.25; a share that names no cores counts by its
memory, as a part of the card's, where ``--card-mib`` says how large a card is, and as a whole card otherwise. An outcome counts only if it comes
from the node on which the pod was granted.

Two things make it exact. The position in the stream is kept in the same SQLite transaction as what was counted, so that a crash loses both or
neither; and an event's id is counted once, however often it comes. The bus keeps seven days: run it at least that often.

    python bill_gpu_hours.py --database bill.db             # follow, until Ctrl-C
    python bill_gpu_hours.py --database bill.db --once      # catch up, print the bill, and end
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sqlite3
import sys
import time
from collections.abc import Iterable
from datetime import datetime

from hami_protocol import events, subjects
from hami_protocol.devices import VendorAssignment
from hami_protocol.envelope import EVENT_ID, Message, open_message
from hami_protocol.errors import EventError
from hami_runtime import logs
from hami_runtime.bus import jetstream
from hami_runtime.bus.port import StartAt

QUIET_SECONDS = 2.0
SCHEMA = """
CREATE TABLE IF NOT EXISTS position (one INTEGER PRIMARY KEY CHECK (one = 1), sequence INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS counted (id TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS spans (uid TEXT, namespace TEXT, pod TEXT, cards REAL, began REAL, ended REAL, PRIMARY KEY (uid, began));
CREATE TABLE IF NOT EXISTS granted (uid TEXT PRIMARY KEY, node TEXT);
CREATE INDEX IF NOT EXISTS open_spans ON spans (uid) WHERE ended IS NULL;
"""


class Ledger:
    """What was counted, in one file."""

    def __init__(self, path: str, *, card_mib: int = 0) -> None:
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.executescript(SCHEMA)
        self._card_mib = card_mib

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    @property
    def sequence(self) -> int:
        """The place in the stream up to which everything is counted; 0 for nothing."""
        found = self._database.execute("SELECT sequence FROM position").fetchone()
        return int(found[0]) if found else 0

    def count(self, message: Message, sequence: int) -> None:
        """Count one message: its event if it is new, and its place, in one transaction."""
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            event_id = f"{message.subject} {message.headers.get(EVENT_ID) or sequence}"
            if self._database.execute("INSERT OR IGNORE INTO counted VALUES (?)", (event_id,)).rowcount:
                self._apply(message)
            self._database.execute("INSERT OR REPLACE INTO position VALUES (1, MAX(?, ?))", (sequence, self.sequence))

    def _apply(self, message: Message) -> None:
        try:
            event, when = open_message(message), moment(message.headers.get("ce-time", ""))
        except (EventError, ValueError):
            return  # a message that nobody can read is nobody's bill; it is passed once and for all
        match event:
            case events.PodAllocating():
                self._database.execute("INSERT OR IGNORE INTO granted VALUES (?, ?)", (event.pod.uid, event.node))
                self._open(event, when)
            case events.ShareResizeApplied() if self._is_on(event):
                self._end(event.pod.uid, when)
                self._open(event, when)
            case events.PodReleased() | events.AllocationFailed() if self._is_on(event):
                self._end(event.pod.uid, when)

    def _is_on(self, event: events.ShareResizeApplied | events.PodReleased | events.AllocationFailed) -> bool:
        """Whether the pod was granted on the event's node: what one node's agent says of another node's pod is nobody's bill."""
        found = self._database.execute("SELECT node FROM granted WHERE uid = ?", (event.pod.uid,)).fetchone()
        return found is not None and found[0] == event.node

    def _open(self, event: events.PodAllocating | events.ShareResizeApplied, when: float) -> None:
        span = (event.pod.uid, event.pod.namespace, event.pod.name, cards(event.assignments, self._card_mib), when)
        self._database.execute("INSERT OR IGNORE INTO spans VALUES (?, ?, ?, ?, ?, NULL)", span)

    def _end(self, uid: str, when: float) -> None:
        self._database.execute("UPDATE spans SET ended = MAX(began, ?) WHERE uid = ? AND ended IS NULL", (when, uid))

    def bill(self, now: float) -> dict[str, float]:
        """GPU hours by namespace; what is still held counts until ``now``."""
        query = "SELECT namespace, SUM(cards * (COALESCE(ended, MAX(began, ?)) - began)) / 3600 FROM spans GROUP BY namespace ORDER BY namespace"
        return dict(self._database.execute(query, (now,)).fetchall())


def cards(assignments: Iterable[VendorAssignment], card_mib: int) -> float:
    """How many cards' worth the containers hold, each share as the part of its card that it takes; init containers beside the others."""
    shares = [share for given in assignments for container in given.containers if container.kind != "init" for share in container.shares]
    return sum(share.cores / 100 if share.cores else min(share.memory_mib / card_mib, 1.0) if card_mib else 1.0 for share in shares)


def moment(text: str) -> float:
    """An event's time, in Unix seconds."""
    return datetime.fromisoformat(text).timestamp()


async def follow(url: str, ledger: Ledger, *, once: bool) -> None:
    """Count from where the last run ended; with ``once``, end when all that is there is counted."""
    start = ledger.sequence + 1 if ledger.sequence else StartAt.ALL
    print(f"following {url} from message {ledger.sequence + 1}", file=sys.stderr, flush=True)
    async with (
        jetstream.connect(url, name="billing") as bus,
        bus.consume(subjects.ALLOCATIONS, subjects=[subjects.ALL_ALLOCATIONS], start=start) as deliveries,
    ):
        while True:
            try:
                async with asyncio.timeout(QUIET_SECONDS if once else None):
                    delivery = await anext(deliveries)
            except TimeoutError:
                return
            ledger.count(delivery.message, delivery.sequence)
            if once and delivery.pending == 0:
                return


def main() -> None:
    """Follow, or catch up, then print the bill."""
    parser = argparse.ArgumentParser(description="Bill GPU hours per namespace.")
    parser.add_argument("--nats", default=os.environ.get("NATS_URL", "nats://127.0.0.1:4222"))
    parser.add_argument("--database", default="bill.db")
    parser.add_argument("--card-mib", type=int, default=0, help="memory of a whole card; 0: a share without cores counts as a whole card")
    parser.add_argument("--once", action="store_true", help="catch up, print the bill, and end")
    arguments = parser.parse_args()
    logs.configure("warning", "billing")
    ledger = Ledger(arguments.database, card_mib=arguments.card_mib)
    try:
        asyncio.run(follow(arguments.nats, ledger, once=arguments.once))
    except KeyboardInterrupt:
        pass
    finally:
        for namespace, hours in ledger.bill(time.time()).items():
            print(f"{namespace:<40} {hours:12.4f} GPU hours")
        ledger.close()


if __name__ == "__main__":
    main()
