"""What NVIDIA says must be done after each XID: the whole catalogue, once. Data; ``health`` decides by it.

Source of every row of ``CATALOG``: NVIDIA, "Analyzing Xid Errors with the Xid Catalog", table 1, column "Resolution Bucket (Immediate Action)",
https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html. XIDs that the catalogue calls unused are left out. Where its action is a
workflow, or none, ``OURS`` has the row, with our reason.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

RECOVERY_ACTION_CHANGED: Final = 154
"""The driver has another recovery action for the card, which NVML names."""


class Action(StrEnum):
    """What is to be done at once."""

    IGNORE = "ignore"
    RESTART_APP = "restart the application"
    RESET_GPU = "reset the card"
    RESTART_VM = "restart the virtual machine"
    RESTART_BM = "restart the node"
    CHECK_MECHANICALS = "check power and cables"
    UPDATE_SWFW = "update driver or firmware"
    CONTACT_SUPPORT = "contact support"


FATAL_ACTIONS: Final = frozenset({Action.RESET_GPU, Action.RESTART_VM, Action.RESTART_BM})
"""Until this has been done the card can run nothing."""


def _rows(action: Action, *xids: int | range) -> dict[int, Action]:
    return {xid: action for each in xids for xid in (each if isinstance(each, range) else (each,))}


CATALOG: Final[dict[int, Action]] = {
    **_rows(Action.IGNORE, 14, 37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141, 152, 153, 157, 160, 161),
    **_rows(Action.RESTART_APP, 8, 11, 13, 25, 31, 32, 39, 40, 41, 60, 68, range(69, 73), range(75, 78), 80, range(82, 87), 88, 89, 94),
    **_rows(Action.RESTART_APP, range(96, 106), range(126, 136), 139),
    **_rows(Action.RESET_GPU, 46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158),
    **_rows(Action.RESTART_VM, 151),
    **_rows(Action.RESTART_BM, 79),
    **_rows(Action.CHECK_MECHANICALS, 54),
    **_rows(Action.UPDATE_SWFW, 78),
    **_rows(Action.CONTACT_SUPPORT, 142),
}

OURS: Final[dict[int, tuple[Action, str]]] = {
    45: (Action.IGNORE, "a channel is removed because of another XID, which decides"),
    48: (Action.RESET_GPU, "an uncorrectable memory error: the catalogue's workflow ends with a reset"),
    74: (Action.RESET_GPU, "an NVLink error: whether it is harmless is in registers that NVML does not show"),
    **dict.fromkeys(
        range(144, 151), (Action.RESET_GPU, "an NVLink 5 error: whether it is harmless is in registers that NVML does not show")
    ),
    154: (Action.IGNORE, "informational: the action itself is asked of NVML"),
    159: (Action.RESET_GPU, "a reset where unified memory is in use, which CUDA programs may do"),
    **dict.fromkeys(
        (*range(162, 167), 168, 170, 171, 172), (Action.IGNORE, "the catalogue names no action; what follows has an XID of its own")
    ),
    **dict.fromkeys((167, 169), (Action.RESET_GPU, "the catalogue names no action; a part of the card has stopped")),
}


def action(xid: int) -> Action | None:
    """What is to be done after ``xid``; None for one that neither table has."""
    ours = OURS.get(xid)
    return CATALOG.get(xid) if ours is None else ours[0]


KNOWN: Final = CATALOG.keys() | OURS.keys()
FATAL_XIDS: Final = frozenset(xid for xid in KNOWN if action(xid) in FATAL_ACTIONS)
APPLICATION_XIDS: Final = frozenset(KNOWN) - FATAL_XIDS
