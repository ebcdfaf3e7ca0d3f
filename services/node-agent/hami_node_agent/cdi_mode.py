"""``cdi`` mode: Allocate answers at once with a name. Whose it is, and what it stands for, is found out when the container starts.

Allocate makes no call and waits for nobody. The name is new at every call and never made from the ids, since kubelet gives an init
container's ids to later containers of the same pod. It is noted on disk first, for the case that kubelet's checkpoint cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hami_node_agent import cdi
from hami_node_agent.answers import Answer, PluginOptions
from hami_node_agent.journal import Journal
from hami_node_agent.refusals import Refusal, RefusalKind, Refused


class CdiMode:
    """Serves Allocate with names."""

    options = PluginOptions(pre_start_required=True, preferred_allocation=False)

    def __init__(self, *, journal: Journal, new_name: Callable[[], str]) -> None:
        self._journal = journal
        self._new_name = new_name

    async def allocate(self, device_ids: Sequence[str]) -> Answer:
        """Answer with a new name.

        Raises:
            Refused: no ids, or the journal cannot be written.
        """
        if not device_ids:
            raise Refused(Refusal(kind=RefusalKind.EMPTY_REQUEST, reason="kubelet named no device id"))
        name = cdi.qualified(f"c{self._new_name()}")  # a letter first: old readers of CDI want one
        try:
            self._journal.called(name, tuple(sorted(device_ids)))
        except OSError as exc:
            raise Refused(Refusal(kind=RefusalKind.HOST, reason=f"the journal cannot be written: {exc}")) from exc
        return Answer(cdi_devices=(name,))

    async def preferred(self, available: Sequence[str], required: Sequence[str], size: int) -> tuple[str, ...]:
        """No preference: ids are opaque here."""
        del available, required, size
        return ()
