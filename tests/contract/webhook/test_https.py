"""The webhook as the API server calls it, and as nobody should."""

from __future__ import annotations

import asyncio
import base64
import io
import ssl
from typing import Any

import aiohttp
import jsonpatch
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_devices.catalog import Catalog
from hami_runtime.http import serve_app
from hami_runtime.kube.store import ObjectStore
from hami_runtime.kube.store_resources import PODS, RESOURCE_QUOTAS
from hami_runtime.telemetry import Telemetry
from hami_webhook.http import Reviews
from hami_webhook.quota import QuotaBook
from hami_webhook.review import Policy, Reviewer

from .conftest import FixedClock, Served, a_pod, a_replica, a_review


def answer(body: bytes) -> dict[str, Any]:
    return msgspec.json.decode(body)["response"]  # type: ignore[no-any-return]


async def test_a_pod_is_patched_over_tls_that_the_configuration_object_trusts(served: Served) -> None:
    async with served.trusting() as session:
        status, body = await served.post(session, a_review(a_pod(gpu="1", gpumem="3k")))
    response = answer(body)
    assert (status, response["allowed"], response["patchType"]) == (200, True, "JSONPatch")
    assert response["uid"] == "705ab4f5-6393-11e8-b7cc-42010a800002"
    pod = jsonpatch.apply_patch(a_pod(gpu="1", gpumem="3k"), msgspec.json.decode(base64.b64decode(response["patch"])))
    assert pod["spec"]["schedulerName"] == "hami-scheduler"


async def test_nobody_else_trusts_it(served: Served) -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await served.post(session, a_review(a_pod()))


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_a_review_is_answered_in_its_own_version(served: Served, version: str) -> None:
    async with served.trusting() as session:
        _, body = await served.post(session, a_review(a_pod(), version=version))
    review = msgspec.json.decode(body)
    assert (review["apiVersion"], review["kind"]) == (f"admission.k8s.io/{version}", "AdmissionReview")


async def test_a_refusal_has_its_code_reason_and_message(served: Served) -> None:
    async with served.trusting() as session:
        _, body = await served.post(session, a_review(a_pod(gpu="1", gpumem="1.5")))
    response = answer(body)
    assert not response["allowed"]
    assert response["status"]["code"] == 422
    assert response["status"]["message"].startswith("spec.containers[0].resources.limits[nvidia.com/gpumem]: '1.5'")
    assert "patch" not in response


async def test_a_dry_run_gets_the_same_answer(served: Served) -> None:
    async with served.trusting() as session:
        real, dry = [answer((await served.post(session, a_review(a_pod(gpu="1"), dryRun=each)))[1]) for each in (False, True)]
    assert real == dry


async def test_the_validating_side_refuses_a_forged_assignment(served: Served) -> None:
    pod = a_pod()
    pod["metadata"]["annotations"] = {"hami.io/vgpu-node": "n1"}
    async with served.trusting() as session:
        _, body = await served.post(session, a_review(pod, operation="UPDATE", oldObject=a_pod()), "/validate")
    assert not answer(body)["allowed"]


async def test_quotas_and_pods_are_followed(served: Served, store: ObjectStore) -> None:
    store.create(RESOURCE_QUOTAS, {"metadata": {"name": "q"}, "spec": {"hard": {"limits.nvidia.com/gpumem": "2000"}}}, "default")
    bound = a_pod(gpu="1", gpumem="1500")
    bound["spec"]["nodeName"] = "n1"
    store.create(PODS, bound, "default")
    async with served.trusting() as session:
        for _ in range(100):
            _, body = await served.post(session, a_review(a_pod(gpu="1", gpumem="1000")))
            if not answer(body)["allowed"]:
                break
        assert "asks 1000 MiB, 1500 MiB of 2000 MiB are used" in answer(body)["status"]["message"]


async def test_pods_are_not_even_listed_where_no_quota_is_about_us(served: Served, store: ObjectStore) -> None:
    store.create(RESOURCE_QUOTAS, {"metadata": {"name": "q"}, "spec": {"hard": {"limits.cpu": "10"}}}, "default")
    async with served.trusting() as session:
        await served.post(session, a_review(a_pod(gpu="1")))
    assert served.cluster.calls["list", "pods"] == 0


async def test_a_body_over_the_limit_is_refused_whether_its_length_is_said_or_not(served: Served) -> None:
    body = msgspec.json.encode(a_review(a_pod(gpu="x" * (10 * 1024 * 1024))))

    async def pieces():  # type: ignore[no-untyped-def]
        for start in range(0, len(body), 1 << 20):
            yield body[start : start + (1 << 20)]

    async with served.trusting() as session:
        for data in (io.BytesIO(body), pieces()):
            async with session.post(served.url + "/webhook", data=data, headers={"Content-Type": "application/json"}) as response:
                assert (response.status, await response.text()) == (413, "the body is over the limit of 7340032 bytes\n")
        assert (await served.post(session, a_review(a_pod())))[0] == 200


