"""Where the certificate is kept: a Secret that all replicas share, or a directory. Writing never overwrites what somebody else renewed."""

from __future__ import annotations

import base64
import binascii
import os
import tempfile
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from hami_runtime.kube.cluster import SECRETS, AlreadyExists, Cluster, Conflict, NotFound
from hami_webhook.certificates import Bundle

_FILES: Final = {"authorities": "ca.crt", "authority_key": "ca.key", "certificate": "tls.crt", "key": "tls.key"}


class Stored(NamedTuple):
    """A bundle and the version it was read at."""

    bundle: Bundle
    version: str


class Store(Protocol):
    """Where a bundle is kept."""

    async def read(self) -> Stored | None:
        """What is kept, or None where nothing that is complete is."""
        ...

    async def write(self, bundle: Bundle, *, over: Stored | None) -> bool:
        """Keep ``bundle`` in place of ``over``; False where somebody else has written meanwhile."""
        ...


class SecretStore:
    """A Secret of type ``kubernetes.io/tls``, with the authority beside the certificate."""

    def __init__(self, cluster: Cluster, *, namespace: str, name: str) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._version = ""

    async def read(self) -> Stored | None:
        """What the Secret has."""
        try:
            secret = await self._cluster.get(SECRETS, self._name, namespace=self._namespace)
        except NotFound:
            self._version = ""
            return None
        self._version = secret.get("metadata", {}).get("resourceVersion", "")
        data = secret.get("data") or {}
        try:
            fields = {field: base64.b64decode(data[file], validate=True) for field, file in _FILES.items()}
        except (KeyError, TypeError, binascii.Error):
            return None
        return Stored(Bundle(**fields), self._version)

    async def write(self, bundle: Bundle, *, over: Stored | None) -> bool:
        """Create the Secret, or replace it as it was read."""
        version = over.version if over is not None else self._version
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": self._name, "namespace": self._namespace, **({"resourceVersion": version} if version else {})},
            "type": "kubernetes.io/tls",
            "data": {file: base64.b64encode(getattr(bundle, field)).decode() for field, file in _FILES.items()},
        }
        try:
            if version:
                await self._cluster.replace(SECRETS, self._name, body, namespace=self._namespace)
            else:
                await self._cluster.create(SECRETS, body, namespace=self._namespace)
        except (AlreadyExists, Conflict, NotFound):
            return False
        return True


class DirectoryStore:
    """Files in a directory that only this process's user can read. For one replica, as in the rig."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def read(self) -> Stored | None:
        """What the files have."""
        try:
            fields = {field: (self._path / file).read_bytes() for field, file in _FILES.items()}
        except FileNotFoundError:
            return None
        return Stored(Bundle(**fields), "")

    async def write(self, bundle: Bundle, *, over: Stored | None) -> bool:
        """Write each file in one step, the certificate that readers look for last."""
        self._path.mkdir(parents=True, exist_ok=True, mode=0o700)
        for field, file in _FILES.items():
            write_private(self._path / file, getattr(bundle, field))
        return True


def write_private(path: Path, content: bytes) -> None:
    """Write a file in one step, readable by its owner alone."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    Path(temporary).replace(path)
