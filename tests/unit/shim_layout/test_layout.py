"""The Python description of the shim's files says what the C headers say."""

import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from hami_node_agent import shim_layout as layout

ROOT = Path(__file__).resolve().parents[3]


def test_the_descriptions_are_current() -> None:
    done = subprocess.run([sys.executable, "cshim/tools/layout.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_written_number_is_read_back() -> None:
    data = bytearray(layout.GRANT.size)
    base = layout.GRANT.offset("devices", 3)
    layout.write_uint(data, layout.GRANT_DEVICE, "memory_limit_bytes", 5 << 30, base=base)
    assert layout.read_uint(data, layout.GRANT_DEVICE, "memory_limit_bytes", base=base) == 5 << 30


def test_a_written_text_is_read_back_without_its_padding() -> None:
    data = bytearray(layout.GRANT.size)
    layout.write_text(data, layout.GRANT, "container", "main")
    assert layout.read_text(data, layout.GRANT, "container") == "main"


def test_a_text_that_leaves_no_room_for_its_end_is_refused() -> None:
    with pytest.raises(ValueError, match="container"):
        layout.write_text(bytearray(layout.GRANT.size), layout.GRANT, "container", "x" * 64)


def test_an_index_outside_the_array_is_refused() -> None:
    with pytest.raises(IndexError, match="16"):
        layout.GRANT.offset("devices", 16)


def test_the_checked_part_lies_between_checksum_and_live_words() -> None:
    assert layout.GRANT.offset("checksum") + 4 == layout.GRANT_CHECKED_OFFSET
    assert layout.GRANT.offset("generation") == layout.GRANT_LIVE_OFFSET
    assert zlib.crc32(b"123456789") == 0xCBF43926  # the check value of the CRC that grant_crc32 computes
