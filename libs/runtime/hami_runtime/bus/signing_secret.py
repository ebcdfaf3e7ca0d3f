"""The Secret with the key that agents' users of the bus are signed with: the seed for the auth callout, the public key for NATS. Made once."""

from __future__ import annotations

from typing import Final

import msgspec

from hami_runtime.bus.nkeys import Kind, SigningKey
from hami_runtime.kube.accounts import SYSTEM_NAMESPACE

NAME: Final = "hami-auth-callout"


def new_secret() -> str:
    """A manifest with a new key."""
    key = SigningKey.new(Kind.ACCOUNT)
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": NAME,
            "namespace": SYSTEM_NAMESPACE,
            "labels": {
                "app.kubernetes.io/name": "hami",
                "app.kubernetes.io/part-of": "hami",
                "app.kubernetes.io/component": "auth-callout",
            },
        },
        "type": "Opaque",
        "stringData": {"issuer": key.public, "seed": key.seed},
    }
    return msgspec.yaml.encode(secret).decode()
