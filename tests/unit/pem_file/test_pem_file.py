"""TLS from PEM data in memory, in a container that has no folder to write to."""

from __future__ import annotations

import os
import ssl
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hami_runtime import pem_file, self_signed
from hami_runtime.kube import login
from hami_runtime.kube.kubeconfig import Account
from hami_webhook import certificates, keeper

NOW = datetime.now(UTC)
PEM = b"-----BEGIN THING-----\n" * 10_000


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def no_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose root is read-only: ``tempfile`` finds no folder."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/nonexistent"])
    with pytest.raises(FileNotFoundError, match="No usable temporary directory"):
        tempfile.gettempdir()


async def anonymous() -> str:
    return ""


@pytest.fixture
def bundle() -> certificates.Bundle:
    return certificates.issue(["webhook.test"], NOW)


@pytest.mark.usefixtures("no_temporary_folder")
class TestWithoutAWritableFolder:
    def test_a_self_signed_listener_starts(self) -> None:
        assert self_signed.context("hami-registry").get_ca_certs() == []

    def test_the_webhooks_certificate_is_loaded(self, bundle: certificates.Bundle) -> None:
        keeper.load(keeper.server_context(), bundle.certificate, bundle.key)

    def test_a_kubeconfigs_inline_certificate_and_key_are_loaded(self, bundle: certificates.Bundle) -> None:
        account = Account(
            server="https://c", authority=bundle.authorities, certificate=bundle.certificate, key=bundle.key, authorization=anonymous
        )
        assert login._tls(account).cert_store_stats()["x509_ca"] == 1

    def test_a_certificate_of_another_key_is_still_refused(self, bundle: certificates.Bundle) -> None:
        other = certificates.issue(["webhook.test"], NOW + timedelta(days=1))
        with pytest.raises(ssl.SSLError):
            keeper.load(keeper.server_context(), bundle.certificate, other.key)


@pytest.mark.parametrize("memory_files", [True, False], ids=["in memory", "in a temporary folder"])
def test_the_whole_content_is_readable_and_nothing_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, memory_files: bool) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if not memory_files:
        monkeypatch.delattr(os, "memfd_create")
    before = descriptors()
    with pem_file.readable(PEM) as first, pem_file.readable(b"other") as second:
        assert Path(first).read_bytes() == PEM
        assert Path(first).read_bytes() == PEM  # each opening reads from the beginning
        assert Path(second).read_bytes() == b"other"
        assert bool(list(tmp_path.iterdir())) is not memory_files
    assert not list(tmp_path.iterdir())
    assert descriptors() == before


def test_a_system_that_denies_memory_files_uses_a_temporary_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_name: str) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "memfd_create", denied)
    with pem_file.readable(PEM) as path:
        assert Path(path).read_bytes() == PEM
