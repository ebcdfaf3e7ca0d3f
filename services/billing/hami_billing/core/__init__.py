"""Decisions of the ledger, without I/O: what an event changes (``holds``, ``cards``), and what time on cards costs (``bill``)."""
