"""etcd, kube-apiserver and kube-controller-manager as processes on the loopback address, everything in one folder.

What the suites of ``tests/contract`` need of a real Kubernetes; ``node`` adds kubelets to it. Each program dies with the one that started it, and
a janitor removes the folder where that one was killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import ssl
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from hami_rig.processes import ManagedProcess, ProcessFailed
from hami_runtime.kube.accounts import AGENT_NAMESPACE
from tests.certificates import Authority
from tests.cluster.harness import building, janitor, ports
from tests.cluster.harness.users import ADMIN, NAMESPACE, Users

READY_SECONDS = 120.0
GRACE_SECONDS = 10.0
PLANE_GRACE_SECONDS = 1.0
"""For the control plane's own programs: kube-apiserver waits long for its watchers, and what it has stored is stored."""
LOOK_AGAIN_SECONDS = 0.1
ETCD = "etcd"
API_SERVER = "kube-apiserver"
CONTROLLERS = "kube-controller-manager"


class ControlPlane:
    """A running control plane.

    Args:
        nodes: names of the nodes that will have kubelets.
        folder: where everything is kept; a new temporary folder where not given. It is removed at the end.
        controllers: which of kube-controller-manager's controllers run (its ``--controllers``); none means that it is not started.
        say: told of every step.
    """

    def __init__(
        self,
        *,
        nodes: Iterable[str] = (),
        folder: Path | None = None,
        controllers: Sequence[str] = ("*",),
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.folder = folder or Path(tempfile.mkdtemp(prefix="hami-cluster-"))
        self.processes: dict[str, ManagedProcess] = {}
        self.users = Users(nodes)
        self.binaries = Path()
        self.url = ""
        self.say = say
        self._controllers = tuple(controllers)
        self._authority = b""
        self._janitor: asyncio.subprocess.Process | None = None

    @property
    def admin(self) -> Path:
        """The kubeconfig of somebody who may do everything."""
        return self.kubeconfig(ADMIN)

    @property
    def audit_log(self) -> Path:
        """What our services asked of the API server, and whether they may: a line of JSON for each call that has ended."""
        return self.folder / "audit.log"

    def _audit_policy(self) -> Path:
        ours = {"level": "Metadata", "userGroups": [f"system:serviceaccounts:{each}" for each in (NAMESPACE, AGENT_NAMESPACE)]}
        policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived", "ResponseStarted"]}
        path = self.folder / "audit-policy.json"
        path.write_text(json.dumps({**policy, "rules": [ours, {"level": "None"}]}))
        return path

    def kubeconfig(self, name: str) -> Path:
        """The kubeconfig of one program or person."""
        return self.folder / "kubeconfigs" / name

    def session(self, name: str = ADMIN) -> aiohttp.ClientSession:
        """An HTTP client that is ``name`` to the API server."""
        context = ssl.create_default_context(cadata=self._authority.decode())
        headers = {"Authorization": f"Bearer {self.users.token(name)}"}
        return aiohttp.ClientSession(self.url, headers=headers, connector=aiohttp.TCPConnector(ssl=context, limit=0))

    async def __aenter__(self) -> Self:
        self._janitor = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", janitor.__file__, str(self.folder), stdin=asyncio.subprocess.PIPE, start_new_session=True
        )
        try:
            self.binaries = await asyncio.to_thread(building.binaries)
            await self._start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop everything and remove the folder."""
        for name in (CONTROLLERS, API_SERVER, ETCD):
            if name in self.processes:
                await self.processes[name].stop(grace_seconds=PLANE_GRACE_SECONDS)
        if keep := os.environ.get("HAMI_TEST_KEEP_LOGS"):
            shutil.copytree(self.folder / "logs", keep, dirs_exist_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._janitor is not None and self._janitor.stdin is not None:
            self._janitor.stdin.close()
            await self._janitor.wait()
            self._janitor = None

    async def start_program(self, name: str, *arguments: str, program: str = "", environ: dict[str, str] | None = None) -> ManagedProcess:
        """Start one of the built programs; whether it is ready is for the caller to find out."""
        process = ManagedProcess(
            name, [str(self.binaries / (program or name)), *arguments], folder=self.folder, environ=environ or _inherited()
        )
        self.processes[name] = process
        await process.start()
        return process

    async def _start(self) -> None:
        self.say("starting etcd and kube-apiserver")
        authority = Authority(self.folder)
        self._authority = authority.certificate.read_bytes()
        certificate, key = authority.issue(API_SERVER)
        client_url, peer_url = (f"http://127.0.0.1:{ports.free()}" for _ in range(2))
        port = ports.free()
        self.url = f"https://127.0.0.1:{port}"
        self._write_users()
        await self.start_program(
            ETCD,
            *("--data-dir", str(self.folder / "etcd"), "--unsafe-no-fsync", "--log-level", "error", "--quota-backend-bytes", "8589934592"),
            *("--listen-client-urls", client_url, "--advertise-client-urls", client_url, "--listen-peer-urls", peer_url),
            *("--initial-advertise-peer-urls", peer_url, "--initial-cluster", f"default={peer_url}"),
        )
        secret, public = signing_key(self.folder)
        await self.start_program(
            API_SERVER,
            *("--etcd-servers", client_url, "--secure-port", str(port), "--bind-address", "127.0.0.1"),
            *("--endpoint-reconciler-type", "none", "--cert-dir", str(self.folder / "certs")),
            *("--tls-cert-file", str(certificate), "--tls-private-key-file", str(key)),
            *("--service-account-key-file", str(public), "--service-account-signing-key-file", str(secret)),
            *("--service-account-issuer", "https://kubernetes.default.svc", "--service-cluster-ip-range", "10.0.0.0/24"),
            *("--token-auth-file", str(self.folder / "tokens.csv"), "--authorization-mode", "Node,RBAC", "--allow-privileged"),
            *("--enable-admission-plugins", "NodeRestriction"),
            *("--audit-policy-file", str(self._audit_policy()), "--audit-log-path", str(self.audit_log), "--audit-log-maxsize", "1000"),
        )
        await self.answers(API_SERVER, "/readyz")
        if self._controllers:
            await self.start_program(
                CONTROLLERS,
                *("--kubeconfig", str(self.kubeconfig(CONTROLLERS)), "--use-service-account-credentials", "--leader-elect=false"),
                *("--service-account-private-key-file", str(secret), "--bind-address", "127.0.0.1", "--secure-port", "0"),
                *("--controllers", ",".join(self._controllers), "--node-monitor-grace-period", "120s"),
            )
            await self.answers(CONTROLLERS, "/api/v1/namespaces/default/serviceaccounts/default")

    async def restart_api_server(self) -> None:
        """Stop kube-apiserver and start it again: watches end, and versions from before are no longer kept."""
        await self.processes[API_SERVER].stop(grace_seconds=PLANE_GRACE_SECONDS)
        await self.processes[API_SERVER].start()
        await self.answers(API_SERVER, "/readyz")

    def _write_users(self) -> None:
        (self.folder / "tokens.csv").write_text(self.users.token_file())
        for name in self.users:
            path = self.kubeconfig(name)
            path.parent.mkdir(exist_ok=True)
            path.write_text(self.users.kubeconfig(name, server=self.url, authority=self._authority))

    async def answers(self, name: str, path: str) -> None:
        """Wait until the API server answers ``path``, which ``name`` is to bring about.

        Raises:
            ProcessFailed: it does not in time, or ``name`` has ended.
        """
        async with self.session() as session:

            async def asked() -> bool:
                try:
                    async with session.get(path) as answer:
                        return answer.status == 200
                except aiohttp.ClientError:
                    return False

            await self.until(asked, name, f"{path} is not there")

    async def until(self, holds: Callable[[], Awaitable[Any]], name: str, complaint: str, *, seconds: float = READY_SECONDS) -> None:
        """Wait until ``holds``, as long as the program ``name`` runs.

        Raises:
            ProcessFailed: it does not hold in time, or ``name`` has ended.
        """
        process = self.processes[name]
        try:
            async with asyncio.timeout(seconds):
                while not await holds():
                    if not process.pid:
                        raise ProcessFailed(process.obituary())
                    await asyncio.sleep(LOOK_AGAIN_SECONDS)
        except TimeoutError as exc:
            raise ProcessFailed(f"{name}: {complaint} after {seconds:.0f} s\n{process.log_tail()}") from exc


def signing_key(folder: Path) -> tuple[Path, Path]:
    """The key that service-account tokens are signed with, and its public half."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    secret, public = folder / "sa.key", folder / "sa.pub"
    pem = serialization.Encoding.PEM
    secret.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    return secret, public


def _inherited() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("HAMI_")}
