"""What comes over the network: requests of kube-scheduler, of Volcano and of the API server, what the API server answers, and the bus."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hami_billing import api as billing
from hami_billing.core import prices
from hami_devices import rejections
from hami_protocol import agent_answer, cloud_events
from hami_protocol.envelope import Message, open_message
from hami_protocol.errors import EventError, ProtocolError
from hami_protocol.holdings import HoldingsQuestion
from hami_protocol.resize import ResizeRequest
from hami_protocol.simulation import SimulationQuestion
from hami_registry import reports
from hami_registry.bus_reads import log_question
from hami_registry.callout import claims
from hami_runtime.bus.nkeys import KeyFault, Kind, SigningKey
from hami_runtime.kube import wire as kube
from hami_runtime.kube.cluster import LEASES, NODES, PODS, QUOTAS, ClusterError
from hami_scheduler import volcano, wire
from hami_scheduler.questions import Question
from hami_scheduler.wire import WireError
from hami_webhook import wire as admission
from hami_webhook.quota import QuotaBook
from hami_webhook.review import Policy, Reviewer
from hami_webhook.wire import ReviewError
from tests.fuzz.target import Target
from tests.fuzz.targets.records import CATALOG

NOW = datetime(2026, 6, 1, tzinfo=UTC)
ROOT = Path(__file__).parents[3]
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What whoever reads a question from people catches."""
POD = (
    b'{"metadata":{"name":"a1","namespace":"default","uid":"6445a14b","annotations":{"nvidia.com/use-gputype":"A100"}},"spec":{"priority":5,'
    b'"initContainers":[{"name":"i","restartPolicy":"Always","resources":{"limits":{"nvidia.com/gpu":"1","nvidia.com/gpumem":"3k"}}}],'
    b'"containers":[{"name":"c","resources":{"limits":{"nvidia.com/gpu":"1","nvidia.com/gpumem":"3k","nvidia.com/gpucores":"30"}}}]},'
    b'"status":{"phase":"Pending"}}'
)
NODE = b'{"metadata":{"name":"m1","annotations":{"hami.io/node-nvidia-register":"G,10,7680,100,P4,0,true:"}},"status":{"capacity":{"cpu":"4"}}}'
FILTERS = (
    b'{"Pod":' + POD + b',"Nodes":null,"NodeNames":["m1","m2","m3"]}',
    b'{"Pod":' + POD + b',"Nodes":{"metadata":{},"items":[' + NODE + b']},"NodeNames":null}',
    b'{"pod":' + POD + b',"nodenames":["m1"]}',
)
REVIEW = (
    b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u1","kind":{"group":"","version":"v1","kind":"Pod"},'
    b'"resource":{"group":"","version":"v1","resource":"pods"},"name":"a1","namespace":"default","operation":"%s","subResource":"%s",'
    b'"userInfo":{"username":"alice"},"object":%s,"oldObject":%s}}'
)
REVIEWS = (
    REVIEW % (b"CREATE", b"", POD, b"null"),
    REVIEW % (b"UPDATE", b"", POD, POD),
    REVIEW % (b"CREATE", b"binding", b'{"kind":"Binding","metadata":{"name":"a1","annotations":{"hami.io/vgpu-node":"m1"}}}', b"null"),
)
QUOTA = b'{"metadata":{"name":"q","namespace":"default","uid":"1"},"spec":{"hard":{"limits.nvidia.com/gpumem":"16Gi"}}}'
LEASE = b'{"metadata":{"name":"l","namespace":"d","uid":"1","resourceVersion":"5"},"spec":{"holderIdentity":"a","leaseDurationSeconds":15}}'


def _query(data: bytes) -> dict[str, str]:
    """The parameters of a URL."""
    return dict(parse_qsl(data.decode("utf-8", "replace"), keep_blank_values=True))


def _rejections(data: bytes) -> Any:
    """What kube-scheduler writes into a pod's condition: no count in it is beyond what was written."""
    text = data.decode("utf-8", "replace")
    reasons, rest = rejections.split_message(text)
    read, others = rejections.read_rejections({text: 1, **reasons})
    assert len(rest) <= len(text)
    return len(read), len(others), [rejection.deciding for rejection in read]


def _recorded(folder: str) -> tuple[bytes, ...]:
    return tuple(path.read_bytes() for path in sorted((ROOT / folder).glob("*.json")))


def _event(data: bytes) -> Any:
    """On the subject on which such an event would come."""
    try:
        return open_message(Message(subject="hami.v1.none", data=data))
    except EventError as exc:
        if "belongs on " not in str(exc):
            raise
        return open_message(Message(subject=str(exc).rpartition(" ")[2], data=data))


def _cloud_event(data: bytes) -> Any:
    """What is read is told again as it was read."""
    message = cloud_events.decode(data)
    assert cloud_events.decode(cloud_events.encode(message)) == message
    return message


def _subject(data: bytes) -> Any:
    return open_message(Message(subject=data.decode("utf-8", "replace"), data=_EVENTS[len(data) % len(_EVENTS)]))


