"""Where the manifests put each component, and the user that its service account is to the API server."""

from __future__ import annotations

from typing import Final

SYSTEM_NAMESPACE: Final = "hami-system"
AGENT_NAMESPACE: Final = "hami-node-agent"
"""Agents and vendors' own device plugins: pods that work on their nodes, under Pod Security `privileged`."""
AGENT: Final = "hami-node-agent"


def namespace_of(account: str, *, system: str = SYSTEM_NAMESPACE) -> str:
    """The namespace of a component's service account, where ``system`` is the namespace of all others."""
    return AGENT_NAMESPACE if account == AGENT else system


def user(account: str, namespace: str) -> str:
    """The user name that a service account has."""
    return f"system:serviceaccount:{namespace}:{account}"


def groups(namespace: str) -> list[str]:
    """The groups that every service account of a namespace is in."""
    return ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
