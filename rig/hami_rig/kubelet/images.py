"""Images as the rig's kubelet has them: every one is there already, but for those of a registry at an address, which is asked as a runtime asks it.

``127.0.0.1:5000/app:1`` is such an image: its registry is asked whether it has it, over HTTP on this machine and over HTTPS elsewhere, and what it
answers, or does not, is said in containerd's words. Nothing is fetched: no container of the rig runs anything out of an image.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import ssl
from http import HTTPStatus
from ipaddress import ip_address

import aiohttp
import msgspec
from msgspec import Struct

from hami_rig.kubelet.process_environment import StartFailed

PULLING = "ErrImagePull"
WAITING = "ImagePullBackOff"
TIMEOUT_SECONDS = 10.0
_REFERENCE = re.compile(r"(?P<host>[0-9.]+|\[[0-9a-f:]+\]):(?P<port>\d{1,5})/(?P<name>[a-z0-9._/-]+)(:(?P<tag>[\w.-]+))?")
_INDEXES = frozenset({"application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"})
_MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


class _Platform(Struct, frozen=True):
    architecture: str = ""


class _Manifest(Struct, frozen=True):
    platform: _Platform = _Platform()


class _Index(Struct, frozen=True):
    manifests: tuple[_Manifest, ...] = ()


class Images:
    """What one node has pulled."""

    def __init__(self) -> None:
        self._there: set[str] = set()
        self._failed: set[tuple[str, str]] = set()

    async def pull(self, image: str, *, uid: str) -> None:
        """Have ``image`` for a container of the pod ``uid``.

        Raises:
            StartFailed: its registry does not give it: ``ErrImagePull`` at first, then ``ImagePullBackOff``, both with what was said.
        """
        match = _REFERENCE.fullmatch(image)
        if match is None or image in self._there:
            return
        text = await _refusal(match["host"], match["port"], match["name"], match["tag"] or "latest")
        if not text:
            self._there.add(image)
            return
        said = f'failed to pull and unpack image "{image}": failed to resolve reference "{image}": {text}'
        if (uid, image) not in self._failed:
            self._failed.add((uid, image))
            raise StartFailed(PULLING, said, event=f'Failed to pull image "{image}": {said}')
        raise StartFailed(WAITING, f'Back-off pulling image "{image}": {PULLING}: {said}', event=f"Error: {WAITING}")


async def _refusal(host: str, port: str, name: str, tag: str) -> str:
    """Why a registry does not give an image; empty where it does."""
    scheme = "http" if ip_address(host.strip("[]")).is_loopback else "https"
    url = f"{scheme}://{host}:{port}/v2/{name}/manifests/{tag}"
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session:
            async with session.head(url) as answer:
                status, reason, kind = answer.status, answer.reason, answer.content_type
            if status == HTTPStatus.OK and kind in _INDEXES:
                async with session.get(url) as answer:
                    return "" if _has_ours(await answer.read()) else "no match for platform in manifest: not found"
    except aiohttp.ClientConnectorCertificateError as exc:
        return f'failed to do request: Head "{url}": tls: failed to verify certificate: x509: {_reason(exc.certificate_error)}'
    except aiohttp.ClientConnectorError as exc:
        return (
            f'failed to do request: Head "{url}": dial tcp {host}:{port}: connect: {os.strerror(exc.errno or errno.ECONNREFUSED).lower()}'
        )
    except (aiohttp.ClientError, TimeoutError) as exc:
        return f'failed to do request: Head "{url}": {str(exc) or "context deadline exceeded"}'
    if status == HTTPStatus.NOT_FOUND:
        return f"{host}:{port}/{name}:{tag}: not found"
    if status == HTTPStatus.UNAUTHORIZED:
        return f"pull access denied, repository does not exist or may require authorization: authorization failed: {status} {reason}"
    return "" if status == HTTPStatus.OK else f"unexpected status from HEAD request to {url}: {status} {reason}"


def _has_ours(index: bytes) -> bool:
    """Whether an index of images names one for this machine."""
    try:
        return any(each.platform.architecture == _MACHINE for each in msgspec.json.decode(index, type=_Index).manifests)
    except msgspec.DecodeError:
        return False


def _reason(exc: Exception) -> str:
    return exc.verify_message if isinstance(exc, ssl.SSLCertVerificationError) else str(exc)
