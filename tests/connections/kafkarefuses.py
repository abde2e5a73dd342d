"""A server that speaks enough of Kafka's protocol to refuse a password (SASL/PLAIN)."""

from __future__ import annotations

import socketserver
import struct
from typing import Any

VERSIONS, HANDSHAKE, AUTHENTICATE = 18, 17, 36
_KNOWN = [(3, 0, 9), (HANDSHAKE, 0, 1), (VERSIONS, 0, 3), (AUTHENTICATE, 0, 2), (2, 0, 5)]  # requests, and their versions
_SAYS = b"Authentication failed: Invalid username or password"


class Refusing(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while len(head := self._read(4)) == 4:
            request = self._read(*struct.unpack(">i", head))
            kind, version, number = struct.unpack(">hhi", request[:8])
            answer = struct.pack(">i", number) + self._answer(kind, version)
            self.request.sendall(struct.pack(">i", len(answer)) + answer)
            if kind == AUTHENTICATE:
                return

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size and (more := self.request.recv(size - len(found))):
            found += more
        return found

    @staticmethod
    def _answer(kind: int, version: int) -> bytes:
        if kind == HANDSHAKE:
            return struct.pack(">hi", 0, 1) + struct.pack(">h", 5) + b"PLAIN"
        if kind == AUTHENTICATE:
            return struct.pack(">hh", 58, len(_SAYS)) + _SAYS + struct.pack(">i", 0) + (struct.pack(">q", 0) if version else b"")
        if version >= 3:
            known = b"".join(struct.pack(">hhh", *one) + b"\0" for one in _KNOWN)
            return struct.pack(">hb", 0, len(_KNOWN) + 1) + known + struct.pack(">i", 0) + b"\0"
        known = b"".join(struct.pack(">hhh", *one) for one in _KNOWN)
        return struct.pack(">hi", 0, len(_KNOWN)) + known + (struct.pack(">i", 0) if version else b"")


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = allow_reuse_address = True

    def settings(self) -> dict[str, Any]:
        """Of a client with a wrong password."""
        address = f"127.0.0.1:{self.server_address[1]}"
        secret = {"sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "wrong"}
        return {"bootstrap.servers": address, "security.protocol": "SASL_PLAINTEXT", **secret}
