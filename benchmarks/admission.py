"""One AdmissionReview: judged from bytes to bytes, and over HTTPS as the API server sends it, several at a time, by a process of its own.

Each review is of a pod as the API server writes it (managed fields and all), in a namespace with a quota and many placed pods.
``python -m benchmarks.admission --reviews 2000``
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import ssl
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import aiohttp
import msgspec

from benchmarks import _report
from hami_devices.catalog import Catalog
from hami_protocol.kubernetes import Container, ObjectMeta, Pod, PodSpec, ResourceQuota, ResourceQuotaSpec, ResourceRequirements
from hami_runtime import lifecycle, logs
from hami_runtime.http import serve_app
from hami_webhook import wire
from hami_webhook.certificates import issue
from hami_webhook.http import Reviews
from hami_webhook.keeper import load, server_context
from hami_webhook.quota import QuotaBook
from hami_webhook.review import Policy, Reviewer
from hami_webhook.stores import write_private

PLACED_PODS: Final = 2000
AT_ONCE: Final = 8
GPU: Final = "nvidia.com/gpu"
MEMORY: Final = "nvidia.com/gpumem"


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--reviews", type=int, default=2000, help="of each kind of pod")
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    parser.add_argument("--client", nargs=3, metavar=("URL", "AUTHORITY", "AT_ONCE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        url, authority, at_once = options.client
        sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(call(url, authority, int(at_once), options.reviews))))
        return
    with Path(os.devnull).open("w") as nowhere:  # lines are written, as in the service, but nobody reads them
        logs.configure("info", "webhook", stream=nowhere, for_good=True)
        report(options)


def report(options: argparse.Namespace) -> None:
    """Measure everything and say it."""
    measurements = [judged(kind, body, options.reviews) for kind, body in reviews().items()]
    for at_once in (1, AT_ONCE):
        core_seconds, samples = lifecycle.run(over_https(options.reviews, at_once))
        where = f"https, {at_once} at once"
        measurements.append(_report.measurement(f"admission, {where}, client", [1000 * each for each in samples], unit="ms"))
        measurements.append(_report.measurement(f"admission, {where}, a second and core", [len(samples) / core_seconds], unit="1/s"))
    _report.report("admission", measurements, as_json=options.json)


def a_reviewer() -> Reviewer:
    """A reviewer that has a quota to keep, and much that counts on it."""
    catalog = Catalog()
    quotas = QuotaBook(catalog)
    hard = {f"limits.{MEMORY}": "100G", f"limits.{GPU}": "1M"}
    quotas.quota_changed(None, ResourceQuota(metadata=ObjectMeta(name="q", namespace="team"), spec=ResourceQuotaSpec(hard=hard)))
    container = Container(name="main", resources=ResourceRequirements(limits={GPU: "1", MEMORY: "2k"}))
    for place in range(PLACED_PODS):
        metadata = ObjectMeta(name=f"p{place}", namespace="team", uid=str(place))
        quotas.pod_changed(None, Pod(metadata=metadata, spec=PodSpec(node_name="n1", containers=(container,))))
    return Reviewer(catalog, Policy(), quotas)


def reviews() -> dict[str, bytes]:
    """Reviews by what they stand for."""
    share = {GPU: "1", MEMORY: "3k"}
    return {
        "asks for nothing of ours": review([container("main", {"cpu": "500m", "memory": "1Gi"})]),
        "one share": review([container("main", share)]),
        "four containers": review([container("a", share), container("b", share)], [container("i", share), container("s", {})]),
        "refused": review([container("main", {GPU: "1", MEMORY: "1500m"})]),
    }


def container(name: str, limits: dict[str, str]) -> dict[str, Any]:
    """A container as the API server completes it."""
    return {
        "name": name,
        "image": "registry.example.com/team/training:2026.1",
        "args": ["--epochs=10", "--data=/data"],
        "env": [{"name": f"SETTING_{place}", "value": "x" * 40} for place in range(20)],
        "resources": {"limits": limits, "requests": limits},
        "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True}],
        "terminationMessagePath": "/dev/termination-log",
        "imagePullPolicy": "IfNotPresent",
    }


def review(containers: list[dict[str, Any]], inits: list[dict[str, Any]] | None = None) -> bytes:
    """A review of one pod."""
    spec = {"containers": containers, "initContainers": inits or [], "restartPolicy": "Always", "schedulerName": "default-scheduler"}
    fields = {f"f:field{place}": {"f:nested": {}} for place in range(40)}
    managed = [{"manager": "kubectl", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": fields}}]
    metadata = {"generateName": "train-", "namespace": "team", "labels": {"app": "train"}, "managedFields": managed}
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": "team",
        "operation": "CREATE",
        "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller"},
        "object": {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec},
        "oldObject": None,
        "dryRun": False,
    }
    return msgspec.json.encode({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request})


def judged(kind: str, body: bytes, count: int) -> Any:
    """Bytes to bytes, without HTTP."""
    reviewer = a_reviewer()
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    samples = []
    for _ in range(count):
        began = time.perf_counter()
        version, request = wire.decode(body)
        wire.encode(version, request.uid, reviewer.mutate(request, traceparent=trace))
        samples.append(1000 * (time.perf_counter() - began))
    return _report.measurement(f"admission, {kind}", samples, unit="ms")


async def over_https(count: int, at_once: int) -> tuple[float, list[float]]:
    """Serve while the client calls: the processor time that serving took, and each call's seconds."""
    context = server_context()
    bundle = issue(["127.0.0.1"], datetime.now(UTC))
    load(context, bundle.certificate, bundle.key)
    with TemporaryDirectory() as folder:
        authority = Path(folder, "ca.crt")
        write_private(authority, bundle.authorities)
        async with serve_app(Reviews(a_reviewer()).application(), ssl=context) as port:
            arguments = ["--reviews", str(count), "--client", f"https://127.0.0.1:{port}/webhook", str(authority), str(at_once)]
            began = time.process_time()
            client = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "benchmarks.admission", *arguments, stdout=asyncio.subprocess.PIPE
            )
            output, _ = await client.communicate()
            core_seconds = time.process_time() - began
    return core_seconds, msgspec.json.decode(output, type=list[float])


async def call(url: str, authority: str, at_once: int, count: int) -> list[float]:
    """Call so often, ``at_once`` at a time; seconds of each call."""
    body = reviews()["one share"]
    samples: list[float] = []
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=authority))
    async with aiohttp.ClientSession(connector=connector, headers={"Content-Type": "application/json"}) as session:

        async def work(share: int) -> None:
            for _ in range(share):
                began = time.perf_counter()
                async with session.post(url, data=io.BytesIO(body)) as response:
                    await response.read()
                    response.raise_for_status()
                samples.append(time.perf_counter() - began)

        await asyncio.gather(*(work(count // at_once) for _ in range(at_once)))
    return samples


if __name__ == "__main__":
    main()
