"""A path for PEM data in memory: OpenSSL loads certificates and keys from files only.

On Linux the file is in memory, so a container with a read-only root needs no writable folder.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def readable(pem: bytes) -> Iterator[str]:
    """A path from which this process can read ``pem`` while the context lasts.

    Raises:
        OSError: the system has no files in memory, and no temporary folder is writable.
    """
    try:
        descriptor = os.memfd_create("pem")
    except (AttributeError, OSError):  # macOS has none; Linux denies them where vm.memfd_noexec is 2
        with tempfile.NamedTemporaryFile(buffering=0) as file:
            file.write(pem)
            yield file.name
    else:
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            file.write(pem)
            yield f"/proc/self/fd/{descriptor}"
