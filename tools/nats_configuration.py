"""Prints ``deploy/kustomize/components/nats-accounts/accounts.conf``: an account with a user for each service, and what each may do.

Users have no passwords: a user is who has a certificate for its name (``verify_and_map`` in ``nats.conf``).
"""

from __future__ import annotations

import sys

import msgspec

from hami_registry.outcomes import DURABLE
from hami_runtime.bus import permissions
from hami_runtime.bus.permissions import Permissions

HEADER = """\
# The users of the bus, and what each may say and hear: `make docs` writes this file from hami_runtime/bus/permissions.py.
# A user is who has a certificate for its name.
"""
ANSWER_SECONDS = 60


def users() -> dict[str, Permissions]:
    """User name to what it may do."""
    return {
        "hami-scheduler": permissions.scheduler(durable=DURABLE),
        "hami-registry": permissions.registry(durable=DURABLE),
        "hami-node-agent": permissions.node_agent(durable=DURABLE),
        "hami-reader": permissions.reader(durable=DURABLE),
    }


def text() -> str:
    """The file."""
    described = "".join(_user(name, may) for name, may in users().items())
    return f"{HEADER}accounts {{\n  HAMI {{\n    jetstream: enabled\n    users: [\n{described}    ]\n  }}\n  SYS {{}}\n}}\nsystem_account: SYS\n"


def _user(name: str, may: Permissions) -> str:
    denied = f"\n            deny: {_list(may.deny_publish)}" if may.deny_publish else ""
    answers = f'\n          allow_responses: {{max: 1, expires: "{ANSWER_SECONDS}s"}}' if may.answers else ""
    return f"""\
      {{
        user: "{name}"
        permissions: {{
          publish: {{
            allow: {_list(may.publish)}{denied}
          }}
          subscribe: {{
            allow: {_list(may.subscribe)}
          }}{answers}
        }}
      }}
"""


def _list(subjects: tuple[str, ...]) -> str:
    lines = "".join(f"              {msgspec.json.encode(subject).decode()}\n" for subject in dict.fromkeys(subjects))
    return f"[\n{lines}            ]"


def main() -> None:
    """Print it."""
    sys.stdout.write(text())


if __name__ == "__main__":
    main()
