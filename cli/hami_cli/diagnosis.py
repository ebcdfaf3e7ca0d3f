"""What is wrong with a pod, and what to do: from its conditions, container states, annotations, events and the scheduler's verdict. Pure.

A finding is never a guess without a source: it names the object, the text that it was read from, and the next command to run. The signs are one
table; the first that a text matches wins, so what is particular comes before what is general.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from hami_devices.blocking import NodeCards, blocking
from hami_devices.misspellings import Misspelling
from hami_devices.model import PodRequest
from hami_devices.rejections import read_rejections, split_message
from hami_protocol import keys
from hami_protocol.events import NodeShortfall, PodRefused
from hami_protocol.kubernetes import Condition, ContainerStatus, Pod
from hami_protocol.pods import containers_in_order

MOST_TEXT: Final = 1000
_NOT_PLACED: Final = frozenset({"FailedScheduling", "FilteringFailed"})
_SCHEDULING_SOURCES: Final = frozenset({"the scheduler's verdict", "condition PodScheduled", *(f"event {each}" for each in _NOT_PLACED)})
"""What these texts name besides, as kube-scheduler's sentence on preemption, is no sign of anything else."""


class Sign(Struct, frozen=True, kw_only=True):
    """What a text says about what is wrong."""

    pattern: re.Pattern[str]
    cause: str
    remedy: str
    command: str
    """With ``{namespace}``, ``{pod}`` and ``{node}``."""
    general: bool = False
    """It says nothing once a sign of the same table says something particular of the same pod."""


class Finding(Struct, frozen=True, kw_only=True, rename="camel"):
    """One thing that is wrong."""

    cause: str
    object: str
    """As ``pod/default/p``."""
    read_from: str
    """Where the text is, as ``condition PodScheduled``."""
    text: str
    remedy: str
    next_command: str


class Diagnosis(Struct, frozen=True, kw_only=True, rename="camel"):
    """All that was found."""

    namespace: str
    pod: str
    phase: str
    node: str
    findings: tuple[Finding, ...]


class Evidence(Struct, frozen=True, kw_only=True):
    """What a diagnosis is made from."""

    namespace: str
    name: str
    pod: Pod | None
    """None where there is no such pod: then only events can tell why."""
    events: tuple[dict[str, Any], ...] = ()
    """Kubernetes Events of its namespace."""
    refusal: PodRefused | None = None
    request_error: str = ""
    """Why its request for devices cannot be read."""
    request: PodRequest = PodRequest(containers=())
    """What it asks for."""
    cards: Mapping[str, NodeCards] | None = None
    """The cluster's cards by node; None where they are not known."""
    misspellings: tuple[Misspelling, ...] = ()

    @property
    def holds_devices(self) -> bool:
        """Whether it asks for devices."""
        return bool(self.request.asks)


class _Text(Struct, frozen=True, kw_only=True):
    object: str
    source: str
    text: str
    causes: str | None = None
    """The part of ``text`` that names causes; None for all of it."""


def diagnose(evidence: Evidence) -> Diagnosis:
    """What is wrong, each cause and object once, in the order of the pod's way: admission, scheduling, devices, images, running."""
    pod = evidence.pod
    node = pod.spec.node_name if pod else ""
    found: list[tuple[Sign, Finding]] = []
    for said in _texts(evidence):
        for sign in _signs(said.text if said.causes is None else said.causes, said.source):
            if any(sign.cause == earlier.cause and each.object.startswith(said.object) for earlier, each in found):
                continue
            finding = Finding(
                cause=sign.cause,
                object=said.object,
                read_from=said.source,
                text=said.text[:MOST_TEXT],
                remedy=sign.remedy,
                next_command=_command(sign.command, namespace=evidence.namespace, pod=evidence.name, node=node),
            )
            found.append((sign, finding))
    particular = {_table(sign) for sign, _ in found if not sign.general}
    return Diagnosis(
        namespace=evidence.namespace,
        pod=evidence.name,
        phase=pod.status.phase if pod else "not found",
        node=node,
        findings=tuple(finding for sign, finding in found if not (sign.general and _table(sign) in particular)),
    )


