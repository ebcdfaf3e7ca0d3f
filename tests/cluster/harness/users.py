"""Who is who to the API server: a static token for each program, and the kubeconfig that shows it. Pure but for the random tokens."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from hami_runtime.kube import accounts

NAMESPACE = accounts.SYSTEM_NAMESPACE
SERVICES = ("webhook", "scheduler", "registry")
ADMIN = "admin"


class Users:
    """Tokens by the name that a program has among the harness's processes."""

    def __init__(self, nodes: Iterable[str] = ()) -> None:
        self._rows: dict[str, tuple[str, str, tuple[str, ...]]] = {}
        self._add(ADMIN, "admin", "system:masters")
        self._add("kube-controller-manager", "system:kube-controller-manager")
        self._add("kube-scheduler", "system:kube-scheduler")
        self._add("kube-proxy", "system:kube-proxy")
        for service in SERVICES:
            self._add(service, *_account(f"hami-{service}"))
        for node in nodes:
            self._add(f"kubelet-{node}", f"system:node:{node}", "system:nodes")
            self._add(f"node-agent-{node}", *_account("hami-node-agent"))
        self._add("tenant", "tenant")

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def _add(self, name: str, user: str, *groups: str) -> None:
        self._rows[name] = (secrets.token_hex(16), user, groups)

    def token(self, name: str) -> str:
        """What ``name`` shows."""
        return self._rows[name][0]

    def token_file(self) -> str:
        """For ``kube-apiserver --token-auth-file``."""
        return "".join(f'{token},{user},{name},"{",".join(groups)}"\n' for name, (token, user, groups) in self._rows.items())

    def kubeconfig(self, name: str, *, server: str, authority: bytes) -> str:
        """The kubeconfig of ``name``, as YAML (which JSON is)."""
        cluster = {"server": server, "certificate-authority-data": base64.b64encode(authority).decode()}
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "real", "cluster": cluster}],
            "users": [{"name": name, "user": {"token": self.token(name)}}],
            "contexts": [{"name": "real", "context": {"cluster": "real", "user": name, "namespace": "default"}}],
            "current-context": "real",
        }
        return msgspec.json.format(msgspec.json.encode(body), indent=2).decode() + "\n"


def _account(name: str) -> tuple[str, ...]:
    namespace = accounts.namespace_of(name)
    return (accounts.user(name, namespace), *accounts.groups(namespace))
