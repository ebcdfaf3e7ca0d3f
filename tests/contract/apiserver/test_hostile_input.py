"""Whatever bytes come in, the parts that read them answer or refuse in the one documented way."""

import contextlib
import io
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_rig.apiserver.apply import applied
from hami_rig.apiserver.patches import json_patched, strategically_merged
from hami_rig.apiserver.protobuf import from_protobuf
from hami_rig.apiserver.schema import decoded, root_type
from hami_rig.apiserver.settings import utc_now
from hami_rig.apiserver.webhook_rules import WebhookFailed, answer_of, patched
from hami_rig.quantities import amount, canonical
from hami_runtime.kube.store_errors import ApiError
from hami_runtime.kube.store_resources import PODS, RESOURCES

from .conftest import Api

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=4) | st.sampled_from(["delete", "replace", "merge"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["metadata", "spec", "status", "containers", "name", "labels", "limits", "resources", "$patch", "$retainKeys"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
json_objects = st.dictionaries(st.sampled_from(["metadata", "spec", "status", "data", "$patch"]), json_values, max_size=4)


@given(st.sampled_from(RESOURCES), json_values)
def test_a_body_decodes_or_is_a_bad_request(resource: Any, body: Any) -> None:
    try:
        known, _ = decoded(root_type(resource), body)
    except ApiError as refused:
        if refused.code != 400:
            raise
    else:
        assert decoded(root_type(resource), known) == (known, [])


@given(json_objects, json_values)
def test_patches_apply_or_are_refused(target: Any, patch: Any) -> None:
    pod, _ = _decodable(target)
    for change in (
        lambda: strategically_merged(root_type(PODS), pod, patch) if isinstance(patch, dict) else None,
        lambda: json_patched(pod, patch),
    ):
        before = msgspec.json.encode(pod)
        try:
            change()
        except ApiError as refused:
            if refused.code not in (400, 422):
                raise
        assert msgspec.json.encode(pod) == before


def _decodable(body: Any) -> tuple[dict[str, Any], list[str]]:
    try:
        return decoded(root_type(PODS), body)
    except ApiError:
        return {"metadata": {"name": "p"}}, []


@given(json_objects, json_objects)
def test_applying_the_same_again_changes_nothing(target: Any, wanted: Any) -> None:
    (live, _), (document, _) = _decodable(target), _decodable(wanted)
    live, document = ({**each, "metadata": {"name": "p", **each.get("metadata", {})}} for each in (live, document))
    arguments = {"manager": "me", "force": True, "now": utc_now()}
    once = applied(PODS, root_type(PODS), live, document, **arguments)
    assert applied(PODS, root_type(PODS), once, document, **arguments) == once


@given(st.binary(max_size=64))
def test_protobuf_is_read_or_refused(data: bytes) -> None:
    for body in (data, b"k8s\x00" + data, b"k8s\x00\n\x0f\n\x02v1\x12\tNamespace\x12" + bytes([len(data)]) + data):
        with contextlib.suppress(ValueError):
            assert isinstance(from_protobuf(body), dict)


def test_a_length_in_protobuf_that_is_negative_as_go_reads_it_is_refused() -> None:
    length = bytes(
        [*(0x80 | each for each in (0x75, *[0x7F] * 8)), 0x01]
    )  # 2^64 - 11: a signed reader would step back to the start, for ever
    with pytest.raises(ValueError, match="longer than its message"):
        from_protobuf(b"k8s\x00\x1a" + length)


@given(st.binary(max_size=40) | json_values.map(msgspec.json.encode))
def test_an_answer_of_a_webhook_is_one_or_a_failure(body: bytes) -> None:
    with contextlib.suppress(WebhookFailed, ApiError):
        answer_of("w", "uid", body)


@given(json_objects, json_values)
def test_a_webhooks_patch_applies_or_is_an_error(target: Any, patch: Any) -> None:
    try:
        assert isinstance(patched(target, {"patchType": "JSONPatch", "patch": patch}), dict)
    except ApiError as refused:
        if refused.code != 500:
            raise


@given(st.text("0123456789.+-eEiKMGTPnumk ", max_size=12) | st.text(max_size=6))
def test_a_quantity_keeps_its_value_or_is_none(text: str) -> None:
    try:
        written = canonical(text)
    except ValueError:
        with pytest.raises(ValueError, match="must match the regular expression"):
            amount(text)
        return
    assert canonical(written) == written
    assert 0 <= amount(written) - amount(text) < Fraction(1, 1000)


@pytest.mark.parametrize(
    ("given_text", "written"),
    [
        ("3000", "3k"),
        ("16384Mi", "16Gi"),
        ("0.5", "500m"),
        ("1.5Gi", "1536Mi"),
        ("0.5Ki", "512"),
        ("1000Mi", "1000Mi"),
        ("1024Ki", "1Mi"),
        ("1000000k", "1G"),
        ("1e3", "1e3"),
        ("1e19", "10e18"),
        ("1.0", "1"),
        ("3000.0", "3k"),
        (".5", "500m"),
        ("0.1m", "1m"),
        ("100000n", "1m"),
        ("1e-5", "1e-3"),
        ("-0", "0"),
        ("+5", "+5"),
        ("12E6", "12E6"),
        ("01", "01"),
        ("1.", "1."),
        ("+1Gi", "+1Gi"),
        ("99999999999999999999", "99999999999999999999"),
        ("16E", "16E"),
    ],
)
async def test_quantities_are_written_as_the_real_server_writes_them(api: Api, given_text: str, written: str) -> None:
    pod = {
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": {"memory": given_text}}}]},
    }
    stored = await api.post(api.pods, pod, dryRun="All")
    assert stored.body["spec"]["containers"][0]["resources"]["limits"]["memory"] == written


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"metadata":' * 50_000,
        b"\xff\xfe",
        b'"text"',
        b"null",
        b'{"metadata":{"name":7}}',
        b'{"metadata":[]}',
        b'{"spec":5}',
    ],
)
async def test_hostile_bodies_are_bad_requests(api: Api, body: bytes) -> None:
    assert (await api.post(api.pods, body)).code in (400, 422)
    for content_type in ("application/merge-patch+json", "application/strategic-merge-patch+json", "application/json-patch+json"):
        assert (await api.patch(f"{api.pods}/nope", body, content_type)).code in (400, 404, 422)


async def test_a_body_beyond_the_limit_is_refused(api: Api) -> None:
    body = b'{"metadata":{"name":"m"},"data":{"x":"' + b"x" * (3 * 1024 * 1024) + b'"}}'
    assert (await api.post(api.maps, io.BytesIO(body))).code == 413
