"""Prints ``accounts.conf`` of ``deploy/kustomize/components/nats-accounts``: an account with a user for each service, and what each may do.

Users have no passwords: a user is who has a certificate for its name (``verify_and_map`` in ``nats.conf``). With ``--auth-callout`` it is that of
``components/nats-auth-callout``: who is none of these users shows a token, and the auth callout says whether it is an agent, and of which node.
"""

from __future__ import annotations

import sys

import msgspec

from hami_protocol import subjects
from hami_registry.outcomes import DURABLE
from hami_registry.reports import DURABLE as REPORTS_DURABLE
from hami_runtime.bus import permissions
from hami_runtime.bus.permissions import Permissions

HEADER = """\
# The users of the bus, and what each may say and hear: `make docs` writes this file from hami_runtime/bus/permissions.py.
# A user is who has a certificate for its name.
"""
CALLOUT_HEADER = """\
# Whoever else has a certificate shows the token of its service account: it is let in as the auth callout says, who alone has the issuer's key.
"""
AGENT = "hami-node-agent"
CALLOUT = "hami-auth-callout"
ISSUER = "AUTH_ISSUER"
"""The server's variable with the public key that users are signed with."""
CALLOUT_SECONDS = 4
"""Less than a client of ours waits for its connection."""


def users() -> dict[str, Permissions]:
    """User name to what it may do, where one user stands for all agents."""
    return {
        "hami-scheduler": permissions.scheduler(durable=DURABLE),
        "hami-registry": permissions.registry(durable=DURABLE, reports=REPORTS_DURABLE),
        AGENT: permissions.node_agent(None),
        "hami-reader": permissions.reader(durable=DURABLE),
    }


def text() -> str:
    """The file without the auth callout."""
    named = {name: may for name, may in users().items() if name != AGENT}
    return HEADER + _accounts({"HAMI": named, "AGENTS": {AGENT: users()[AGENT]}, "SYS": {}})


def callout_text() -> str:
    """The file with it: the agents' user is not in it, and whoever is not in it is asked about."""
    named = {name: may for name, may in users().items() if name != AGENT}
    accounts = _accounts({"HAMI": named, "AGENTS": {}, "AUTH": {CALLOUT: permissions.auth_callout()}, "SYS": {}})
    asked = f"""\
authorization {{
  timeout: {CALLOUT_SECONDS}
  auth_callout {{
    issuer: ${ISSUER}
    account: AUTH
    auth_users: [{", ".join(f'"{name}"' for name in (*named, CALLOUT))}]
  }}
}}
"""
    return HEADER + CALLOUT_HEADER + accounts + asked


def _accounts(accounts: dict[str, dict[str, Permissions]]) -> str:
    return f"accounts {{\n{''.join(_account(name, members) for name, members in accounts.items())}}}\nsystem_account: SYS\n"


EXPORTS = """\
    jetstream: enabled
    # One export for all that agents reach: where a reply leads back into it, the server sees a circle and drops it.
    exports: [
      {service: ">", accounts: [AGENTS]}
      {stream: "hami.v1.granted.>", accounts: [AGENTS]}
    ]
    imports: [
      {service: {account: AGENTS, subject: "hami.v1.agent.*.*"}}
    ]
"""
IMPORTS = f"""\
    # No JetStream here, and no consumers: what agents publish goes to the account of the services by name, and answers come back to the account of
    # the agents, whatever reply subject a message names. Outcomes wait in a queue, by node, until the registry has checked them.
    limits: {{max_payload: {subjects.MAX_MESSAGE_BYTES}}}
    exports: [
      {{service: "{subjects.ALL_ASK_AGENT}", accounts: [HAMI]}}
    ]
    imports: [
      {{service: {{account: HAMI, subject: "hami.v1.devices.*.*"}}}}
      {{service: {{account: HAMI, subject: "hami.v1.usage.*"}}}}
      {{service: {{account: HAMI, subject: "{subjects.REPORTS.subjects[0]}"}}, to: "hami.v1.allocations.$1.$2.$3.outcome"}}
      {{service: {{account: HAMI, subject: "{permissions.direct(subjects.DEVICES, "hami.v1.devices.*.*")}"}}}}
      {{service: {{account: HAMI, subject: "{permissions.direct(subjects.ALLOCATIONS, subjects.ALL_GRANTS)}"}}}}
      {{stream: {{account: HAMI, subject: "hami.v1.granted.>"}}}}
    ]
"""


def _account(name: str, members: dict[str, Permissions]) -> str:
    settings = {"HAMI": EXPORTS, "AGENTS": IMPORTS}.get(name, "")
    people = f"    users: [\n{''.join(_user(user, may) for user, may in members.items())}    ]\n" if members else ""
    return f"  {name} {{\n{settings}{people}  }}\n" if settings or people else f"  {name} {{}}\n"


def _user(name: str, may: Permissions) -> str:
    allowed = f"allow: {_list(may.publish)}" if may.publish else 'deny: [">"]'
    denied = f"\n            deny: {_list(may.deny_publish)}" if may.deny_publish else ""
    answers = f'\n          allow_responses: {{max: 1, expires: "{permissions.ANSWER_SECONDS}s"}}' if may.answers else ""
    return f"""\
      {{
        user: "{name}"
        permissions: {{
          publish: {{
            {allowed}{denied}
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
    sys.stdout.write(callout_text() if "--auth-callout" in sys.argv[1:] else text())


if __name__ == "__main__":
    main()
