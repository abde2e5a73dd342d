"""Who may talk to whom: cookies, certificates, and which addresses may be listened on.

Rules
1. A cookie is a shared secret in HELLO. It is compared in constant time, and travels in the clear unless TLS is on.
2. TLS is off unless certificate paths are given. With it on, the worker checks the sink's certificate and host name; with `ca` on the sink's side
   too, the sink checks the worker's.
3. Who listens where other machines can reach it, without a cookie, is refused: anybody could then write to, or roll back, any output.
"""

from __future__ import annotations

import ipaddress
import ssl

import msgspec

from millstream.errors import SinkError


class Tls(msgspec.Struct, frozen=True):
    """Paths of PEM files. A server needs `cert` and `key`; a client needs `ca`, or trusts the system's; `ca` on a server demands certificates of clients."""

    cert: str | None = None
    key: str | None = None
    ca: str | None = None


def server_context(tls: Tls) -> ssl.SSLContext:
    if tls.cert is None:
        raise SinkError("TLS on the side that listens needs a certificate: say cert= and key=")
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls.cert, tls.key)
        if tls.ca is not None:
            context.load_verify_locations(tls.ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise SinkError(f"the certificate {tls.cert}, its key or the CA cannot be used: {error}") from error
    return context


def client_context(tls: Tls) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key)
    except (OSError, ssl.SSLError) as error:
        raise SinkError(f"the CA {tls.ca}, the certificate or its key cannot be used: {error}") from error
    return context


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach this address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_listening(host: str, cookie: str, force: bool) -> None:
    """Rule 3."""
    if not cookie and not force and not is_loopback(host):
        raise SinkError(
            f"listening on {host or 'all addresses'} without a cookie lets everybody who can reach it write and roll back. "
            f"Set a cookie, listen on 127.0.0.1, or insist with force (--force)."
        )


def parse_address(text: str) -> tuple[str, int]:
    """HOST:PORT; an IPv6 address in brackets.

    >>> parse_address("127.0.0.1:5555"), parse_address("[::1]:80")
    (('127.0.0.1', 5555), ('::1', 80))
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise SinkError(f"{text!r} is not of the form HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)