def _texts(evidence: Evidence) -> Iterator[_Text]:
    pod, name = evidence.pod, f"pod/{evidence.namespace}/{evidence.name}"
    if pod is None:
        yield from _creation_failures(evidence)
        return
    if evidence.request_error:
        yield _Text(object=name, source="the pod's request", text=f"request refused: {evidence.request_error}")
    for kind in ("resource", "policy"):
        if found := [str(each) for each in evidence.misspellings if each.resource == (kind == "resource")]:
            yield _Text(object=name, source="the pod's request", text=" | ".join(found), causes=f"misspelled {kind}")
    if not pod.spec.node_name:
        yield from _scheduling(evidence, pod, name)
    phase = pod.metadata.annotations.get(keys.BIND_PHASE)
    if phase == "failed" or (phase == "allocating" and pod.status.phase == "Failed"):
        yield _Text(object=name, source=f"annotation {keys.BIND_PHASE}", text=f"{keys.BIND_PHASE}: {phase}")
    if pod.status.reason or pod.status.message:
        yield _Text(object=name, source="status", text=": ".join(filter(None, (pod.status.reason, pod.status.message))))
    for status in (*(pod.status.init_container_statuses or ()), *(pod.status.container_statuses or ())):
        yield from _container(name, status)
    if evidence.holds_devices:
        yield from _unconfined(pod, name)
    yield from _own_events(evidence, pod, name)


def _unconfined(pod: Pod, name: str) -> Iterator[_Text]:
    """Containers that name the seccomp profile ``Unconfined``, or whose pod does."""
    of_pod = pod.spec.security_context
    for container, _, path in containers_in_order(pod):
        named = (container.security_context and container.security_context.seccomp_profile) or (of_pod and of_pod.seccomp_profile)
        if named and named.type == "Unconfined":
            yield _Text(object=f"{name}/{container.name}", source=f"{path}.securityContext", text="seccompProfile: Unconfined")


def _scheduling(evidence: Evidence, pod: Pod, name: str) -> Iterator[_Text]:
    refusal = evidence.refusal
    if refusal is not None:
        causes = _causes(evidence, refusal.reasons, refusal.nearest) if refusal.reasons else None
        yield _Text(object=name, source="the scheduler's verdict", text=_verdict(refusal), causes=causes)
    if (condition := _unscheduled(pod)) is not None:
        message = condition.message or ""
        causes = _causes_of_message(evidence, message, already_known=refusal is not None)
        yield _Text(object=name, source="condition PodScheduled", text=message, causes=causes)
    if pod.spec.scheduling_gates:
        yield _Text(object=name, source="spec.schedulingGates", text="scheduling gates are set")


def _causes(evidence: Evidence, reasons: Mapping[str, int], nearest: Sequence[NodeShortfall] = ()) -> str:
    """The reasons that keep the pod from being placed, without those of nodes that could never take it."""
    rejections, others = read_rejections(reasons)
    return " | ".join((*sorted(blocking(rejections, nearest, evidence.request, evidence.cards)), *others))


def _causes_of_message(evidence: Evidence, message: str, *, already_known: bool) -> str:
    """The causes in kube-scheduler's message. A resource that no node can offer is found by its name."""
    reasons, others = split_message(message)
    for each in evidence.misspellings:
        if each.resource and f"Insufficient {each.given}" in others:
            others = others.replace(f"Insufficient {each.given}", "").removeprefix("FailedScheduling: ")
    return others if already_known or not reasons else f"{_causes(evidence, reasons)} | {others}"


def _verdict(refusal: PodRefused) -> str:
    """The refusal's summary, then each reason and each near node's figures that are not in it."""
    text = refusal.summary
    for reason, count in sorted(refusal.reasons.items()):
        text += "" if reason in text else f" | {count} node{'' if count == 1 else 's'}: {reason}"
    for each in refusal.nearest:
        text += "" if each.detail in text else f" | {each.node}: {each.detail}"
    return text


def _unscheduled(pod: Pod) -> Condition | None:
    """The condition that says why it is not placed."""
    return next(
        (each for each in pod.status.conditions or () if each.type == "PodScheduled" and each.status != "True" and each.message), None
    )


