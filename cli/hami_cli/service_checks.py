"""What ``hami doctor`` finds of the services themselves: their rights, whether pods are admitted, clocks, and the shim on each node. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from hami_cli.checks import WEBHOOK_NAMES, Check, failed, ok, warning
from hami_protocol.kubernetes import Lease, Pod
from hami_runtime.kube.access import ResourceAccess
from hami_runtime.kube.calls import CALLS, OWN_CERTIFICATE, Call
from hami_runtime.kube.cluster import ClusterError

SLACK: Final = timedelta(seconds=5)
"""Clocks that differ by less are the same: the API server's times have whole seconds, and the answer takes its time."""
FAR: Final = timedelta(seconds=60)
"""Certificates and tokens that were just made are not accepted by clocks so far apart."""
WEBHOOK: Final = "vgpu.hami.io"
INJECT: Final = "cert-manager.io/inject-ca-from"
SHOWN: Final = 5


def needed(account: str, namespace: str, *, own_certificate: bool = True) -> list[ResourceAccess]:
    """All that a service must be allowed, as one asks the API server about it; where cert-manager issues the webhook's certificate, less."""
    calls = CALLS[account] if own_certificate else CALLS[account] - OWN_CERTIFICATE
    return [access for call in sorted(calls, key=_order) for access in _asked(call, namespace)]


def own_certificate(webhooks: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the webhook keeps its ``caBundle`` itself: cert-manager does where a configuration of ours asks it to."""
    ours = (each.get("metadata") or {} for each in webhooks)
    return not any(INJECT in (meta.get("annotations") or {}) for meta in ours if meta.get("name") in WEBHOOK_NAMES)


def _order(call: Call) -> tuple[str, str, str, list[str]]:
    return call.group, call.resource, call.verb, sorted(call.names)


def _asked(call: Call, namespace: str) -> Iterator[ResourceAccess]:
    resource, _, subresource = call.resource.partition("/")
    for name in sorted(call.names) or [""]:
        yield ResourceAccess(
            verb=call.verb,
            resource=resource,
            subresource=subresource,
            group=call.group,
            name=name,
            namespace=(call.namespace or namespace) if call.namespaced else "",
        )


def service_rights(account: str, allowed: Mapping[ResourceAccess, bool]) -> Check:
    """Whether a service's account may do all that the service does."""
    what = f"rights of {account}"
    denied = [access for access, may in allowed.items() if not may]
    if not denied:
        return ok(what, f"it may make all its {len(allowed)} calls")
    shown = ", ".join(_words(access) for access in denied[:SHOWN]) + (f", and {len(denied) - SHOWN} more" if len(denied) > SHOWN else "")
    remedy = "apply the manifests again, whose rbac.yaml allows it: hami install --overlay …, or kubectl apply -k …"
    return failed(what, f"it may not {shown}", remedy)


def _words(access: ResourceAccess) -> str:
    resource = f"{access.resource}/{access.subresource}" if access.subresource else access.resource
    return f"{access.verb} {resource}" + (f" {access.name}" if access.name else "")


def admission(resource: str, outcome: Pod | ClusterError) -> Check:
    """Whether a pod that asks for one device, created in rehearsal, comes to our scheduler."""
    what = "admission"
    look = "see that the webhook's pods are Ready: kubectl -n hami-system get pods -l app.kubernetes.io/component=webhook"
    if isinstance(outcome, ClusterError):
        text = str(outcome)
        if "failed calling webhook" in text:
            return failed(what, text, f"{look}; restart them, then they write the caBundle of the certificate that they serve")
        if WEBHOOK in text:
            return ok(what, f"the webhook answers: {text}")
        return warning(what, f"a pod that asks for {resource} is refused by somebody else: {text}", "see who refuses it, and why")
    if outcome.spec.scheduler_name in {"", "default-scheduler"}:
        detail = f"a pod that asks for {resource} is created as it is, and kube-scheduler's default profile does not know the devices"
        remedy = f"see that its configuration is there, and lets the namespace in: kubectl get mutatingwebhookconfiguration {WEBHOOK}"
        return failed(what, detail, remedy)
    return ok(what, f"a pod that asks for {resource} is given to {outcome.spec.scheduler_name}")


def clocks(server: datetime, before: datetime, after: datetime, leases: Iterable[Lease]) -> Iterator[Check]:
    """Whether clocks agree: the API server's with ours, and each node's with the API server's.

    Args:
        server: what the API server's clock said, in whole seconds.
        before: ours, when it was asked.
        after: ours, when it had answered.
        leases: the nodes' leases, which kubelets renew by their own clocks.
    """
    ahead = max(before - server - timedelta(seconds=1), server - after)
    remedy = "have both set by NTP: timedatectl, chronyc tracking"
    if ahead > SLACK:
        tell = failed if ahead > FAR else warning
        yield tell("clock", f"the API server's clock and this machine's differ by {_seconds(ahead)}", remedy)
    else:
        yield ok("clock", "the API server's clock is this machine's")
    for lease in leases:
        renewed = _time(lease.spec.renew_time or "")
        if renewed is not None and renewed - server > SLACK:
            name = lease.metadata.name
            yield failed(f"clock of {name}", f"it is {_seconds(renewed - server)} ahead of the API server's", f"set {name}'s clock by NTP")


def _time(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def _seconds(span: timedelta) -> str:
    return f"{span.total_seconds():.0f} s"


def shims(versions: Mapping[str, str]) -> Iterator[Check]:
    """Whether all nodes with NVIDIA cards have the same shim.

    Args:
        versions: by node, the version that its agent reports; empty where it has none.
    """
    if not versions:
        return
    without = sorted(node for node, version in versions.items() if not version)
    if without:
        detail = f"{_some(without)}: not installed, so that nothing holds containers to their limits there"
        yield failed("shim", detail, "see the log of the agent's container install-shim on these nodes")
    present = sorted({version for version in versions.values() if version})
    if len(present) > 1:
        by_version = "; ".join(f"{version} on {_some(sorted(n for n, v in versions.items() if v == version))}" for version in present)
        remedy = "wait for the agents' roll-out, then look at nodes that lag: kubectl -n hami-node-agent rollout status daemonset/hami-node-agent"
        yield warning("shim", f"{len(present)} versions: {by_version}", remedy)
    elif present and not without:
        yield ok("shim", f"version {present[0]} on {len(versions)} nodes")


def silent(labelled: Sequence[str], registering: Iterable[str]) -> Iterator[Check]:
    """Nodes that are labelled as having cards, and register none."""
    known = set(registering)
    for name in labelled:
        if name not in known:
            remedy = f"see the agent's log there: kubectl -n hami-node-agent get pods -o wide --field-selector spec.nodeName={name}"
            yield failed(f"agent on {name}", "it is labelled gpu=on and registers no devices", remedy)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