async def test_a_large_review_within_the_limit_is_answered(served: Served) -> None:
    pod = a_pod(gpu="1")
    pod["metadata"]["annotations"] = {"note": "x" * (6 * 1024 * 1024)}
    async with served.trusting() as session:
        status, body = await served.post(session, a_review(pod))
    assert (status, answer(body)["allowed"]) == (200, True)


async def test_a_review_without_an_object_is_denied_with_the_reason(served: Served) -> None:
    async with served.trusting() as session:
        without = a_review(None)
        del without["request"]["object"]
        for review in (a_review(None), without):
            status, body = await served.post(session, review)
            assert status == 200
            assert answer(body)["status"] == {
                "code": 400,
                "reason": "BadRequest",
                "message": "request.object: missing; accepted: the object under review",
            }


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body is no AdmissionReview"),
        (b"\xff\xfe", "the body is no AdmissionReview"),
        (b"[" * 100_000, "the body is no AdmissionReview"),
        (b"{}", "the body is a '' of ''; accepted: AdmissionReview"),
        (b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}', "request: missing"),
        (b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v2","request":{"uid":"x"}}', "the body is a 'AdmissionReview' of"),
    ],
)
async def test_what_is_no_review_is_refused_with_a_clear_text(served: Served, body: bytes, message: str) -> None:
    async with served.trusting() as session:
        status, text = await served.post(session, body)
    assert status == 400
    assert text.decode().startswith(message)


async def test_other_content_types_methods_and_paths_are_refused(served: Served) -> None:
    async with served.trusting() as session:
        assert (await served.post(session, b"{}", **{"Content-Type": "text/plain"}))[0] == 415
        assert (await served.post(session, b"{}", "/elsewhere"))[0] == 404
        async with session.get(served.url + "/webhook") as response:
            assert response.status == 405


async def test_a_trace_of_the_api_server_leads_on_into_the_pod() -> None:
    catalog = Catalog()
    telemetry = Telemetry("webhook")
    app = Reviews(Reviewer(catalog, Policy(), QuotaBook(catalog)), telemetry=telemetry).application()
    incoming = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with serve_app(app) as port, aiohttp.ClientSession() as session:
        url, headers = f"http://127.0.0.1:{port}/webhook", {"traceparent": incoming}
        async with session.post(url, json=a_review(a_pod(gpu="1")), headers=headers) as response:
            patch = msgspec.json.decode(base64.b64decode(answer(await response.read())["patch"]))
    written = next(operation["value"] for operation in patch if "annotations" in operation["path"])["hami.io/traceparent"]
    assert written.split("-")[1] == incoming.split("-")[1]
    assert written != incoming
    assert b'hami_webhook_reviews_total{outcome="patched",path="/webhook"} 1.0' in telemetry.prometheus_text()
    telemetry.close()


hostile = st.one_of(
    st.binary(max_size=200),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda e: st.lists(e) | st.dictionaries(st.text(max_size=5), e),
        max_leaves=5,
    ).map(lambda value: msgspec.json.encode(a_review(value))),
    st.builds(lambda cut: msgspec.json.encode(a_review(a_pod(gpu="1")))[:cut], st.integers(0, 400)),
    st.builds(lambda at, byte: _spoilt(at, byte), st.integers(0, 400), st.integers(0, 255)),
)


def _spoilt(at: int, byte: int) -> bytes:
    body = bytearray(msgspec.json.encode(a_review(a_pod(gpu="1", gpumem="16Gi"))))
    body[at % len(body)] = byte
    return bytes(body)


def test_any_bytes_get_a_clean_answer_and_the_process_lives_on(store: ObjectStore) -> None:
    """One server and one connection for all examples: whatever came before must not show."""

    async def flood() -> None:
        async with a_replica(store, FixedClock()) as served, served.trusting() as session:
            loop = asyncio.get_running_loop()

            @settings(max_examples=150, deadline=None)
            @given(hostile, st.sampled_from(["/webhook", "/validate"]))
            def each(body: bytes, path: str) -> None:
                status, answered = asyncio.run_coroutine_threadsafe(served.post(session, body, path), loop).result(10)
                if status == 200:
                    response = answer(answered)
                    assert isinstance(response["allowed"], bool)
                    assert response["allowed"] or response["status"]["message"]
                else:
                    assert status == 400
                    assert answered.strip()

            await asyncio.to_thread(each)
            status, body = await served.post(session, a_review(a_pod(gpu="1")))
            assert (status, answer(body)["allowed"]) == (200, True)

    asyncio.run(flood())


async def test_old_tls_versions_are_refused(served: Served) -> None:
    assert served.context.minimum_version == ssl.TLSVersion.TLSv1_2
