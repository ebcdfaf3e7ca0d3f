"""Which XID takes a card out, and when it may come back. Pure: no clock, no driver.

::

    healthy --fatal XID--> out --N good probes in a row, over the probation--> healthy
                            ^-------------- fatal XID, failed probe ----------'  (counting starts again)

An application's own fault never takes a card out. Which XID is which is a table (``xid_catalog``), not code. A card that the scan itself
reports as faulty is out as long as the scan says so; that is not kept here. Kept: why each card was out, also over a restart of the agent.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from msgspec import Struct

from hami_node_agent.xid_catalog import APPLICATION_XIDS, FATAL_XIDS

_HISTORY: Final = 256


class XidClass(StrEnum):
    """What an XID says about its card."""

    APPLICATION = "application"
    FATAL = "fatal"


@dataclass(frozen=True, kw_only=True, slots=True)
class HealthRules:
    """The table, and what a card must show before it is trusted again."""

    application: frozenset[int] = APPLICATION_XIDS
    fatal: frozenset[int] = FATAL_XIDS
    unknown: XidClass = XidClass.FATAL
    """For an XID in neither list: out it goes, since a good card comes back by itself."""
    watch: bool = True
    good_probes: int = field(default=3)
    probation_seconds: float = 30.0

    def classify(self, xid: int) -> XidClass:
        """What ``xid`` says about its card."""
        if xid in self.application:
            return XidClass.APPLICATION
        return XidClass.FATAL if xid in self.fatal else self.unknown


def rules(*, disabled: str = "", enabled: str = "", base: HealthRules | None = None) -> HealthRules:
    """The rules after ``DP_DISABLE_HEALTHCHECKS`` and ``DP_ENABLE_HEALTHCHECKS``: comma lists of XIDs, ``all`` or ``xids``.

    What is enabled wins over what is disabled and over the table; what is no number is ignored.
    """
    base = base or HealthRules()
    off, all_off = _xids(disabled)
    on, all_on = _xids(enabled)
    if all_on:
        return replace(base, application=frozenset(), unknown=XidClass.FATAL)
    if all_off:
        return replace(base, application=base.application - on, fatal=on, unknown=XidClass.APPLICATION, watch=bool(on))
    return replace(base, application=(base.application | off) - on, fatal=base.fatal | on)


def _xids(text: str) -> tuple[frozenset[int], bool]:
    words = [word.strip() for word in text.lower().split(",")]
    return frozenset(int(word) for word in words if word.isascii() and word.isdigit() and len(word) < 10), bool({"all", "xids"} & {*words})


class Incident(Struct, frozen=True, kw_only=True):
    """One thing that happened to one card."""

    uuid: str
    time: str
    """RFC 3339, UTC: for people, never compared."""
    what: str


class _Out(Struct, kw_only=True):
    reason: str
    good_probes: int = 0
    since: float = 0.0


class HealthRecord(Struct, frozen=True, kw_only=True):
    """What is kept on disk."""

    out: dict[str, str] = {}
    history: tuple[Incident, ...] = ()


class HealthBook:
    """Which cards are out and why. One writer; ``now`` is monotonic seconds, ``time`` is written down only."""

    def __init__(self, rules: HealthRules, record: HealthRecord | None = None) -> None:
        self._rules = rules
        self._out: dict[str, _Out] = {}
        self._history: deque[Incident] = deque(maxlen=_HISTORY)
        if record is not None:
            self._out = {uuid: _Out(reason=reason) for uuid, reason in record.out.items()}
            self._history.extend(record.history)

    def fault(self, uuid: str, xid: int, *, now: float, time: str, failure: str = "") -> bool:
        """Note an XID, and what the driver says of the card itself where that is known; True where it takes a card out that was in."""
        kind = XidClass.FATAL if failure else self._rules.classify(xid)
        self._history.append(Incident(uuid=uuid, time=time, what=f"XID {xid} ({kind})"))
        if kind is XidClass.APPLICATION or not self._rules.watch:
            return False
        was_in = uuid not in self._out
        self._out[uuid] = _Out(reason=f"XID {xid}: {failure}" if failure else f"XID {xid}", since=now)
        return was_in

    def probed(self, uuid: str, failure: str, *, now: float, time: str) -> bool:
        """Note a probe of a card that is out; True where it may come back."""
        out = self._out.get(uuid)
        if out is None:
            return False
        if failure:
            out.good_probes, out.since = 0, now
            return False
        out.good_probes += 1
        if out.good_probes < self._rules.good_probes or now - out.since < self._rules.probation_seconds:
            return False
        del self._out[uuid]
        self._history.append(Incident(uuid=uuid, time=time, what=f"back after {out.good_probes} good probes"))
        return True

    @property
    def out(self) -> dict[str, str]:
        """Why each card that is out is out, by UUID."""
        return {uuid: out.reason for uuid, out in sorted(self._out.items())}

    def history(self, uuid: str = "") -> tuple[Incident, ...]:
        """What happened, oldest first; to one card where ``uuid`` is given."""
        return tuple(incident for incident in self._history if not uuid or incident.uuid == uuid)

    def record(self) -> HealthRecord:
        """What to keep on disk."""
        return HealthRecord(out=self.out, history=tuple(self._history))
