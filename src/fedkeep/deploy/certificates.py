"""Certificates and keys made for the user: a certificate authority, the server's certificate, a key for each node."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAYS = 825  # as long as most systems accept a server certificate
Key = ec.EllipticCurvePrivateKey


def write_certificates(folder: Path, hosts: Sequence[str], days: int = DAYS) -> None:
    """ca.crt, server.pem and server.key for these host names and addresses.

    The authority's own key is used for this one signature and not kept, so nobody can make a second certificate that
    the nodes would trust. For a new one, make new ones for all.
    """
    folder.mkdir(parents=True, exist_ok=True)
    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    issuer = _name("FedKeep deployment authority")
    ca = _builder(issuer, issuer, authority, days).add_extension(x509.BasicConstraints(True, 0), critical=True)
    ca = ca.add_extension(_usage(signs=True), critical=True).sign(authority, hashes.SHA384())
    certificate = _builder(_name(hosts[0]), issuer, server, days)
    certificate = certificate.add_extension(x509.SubjectAlternativeName([_host(h) for h in hosts]), critical=False)
    certificate = certificate.add_extension(x509.BasicConstraints(False, None), critical=True)
    certificate = certificate.add_extension(_usage(signs=False), critical=True)
    certificate = certificate.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    certificate = certificate.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False
    )
    signed = certificate.sign(authority, hashes.SHA384())
    (folder / "ca.crt").write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    (folder / "server.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    write_secret(folder / "server.key", _pem(server))


def write_node_key(private: Path, public: Path, comment: str) -> None:
    """A key pair for one node, in the format of OpenSSH, as Flower wants it."""
    key = ec.generate_private_key(ec.SECP384R1())
    encoding, form = serialization.Encoding, serialization.PrivateFormat
    write_secret(private, key.private_bytes(encoding.PEM, form.OpenSSH, serialization.NoEncryption()))
    openssh = key.public_key().public_bytes(encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    public.parent.mkdir(parents=True, exist_ok=True)
    public.write_bytes(openssh + b" " + comment.encode() + b"\n")


def write_secret(path: Path, data: bytes) -> None:
    """A file that only its owner can read, from the moment it exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as handle:
        handle.write(data)


def _builder(subject: x509.Name, issuer: x509.Name, key: Key, days: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: Key) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