def _container(name: str, status: ContainerStatus) -> Iterator[_Text]:
    where = f"{name}/{status.name}"
    state = status.state
    waiting = state.waiting if state else None
    if waiting:
        yield _Text(
            object=where, source="state waiting", text=": ".join(str(waiting[key]) for key in ("reason", "message") if waiting.get(key))
        )
    for source, ended in (("state terminated", state), ("last state terminated", status.last_state)):
        end = ended.terminated if ended else None
        if end is not None and end.exit_code:
            yield _Text(object=where, source=source, text=f"{end.reason or 'Error'}: exit code {end.exit_code}")


def _own_events(evidence: Evidence, pod: Pod, name: str) -> Iterator[_Text]:
    """Warnings on the pod, the newest first. Of what kept it from being placed the newest alone counts, and only where nothing newer says it."""
    said_already = bool(pod.spec.node_name or evidence.refusal or _unscheduled(pod))
    mine = [event for event in evidence.events if _involved(event).get("uid") == pod.metadata.uid and event.get("type") != "Normal"]
    for event in sorted(mine, key=_when, reverse=True):
        reason = str(event.get("reason", ""))
        if reason in _NOT_PLACED:
            if said_already:
                continue
            said_already = True
        text = f"{reason}: {event.get('message', '')}"
        causes = _causes_of_message(evidence, text, already_known=False) if reason in _NOT_PLACED else None
        yield _Text(object=name, source=f"event {reason}", text=text, causes=causes)


def _creation_failures(evidence: Evidence) -> Iterator[_Text]:
    """Why a pod never came to be: what its controller was told."""
    for event in sorted(evidence.events, key=_when, reverse=True):
        owner = _involved(event)
        if event.get("reason") == "FailedCreate" and evidence.name.startswith(str(owner.get("name") or "\0")):
            kind = str(owner.get("kind", "object")).lower()
            text = f"FailedCreate: {event.get('message', '')}"
            yield _Text(object=f"{kind}/{evidence.namespace}/{owner.get('name')}", source="event FailedCreate", text=text)


def _involved(event: dict[str, Any]) -> dict[str, Any]:
    involved = event.get("involvedObject")
    return involved if isinstance(involved, dict) else {}


def _when(event: dict[str, Any]) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or (event.get("metadata") or {}).get("creationTimestamp") or "")


def _signs(text: str, source: str) -> Iterator[Sign]:
    """What ``text`` says. A scheduling message names several causes at once; of images and ends of containers the first is meant."""
    of_scheduling = source in _SCHEDULING_SOURCES
    for table in (_SCHEDULING, _NOT_SCHEDULED) if of_scheduling else _TABLES:
        matching = [sign for sign in table if sign.pattern.search(text)]
        yield from matching if of_scheduling and table is _SCHEDULING else matching[:1]
        if matching:
            return


def _table(sign: Sign) -> int:
    return next(place for place, table in enumerate(_TABLES) if sign in table)


def _command(template: str, **names: str) -> str:
    return template.format(**{key: shlex.quote(value) if value else "''" for key, value in names.items()})


def _sign(pattern: str, cause: str, remedy: str, command: str, *, general: bool = False) -> Sign:
    return Sign(pattern=re.compile(pattern, re.IGNORECASE), cause=cause, remedy=remedy, command=command, general=general)


_EXPLAIN: Final = "hami explain {pod} -n {namespace}"
_DESCRIBE: Final = "kubectl describe pod {pod} -n {namespace}"
_LOGS: Final = "kubectl logs {pod} -n {namespace} --all-containers --previous"
_PULL_SECRETS: Final = "kubectl get pod {pod} -n {namespace} -o jsonpath='{{.spec.imagePullSecrets}}'"

