"""Who sends a request: decided from its bearer token alone. Pure.

There are no secrets here: the administrator's token aside, a token *is* the name of its user (``system:serviceaccount:hami:registry``), with the
node it is bound to behind an ``@``, as service account tokens of pods are.
"""

from typing import Any

from msgspec import Struct

__all__ = ["ADMINISTRATOR", "User", "user_of_token"]

_SERVICE_ACCOUNT = "system:serviceaccount:"


class User(Struct, frozen=True, kw_only=True):
    """Who is asking."""

    name: str
    groups: tuple[str, ...] = ("system:authenticated",)
    node: str = ""
    """The node that the token is bound to, if it is."""

    @property
    def info(self) -> dict[str, Any]:
        """As ``userInfo`` in an AdmissionReview and ``user`` in a TokenReview."""
        body: dict[str, Any] = {"username": self.name, "groups": list(self.groups)}
        if self.node:
            body["extra"] = {"authentication.kubernetes.io/node-name": [self.node]}
        return body


ADMINISTRATOR = User(name="system:admin", groups=("system:masters", "system:authenticated"))


def user_of_token(token: str, administrator_token: str) -> User | None:
    """Return whose token it is, or None if it is nobody's. An empty token is the administrator's where none is required."""
    if token == administrator_token:
        return ADMINISTRATOR
    if not token or (administrator_token and not token.startswith("system:")):
        return None
    name, _, node = token.partition("@")
    return User(name=name, groups=groups_of(name), node=node)


def groups_of(name: str) -> tuple[str, ...]:
    """The groups that a user of this name is in."""
    if not name.startswith(_SERVICE_ACCOUNT):
        return ("system:authenticated",)
    namespace = name.removeprefix(_SERVICE_ACCOUNT).split(":")[0]
    return ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
