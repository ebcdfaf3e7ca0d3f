import asyncio
import base64
import datetime as dt
import ipaddress
import json
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from .conftest import Api, a_binding, a_pod

Respond = Callable[[dict[str, Any]], dict[str, Any]]


def _certificate(folder: Path) -> tuple[ssl.SSLContext, str]:
    """A server's TLS settings for 127.0.0.1, and the ``caBundle`` that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "webhook")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file = folder / "webhook.pem"
    file.write_bytes(pem + private)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context, base64.b64encode(pem).decode()


class Hook:
    """A webhook and its configuration; ``respond`` decides, ``requests`` is what it was asked."""

    def __init__(self, api: Api, url: str, bundle: str) -> None:
        self._api = api
        self._url = url
        self._bundle = bundle
        self._configurations: list[str] = []
        self.respond: Respond = lambda _request: {"allowed": True}
        self.takes_seconds = 0.0
        self.requests: list[dict[str, Any]] = []

    async def answer(self, request: web.Request) -> web.Response:
        review = await request.json()
        asked = review["request"]
        if asked.get("name") != "probe":
            self.requests.append(asked)
        response = self.respond(asked)
        await asyncio.sleep(self.takes_seconds)
        if "raw" in response:
            return web.Response(status=response.get("status", 200), text=response["raw"])
        return web.json_response(
            {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": {"uid": asked["uid"], **response}}
        )

    async def configure(self, kind: str, *webhooks: dict[str, Any]) -> None:
        """Register the webhooks for pods of this test's namespace, and wait until the server asks them."""
        plural = f"{kind.lower()}webhookconfigurations"
        path = f"/apis/admissionregistration.k8s.io/v1/{plural}"
        name = f"{kind.lower()}-{self._api.namespace}"
        rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]
        body = {
            "metadata": {"name": name},
            "webhooks": [
                {
                    "name": f"w{index}.hami.io",
                    "clientConfig": {"url": self._url, "caBundle": self._bundle},
                    "rules": rules,
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self._api.namespace}},
                    "admissionReviewVersions": ["v1"],
                    "sideEffects": "None",
                    **webhook,
                }
                for index, webhook in enumerate(webhooks)
            ],
        }
        created = await self._api.post(path, body)
        assert created.code == 201, created.body
        self._configurations.append(f"{path}/{name}")
        wanted, self.respond = self.respond, lambda _request: {"allowed": False, "status": {"message": "in place"}}
        async with asyncio.timeout(30):
            while (await self._api.post(self._api.pods, a_pod("probe"), dryRun="All")).code == 201:  # noqa: ASYNC110 - asked from outside
                await asyncio.sleep(0.05)
        self.respond = wanted
        self.requests.clear()

    async def remove(self) -> None:
        for path in self._configurations:
            await self._api.delete(path)


@pytest.fixture
async def hook(api: Api, tmp_path: Path) -> AsyncIterator[Hook]:
    tls, bundle = _certificate(tmp_path)
    app = web.Application()
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    served: list[Hook] = []

    async def answer(request: web.Request) -> web.Response:
        return await served[0].answer(request)

    app.router.add_post("/hook", answer)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    port = runner.addresses[0][1]
    hook = Hook(api, f"https://127.0.0.1:{port}/hook", bundle)
    served.append(hook)
    yield hook
    await hook.remove()
    await runner.cleanup()


