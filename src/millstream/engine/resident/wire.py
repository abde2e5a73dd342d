"""Frames over a socket, and the handshake that comes before them. The same between driver and task, and between tasks.

    frame      head (body length, kind, generation, attempt, level, sender), then the body
    handshake  each end sends 16 random bytes, then the HMAC of the cookie over both, with its own role in front

Rules
1. Nobody is believed before the handshake: until then, an end reads a fixed number of bytes within `GREETING` seconds in all, and no more.
2. The cookie itself never travels, and both ends must know it. Proofs are compared in constant time, and name the role, so that one cannot be sent back as
   the other.
3. One thread reads a connection; any may send, a frame at a time.
4. Between hosts there is TLS below, with one certificate that is made for the run and travels inside the job, as the cookie does. Both ends show it and
   trust nothing else: host names mean nothing here.
"""

from __future__ import annotations

import contextlib
import datetime
import hmac
import os
import secrets
import socket
import ssl
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from millstream.core.membership import Attempt
from millstream.errors import RemoteProtocolError
from millstream.extras import needed
from millstream.network import keep_alive

GREETING = 10.0  # seconds
LARGEST = 1 << 36  # bytes of a body
_LASTS = datetime.timedelta(days=3650)  # a certificate

_HEAD = struct.Struct("<QBIIHH")
_NONCE = 16
_PROOF = 32
_NONE = Attempt()
_SERVER, _CLIENT = b"millstream resident server", b"millstream resident client"


class ResidentFrame(NamedTuple):
    """What came over a connection."""

    kind: int
    attempt: Attempt
    level: int
    sender: int
    body: memoryview


class Closed(ConnectionResetError):
    """The other end has closed the connection, or its process has ended. What breaks it (a timeout, a reset) is another OSError."""


class TaskLink:
    """One end of a connection whose other end has proved that it knows the cookie."""

    def __init__(self, sock: socket.socket, cookie: bytes, *, is_server: bool, compared: bool = True) -> None:
        """Shakes hands. compared: False lets everybody in, for the test that shows what the comparison is for. Raises RemoteProtocolError."""
        self._socket = sock
        self._sending = threading.Lock()
        self.is_broken = False  # it has ended, and nobody has closed it
        keep_alive(sock)
        sock.settimeout(GREETING)
        try:
            self._greet(cookie, is_server, compared)
        except (OSError, ssl.SSLError) as error:
            raise RemoteProtocolError(f"the handshake failed: {error}") from error
        sock.settimeout(None)
        self.host: str = sock.getsockname()[0]  # of this end

    def _greet(self, cookie: bytes, is_server: bool, compared: bool) -> None:
        until = time.monotonic() + GREETING
        own = secrets.token_bytes(_NONCE)
        self._socket.sendall(own)
        other = bytes(self._exactly(_NONCE, until))
        nonces = own + other if is_server else other + own
        roles = (_SERVER, _CLIENT) if is_server else (_CLIENT, _SERVER)
        self._socket.sendall(hmac.digest(cookie, roles[0] + nonces, "sha256"))
        if not hmac.compare_digest(hmac.digest(cookie, roles[1] + nonces, "sha256"), bytes(self._exactly(_PROOF, until))) and compared:
            raise RemoteProtocolError("the other end does not know the cookie of this run")

    def send(self, kind: int, bodies: Sequence[bytes | memoryview] = (), attempt: Attempt = _NONE, level: int = 0, sender: int = 0) -> None:
        """Sends a frame; its body may be given in parts. OSError if the other end is gone."""
        size = sum(map(len, bodies))
        head = _HEAD.pack(size, kind, attempt.generation, attempt.number, level, sender)
        with self._sending:
            if size <= 1 << 16:
                self._socket.sendall(b"".join([head, *bodies]))
                return
            self._socket.sendall(head)
            for body in bodies:
                self._socket.sendall(body)

    def receive(self) -> ResidentFrame | None:
        """The next frame; None when the other end is gone."""
        try:
            size, kind, generation, number, level, sender = _HEAD.unpack(self._exactly(_HEAD.size))
            if size > LARGEST:
                raise RemoteProtocolError(f"a frame of {size} bytes")
            return ResidentFrame(kind, Attempt(generation, number), level, sender, self._exactly(size))
        except OSError as error:
            self.is_broken = not isinstance(error, Closed)
            return None

    def _exactly(self, size: int, until: float | None = None) -> memoryview:
        data = bytearray(size)
        view, at = memoryview(data), 0
        while at < size:
            if until is not None:
                self._socket.settimeout(max(0.001, until - time.monotonic()))
            count = self._socket.recv_into(view[at:])
            if not count:
                raise Closed("the other end has closed the connection")
            at += count
        return view

    def close(self) -> None:
        """Closes it; whoever reads is woken up."""
        stop(self._socket)


def listen(host: str) -> socket.socket:
    return socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=256)


def accept_all(
    listener: socket.socket, hear: Callable[[socket.socket], None], name: str, is_crowded: Callable[[], bool] = lambda: False
) -> None:
    """Has everybody who comes heard in a thread of its own, until the listener is stopped. is_crowded: whoever comes now is turned away."""

    def accept_each() -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = listener.accept()
                if is_crowded():
                    sock.close()
                else:
                    threading.Thread(target=hear, args=(sock,), name=f"{name}-peer", daemon=True).start()

    threading.Thread(target=accept_each, name=name, daemon=True).start()


def stop(sock: socket.socket) -> None:
    """Closes a socket, and wakes up whoever reads it, or waits there for somebody to come: closing alone does not."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


def connect(host: str, port: int, cookie: bytes, tls: ssl.SSLContext | None = None, patience: float = GREETING) -> TaskLink:
    """Connects to whoever listens there. Raises OSError or RemoteProtocolError."""
    sock = socket.create_connection((host, port), patience)
    try:
        if tls is not None:
            sock = tls.wrap_socket(sock)
        return TaskLink(sock, cookie, is_server=False)
    except BaseException:
        sock.close()
        raise


def accept(sock: socket.socket, cookie: bytes, tls: ssl.SSLContext | None = None, compared: bool = True) -> TaskLink:
    """The other end of that, for a socket that was accepted."""
    try:
        if tls is not None:
            sock.settimeout(GREETING)
            sock = tls.wrap_socket(sock, server_side=True)
        return TaskLink(sock, cookie, is_server=True, compared=compared)
    except BaseException as error:
        sock.close()
        if isinstance(error, ssl.SSLError):
            raise RemoteProtocolError(f"the handshake failed: {error}") from error
        raise


def make_certificate() -> tuple[bytes, bytes]:
    with needed("a resident run on more than one host, which encrypts what tasks send to each other,"):
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a resident run of millstream")])
    now = datetime.datetime.now(datetime.UTC)
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


def tls_contexts(certificate: bytes, key: bytes) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    """For the end that listens and the end that connects; None for both where there is no certificate."""
    if not certificate:
        return None, None
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    with tempfile.TemporaryDirectory() as folder:  # mode 0700; OpenSSL reads certificates from files only
        cert_file, key_file = os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem")
        for name, data in ((cert_file, certificate), (key_file, key)):
            with open(os.open(name, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as handle:
                handle.write(data)
        for context in (server, client):
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.load_cert_chain(cert_file, key_file)
            context.load_verify_locations(cert_file)
            context.verify_mode = ssl.CERT_REQUIRED
    return server, client
