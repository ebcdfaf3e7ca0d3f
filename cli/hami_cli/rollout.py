"""Waits until a workload runs, and names the pods that do not, each with its reason. ``readiness`` finds it."""

from __future__ import annotations

import time
from typing import Final

from hami_cli import readiness
from hami_cli.exits import CommandError
from hami_cli.installation import Ref
from hami_cli.kubectl import Kubectl, tell

LOOK_SECONDS: Final = 10.0
"""So often the pods that are not ready yet are named."""
_TIMED_OUT: Final = "timed out waiting"


async def wait(kubectl: Kubectl, workload: Ref, timeout_seconds: float) -> None:
    """Return once ``workload`` is rolled out.

    Raises:
        CommandError: it is not in time; the text has a line for each pod that is not ready.
    """
    tell(f"waiting for {workload}")
    deadline, before = time.monotonic() + timeout_seconds, ""
    while True:
        left = deadline - time.monotonic()
        seconds = max(1.0, min(left, LOOK_SECONDS))
        done = await kubectl.ended("rollout", "status", workload.resource, *workload.place, f"--timeout={seconds:.0f}s")
        if not done.code:
            return
        reasons = await why(kubectl, workload)
        if left <= LOOK_SECONDS or _TIMED_OUT not in done.err:
            ending = f"is not ready after {timeout_seconds:.0f} s" if _TIMED_OUT in done.err else f"is not ready: {done.err}"
            again = "what was applied stays, and nothing that the overlay has no more was deleted: see to it, then run this again"
            raise CommandError(f"{workload} {ending}\n{reasons}\n{again}")
        if reasons != before:
            tell(reasons)
            before = reasons


async def why(kubectl: Kubectl, workload: Ref) -> str:
    """A line for each pod of a workload that is not ready, and one for the workload where pods of it cannot be created.

    Raises:
        CommandError: they may not be listed.
    """
    found = await kubectl.objects(workload.resource, *workload.place)
    body = found[0] if found else None
    events = await kubectl.objects("events", *workload.place, "--field-selector=type=Warning")
    pods = await kubectl.objects("pods", *workload.place, f"--selector={readiness.selector(body)}") if body else []
    claims = await kubectl.objects("persistentvolumeclaims", *workload.place) if workload.kind == "StatefulSet" else []
    lines = [f"  pod {name}: {reason}" for name, reason in readiness.pods_not_ready(pods, events).items()]
    lines += [f"  claim {name}: {reason}" for name, reason in readiness.claims_not_bound(claims, events).items()]
    if reason := readiness.workload(workload, body, events):
        lines.append(f"  {workload}: {reason}")
    return "\n".join(lines) or f"  {workload}: its controller has not made its pods yet"