def _report(data: bytes) -> Message:
    """What a node's agent has published, as it goes into the log: on an outcome subject of that node."""
    report = Message(subject="hami.v1.reports.gpu-node_example", data=data)
    node, event = reports.read(report)
    passed = reports.checked(report, event)
    assert node == "gpu-node.example"
    assert passed.subject.startswith("hami.v1.allocations.gpu-node_example.")
    assert passed.subject.endswith(".outcome")
    return passed


def _messages() -> tuple[tuple[str, bytes], ...]:
    """The recorded events: subject and body."""
    kept = [msgspec.json.decode(content) for content in _recorded("tests/contract/wire")]
    return tuple((each["subject"], msgspec.json.encode(each["body"])) for each in kept)


def _filter(data: bytes) -> Any:
    args = wire.decode_args(data)
    if isinstance(args.nodes, wire.NodeItems):
        return [wire.decode_node(item) for item in args.nodes.items or ()]
    return args


def _admission(data: bytes) -> Any:
    version, request = admission.decode(data)
    reviewer = Reviewer(CATALOG, Policy(), QuotaBook(CATALOG))
    answers = (reviewer.mutate(request), reviewer.validate(request))
    assert all(admission.encode(version, request.uid, answer) for answer in answers)
    return [answer.allowed for answer in answers]


def _objects(data: bytes) -> Any:
    found: list[Any] = []
    error: ClusterError | None = None
    for kind in (PODS, NODES, QUOTAS, LEASES):
        try:
            found.append(kube.decode_object(kind, data))
        except ClusterError as exc:
            error = exc
    if error is not None and not found:
        raise error
    return found


def _question(data: bytes, kind: Any) -> Any:
    return msgspec.json.decode(data, type=kind)


def _authorization() -> bytes:
    """A question that a server of the bus has signed, by a key that is always the same."""
    server, user = (SigningKey(kind, Ed25519PrivateKey.from_private_bytes(bytes(32))) for kind in (Kind.SERVER, Kind.USER))
    asked = {"server_id": {"id": server.public}, "user_nkey": user.public, "connect_opts": {"auth_token": "t"}}
    return server.jwt({"aud": claims.AUDIENCE, "nats": asked}).encode()


_EVENTS = tuple(body for _, body in _messages())
_LINES = tuple(cloud_events.encode(Message(subject=subject, data=body)) for subject, body in _messages())
SIMULATIONS = (b'{"pods":[' + POD + b'],"copies":3,"nodes":[' + NODE + b'],"onlyAdded":true}', b'{"pods":[' + POD + b"]}")
LIST = b'{"metadata":{"resourceVersion":"9","continue":"x"},"items":[%s]}'

