"""The webhook's certificate and the authority it is signed by: made here, renewed before they expire, one for all replicas.

Two things are decided by the wall clock, since certificates are: whether something is due for renewal, and from when to when the new one is
valid (from an hour ago, as API servers' clocks may be behind). A new authority is trusted beside the old one until the old one has expired,
so that no order of steps among replicas leaves a moment in which the API server trusts nobody.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

AUTHORITY_DAYS: Final = 3650
SERVING_DAYS: Final = 90
_BACKDATED: Final = timedelta(hours=1)
_RENEW_AT: Final = 2 / 3
"""Of its validity: a third is left for whatever keeps the renewal from happening."""


class CertificateError(ValueError):
    """What should be certificates and keys cannot be read."""


class Bundle(Struct, frozen=True, kw_only=True):
    """Everything one installation's webhook needs, as PEM."""

    authorities: bytes
    """Every authority that is to be trusted, the one that signs now first. This is the caBundle."""
    authority_key: bytes
    certificate: bytes
    key: bytes


def issue(names: Sequence[str], now: datetime, *, before: Bundle | None = None) -> Bundle:
    """A certificate for ``names`` (DNS names and IP addresses), signed by the authority of ``before``, or a new one where that is old.

    Raises:
        CertificateError: ``before`` cannot be read.
    """
    trusted: list[x509.Certificate] = []
    if before is not None:
        trusted = [each for each in _certificates(before.authorities) if each.not_valid_after_utc > now]
    if before is not None and trusted and not _is_old(trusted[0], now):
        authority, authority_key = trusted[0], _private_key(before.authority_key)
    else:
        authority_key = ec.generate_private_key(ec.SECP256R1())
        authority = _new_authority(authority_key, now)
        trusted.insert(0, authority)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _new_serving(names, key, authority, authority_key, now)
    return Bundle(
        authorities=b"".join(_pem(each) for each in trusted),
        authority_key=_key_pem(authority_key),
        certificate=_pem(certificate),
        key=_key_pem(key),
    )


def renewal_reason(bundle: Bundle, names: Sequence[str], now: datetime) -> str | None:
    """Why ``bundle`` has to be renewed; None where it need not be.

    Raises:
        CertificateError: it cannot be read.
    """
    authorities, serving = _certificates(bundle.authorities), _certificates(bundle.certificate)
    _private_key(bundle.key)
    _private_key(bundle.authority_key)
    if _is_old(authorities[0], now):
        return "the authority is old"
    if _is_old(serving[0], now):
        return "the certificate is old"
    if missing := sorted(set(names) - set(_names_of(serving[0]))):
        return f"the certificate is not for {missing[0]}"
    try:
        serving[0].verify_directly_issued_by(authorities[0])
    except (ValueError, TypeError) as exc:
        return f"the certificate is not the authority's: {exc}"
    except Exception as exc:  # noqa: BLE001 - cryptography's InvalidSignature is no ValueError
        return f"the certificate is not the authority's: {type(exc).__name__}"
    return None


def others(pem: bytes, authorities: bytes, now: datetime) -> list[bytes]:
    """The certificates in ``pem`` that are valid now and not among ``authorities``; none where it cannot be read."""
    try:
        known = set(_certificates(authorities))
        return [
            _pem(each) for each in _certificates(pem) if each not in known and each.not_valid_before_utc <= now < each.not_valid_after_utc
        ]
    except CertificateError:
        return []


def renewal_at(bundle: Bundle) -> datetime:
    """When the first of its certificates is due for renewal.

    Raises:
        CertificateError: it cannot be read.
    """
    return min(_old_at(_certificates(pem)[0]) for pem in (bundle.authorities, bundle.certificate))


def _old_at(certificate: x509.Certificate) -> datetime:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return begin + (end - begin) * _RENEW_AT


def _is_old(certificate: x509.Certificate, now: datetime) -> bool:
    return now >= _old_at(certificate) or now < certificate.not_valid_before_utc


def _new_authority(key: ec.EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"hami-webhook-ca {now.astimezone(UTC):%Y-%m-%dT%H:%M:%S}")])
    builder = _builder(name, name, key.public_key(), now, AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return builder.add_extension(_key_usage(signs_certificates=True), critical=True).sign(key, hashes.SHA256())


def _new_serving(
    names: Sequence[str],
    key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    now: datetime,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hami-webhook")])
    builder = _builder(subject, authority.subject, key.public_key(), now, SERVING_DAYS)
    builder = builder.add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(
        authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    )
    return builder.add_extension(issuer, critical=False).sign(authority_key, hashes.SHA256())


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, days: int) -> x509.CertificateBuilder:
    begin = now.astimezone(UTC).replace(microsecond=0) - _BACKDATED
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(begin).not_valid_after(begin + timedelta(days=days))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _names_of(certificate: x509.Certificate) -> list[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(each.value) for each in found]


def _certificates(pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as exc:
        raise CertificateError(f"no PEM certificate: {exc}") from exc


def _private_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as exc:
        raise CertificateError(f"no PEM key: {exc}") from exc
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError(f"a key of type {type(key).__name__}; accepted: an elliptic curve key")
    return key


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
