"""All that is fuzzed."""

from __future__ import annotations

from tests.fuzz.target import Target
from tests.fuzz.targets import bodies, chains, files, records

TARGETS: tuple[Target, ...] = (*records.TARGETS, *bodies.TARGETS, *files.TARGETS, *chains.TARGETS)