TARGETS = (
    Target(
        name="a message over HTTP",
        call=_cloud_event,
        refuses=(EventError,),
        seeds=_LINES,
        covers=("hami_protocol.cloud_events.decode",),
    ),
    Target(
        name="messages over HTTP",
        call=cloud_events.decode_batch,
        refuses=(EventError,),
        seeds=(b"[]", b"[" + b",".join(_LINES[:3]) + b"]"),
        covers=("hami_protocol.cloud_events.decode_batch",),
    ),
    Target(
        name="event on the bus",
        call=_event,
        refuses=(EventError,),
        seeds=_EVENTS,
        covers=("hami_protocol.envelope.open_message", "hami_protocol.envelope.decode"),
    ),
    Target(name="an agent's report", call=_report, refuses=(EventError,), seeds=_EVENTS, covers=("hami_registry.reports.read",)),
    Target(
        name="subject on the bus",
        call=_subject,
        refuses=(EventError,),
        seeds=tuple(subject.encode() for subject, _ in _messages()),
    ),
    Target(
        name="filter request",
        call=_filter,
        refuses=(WireError,),
        seeds=FILTERS,
        covers=("hami_scheduler.wire.decode_args", "hami_scheduler.wire.decode_node"),
    ),
    Target(
        name="bind request",
        call=wire.decode_binding,
        refuses=(WireError,),
        seeds=(b'{"PodName":"a1","PodNamespace":"default","PodUID":"6445a14b","Node":"m2"}',),
        covers=("hami_scheduler.wire.decode_binding",),
    ),
    Target(
        name="preempt request",
        call=lambda data: wire.unchanged(wire.decode_preemption(data)),
        refuses=(WireError,),
        seeds=(
            b'{"Pod":' + POD + b',"NodeNameToVictims":null,"NodeNameToMetaVictims":{"m1":{"Pods":[{"UID":"6994"}],"NumPDBViolations":0}}}',
            b'{"Pod":' + POD + b',"NodeNameToVictims":{"m1":{"Pods":[' + POD + b'],"NumPDBViolations":1}},"NodeNameToMetaVictims":null}',
        ),
        covers=("hami_scheduler.wire.decode_preemption",),
    ),
    Target(
        name="Volcano predicate",
        call=volcano.decode_predicate,
        refuses=(WireError,),
        seeds=_recorded("tests/contract/scheduler/volcano"),
        covers=("hami_scheduler.volcano.decode_predicate",),
    ),
    Target(
        name="Volcano prioritize",
        call=volcano.decode_prioritize,
        refuses=(WireError,),
        seeds=_recorded("tests/contract/scheduler/volcano"),
        covers=("hami_scheduler.volcano.decode_prioritize",),
    ),
    Target(
        name="admission review",
        call=_admission,
        refuses=(ReviewError,),
        seeds=REVIEWS,
        covers=tuple(f"hami_webhook.wire.{name}" for name in ("decode", "read_pod", "read_binding")),
    ),
    Target(
        name="object of the API server",
        call=_objects,
        refuses=(ClusterError,),
        seeds=(POD, NODE, QUOTA, LEASE),
        covers=("hami_runtime.kube.wire.decode_object",),
    ),
    Target(
        name="list of the API server",
        call=lambda data: kube.decode_page(PODS, data),
        refuses=(ClusterError,),
        seeds=(LIST % POD, LIST % (POD + b"," + NODE)),
        covers=("hami_runtime.kube.wire.decode_page",),
    ),
    Target(
        name="watch of the API server",
        call=lambda data: kube.decode_change(PODS, data),
        refuses=(ClusterError,),
        seeds=(
            b'{"type":"ADDED","object":' + POD + b"}",
            b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"12"}}}',
            b'{"type":"ERROR","object":{"kind":"Status","status":"Failure","reason":"Expired","code":410}}',
        ),
        covers=("hami_runtime.kube.wire.decode_change",),
    ),
    Target(
        name="refusal of the API server",
        call=lambda data: kube.refused(data[0] if data else 0, data),
        refuses=(),
        seeds=(b'{"kind":"Status","status":"Failure","reason":"Conflict","message":"modified","code":409}', b"<html>502</html>"),
    ),
    Target(
        name="authorization request",
        call=claims.read,
        refuses=(KeyFault,),
        seeds=(_authorization(), b"a.b.c"),
        covers=("hami_registry.callout.claims.read", "hami_runtime.bus.nkeys.read_jwt"),
    ),
    Target(
        name="agent's answer",
        call=agent_answer.decode,
        refuses=(ProtocolError,),
        seeds=(b"{}", b'{"notServing":"the agent is about to stop"}'),
        covers=("hami_protocol.agent_answer.decode",),
    ),
    Target(
        name="query of the log",
        call=lambda data: log_question(_query(data), data[:20].decode("latin-1") if data[:1].isdigit() else ""),
        refuses=(ValueError,),
        seeds=(b"namespace=default&pod=train-0&since=2026-01-01T00:00:00Z&follow=true", b"", b"12"),
        covers=("hami_registry.bus_reads.log_question",),
    ),
    Target(
        name="query of a bill",
        call=lambda data: billing.question(_query(data), NOW),
        refuses=(ValueError,),
        seeds=(
            b"from=2026-01-01T00:00:00Z&to=2026-02-01T00:00:00Z&by=namespace,model&rule=max&namespace=default",
            b"",
            b"to=0001-01-01T00:00:00Z",
            b"from=9999-12-31T23:59:59-23:59",
        ),
        covers=("hami_billing.api.question",),
    ),
    Target(
        name="reasons of a rejection",
        call=_rejections,
        refuses=(),
        seeds=(
            b"0/9 nodes are available: 3 3/8 CardInsufficientMemory, 5/8 CardTimeSlicingExhausted, 6 NodeUnregistered.",
            b"3/8 CardInsufficientMemory",
            b"9" * 5000 + b"/8 CardInsufficientMemory",
            b"9" * 5000 + b" 3/8 CardInsufficientMemory",
        ),
        covers=("hami_devices.rejections.read_rejection", "hami_devices.rejections.read_rejections"),
    ),
    Target(
        name="price list",
        call=prices.read,
        refuses=(prices.PricesError,),
        seeds=(b'currency: EUR\ncards:\n  "NVIDIA A100*": 2.40\n  "*": 0.80\n',),
        covers=("hami_billing.core.prices.read",),
    ),
    Target(
        name="wish to resize",
        call=lambda data: _question(data, ResizeRequest),
        refuses=UNREADABLE,
        seeds=(b'{"namespace":"a","pod":"b","cores":5}',),
    ),
    Target(
        name="question to explain", call=lambda data: _question(data, Question), refuses=UNREADABLE, seeds=(b'{"namespace":"a","pod":"b"}',)
    ),
    Target(name="question to simulate", call=lambda data: _question(data, SimulationQuestion), refuses=UNREADABLE, seeds=SIMULATIONS),
    Target(
        name="question for holdings", call=lambda data: _question(data, HoldingsQuestion), refuses=UNREADABLE, seeds=(b"{}", b'{"limit":5}')
    ),
)