_MISSPELLED: Final[tuple[Sign, ...]] = (
    _sign(
        r"^misspelled resource$",
        "no node offers a resource that the pod asks for",
        "mend the resource's name",
        "kubectl get pod {pod} -n {namespace} -o jsonpath='{{.spec.containers[*].resources}}'",
    ),
    _sign(
        r"^misspelled policy$",
        "the pod names a scheduling policy that does not exist",
        "mend the annotation and create the pod again; a pod that runs stays where it is",
        "kubectl get pod {pod} -n {namespace} -o jsonpath='{{.metadata.annotations}}'",
    ),
)
_SCHEDULING: Final[tuple[Sign, ...]] = (
    _sign(
        r"exceeded quota|exceeding resource quota|ResourceQuota|quota of namespace|over (its|the) quota|\bquota\b.*(exceed|left|allows)",
        "the namespace's quota is used up",
        "raise the quota, lower the request, or let other pods of the namespace end",
        "kubectl describe resourcequota -n {namespace}",
    ),
    _sign(
        r"CardInsufficientMemory",
        "no card has so much memory free",
        "ask for what the verdict says would fit, wait for a release, or add cards",
        _EXPLAIN,
    ),
    _sign(
        r"CardInsufficientCore|CardComputeUnitsExhausted",
        "no card has so many cores free",
        "lower the cores that are asked for, wait for a release, or add cards",
        _EXPLAIN,
    ),
    _sign(
        r"CardTimeSlicingExhausted",
        "the cards that could take the pod have no free share",
        "wait for a release, or raise the split count of the node's cards",
        "hami top cards",
    ),
    _sign(
        r"ExclusiveDeviceAllocateConflict",
        "a whole card is asked for and every card is in use",
        "ask for a share, wait for an idle card, or add cards",
        "hami top cards",
    ),
    _sign(
        r"CardTypeMismatch",
        "the pod's annotations accept none of the cards' models",
        "mend nvidia.com/use-gputype and nouse-gputype, or add such cards",
        "hami top cards",
    ),
    _sign(
        r"CardUuidMismatch",
        "the pod's annotations accept none of the cards' UUIDs",
        "mend nvidia.com/use-gpuuuid and nouse-gpuuuid",
        "hami top cards",
    ),
    _sign(
        r"CardNotHealth|CardUnhealthy",
        "cards are unhealthy",
        "look at the node-agent's events on the node, and at the driver",
        "hami top cards",
    ),
    _sign(r"CardCordoned", "cards are cordoned", "put them back with hami uncordon", "hami top cards"),
    _sign(
        r"NumaNotFit",
        "no NUMA node has as many cards free",
        "ask for fewer cards, or drop nvidia.com/numa-bind",
        _EXPLAIN,
    ),
    _sign(
        r"NodeInsufficientDevice|AllocatedCardsInsufficientRequest",
        "no node has so many cards",
        "ask for fewer cards in one container: they must all be on one node",
        "hami top nodes",
    ),
    _sign(
        r"CardMigTopologyInfeasible|ModeNotFit|CardNotFoundCustomFilterRule|CardQosPolicyMismatch|CardAppClassMismatch",
        "cards are cut, or used by others, in a way that does not go with this pod",
        "mend the pod's mode, profile, QoS or class annotation, or wait for such cards",
        _EXPLAIN,
    ),
    _sign(
        r"node unregistered",
        "no node has registered a card of the vendor that the pod asks for",
        "ask for a resource that nodes offer, or see that the node-agent runs on the nodes with such cards",
        "hami top nodes",
    ),
    _sign(
        r"node not reporting",
        "nodes that could take the pod do not report their cards",
        "see that the node-agent runs there and reaches the bus",
        "hami doctor",
    ),
    _sign(
        r"node agent not serving",
        "nodes are held, since their agent does not serve pods",
        "wait for the agent there to be back; if it does not come, look at its pod on that node, and at kubelet",
        _EXPLAIN,
    ),
    _sign(
        r"NodeInsufficientAllocatable|devices allocatable",
        "kubelet has too few devices allocatable",
        "see that the node-agent is ready there; kubelet counts its devices some seconds after it has registered",
        "kubectl describe nodes",
    ),
    _sign(
        r"cannot be read|invalid device request|unreadable record|request refused",
        "a record or the request cannot be read",
        "mend the field that is named",
        _EXPLAIN,
    ),
    _sign(
        r"untolerated taint|had taints? that the pod didn't tolerate",
        "nodes have taints that the pod does not tolerate",
        "add a toleration, or take the taint off the node",
        "kubectl get nodes -o custom-columns=NAME:.metadata.name,TAINTS:.spec.taints",
    ),
    _sign(
        r"didn't match Pod's node affinity/selector|node\(s\) didn't match node selector|didn't match pod (anti-)?affinity",
        "node selector or affinity matches no node",
        "mend the selector, label nodes, or relax the affinity",
        "kubectl get nodes --show-labels",
    ),
    _sign(
        r"persistentvolumeclaim \S+ not found",
        "a volume claim that the pod names does not exist",
        "create the claim, or mend its name in the pod",
        "kubectl get pvc -n {namespace}",
    ),
    _sign(
        r"unbound immediate PersistentVolumeClaims|didn't find available persistent volumes|volume node affinity conflict",
        "a volume claim is not bound",
        "look at its storage class and at the volumes that there are",
        "kubectl describe pvc -n {namespace}",
    ),
    _sign(
        r"insufficient (cpu|memory|ephemeral-storage|hugepages\S*|pods|[\w.-]+/[\w.-]+)|too many pods",
        "nodes have too little CPU, memory or devices left",
        "lower the request, add nodes, or look at quotas and at what else runs there",
        "kubectl describe nodes",
    ),
    _sign(
        r"scheduling gates?",
        "the pod is held back by its scheduling gates",
        "whoever set them must remove them",
        "kubectl get pod {pod} -n {namespace} -o jsonpath='{{.spec.schedulingGates}}'",
    ),
    _sign(
        r"node\(s\) were unschedulable",
        "nodes are cordoned",
        "kubectl uncordon the nodes that are to take pods again",
        "kubectl get nodes",
    ),
)
_NOT_SCHEDULED: Final[tuple[Sign, ...]] = (
    _sign(
        r"^FailedScheduling|^FilteringFailed|extender",
        "kube-scheduler could not place the pod",
        "see that the extender is there and answers",
        "hami doctor",
    ),
)
_PULLING: Final = r"(ErrImagePull|ImagePullBackOff|Failed to pull|pull(ing)? image|failed to resolve reference|ErrImageNeverPull)(.|\n)*"
_IMAGES: Final[tuple[Sign, ...]] = (
    _sign(
        _PULLING + r"(unauthorized|authentication required|denied|forbidden|\b40[13]\b)",
        "the registry does not let the node pull the image",
        "name a valid pull secret in imagePullSecrets; a private image that does not exist is refused the same way",
        _PULL_SECRETS,
    ),
    _sign(
        _PULLING + r"(no match for platform|no matching manifest|exec format|wrong platform)",
        "the image is for another platform",
        "use an image for the node's architecture, or a multi-platform one",
        "kubectl get node {node} -o jsonpath='{{.status.nodeInfo.architecture}}'",
    ),
    _sign(
        _PULLING + r"(manifest unknown|not found|does not exist|name unknown|manifest for \S+)",
        "there is no such image",
        "mend the image's name or tag",
        _DESCRIBE,
    ),
    _sign(
        _PULLING + r"(x509|certificate)",
        "the registry's certificate is not trusted by the node",
        "install the authority's certificate for the node's runtime, or mend the registry's chain",
        "kubectl get node {node} -o wide",
    ),
    _sign(
        _PULLING + r"(toomanyrequests|too many requests|rate limit)",
        "the registry limits how often images are pulled",
        "pull through a mirror, or with credentials that have a higher limit",
        _PULL_SECRETS,
    ),
    _sign(
        _PULLING + r"(connection refused|no such host|i/o timeout|network is unreachable|deadline exceeded)",
        "the node does not reach the registry",
        "look at the node's network and its DNS for the registry's name",
        "kubectl get node {node} -o wide",
    ),
    _sign(_PULLING, "an image cannot be pulled", "read the events: they say why", _DESCRIBE, general=True),
    _sign(r"InvalidImageName", "the image's name is none", "mend the image's name", _DESCRIBE),
)
_ADMISSION: Final[tuple[Sign, ...]] = (
    _sign(
        r"admission webhook \S*hami\S* denied|request refused:|spec\.\S+\.resources\.(limits|requests)",
        "the request for devices cannot be read or is not allowed",
        "mend the field that is named",
        "kubectl get pod {pod} -n {namespace} -o yaml",
    ),
    _sign(
        r"failed calling webhook",
        "an admission webhook does not answer",
        "see that its pods run and that the caBundle is that of its certificate",
        "hami doctor",
    ),
    _sign(
        r"exceeded quota",
        "the namespace's quota is used up",
        "raise the quota or lower the request",
        "kubectl describe resourcequota -n {namespace}",
    ),
    _sign(
        r"admission webhook|violates PodSecurity|is forbidden",
        "admission refused the pod",
        "mend what the message names, or ask who keeps the policy",
        "kubectl get events -n {namespace} --field-selector reason=FailedCreate",
    ),
)
_DEVICES: Final[tuple[Sign, ...]] = (
    _sign(
        r"^CardGone",
        "a card that the pod holds is no longer registered by its node",
        "delete the pod: its programs cannot use the card any more",
        "hami top cards",
    ),
    _sign(
        r"^RecordUnreadable",
        "the pod's record was emptied, removed or damaged",
        "delete the pod, or have an operator write the record again",
        _DESCRIBE,
    ),
    _sign(
        r"UnexpectedAdmissionError|Allocate failed|FailedPreStart|PreStartContainer|failed to generate spec|unresolvable CDI",
        "the node-agent or kubelet could not hand the devices out",
        "a pod that kubelet has failed is never tried again: delete it and let its controller make a new one; the agent's log says why",
        "hami trace {pod} -n {namespace}",
    ),
    _sign(
        rf"{re.escape(keys.BIND_PHASE)}: (failed|allocating)",
        "the devices were never handed out",
        "the log of allocations says why; delete the pod, so that it is placed again",
        "hami trace {pod} -n {namespace}",
    ),
)
_LIMITS: Final[tuple[Sign, ...]] = (
    _sign(
        r"^ShareUnenforced",
        "a container is not held to its share",
        "recreate the pod; where it happens again, forbid what its image does to get round the preloaded library, or give it a whole card",
        _DESCRIBE,
    ),
    _sign(
        r"^seccompProfile: Unconfined",
        "a container with a share runs without a seccomp profile, and can mount something else over its grant",
        "set seccompProfile.type to RuntimeDefault, or leave it out: the webhook sets it",
        "kubectl get pod {pod} -n {namespace} -o yaml",
    ),
)
_RUNNING: Final[tuple[Sign, ...]] = (
    _sign(
        r"OOMKilled|exit code 137\b",
        "the container was killed, most often for its main memory",
        "raise limits.memory (this is the host's memory, not the card's), or look who killed it",
        _DESCRIBE,
    ),
    _sign(
        r"Evicted|Preempt", "the pod was evicted", "look why: the node was short of something, or a pod of higher priority came", _DESCRIBE
    ),
    _sign(
        r"CreateContainerConfigError|CreateContainerError|RunContainerError|StartError|ContainerCannotRun",
        "the container cannot be started",
        "mend what the message names: most often a ConfigMap, a Secret, a command or a mount",
        _DESCRIBE,
    ),
    _sign(
        r"CrashLoopBackOff|exit code \d+",
        "the program ends with an error",
        "read its log; out of memory on the card shows there as CUDA_ERROR_OUT_OF_MEMORY",
        _LOGS,
        general=True,
    ),
    _sign(
        r"FailedCreatePodSandBox|failed to create pod sandbox",
        "the node cannot make the pod's sandbox",
        "look at the node's network plugin and at its runtime: the message says which of them fails",
        "kubectl describe node {node}",
    ),
    _sign(
        r"^Unhealthy: (Liveness|Readiness|Startup) probe",
        "a probe of the container fails",
        "see whether the program answers where the probe asks, and whether it is given the time",
        _DESCRIBE,
    ),
    _sign(
        r"FailedMount|FailedAttachVolume|MountVolume",
        "a volume cannot be mounted",
        "look at the claim and at what the message names",
        "kubectl get pvc -n {namespace}",
    ),
)


_TABLES: Final = (_MISSPELLED, _SCHEDULING, _NOT_SCHEDULED, _IMAGES, _ADMISSION, _DEVICES, _LIMITS, _RUNNING)
"""What is particular before what is general."""
