"""What a kubeconfig says by itself is read as kubernetes-asyncio reads it; what must be asked for is left to it."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from hami_runtime.kube import kubeconfig
from hami_runtime.kube.kubeconfig import Account, from_files

SERVER = "https://127.0.0.1:6443"


def written(folder: Path, *, user: Any = None, cluster: dict[str, Any] | None = None, **more: Any) -> str:
    body = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": SERVER, **(cluster or {})}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}, {"name": "nobody", "context": {"cluster": "c"}}],
        "current-context": "x",
    } | more
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(body))
    return str(path)


def read(path: str, context: str | None = None) -> Account:
    account = from_files(path, context)
    assert account is not None
    return account


def content(pem: kubeconfig.Pem | None) -> bytes | None:
    return pem.read_bytes() if isinstance(pem, Path) else pem


FILES = {"ca.crt": b"authority", "tls.crt": b"certificate", "tls.key": b"key"}
DATA = {name: base64.b64encode(body).decode() for name, body in FILES.items()}
USERS: list[dict[str, Any]] = [
    {},
    {"token": "t"},
    {"username": "u", "password": "p"},
    {"username": "u", "password": ""},
    {"username": "u"},
    {"token": "t", "username": "u", "password": "p"},
    {"client-certificate": "tls.crt", "client-key": "tls.key"},
    {"client-certificate-data": DATA["tls.crt"], "client-key-data": DATA["tls.key"], "client-key": "tls.key"},
    {"tokenFile": "token"},
]
CLUSTERS: list[dict[str, Any]] = [
    {},
    {"server": "http://plain/"},
    {"certificate-authority": "ca.crt"},
    {"certificate-authority-data": DATA["ca.crt"], "certificate-authority": "other"},
    {"insecure-skip-tls-verify": True},
    {"tls-server-name": "kube", "proxy-url": "http://proxy:3128"},
]


@pytest.mark.parametrize("user", USERS, ids=json.dumps)
async def test_users_are_as_kubernetes_asyncio_reads_them(tmp_path: Path, user: dict[str, Any]) -> None:
    await agree(tmp_path, written(tmp_path, user=user))


@pytest.mark.parametrize("cluster", CLUSTERS, ids=json.dumps)
async def test_servers_are_as_kubernetes_asyncio_reads_them(tmp_path: Path, cluster: dict[str, Any]) -> None:
    await agree(tmp_path, written(tmp_path, user={"token": "t"}, cluster=cluster))


async def agree(folder: Path, path: str) -> None:
    from kubernetes_asyncio.client import Configuration
    from kubernetes_asyncio.config.kube_config import load_kube_config

    for name, body in (FILES | {"token": b"from-a-file"}).items():
        (folder / name).write_bytes(body)
    theirs = type.__call__(Configuration)
    await load_kube_config(config_file=path, client_configuration=theirs, persist_config=False)
    ours = read(path)
    assert ours.server.rstrip("/") == theirs.host
    assert await ours.authorization() == (await theirs.get_api_key_with_prefix("BearerToken") or "")
    if theirs.host.startswith("https"):
        for mine, file in ((ours.authority, theirs.ssl_ca_cert), (ours.certificate, theirs.cert_file), (ours.key, theirs.key_file)):
            assert content(mine) == content(Path(file) if file else None)
    assert (ours.verify, ours.server_name or None, ours.proxy or None) == (theirs.verify_ssl, theirs.tls_server_name, theirs.proxy)


async def test_a_context_may_be_named_and_may_have_no_user(tmp_path: Path) -> None:
    assert await read(written(tmp_path, user={"token": "t"}), "nobody").authorization() == ""


async def test_a_tokens_file_goes_before_a_token_and_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("first\n")
    account = read(written(tmp_path, user={"token": "other", "tokenFile": "token"}))
    (tmp_path / "token").write_text("second")
    assert await account.authorization() == "Bearer first"
    monkeypatch.setattr(kubeconfig, "TOKEN_SECONDS", 0.0)
    assert await account.authorization() == "Bearer second"


@pytest.mark.parametrize("user", [{"exec": {"command": "x"}}, {"auth-provider": {"name": "oidc"}, "token": "t"}], ids=json.dumps)
def test_who_must_be_asked_for_is_not_said(tmp_path: Path, user: dict[str, Any]) -> None:
    assert from_files(written(tmp_path, user=user)) is None


def test_several_files_are_not_read_here(tmp_path: Path) -> None:
    assert from_files(f"{written(tmp_path)}:{tmp_path / 'other'}") is None


async def test_a_null_is_a_key_that_is_left_out(tmp_path: Path) -> None:
    account = read(written(tmp_path, user={"token": None, "exec": None}, cluster={"certificate-authority-data": None}))
    assert (await account.authorization(), account.authority) == ("", None)
    assert await read(written(tmp_path, users=None)).authorization() == ""


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"current-context": ""}, "current-context: missing"),
        ({"current-context": "y"}, "contexts: there is no 'y'; accepted: nobody, x"),
        ({"clusters": []}, "clusters: there is no 'c'; accepted: nothing"),
        ({"clusters": [{"name": "c", "cluster": {}}]}, "server"),
        ({"users": [{"name": "u", "user": {"token": 7}}]}, r"users\[0\]\.user\.token"),
        ({"users": [{"name": "u", "user": {"client-key-data": "§"}}]}, "client-key-data: .*accepted: base64"),
    ],
)
def test_what_is_wrong_is_named_by_its_key(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        from_files(written(tmp_path, **more))
