"""Hears NATS' questions, asks the API server, answers. Decides nothing; ``claims`` does.

Several replicas share the questions as a queue group. A question that cannot be answered now (the API server is away) is not answered: the
server refuses the client when its time is over, and the client tries again.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog
from nats.aio.msg import Msg

from hami_registry.callout import claims
from hami_registry.callout.claims import Issued, Question, Refused
from hami_runtime.bus.jetstream import JetStreamBus
from hami_runtime.bus.nkeys import KeyFault, SigningKey
from hami_runtime.bus.permissions import AUTH_QUESTIONS
from hami_runtime.bus.port import BusUnavailable
from hami_runtime.clock import Clock
from hami_runtime.isolation import Isolation
from hami_runtime.kube import accounts
from hami_runtime.kube.access import AccessReviewer, User
from hami_runtime.kube.cluster import PODS, Cluster, ClusterError, NotFound
from hami_runtime.lifecycle import run_until
from hami_runtime.telemetry import OFF, Telemetry

log = structlog.get_logger()
GROUP: Final = "hami-auth-callout"
TOKEN_AUDIENCE: Final = "hami-nats"  # noqa: S105 - whom tokens are for, not one
_AT_ONCE: Final = 32
_WAITING: Final = 4096
_PATIENCE_SECONDS: Final = 3.0
"""A question that has waited so long is as good as over: its server gives up after four."""
_RETRY_SECONDS: Final = 1.0
_SPREAD: Final = 0.2
"""Users that were issued together end apart, or a thousand agents would come back in one second."""


MOST_USERS: Final = 20
"""At once for one node, of each replica: an agent has one connection, two while it is replaced."""
USER_SECONDS: Final = 30.0
"""In which a node may have one more."""
_REMEMBERED_NODES: Final = 20_000


@dataclass(slots=True)
class Allowance:
    """How many users one node may still have: they come back one by one."""

    at: float
    left: float = MOST_USERS

    def take(self, now: float) -> bool:
        """Use one up, if there is one."""
        self.left, self.at = min(MOST_USERS, self.left + (now - self.at) / USER_SECONDS), now
        if self.left < 1:
            return False
        self.left -= 1
        return True


class Responder:
    """Answers until stopped."""

    def __init__(
        self,
        bus: JetStreamBus,
        cluster: Cluster,
        clock: Clock,
        key: SigningKey,
        *,
        agent_namespace: str,
        agent_account: str,
        account: str,
        user_seconds: float,
        device_types: Sequence[str],
        telemetry: Telemetry = OFF,
    ) -> None:
        """Issue users of the NATS account ``account`` to the service account ``agent_account`` of ``agent_namespace``, for ``user_seconds``."""
        self._bus = bus
        self._cluster = cluster
        self._clock = clock
        self._isolation = Isolation("auth callout", clock, telemetry)
        self._key = key
        self._namespace = agent_namespace
        self._agent = accounts.user(agent_account, agent_namespace)
        self._account = account
        self._user_seconds = user_seconds
        self._device_types = device_types
        self._issued: OrderedDict[str, Allowance] = OrderedDict()
        self._access = AccessReviewer(cluster, clock, audiences=(TOKEN_AUDIENCE,), keep_seconds=0)
        self._questions: asyncio.Queue[tuple[float, Msg]] = asyncio.Queue(_WAITING)
        self._answers = telemetry.counter("hami_auth_callout_answers", "connections to the bus that were decided on, by outcome")

    async def run(self, stop: asyncio.Event) -> None:
        """Answer until ``stop``."""
        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE):
                group.create_task(run_until(stop, self._answer_for_ever()))
            group.create_task(run_until(stop, self._hear_for_ever()))

    async def _hear_for_ever(self) -> None:
        while True:
            session = await self._bus.session()
            try:
                await session.subscribe(AUTH_QUESTIONS, self._hear, group=GROUP)
            except BusUnavailable as exc:
                log.warning("questions cannot be heard", error=str(exc))
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            except Exception as exc:  # noqa: BLE001 - subscribed again
                self._isolation.failed("subscription", exc)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            await session.closed.wait()

    async def _hear(self, message: Msg) -> None:
        try:
            self._questions.put_nowait((self._clock.monotonic(), message))
        except asyncio.QueueFull:
            self._answers.add(1, {"outcome": "overrun"})

    async def _answer_for_ever(self) -> None:
        while True:
            heard_at, message = await self._questions.get()
            if self._clock.monotonic() - heard_at > _PATIENCE_SECONDS:
                self._answers.add(1, {"outcome": "late"})
                continue
            try:
                await self._answer(message)
            except Exception as exc:  # noqa: BLE001 - the server asks again when the client tries again
                self._isolation.failed("question", exc)
                self._answers.add(1, {"outcome": "failed"})

    async def _answer(self, message: Msg) -> None:
        try:
            question = claims.read(message.data)
        except KeyFault as exc:
            log.warning("a question cannot be read", reason=str(exc))
            self._answers.add(1, {"outcome": "unreadable"})
            return
        try:
            judgement = claims.worth_asking(question) or await self._judge(question)
        except ClusterError as exc:
            log.warning("the API server cannot be asked who connects", client=question.client, host=question.host, error=str(exc))
            self._answers.add(1, {"outcome": "unavailable"})
            return
        if isinstance(judgement, Issued):
            log.info("an agent is let in", node=judgement.node, client=question.client, host=question.host)
        else:
            log.warning("refused at the bus", client=question.client, host=question.host, reason=judgement.reason)
        self._answers.add(1, {"outcome": "issued" if isinstance(judgement, Issued) else "refused"})
        seconds = self._user_seconds * random.uniform(1 - _SPREAD, 1)  # noqa: S311 - spreads clients, keeps no secret
        now = self._clock.utc().timestamp()
        said = claims.answer(question, judgement, self._key, account=self._account, now=now, user_seconds=seconds)
        await self._bus.tell(message.reply, said)

    async def _judge(self, question: Question) -> Issued | Refused:
        user = await self._access.user_of(question.token)
        node = await self._node_of(user) if user is not None and user.name == self._agent else ""
        judgement = claims.judge(user, node, agent=self._agent, device_types=self._device_types)
        if isinstance(judgement, Issued) and not self._may_have_another(node):
            return Refused(reason=f"node {node} has had {MOST_USERS} users in a short time; accepted: one more every {USER_SECONDS:g} s")
        return judgement

    def _may_have_another(self, node: str) -> bool:
        """Whether the node has not had too many users: each is a connection, for as long as the user lives."""
        now = self._clock.monotonic()
        allowance = self._issued.setdefault(node, Allowance(at=now))
        self._issued.move_to_end(node)
        while len(self._issued) > _REMEMBERED_NODES:
            self._issued.popitem(last=False)
        return allowance.take(now)

    async def _node_of(self, user: User) -> str:
        """The token's node; by its pod where the token names only that, as those of Kubernetes before 1.30 do."""
        if user.node or not user.pod:
            return user.node
        try:
            pod = await self._cluster.get(PODS, user.pod, namespace=self._namespace)
        except NotFound:
            return ""
        return pod.spec.node_name if pod.metadata.uid == user.pod_uid else ""
