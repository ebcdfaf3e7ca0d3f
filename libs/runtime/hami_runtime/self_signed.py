"""TLS for a listener that nobody can know by name: a certificate made at start, signed by itself, kept nowhere.

It keeps tokens from whoever listens in on the way. It does not say who answers, and need not: the API server's service proxy asks no pod for its
name, and it is the API server that the caller trusts.
"""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from hami_runtime import pem_file

VALID_DAYS: Final = 3650
"""Longer than a process lives; nobody looks at it."""
_BACKDATED: Final = timedelta(hours=1)


def context(name: str) -> ssl.SSLContext:
    """A server's TLS with a new certificate for ``name``."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    itself = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(itself)
        .issuer_name(itself)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.minimum_version = ssl.TLSVersion.TLSv1_2
    with pem_file.readable(pem + certificate.public_bytes(serialization.Encoding.PEM)) as path:
        server.load_cert_chain(path)
    return server
