"""Where the kubectl program is, for the command line and for the rig."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path


def program() -> str:
    """Return the kubectl installed beside this Python, else the one on the path."""
    beside = Path(sys.executable).parent / "kubectl"
    return str(beside) if beside.exists() else shutil.which("kubectl") or "kubectl"
