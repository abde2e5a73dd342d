"""TLS between the hosts of a resident run: one certificate, made for the run and for nobody else.

Rule: certificate and key travel inside the job, as the cookie does. Both ends of a connection have them, show the same certificate, and trust nothing else:
host names mean nothing here.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import ssl
import tempfile

from millstream.extras import needed

_LASTS = datetime.timedelta(days=3650)


def make_certificate() -> tuple[bytes, bytes]:
    """A certificate and its key, in PEM."""
    with needed("a resident run on more than one host, which encrypts what tasks send to each other,"):
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a resident run of millstream")])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + _LASTS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return certificate.public_bytes(serialization.Encoding.PEM), secret


def contexts(certificate: bytes, key: bytes) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    """For the end that listens and the end that connects; None for both where there is no certificate."""
    if not certificate:
        return None, None
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    with _in_files(certificate, key) as (cert_file, key_file):
        for context in (server, client):
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.load_cert_chain(cert_file, key_file)
            context.load_verify_locations(cert_file)
            context.verify_mode = ssl.CERT_REQUIRED
    return server, client


@contextlib.contextmanager
def _in_files(certificate: bytes, key: bytes):  # type: ignore[no-untyped-def]
    """OpenSSL reads certificates from files only."""
    with tempfile.TemporaryDirectory() as folder:  # mode 0700
        names = os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem")
        for name, data in zip(names, (certificate, key), strict=True):
            with open(os.open(name, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as handle:
                handle.write(data)
        yield names
