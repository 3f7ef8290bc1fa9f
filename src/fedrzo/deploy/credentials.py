"""What a federation proves itself with: an authority, the server's certificate, and one key per node."""

import datetime
import ipaddress
import os
from pathlib import Path
from typing import Any

from fedrzo.support.extras import require

DAYS = 365
HOST = "localhost"
ADDRESSES = (ipaddress.IPv4Address("127.0.0.1"), ipaddress.IPv6Address("::1"))


def make_authority(folder: Path) -> None:
    """Write an authority's certificate `ca.crt`, and `server.pem` and `server.key`, signed by it, for this machine.

    The authority's own key is forgotten: nothing else can ever be signed by it.
    """
    x509 = require("cryptography.x509", "flower")
    authority, server = _new_key(), _new_key()
    issuer, public = "fedrzo local authority", authority.public_key()
    root = [
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (x509.SubjectKeyIdentifier.from_public_key(public), False),
        (_usage(x509, signs_certificates=True), True),
    ]
    leaf = [
        (x509.SubjectAlternativeName([x509.DNSName(HOST), *map(x509.IPAddress, ADDRESSES)]), False),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(public), False),
        (_usage(x509, signs_certificates=False), True),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ca.crt").write_bytes(_certificate(issuer, issuer, authority, authority, root))
    (folder / "server.pem").write_bytes(_certificate(HOST, issuer, server, authority, leaf))
    write_secret(folder / "server.key", _private(server, "PKCS8"))


def make_node_key(path: Path) -> None:
    """Write a node's private key, and its public one beside it with the ending `.pub`, as `ssh-keygen -t ecdsa` would."""
    serialization = require("cryptography.hazmat.primitives.serialization", "flower")
    key = _new_key()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_secret(path, _private(key, "OpenSSH"))
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


def _private(key: Any, form: str) -> bytes:
    serialization = require("cryptography.hazmat.primitives.serialization", "flower")
    form = getattr(serialization.PrivateFormat, form)
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _certificate(subject: str, issuer: str, key: Any, signer: Any, extensions: list[tuple[Any, bool]]) -> bytes:
    """Return a certificate as PEM; of each extension, whether those who do not know it must refuse the certificate."""
    x509 = require("cryptography.x509", "flower")
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, name)]) for name in (subject, issuer)]
    builder = x509.CertificateBuilder(
        issuer_name=names[1], subject_name=names[0], public_key=key.public_key(),
        serial_number=x509.random_serial_number(), not_valid_before=now - datetime.timedelta(minutes=5),  # clocks differ
        not_valid_after=now + datetime.timedelta(days=DAYS),
    )  # fmt: skip
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    signed = builder.sign(signer, require("cryptography.hazmat.primitives.hashes", "flower").SHA256())
    return signed.public_bytes(require("cryptography.hazmat.primitives.serialization", "flower").Encoding.PEM)


def _usage(x509: Any, signs_certificates: bool) -> Any:
    return x509.KeyUsage(
        digital_signature=True, key_cert_sign=signs_certificates, crl_sign=signs_certificates, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
