"""Removes a rig's folder, with its sockets, once the rig is gone: also after SIGKILL, when nobody else can.

Run as a script with the folder's path; its standard input is a pipe that only the rig holds open. Standard library alone, so that it starts at once.
"""

import shutil
import signal
import sys
import time
from pathlib import Path

ATTEMPTS = 50
PAUSE_SECONDS = 0.1


def main() -> None:
    """Wait for the end of the pipe, then remove the folder; the rig's processes may take a moment to die."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    folder = Path(sys.argv[1])
    sys.stdin.buffer.read()
    for _ in range(ATTEMPTS):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main()