def a_patch(*operations: dict[str, Any]) -> dict[str, Any]:
    return {"allowed": True, "patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(operations).encode()).decode()}


def labelled(name: str) -> dict[str, Any]:
    return {"op": "add", "path": "/metadata/labels", "value": {name: "true"}}


async def test_a_mutating_webhook_gets_the_whole_request_and_its_patch_is_stored(api: Api, hook: Hook) -> None:
    await hook.configure("Mutating", {})
    limits = {"op": "add", "path": "/spec/containers/0/resources/limits", "value": {"nvidia.com/gpumem": "3000"}}
    hook.respond = lambda _request: a_patch(labelled("seen"), limits)
    body = {"metadata": {"generateName": "made-"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    pod = (await api.post(api.pods, body)).body
    assert pod["metadata"]["labels"] == {"seen": "true"}
    assert pod["spec"]["containers"][0]["resources"] == {"limits": {"nvidia.com/gpumem": "3k"}, "requests": {"nvidia.com/gpumem": "3k"}}

    asked = hook.requests[0]
    assert (asked["operation"], asked["namespace"], asked["dryRun"]) == ("CREATE", api.namespace, False)
    assert asked["kind"] == {"group": "", "version": "v1", "kind": "Pod"}
    assert asked["resource"] == {"group": "", "version": "v1", "resource": "pods"}
    assert asked["oldObject"] is None
    assert asked["options"] == {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"}
    assert asked["userInfo"]["username"]
    assert "name" not in asked
    assert asked["object"]["metadata"]["namespace"] == api.namespace
    assert "name" not in asked["object"]["metadata"]
    assert asked["object"]["spec"]["schedulerName"] == "default-scheduler"


async def test_a_denial_is_told_in_the_webhooks_words(api: Api, hook: Hook) -> None:
    await hook.configure("Validating", {})
    hook.respond = lambda _request: {"allowed": False, "status": {"message": "no such card", "code": 422, "reason": "Invalid"}}
    refused = await api.post(api.pods, a_pod())
    assert refused.error == (422, "Invalid")
    assert refused.body["message"] == 'admission webhook "w0.hami.io" denied the request: no such card'
    hook.respond = lambda _request: {"allowed": False}
    refused = await api.post(api.pods, a_pod())
    assert refused.code == 400
    assert refused.body["message"] == 'admission webhook "w0.hami.io" denied the request without explanation'
    code, output = await api.kubectl("run", "--image", "i", "p")
    assert (code, 'admission webhook "w0.hami.io" denied the request' in output) == (1, True)


async def test_warnings_reach_the_client(api: Api, hook: Hook) -> None:
    await hook.configure("Validating", {})
    hook.respond = lambda _request: {"allowed": True, "warnings": ["this is old"]}
    assert (await api.post(api.pods, a_pod())).warnings == ['299 - "this is old"']


@pytest.mark.parametrize(
    ("response", "why"),
    [
        ({"raw": "{}"}, "received invalid webhook response: webhook response was absent"),
        ({"allowed": True, "uid": "another"}, 'got "another"'),
        ({"raw": "oops", "status": 500}, 'an error on the server ("oops") has prevented the request from succeeding'),
    ],
)
async def test_a_webhook_that_fails_closes_or_opens_as_its_policy_says(api: Api, hook: Hook, response: dict[str, Any], why: str) -> None:
    await hook.configure("Validating", {})
    hook.respond = lambda _request: response
    refused = await api.post(api.pods, a_pod())
    assert refused.error == (500, "InternalError")
    assert refused.body["message"].startswith('Internal error occurred: failed calling webhook "w0.hami.io": ')
    assert why in refused.body["message"]


async def test_an_ignored_failure_lets_the_request_through(api: Api, hook: Hook) -> None:
    await hook.configure("Validating", {"failurePolicy": "Ignore"})
    hook.respond = lambda _request: {"raw": "oops", "status": 500}
    assert (await api.post(api.pods, a_pod())).code == 201
    assert len(hook.requests) == 1


@pytest.mark.parametrize(("policy", "code"), [("Fail", 500), ("Ignore", 201)])
async def test_a_webhook_that_takes_longer_than_it_may_has_failed(api: Api, hook: Hook, policy: str, code: int) -> None:
    await hook.configure("Mutating", {"failurePolicy": policy, "timeoutSeconds": 1})
    hook.takes_seconds = 5.0
    answer = await api.post(api.pods, a_pod())
    assert answer.code == code
    assert len(hook.requests) == 1
    if policy == "Fail":
        message = answer.body["message"]
        assert message.startswith('Internal error occurred: failed calling webhook "w0.hami.io": failed to call webhook: Post "https://')
        assert message.endswith('/hook?timeout=1s": context deadline exceeded')


async def test_a_patch_that_does_not_apply_is_an_error(api: Api, hook: Hook) -> None:
    await hook.configure("Mutating", {})
    hook.respond = lambda _request: a_patch({"op": "remove", "path": "/nope"})
    assert (await api.post(api.pods, a_pod())).error == (500, "InternalError")


async def test_a_dry_run_is_announced(api: Api, hook: Hook) -> None:
    await hook.configure("Mutating", {})
    hook.respond = lambda _request: a_patch(labelled("seen"))
    assert (await api.post(api.pods, a_pod(), dryRun="All")).body["metadata"]["labels"] == {"seen": "true"}
    assert hook.requests[0]["dryRun"] is True
    assert (await api.get(f"{api.pods}/p")).code == 404


async def test_a_webhook_is_asked_again_only_if_it_wants_to_and_others_changed_the_object(api: Api, hook: Hook) -> None:
    await hook.configure("Mutating", {"reinvocationPolicy": "IfNeeded"}, {})
    answers = iter([{"allowed": True}, a_patch(labelled("second")), {"allowed": True}])
    hook.respond = lambda _request: next(answers)
    assert (await api.post(api.pods, a_pod())).body["metadata"]["labels"] == {"second": "true"}
    assert [each["object"]["metadata"].get("labels") for each in hook.requests] == [None, None, {"second": "true"}]


async def test_rules_and_selectors_choose_what_is_asked(api: Api, hook: Hook) -> None:
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["pods", "pods/binding"]}]
    skip = {"matchExpressions": [{"key": "skip", "operator": "DoesNotExist"}]}
    await hook.configure("Validating", {"rules": rules, "objectSelector": skip})
    await api.post(api.pods, a_pod("skipped", metadata={"labels": {"skip": "me"}}))
    await api.post(api.maps, {"metadata": {"name": "m"}})
    assert hook.requests == []
    await api.post(api.pods, a_pod())
    await api.post(f"{api.pods}/p/binding", a_binding())
    await api.patch(f"{api.pods}/p", {"metadata": {"labels": {"a": "b"}}})
    await api.patch(f"{api.pods}/p/status", {"status": {"phase": "Running"}})
    await api.delete(f"{api.pods}/p")
    # A real server may ask about one and the same write more than once.
    asked = [(each["operation"], each["kind"]["kind"], each.get("subResource")) for each in hook.requests]
    assert list(dict.fromkeys(asked)) == [
        ("CREATE", "Pod", None),
        ("CREATE", "Binding", "binding"),
        ("UPDATE", "Pod", None),
        ("DELETE", "Pod", None),
    ]
    update = next(each for each in hook.requests if each["operation"] == "UPDATE")
    deletion = next(each for each in hook.requests if each["operation"] == "DELETE")
    assert (update["oldObject"]["metadata"].get("labels"), update["object"]["metadata"]["labels"]) == (None, {"a": "b"})
    assert (deletion["object"], deletion["oldObject"]["metadata"]["name"]) == (None, "p")


async def test_a_webhook_configuration_must_say_what_it_does(api: Api) -> None:
    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    webhook = {"name": "w.hami.io", "clientConfig": {"url": "https://127.0.0.1:1/"}, "admissionReviewVersions": ["v1"]}
    refused = await api.post(path, {"metadata": {"name": f"bad-{api.namespace}"}, "webhooks": [webhook]})
    assert refused.error == (422, "Invalid")
    assert "webhooks[0].sideEffects" in {each["field"] for each in refused.body["details"]["causes"]}
