"""What a federation proves itself with: an authority, the server's certificate, and one key per node."""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path
from typing import Any

from fedrzo.support.extras import require

DAYS = 365
HOSTS = ("localhost", "127.0.0.1", "::1")


def make_authority(folder: Path, hosts: tuple[str, ...] = HOSTS) -> None:
    """Write an authority's certificate `ca.crt`, and `server.pem` and `server.key`, signed by it, for some hosts.

    The authority's own key is forgotten: nothing else can ever be signed by it.
    """
    x509 = require("cryptography.x509", "flower")
    hashes = require("cryptography.hazmat.primitives.hashes", "flower")
    authority, server = _new_key(), _new_key()
    issuer = _name("fedrzo local authority")
    root = (
        _certificate(issuer, issuer, authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False)
        .add_extension(_usage(x509, signs_certificates=True), critical=True)
        .sign(authority, hashes.SHA256())
    )
    leaf = (
        _certificate(_name(hosts[0]), issuer, server)
        .add_extension(x509.SubjectAlternativeName([_host(x509, host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False
        )
        .add_extension(_usage(x509, signs_certificates=False), critical=True)
        .sign(authority, hashes.SHA256())
    )  # fmt: skip
    serialization = require("cryptography.hazmat.primitives.serialization", "flower")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ca.crt").write_bytes(root.public_bytes(serialization.Encoding.PEM))
    (folder / "server.pem").write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
    write_secret(folder / "server.key", _private(server, serialization.PrivateFormat.PKCS8))


def make_node_key(path: Path) -> None:
    """Write a node's private key, and its public one beside it with the ending `.pub`, as `ssh-keygen -t ecdsa` would."""
    serialization = require("cryptography.hazmat.primitives.serialization", "flower")
    key = _new_key()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_secret(path, _private(key, serialization.PrivateFormat.OpenSSH))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path.with_name(path.name + ".pub").write_bytes(public + b"\n")


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, from its first byte on."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _new_key() -> Any:
    ec = require("cryptography.hazmat.primitives.asymmetric.ec", "flower")
    return ec.generate_private_key(ec.SECP384R1())


def _private(key: Any, form: Any) -> bytes:
    serialization = require("cryptography.hazmat.primitives.serialization", "flower")
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _certificate(subject: Any, issuer: Any, key: Any) -> Any:
    x509 = require("cryptography.x509", "flower")
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=DAYS))
    )


def _name(common: str) -> Any:
    x509 = require("cryptography.x509", "flower")
    return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, common)])


def _host(x509: Any, host: str) -> Any:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(x509: Any, signs_certificates: bool) -> Any:
    return x509.KeyUsage(
        digital_signature=True, key_cert_sign=signs_certificates, crl_sign=signs_certificates, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
