"""Who may talk to whom over a network: addresses, certificates, cookies, and which addresses may be listened on. For any server, and any client.

Rules
1. A cookie is a shared secret in the first message. It is compared in constant time, and travels in the clear unless TLS is on.
2. TLS is off unless certificate paths are given. With it on, the client checks the server's certificate and host name; with `ca` on the server's side
   too, the server checks the client's.
3. Who listens where other machines can reach it, without a cookie, is refused: anybody could then write to, or roll back, whatever is behind it.
4. Whoever calls a server of somebody else's tries again after an error that may pass, with growing and random pauses, for half a minute (`retried`).
5. The class of an error says who must act. What is written down wrongly (an address, a certificate, rule 3) is a `DefinitionError`: the program, or its
   call, must change. A port that is taken, or an address that is not this machine's, is a `NetworkError`: the operator's.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from millstream.errors import DefinitionError, NetworkError
from millstream.extras import needed

TRIED_FOR = 30.0  # seconds


class Tls(msgspec.Struct, frozen=True):
    """Paths of PEM files. A server needs `cert` and `key`; a client needs `ca`, or trusts the system's; `ca` on a server demands certificates of clients."""

    cert: str | None = None
    key: str | None = None
    ca: str | None = None


def server_context(tls: Tls) -> ssl.SSLContext:
    if tls.cert is None:
        raise DefinitionError("TLS on the side that listens needs a certificate: say cert= and key=")
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls.cert, tls.key)
        if tls.ca is not None:
            context.load_verify_locations(tls.ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise DefinitionError(f"the certificate {tls.cert}, its key or the CA cannot be used: {error}") from error
    return context


def client_context(tls: Tls) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key)
    except (OSError, ssl.SSLError) as error:
        raise DefinitionError(f"the CA {tls.ca}, the certificate or its key cannot be used: {error}") from error
    return context


def retried(passes: Callable[[Exception], bool]) -> Iterator[AbstractContextManager[Any]]:
    """Tries for a `with` block each: more than one only after an error that may pass."""
    with needed("trying a server again"):
        import stamina
    yield from stamina.retry_context(on=passes, attempts=None, timeout=TRIED_FOR, wait_initial=0.05, wait_max=5.0)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach this address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_listening(host: str, cookie: str, force: bool) -> None:
    if not cookie and not force and not is_loopback(host):
        raise DefinitionError(
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
        raise DefinitionError(f"{text!r} is not of the form HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def written(host: str, port: int) -> str:
    """HOST:PORT, as `parse_address` reads it.

    >>> written("::1", 80)
    '[::1]:80'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def cannot_listen(host: str, port: int, error: OSError) -> NetworkError:
    return NetworkError(
        f"cannot listen on {written(host, port)}: {error}. Stop what listens there, or choose an address of this machine and a port that is free."
    )


def dial(address: str, timeout: float, context: ssl.SSLContext | None) -> socket.socket:
    """A connection to HOST:PORT, with TLS if there is a context."""
    host, port = parse_address(address)
    sock = socket.create_connection((host, port), timeout)
    try:
        keep_alive(sock)
        return sock if context is None else context.wrap_socket(sock, server_hostname=host)
    except BaseException:
        sock.close()
        raise


def keep_alive(sock: socket.socket) -> None:
    """Sends at once what is to be sent, and finds out within a minute that the machine at the other end is gone."""
    for level, name, value in (
        (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 20),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", 4),
    ):
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(level, option, value)
