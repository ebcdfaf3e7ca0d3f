"""The certificate's life: made once for all replicas, renewed in time, trusted before it is served."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from cryptography import x509

from hami_runtime.kube.cluster import MUTATING_WEBHOOKS, SECRETS, VALIDATING_WEBHOOKS, Unavailable
from hami_runtime.kube.memory import MemoryCluster
from hami_runtime.kube.store import ObjectStore
from hami_webhook.certificates import AUTHORITY_DAYS, SERVING_DAYS, Bundle, issue, renewal_reason
from hami_webhook.keeper import OLD_TRUST_SECONDS, MountedCertificate, load, server_context
from hami_webhook.registration import Endpoint
from hami_webhook.stores import DirectoryStore, SecretStore

from .conftest import FixedClock, Served, a_pod, a_replica, a_review

NAMES = ("127.0.0.1", "hami-webhook.kube-system.svc")


def the_certificate(served: Served) -> Bundle:
    assert served.keeper._loaded is not None
    return served.keeper._loaded


async def test_replicas_share_one_certificate(store: ObjectStore, clock: FixedClock) -> None:
    async with a_replica(store, clock) as one, a_replica(store, clock) as other:
        assert the_certificate(one) == the_certificate(other)


async def test_two_replicas_that_start_at_once_agree(store: ObjectStore, clock: FixedClock) -> None:
    one, other = (SecretStore(MemoryCluster(store), namespace="kube-system", name="s") for _ in range(2))
    assert await one.read() is None
    assert await other.read() is None
    first, second = issue(NAMES, clock.utc()), issue(NAMES, clock.utc())
    assert await one.write(first, over=None)
    assert not await other.write(second, over=None)
    stored = await other.read()
    assert stored is not None
    assert stored.bundle == first


async def test_both_configuration_objects_are_made_and_trust_the_authority(served: Served) -> None:
    mutating = await served.cluster.get(MUTATING_WEBHOOKS, "vgpu.hami.io")
    validating = await served.cluster.get(VALIDATING_WEBHOOKS, "validate.vgpu.hami.io")
    assert await served.authorities() == await served.authorities(VALIDATING_WEBHOOKS, "validate.vgpu.hami.io")
    assert mutating["webhooks"][0]["clientConfig"]["url"] == served.url + "/webhook"
    assert [rule["resources"] for rule in validating["webhooks"][0]["rules"]] == [["pods"], ["pods/binding"]]


async def test_a_configuration_object_that_is_there_keeps_what_an_operator_changed(served: Served) -> None:
    await served.cluster.patch(MUTATING_WEBHOOKS, "vgpu.hami.io", {"metadata": {"labels": {"mine": "yes"}}})
    found = await served.cluster.get(MUTATING_WEBHOOKS, "vgpu.hami.io")
    webhook = {**found["webhooks"][0], "failurePolicy": "Ignore", "clientConfig": {"url": "https://old/webhook", "caBundle": "b2xk"}}
    await served.cluster.patch(MUTATING_WEBHOOKS, "vgpu.hami.io", {"webhooks": [webhook]})
    await served.keeper.refresh()
    mended = await served.cluster.get(MUTATING_WEBHOOKS, "vgpu.hami.io")
    assert mended["webhooks"][0]["failurePolicy"] == "Ignore"
    assert mended["metadata"]["labels"]["mine"] == "yes"
    assert mended["webhooks"][0]["clientConfig"]["url"] == served.url + "/webhook"


async def test_nothing_is_written_while_nothing_changes(served: Served) -> None:
    before = dict(served.cluster.calls)
    await served.keeper.refresh()
    after = dict(served.cluster.calls)
    assert {verb for (verb, kind), count in after.items() if count != before.get((verb, kind))} == {"get"}


async def test_a_serving_certificate_is_renewed_in_time_and_loaded_without_a_restart(store: ObjectStore, clock: FixedClock) -> None:
    clock.advance(-SERVING_DAYS * 0.7)
    async with a_replica(store, clock) as one, a_replica(store, clock) as other, other.trusting() as trusting_before:
        old = the_certificate(one)
        clock.advance(SERVING_DAYS * 0.7)
        await one.keeper.refresh()
        await other.keeper.refresh()
        new = the_certificate(other)
        assert new.certificate != old.certificate
        assert new.authorities == old.authorities
        assert (await other.post(trusting_before, a_review(a_pod())))[0] == 200


async def test_a_new_authority_is_trusted_beside_the_old_one(store: ObjectStore, clock: FixedClock) -> None:
    clock.advance(-AUTHORITY_DAYS * 0.7)
    async with a_replica(store, clock) as served:
        old = the_certificate(served)
        clock.advance(AUTHORITY_DAYS * 0.7)
        await served.keeper.refresh()
        new = the_certificate(served)
        assert new.authorities.endswith(old.authorities)
        assert len(x509.load_pem_x509_certificates(new.authorities)) == 2
        async with served.trusting() as session:
            assert (await served.post(session, a_review(a_pod())))[0] == 200


@pytest.mark.parametrize("how", ["replaced", "deleted"])
async def test_no_call_is_refused_while_a_replica_still_serves_a_certificate_of_a_secret_that_is_gone(
    store: ObjectStore, clock: FixedClock, how: str
) -> None:
    async with a_replica(store, clock) as one, a_replica(store, clock) as other:
        old = the_certificate(other)
        if how == "deleted":
            await one.cluster.delete(SECRETS, "hami-webhook-tls", namespace="kube-system")
        else:
            fresh = SecretStore(one.cluster, namespace="kube-system", name="hami-webhook-tls")
            assert await fresh.write(issue(one.keeper._names, clock.utc()), over=await fresh.read())
        await one.keeper.refresh()
        assert the_certificate(one).authorities != old.authorities
        assert the_certificate(other) == old
        for replica in (one, other):
            async with replica.trusting() as session:
                assert (await replica.post(session, a_review(a_pod())))[0] == 200
        await other.keeper.refresh()
        assert the_certificate(other) == the_certificate(one)
        assert len(x509.load_pem_x509_certificates(await one.authorities())) == 2
        clock.advance(OLD_TRUST_SECONDS / 86400)
        await one.keeper.refresh()
        await other.keeper.refresh()
        for kind, name in ((MUTATING_WEBHOOKS, "vgpu.hami.io"), (VALIDATING_WEBHOOKS, "validate.vgpu.hami.io")):
            assert await one.authorities(kind, name) == the_certificate(one).authorities


async def test_a_secret_that_cannot_be_read_is_replaced(served: Served) -> None:
    await served.cluster.patch(SECRETS, "hami-webhook-tls", {"data": {"tls.crt": "Z2FyYmFnZQ=="}}, namespace="kube-system")
    await served.keeper.refresh()
    await served.cluster.patch(SECRETS, "hami-webhook-tls", {"data": {"tls.key": None}}, namespace="kube-system")
    await served.keeper.refresh()
    async with served.trusting() as session:
        assert (await served.post(session, a_review(a_pod())))[0] == 200


async def test_it_goes_on_serving_while_the_api_server_is_away(served: Served) -> None:
    async with served.trusting() as session:
        served.cluster.down()
        with pytest.raises(Unavailable):
            await served.keeper.refresh()
        assert served.keeper.lacking is None
        assert (await served.post(session, a_review(a_pod())))[0] == 200
        served.cluster.up()


async def test_a_directory_keeps_a_certificate_too(tmp_path: Path, clock: FixedClock) -> None:
    store = DirectoryStore(tmp_path / "tls")
    assert await store.read() is None
    bundle = issue(NAMES, clock.utc())
    assert await store.write(bundle, over=None)
    stored = await store.read()
    assert stored is not None
    assert stored.bundle == bundle
    assert {file.stat().st_mode & 0o077 for file in (tmp_path / "tls").iterdir()} == {0}


def test_renewal_is_due_for_age_other_names_and_a_clock_before_its_time(clock: FixedClock) -> None:
    bundle = issue(NAMES, clock.utc())
    assert renewal_reason(bundle, NAMES, clock.utc()) is None
    assert renewal_reason(bundle, (*NAMES, "other"), clock.utc()) == "the certificate is not for other"
    clock.advance(SERVING_DAYS * 0.66)
    assert renewal_reason(bundle, NAMES, clock.utc()) is None
    clock.advance(1)
    assert renewal_reason(bundle, NAMES, clock.utc()) == "the certificate is old"
    clock.advance(-SERVING_DAYS)
    assert renewal_reason(bundle, NAMES, clock.utc()) == "the authority is old"


def test_a_certificate_of_another_authority_is_renewed(clock: FixedClock) -> None:
    ours, other = issue(NAMES, clock.utc()), issue(NAMES, clock.utc())
    mixed = Bundle(authorities=other.authorities, authority_key=other.authority_key, certificate=ours.certificate, key=ours.key)
    assert (renewal_reason(mixed, NAMES, clock.utc()) or "").startswith("the certificate is not the authority's")


def test_what_is_no_certificate_cannot_be_loaded() -> None:
    with pytest.raises(ssl.SSLError):
        load(server_context(), b"x", b"y")


async def test_files_that_somebody_else_keeps_are_loaded(tmp_path: Path, clock: FixedClock) -> None:
    bundle = issue(NAMES, clock.utc())
    mounted = MountedCertificate(server_context(), tmp_path / "tls.crt", tmp_path / "tls.key", clock)
    stop = asyncio.Event()
    task = asyncio.create_task(mounted.run(stop))
    await asyncio.sleep(0)
    assert mounted.lacking is not None
    (tmp_path / "tls.crt").write_bytes(bundle.certificate)
    (tmp_path / "tls.key").write_bytes(bundle.key)
    for _ in range(200):
        if mounted.lacking is None:
            break
        await asyncio.sleep(0.05)
    assert mounted.lacking is None
    stop.set()
    await task


@pytest.mark.parametrize(
    ("endpoint", "names"),
    [
        (Endpoint(url="https://127.0.0.1:8443"), ("127.0.0.1",)),
        (Endpoint(url="https://[::1]:8443/"), ("::1",)),
        (Endpoint(service="w", namespace="n"), ("w.n.svc", "w.n.svc.cluster.local", "w.n", "w")),
    ],
)
def test_the_certificate_is_for_the_names_that_the_api_server_uses(endpoint: Endpoint, names: tuple[str, ...]) -> None:
    assert endpoint.names == names
