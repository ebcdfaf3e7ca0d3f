"""What a kubeconfig says by itself: the server, who vouches for it, and a token, a password or a client certificate. No network, no plugin.

A user whom a plugin or an auth provider must be asked about, and a list of several files, are not read here: ``from_files`` answers None, and whoever
asked turns to a library that can. A key's data goes before the key's file, and a file's path begins where the kubeconfig is, as for ``kubectl``.
"""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import yaml
from msgspec import Struct

T = TypeVar("T")
Pem = Path | bytes
"""A file, or what would be in one."""

TOKEN_SECONDS: Final = 60.0
"""For how long a token is used before its file is looked at again."""


class Account(Struct, frozen=True, kw_only=True):
    """Where an API server is, and who we are there."""

    server: str
    authorization: Callable[[], Awaitable[str]]
    """Gives the value of the ``Authorization`` header, empty for none."""
    authority: Pem | None = None
    """Who vouches for the server's certificate; None for whom the system trusts."""
    certificate: Pem | None = None
    """Ours, where we have one."""
    key: Pem | None = None
    verify: bool = True
    """Whether the server must show a certificate that is vouched for."""
    server_name: str = ""
    """The name that it must have, empty for that of the URL."""
    proxy: str = ""
    """URL of a proxy, empty where none is named."""


class _Part(Struct, frozen=True, kw_only=True, rename="kebab"):
    """A null is a key that is left out."""


class _Cluster(_Part, frozen=True, kw_only=True):
    server: str
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool | None = None
    tls_server_name: str | None = None
    proxy_url: str | None = None


class _User(_Part, frozen=True, kw_only=True):
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    token: str | None = None
    token_file: str | None = msgspec.field(default=None, name="tokenFile")
    username: str | None = None
    password: str | None = None
    exec: Any = None
    auth_provider: Any = None


class _Context(_Part, frozen=True, kw_only=True):
    cluster: str
    user: str | None = None
    namespace: str | None = None


class _NamedCluster(_Part, frozen=True, kw_only=True):
    name: str
    cluster: _Cluster


class _NamedUser(_Part, frozen=True, kw_only=True):
    name: str
    user: _User | None = None


class _NamedContext(_Part, frozen=True, kw_only=True):
    name: str
    context: _Context


class _Config(_Part, frozen=True, kw_only=True):
    current_context: str | None = None
    clusters: tuple[_NamedCluster, ...] | None = None
    users: tuple[_NamedUser, ...] | None = None
    contexts: tuple[_NamedContext, ...] | None = None


class TokenFile:
    """A token in a file that is replaced from time to time."""

    def __init__(self, path: Path) -> None:
        """Read it.

        Raises:
            OSError: it cannot be read.
            ValueError: it is empty.
        """
        self._path = path
        self._token, self._read_at = self._read(), time.monotonic()

    def _read(self) -> str:
        token = self._path.read_text(encoding="utf-8").strip()
        if not token:
            raise ValueError(f"{self._path} is empty")
        return token

    async def authorization(self) -> str:
        """The value of the ``Authorization`` header; raises as ``TokenFile`` itself does."""
        if time.monotonic() - self._read_at >= TOKEN_SECONDS:
            self._token, self._read_at = self._read(), time.monotonic()
        return f"Bearer {self._token}"


def from_files(path: str, context: str | None = None) -> Account | None:
    """The account of ``context`` (None: the current one) in the kubeconfig at ``path``; None where files alone do not say it.

    Raises:
        OSError: a file cannot be read.
        ValueError: it is no kubeconfig; the text names the key.
        yaml.YAMLError: it is no YAML.
    """
    if os.pathsep in path:
        return None
    file = Path(path)
    config = msgspec.convert(yaml.safe_load(file.read_text(encoding="utf-8")), _Config)
    name = context or config.current_context
    if not name:
        raise ValueError("current-context: missing, and no context is named")
    chosen = _named("contexts", name, {each.name: each.context for each in config.contexts or ()})
    cluster = _named("clusters", chosen.cluster, {each.name: each.cluster for each in config.clusters or ()})
    user = {each.name: each.user for each in config.users or ()}.get(chosen.user or "") or _User()
    if user.exec is not None or user.auth_provider is not None:
        return None
    folder = file.parent
    return Account(
        server=cluster.server,
        authorization=_authorization(user, folder),
        authority=_pem("certificate-authority", cluster.certificate_authority_data, cluster.certificate_authority, folder),
        certificate=_pem("client-certificate", user.client_certificate_data, user.client_certificate, folder),
        key=_pem("client-key", user.client_key_data, user.client_key, folder),
        verify=not cluster.insecure_skip_tls_verify,
        server_name=cluster.tls_server_name or "",
        proxy=cluster.proxy_url or "",
    )


def namespace_of(path: str, context: str | None = None) -> str:
    """The namespace of ``context`` (None: the current one) in the kubeconfig at ``path``; empty where it names none or cannot be read."""
    try:
        config = msgspec.convert(yaml.safe_load(Path(path).read_text(encoding="utf-8")), _Config)
    except (OSError, ValueError, yaml.YAMLError):
        return ""
    chosen = {each.name: each.context for each in config.contexts or ()}.get(context or config.current_context or "")
    return (chosen.namespace or "") if chosen else ""


def _named(where: str, name: str, found: dict[str, T]) -> T:
    if name not in found:
        raise ValueError(f"{where}: there is no {name!r}; accepted: {', '.join(sorted(found)) or 'nothing, the list is empty'}")
    return found[name]


def _pem(key: str, data: str | None, file: str | None, folder: Path) -> Pem | None:
    if not data:
        return folder / file if file else None
    try:
        return base64.b64decode(data, validate=True)
    except ValueError as exc:
        raise ValueError(f"{key}-data: {exc}; accepted: base64") from exc


def _authorization(user: _User, folder: Path) -> Callable[[], Awaitable[str]]:
    if user.token_file:
        return TokenFile(folder / user.token_file).authorization
    value = ""
    if user.token:
        value = f"Bearer {user.token.strip()}"
    elif user.username and user.password is not None:
        value = "Basic " + base64.b64encode(f"{user.username}:{user.password}".encode()).decode()

    async def authorization() -> str:
        return value

    return authorization
