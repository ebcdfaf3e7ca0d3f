"""What ``hami doctor`` finds right and wrong with an installation: pure judgements on what was read. Each failure says what to do."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

import msgspec
from cryptography import x509
from msgspec import Struct

from hami_cli.snapshot import Snapshot
from hami_protocol.card_facts import GONE
from hami_protocol.inventory import Inventory
from hami_runtime.kube.access import ResourceAccess

WEBHOOK_NAMES: Final = ("vgpu.hami.io", "validate.vgpu.hami.io")
SOON: Final = timedelta(days=7)
_MOST_NAMED: Final = 20


class Outcome(StrEnum):
    """How a check went."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """It could not be looked at from here."""


class Check(Struct, frozen=True, kw_only=True, rename="camel"):
    """One thing that was looked at."""

    what: str
    outcome: Outcome
    detail: str
    remedy: str = ""


def ok(what: str, detail: str) -> Check:
    """It is as it should be."""
    return Check(what=what, outcome=Outcome.OK, detail=detail)


def failed(what: str, detail: str, remedy: str) -> Check:
    """It is not, and something does not work."""
    return Check(what=what, outcome=Outcome.FAILED, detail=detail, remedy=remedy)


def warning(what: str, detail: str, remedy: str) -> Check:
    """It works, but not as well as it should, or not for long."""
    return Check(what=what, outcome=Outcome.WARNING, detail=detail, remedy=remedy)


def unknown(what: str, detail: str, remedy: str = "") -> Check:
    """Nobody could look."""
    return Check(what=what, outcome=Outcome.UNKNOWN, detail=detail, remedy=remedy)


def rights(allowed: Mapping[ResourceAccess, bool], needed: Mapping[ResourceAccess, str]) -> Iterator[Check]:
    """What the user of this command line may not do, and what does not work because of it."""
    denied = [(access, needed[access]) for access, may in allowed.items() if not may]
    if not denied:
        yield ok("rights", "you may do all that these commands need")
    for access, purpose in denied:
        what = f"{access.resource}/{access.subresource} {access.name}" if access.subresource else access.resource
        remedy = f"have a role bound that allows {access.verb} on {what}, as the roles hami-reader do to those who only look"
        yield warning("rights", f"you may not {access.verb} {what}: {purpose}", remedy)


NEEDED: Final[dict[ResourceAccess, str]] = {
    ResourceAccess(verb="list", resource="nodes"): "top, summary and report do not work",
    ResourceAccess(verb="list", resource="pods"): "top, summary and report do not work",
    ResourceAccess(verb="list", resource="events"): "diagnose and trace see less",
    ResourceAccess(verb="patch", resource="nodes"): "cordon and uncordon do not work",
}
"""What the commands do, and what is lost where that is not allowed."""


def proxied(namespace: str) -> dict[ResourceAccess, str]:
    """The same of who reaches our services through the API server."""

    def access(verb: str, service: str) -> ResourceAccess:
        return ResourceAccess(verb=verb, resource="services", subresource="proxy", namespace=namespace, name=f"https:{service}:api")

    return {
        access("get", "hami-registry"): "events and trace do not work, and top, report and diagnose see less",
        access("get", "hami-scheduler"): "explain does not work",
        access("create", "hami-scheduler"): "simulate and resize do not work",
    }


def webhooks(configurations: Iterable[dict[str, Any]], now: datetime) -> Iterator[Check]:
    """Whether our webhooks are registered, and with a trust that can be one."""
    ours = {(each.get("metadata") or {}).get("name"): each for each in configurations}
    for name in WEBHOOK_NAMES:
        what, configuration = f"webhook {name}", ours.get(name)
        if configuration is None:
            missing = "no such configuration object: pods are not " + (
                "given to our scheduler" if name == WEBHOOK_NAMES[0] else "validated"
            )
            yield failed(what, missing, "see that the webhook's pods run; they register themselves unless HAMI_REGISTER is false")
            continue
        for webhook in configuration.get("webhooks") or ():
            yield _webhook(what, webhook, now)


def _webhook(what: str, webhook: Mapping[str, Any], now: datetime) -> Check:
    bundle = (webhook.get("clientConfig") or {}).get("caBundle") or ""
    restart = "restart the webhook's pods: they write the caBundle of the certificate that they serve"
    try:
        authorities = x509.load_pem_x509_certificates(base64.b64decode(bundle, validate=True))
    except (ValueError, binascii.Error) as exc:
        return failed(what, f"its caBundle is no certificate: {exc}", restart)
    end = max(each.not_valid_after_utc for each in authorities)
    if end <= now:
        return failed(what, f"its caBundle ended on {end:%Y-%m-%d}: the API server does not trust the webhook", restart)
    if end - now < SOON:
        return warning(what, f"its caBundle ends on {end:%Y-%m-%d}", restart)
    if webhook.get("failurePolicy") == "Ignore":
        remedy = "set failurePolicy: Fail"
        return warning(what, "failurePolicy is Ignore: while it is away, pods with shares are created as they are and never placed", remedy)
    return ok(what, f"registered; its caBundle is good until {end:%Y-%m-%d}")


def scheduler_configuration(text: str, managed: Sequence[str], *, source: str) -> Iterator[Check]:
    """Whether a KubeSchedulerConfiguration sends the extender all that it must see, as it must."""
    what = f"kube-scheduler configuration ({source})"
    try:
        found = msgspec.yaml.decode(text)
        extenders = found.get("extenders") or []
        ours = [each for each in extenders if each.get("bindVerb") and each.get("managedResources")]
        names = [{each["name"]: bool(each.get("ignoredByScheduler")) for each in extender["managedResources"]} for extender in ours]
    except (msgspec.DecodeError, AttributeError, TypeError, KeyError) as exc:
        yield failed(what, f"it cannot be read: {exc}", "mend it, or generate it again")
        return
    if not ours:
        yield failed(what, "no extender with a bindVerb and managedResources", "add the extender: deploy/kustomize/base/scheduler has it")
        return
    yield from _extender(what, ours[0], names[0], managed)
    if found.get("percentageOfNodesToScore") != 100:
        detail = (
            f"percentageOfNodesToScore is {found.get('percentageOfNodesToScore', 'not set')}: the extender is sent a sample of the nodes"
        )
        yield warning(what, detail, "set it to 100")
    backoff = found.get("podMaxBackoffSeconds", 10)
    if not isinstance(backoff, int | float) or backoff > 2:
        yield warning(what, f"podMaxBackoffSeconds is {backoff}: a refused pod waits so long though room is free", "set it to 2")


def _extender(what: str, extender: Mapping[str, Any], names: Mapping[str, bool], managed: Sequence[str]) -> Iterator[Check]:
    problems = False
    if missing := [name for name in managed if name not in names]:
        problems = True
        yield failed(what, f"managedResources lacks {', '.join(missing)}: pods that ask for them are not sent to the extender", "add them")
    if counted := [name for name in managed if names.get(name) is False]:
        problems = True
        detail = f"kube-scheduler counts {', '.join(counted)} itself, though no node has them"
        yield failed(what, detail, "set ignoredByScheduler: true on each")
    if extender.get("ignorable"):
        problems = True
        yield failed(what, "the extender is ignorable: while it is away, pods are bound anywhere", "set ignorable: false")
    if not extender.get("nodeCacheCapable"):
        problems = True
        yield warning(what, "nodeCacheCapable is not set: every call carries all nodes", "set nodeCacheCapable: true")
    for verb in ("filterVerb", "preemptVerb"):
        if not extender.get(verb):
            problems = True
            yield failed(what, f"{verb} is not set", f"set {verb}: {verb.removesuffix('Verb')}")
    if not problems:
        yield ok(what, f"{extender.get('urlPrefix')} is sent {len(names)} resources")


def streams(found: Mapping[str, bool]) -> Iterator[Check]:
    """Whether the bus keeps what it should."""
    if missing := [name for name, there in found.items() if not there]:
        yield failed(
            "streams", f"{', '.join(missing)}: not there", "see that registry and scheduler run: they make the streams that they use"
        )
    else:
        yield ok("streams", f"{', '.join(found)}")


def agents(inventory: Inventory, nodes: Sequence[str]) -> Iterator[Check]:
    """Whether each node's agent, or vendor's plugin, registers."""
    away = [
        (node.name, group.device_type, group.since)
        for node in inventory.nodes
        for group in node.device_groups
        if not group.alive and node.name in nodes
    ]
    for name, device_type, since in away:
        detail = f"its {device_type} devices are not registered any more, since {since}"
        yield failed(f"agent on {name}", detail, f"kubectl get pods -A -o wide --field-selector spec.nodeName={name}")
    groups = {node.name: [group for group in node.device_groups if group.alive] for node in inventory.nodes if node.name in nodes}
    empty = {name for name, alive in groups.items() if alive and not any(group.devices for group in alive)}
    for name in sorted(empty):
        remedy = f"see the log of its agent: kubectl get pods -A -o wide --field-selector spec.nodeName={name}"
        yield failed(f"agent on {name}", "its record is empty: no device is registered", remedy)
    alive = sum(any(group.devices for group in groups.get(node, ())) for node in nodes)
    if not alive:
        yield failed("agents", "no node registers devices", "label nodes that have cards gpu=on, and see that the node-agent runs there")
    else:
        yield ok("agents", f"{alive} of {len(nodes)} nodes register devices")


def unenforced(snapshot: Snapshot) -> Iterator[Check]:
    """Whether a container uses a card without being held to its share."""
    if not snapshot.measured:
        yield unknown("limits of pods", "no agent has published what containers use")
        return
    loose = sorted({f"{held.namespace}/{held.pod} (container {held.container})" for held in snapshot.held if held.enforced is False})
    if not loose:
        yield ok("limits of pods", "no agent reports a container that is not held to its share")
        return
    more = f" and {len(loose) - _MOST_NAMED} more" if len(loose) > _MOST_NAMED else ""
    yield failed(
        "limits of pods",
        f"not held to their shares: {', '.join(loose[:_MOST_NAMED])}{more}",
        "hami diagnose the pods: the Event ShareUnenforced has the reason",
    )


def orphans(snapshot: Snapshot) -> Iterator[Check]:
    """Whether a pod holds a card that its node no longer registers."""
    gone = {(card.node, card.uuid) for card in snapshot.cards if card.status == GONE}
    pods = sorted({f"{held.namespace}/{held.pod}" for held in snapshot.held if (held.node, held.uuid) in gone})
    if pods:
        named = ", ".join(f"{uuid} of {node}" for node, uuid in sorted(gone))
        yield failed(
            "cards of pods",
            f"{', '.join(pods[:_MOST_NAMED])}: hold {named}, which are not registered any more",
            "kubectl describe the pods; delete them",
        )
    else:
        yield ok("cards of pods", "every pod's cards are registered")
