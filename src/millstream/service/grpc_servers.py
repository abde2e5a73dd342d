"""The gRPC servers of the two planes, each over a backend that answers its calls: a node's tables, the live state of a pipeline, or a node's control.

Rules
1. Data listens on TCP, on loopback unless told otherwise. Control listens on a unix socket that only its owner may use (0600), or on TCP with
   certificates of clients or a cookie. It is closed to everyone else.
2. A `ServiceError` becomes a status and an `Error` in the trailing metadata, and at the client the error that it was, with what it carried. Any other error
   of ours is told as INTERNAL, without its insides.
3. A call without a deadline gets the plane's, and none lasts longer than it allows. Scans and watches may, but for what they hold pinned (`limits.py`).
4. A backend has a method for each call (`AddPartition` comes to `add_partition`), and `tables()` for the data plane. It takes and gives the messages of
   service.proto, and raises `ServiceError`s (and `DamageError`). All calls come from one event loop; what takes longer than a turn is done beside it.
5. The handlers are made from the descriptors of service.proto instead of generated code.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import os
import re
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from millstream.errors import (
    BY_REASON,
    BadNode,
    Busy,
    Conflict,
    DamageError,
    DefinitionError,
    MillstreamError,
    NetworkError,
    ServiceError,
    SessionExpired,
    Stale,
    Unauthenticated,
    Unreachable,
)
from millstream.network import Tls, check_listening, is_loopback, parse_address, written
from millstream.service.dedup_sessions import MOST_VERSIONS
from millstream.service.limits import Bucket, Limits, PinLease
from millstream.service.proto import grpc
from millstream.service.proto import service_pb2 as pb

ERRORS = "millstream-error-bin"
COOKIE = "millstream-cookie"
DATA_SERVICE, CONTROL_SERVICE = "millstream.v1.Data", "millstream.v1.Control"

_CODES = {  # of any other reason: FAILED_PRECONDITION
    "NONE": grpc.StatusCode.INTERNAL,
    "NOT_READY": grpc.StatusCode.UNAVAILABLE,
    "UNKNOWN_OUTCOME": grpc.StatusCode.UNAVAILABLE,
    "BUSY": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "CONFLICT": grpc.StatusCode.ABORTED,
    "TOO_LARGE": grpc.StatusCode.INVALID_ARGUMENT,
    "REFUSED": grpc.StatusCode.INVALID_ARGUMENT,
    "UNAUTHENTICATED": grpc.StatusCode.UNAUTHENTICATED,
    "DAMAGED": grpc.StatusCode.DATA_LOSS,
}


def _calls(service: str) -> tuple[tuple[str, Any, Any, bool], ...]:
    """Rule 5: name, the request's type, the reply's type, whether replies are a stream."""
    methods = pb.DESCRIPTOR.services_by_name[service].methods
    return tuple((one.name, getattr(pb, one.input_type.name), getattr(pb, one.output_type.name), one.server_streaming) for one in methods)


DATA_CALLS, CONTROL_CALLS = _calls("Data"), _calls("Control")
#: What gRPC says of a call for which no connection was ever made: it cannot have reached the node.
_NOT_CONNECTED = ("failed to connect to all addresses", "Connection refused", "No such file")
_log = logging.getLogger("millstream.service")
_process = 0  # the one that uses gRPC


def claim_grpc() -> None:
    """Begins to use gRPC. It does not survive a fork: in a process forked from one that had used it, calls would hang for ever. So they are refused."""
    global _process
    if not _process:
        _process = os.getpid()
        # Its asyncio part then stays until the process ends. It would end with the last channel or server, whose finalizer waits for a thread, and the
        # garbage collector may call that in the thread that is waited for.
        grpc.aio.init_grpc_aio()
    if _process != os.getpid():
        raise DefinitionError(
            f"this process was forked from process {_process}, which had used gRPC, and gRPC does not survive that. Fork before a client or node is first "
            f"used, or begin processes anew (multiprocessing.get_context('spawn')). Spark's workers do."
        )


class GrpcServer:
    """One gRPC server. `address` is where it listens, once it is started."""

    service: str
    calls: tuple[tuple[str, Any, Any, bool], ...]

    def __init__(
        self, backend: Any, address: str, *, tls: Tls | None = None, cookie: str = "", limits: Limits, force: bool = False
    ) -> None:
        self._backend, self._limits, self._tls = backend, limits, tls
        self.address = address
        self._cookie = cookie.encode()
        self._bucket = Bucket(limits.rate, limits.burst)
        self._server: Any = None
        self._health: Any = None
        self._force = force
        self._socket: Path | None = None
        self._under_way = self._streams = 0  # calls; gRPC's own limit costs a tenth of a call

    async def start(self) -> None:
        from grpc_health.v1 import health, health_pb2_grpc

        claim_grpc()
        options = [
            ("grpc.max_receive_message_length", self._limits.message),
            ("grpc.max_send_message_length", 2 * self._limits.message),
            ("grpc.so_reuseport", 0),
            ("grpc.server_handshake_timeout_ms", 5000),
            ("grpc.keepalive_time_ms", 20_000),
            ("grpc.http2.min_ping_interval_without_data_ms", 5000),
            ("grpc.max_metadata_size", 8 << 10),
        ]
        self._server = grpc.aio.server(options=options)
        self._add_handlers()
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._listen()
        await self._server.start()

    async def stop(self, grace: float = 1.0) -> None:
        """Takes no more calls, and ends those under way after `grace` seconds."""
        if self._server is not None:
            with contextlib.suppress(Exception):
                await self._health.enter_graceful_shutdown()
            await self._server.stop(grace)
            self._server = None
        if self._socket is not None and self._socket.is_socket():
            self._socket.unlink(missing_ok=True)

    async def say_health(self, name: str, is_well: bool) -> None:
        """What the standard health service says of a name (a table, or "" for the whole)."""
        from grpc_health.v1 import health_pb2

        await self._health.set(name, health_pb2.HealthCheckResponse.SERVING if is_well else health_pb2.HealthCheckResponse.NOT_SERVING)

    def _listen(self) -> None:
        if self.address.startswith("unix:"):
            self._listen_on_socket(Path(self.address.removeprefix("unix:")))
            return
        host, port = parse_address(self.address)
        place = written(host, port)
        self._check_host(host)
        try:
            if self._tls is None:
                bound = self._server.add_insecure_port(place)
            elif self._tls.cert is None:
                raise DefinitionError("TLS on the side that listens needs a certificate: say cert= and key=")
            else:
                ca, cert, key = read_tls(self._tls)
                credentials = grpc.ssl_server_credentials([(key or cert, cert)], root_certificates=ca, require_client_auth=ca is not None)
                bound = self._server.add_secure_port(place, credentials)
        except RuntimeError as error:
            hint = "stop what listens there, or choose an address of this machine and a port that is free."
            raise NetworkError(f"cannot listen on {place}: {hint}") from error
        self.address = written(host, bound)

    def _listen_on_socket(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if len(os.fsencode(path.absolute())) > 100:
            raise NetworkError(
                f"the path of a unix socket may have 100 bytes, and {path.absolute()} has more: choose a shorter one (--control-listen unix:PATH)"
            )
        _clear_socket(path)
        before = os.umask(0o177)
        try:
            self._server.add_insecure_port(f"unix:{path}")
        except RuntimeError as error:
            raise NetworkError(f"cannot listen on {self.address}: {error}") from error
        finally:
            os.umask(before)
        path.chmod(0o600)
        self._socket = path

    def _check_host(self, host: str) -> None:
        raise NotImplementedError

    def _add_handlers(self) -> None:
        table = {}
        for name, takes, gives, is_stream in self.calls:
            method = getattr(self._backend, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
            make = grpc.unary_stream_rpc_method_handler if is_stream else grpc.unary_unary_rpc_method_handler
            behaviour = self._streaming(method, name) if is_stream else self._unary(method, name)
            table[name] = make(behaviour, request_deserializer=takes.FromString, response_serializer=gives.SerializeToString)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(self.service, table),))

    def _unary(self, method: Callable[[Any], Any], name: str) -> Callable[[Any, Any], Any]:
        longest, deadline = self._limits.longest, self._limits.deadline
        most, admit = self._limits.at_once or 1 << 62, self._admit if self._cookie or self._limits.rate else None

        async def handle(request: Any, context: Any) -> Any:
            self._under_way += 1
            try:
                if self._under_way > most:
                    raise Busy(f"{most:,} calls are under way already", 0.05)
                if admit is not None:
                    admit(context)
                left = context.time_remaining()
                if left is not None and left <= longest:
                    return await method(request)
                return await asyncio.wait_for(method(request), deadline if left is None else longest)
            except Exception as error:
                await _fail(context, error, name)
            finally:
                self._under_way -= 1

        return handle

    def _streaming(self, method: Callable[[Any], AsyncIterator[Any]], name: str) -> Callable[[Any, Any], Any]:
        async def handle(request: Any, context: Any) -> None:
            replies, lease = None, PinLease()
            self._streams += 1
            try:
                if self._streams > (self._limits.at_once or 1 << 62):
                    raise Busy(f"{self._limits.at_once:,} scans and watches are under way already", 1.0)
                self._admit(context)
                replies = method(request)
                async for reply in replies:
                    if lease.is_held:
                        await _write_in_time(context, reply, replies, lease)
                    else:
                        await context.write(reply)
            except Exception as error:
                await _fail(context, error, name)
            finally:
                self._streams -= 1
                if replies is not None and hasattr(replies, "aclose"):
                    await replies.aclose()

        return handle

    def _admit(self, context: Any) -> None:
        if self._cookie:
            said = next((value for key, value in context.invocation_metadata() or () if key == COOKIE), "")
            if not hmac.compare_digest(said.encode() if isinstance(said, str) else said, self._cookie):
                raise Unauthenticated(f"the cookie is missing or wrong: send it as metadata {COOKIE!r} with every call")
        if self._limits.rate:
            self._bucket.take(time.monotonic())


def _clear_socket(path: Path) -> None:
    """Removes a socket without a listener, which a killed process has left; and nothing else."""
    if not os.path.lexists(path):
        return
    if not path.is_socket() or path.is_symlink():
        raise NetworkError(f"{path} is there, and is no socket: choose another path (--control-listen unix:PATH), or remove it")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise NetworkError(f"it cannot be told whether a process listens on {path}: {error}") from error
    raise NetworkError(f"a process listens on {path}: stop it, or choose another path (--control-listen unix:PATH)")


class DataPlane(GrpcServer):
    """`Data`, over the tables of a node or the live state of a pipeline."""

    service, calls = DATA_SERVICE, DATA_CALLS

    async def start(self) -> None:
        await super().start()
        for table in ("", *self._backend.tables()):
            await self.say_health(table, True)

    def _check_host(self, host: str) -> None:
        check_listening(host, self._cookie.decode() or ("certificates" if self._tls is not None and self._tls.ca else ""), self._force)


class ControlPlane(GrpcServer):
    """`Control`, with reflection."""

    service, calls = CONTROL_SERVICE, CONTROL_CALLS

    def _check_host(self, host: str) -> None:
        if not self._cookie and not (self._tls is not None and self._tls.ca):
            where = "other machines" if not is_loopback(host) else "every user of this machine"
            raise DefinitionError(
                f"the control plane on {host} would be open to {where}. Use a unix socket (unix:PATH), client certificates (--control-tls-ca), "
                f"or a cookie (MILLSTREAM_CONTROL_COOKIE)."
            )

    def _add_handlers(self) -> None:
        from grpc_reflection.v1alpha import reflection

        super()._add_handlers()
        names = (CONTROL_SERVICE, DATA_SERVICE, "grpc.health.v1.Health", reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)


async def _write_in_time(context: Any, reply: Any, replies: Any, lease: PinLease) -> None:
    """Writes a reply that comes out of what is pinned. If its peer does not take it in time the pin is let go, and the peer is told, whenever it reads on."""
    writing, waiting = asyncio.ensure_future(context.write(reply)), asyncio.ensure_future(lease.over.wait())
    try:
        await asyncio.wait([writing, waiting], return_when=asyncio.FIRST_COMPLETED)
        if lease.over.is_set():
            await replies.aclose()
            await writing
            raise Stale("this was not read in time, and what it is of is not kept for longer: ask for less at once, or read faster")
        await writing
    finally:
        writing.cancel()
        waiting.cancel()


async def _fail(context: Any, error: Exception, name: str) -> None:
    """Rule 2. An error that is not ours is in the node's log."""
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if not isinstance(error, (MillstreamError, asyncio.TimeoutError)):
        _log.error("%s failed", name, exc_info=error)
    details = pb.Error(text=str(error)[:4096])
    if isinstance(error, ServiceError):
        details.reason, details.counted = pb.Reason.Value(error.reason), error.counted
    elif isinstance(error, DamageError):
        details.reason = pb.DAMAGED
    elif isinstance(error, asyncio.TimeoutError):
        details.reason = pb.NOT_READY
        details.text = "no answer in time. A write may have been done: the same session and seq ask what became of it"
    elif isinstance(error, MillstreamError):
        details.reason = pb.NOT_READY
    else:
        details.text = f"internal error ({type(error).__name__}); the server's log says more"
    if isinstance(error, BadNode):
        details.owners.extend(error.owners)
    elif isinstance(error, Busy):
        details.retry_after_ms = max(1, int(error.retry_after * 1000))
    elif isinstance(error, Conflict):
        details.versions.extend(error.versions[:MOST_VERSIONS])
    elif isinstance(error, SessionExpired):
        details.versions.append(error.known_after)
    code = _CODES.get(pb.Reason.Name(details.reason), grpc.StatusCode.FAILED_PRECONDITION)
    if isinstance(error, asyncio.TimeoutError):
        code = grpc.StatusCode.DEADLINE_EXCEEDED
    await context.abort(code, details.text[:1024], trailing_metadata=((ERRORS, details.SerializeToString()),))


def failure(error: Any, address: str) -> MillstreamError:
    """Rule 2, at the client."""
    raw = next((value for key, value in error.trailing_metadata() or () if key == ERRORS), None)
    if raw is None:
        code, said = error.code(), error.details() or ""
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            if "larger than max" in said:
                return BY_REASON["TOO_LARGE"](f"{address}: {said}")
            return Busy(f"{address}: {said or 'too many calls at once'}", 0.1)
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return DefinitionError(f"{address} is no state service of Millstream, or the other plane of one: {said}")
        if code is grpc.StatusCode.INTERNAL and "internal error" in said:
            return ServiceError(f"{address}: {said}")
        if any(text in said for text in _NOT_CONNECTED):
            where = "Start `millstream serve` there, or say where it runs (--at, --control)"
            return Unreachable(f"no server answers at {address}. {where}", sent=False)
        return Unreachable(f"{address}: {code.name.lower().replace('_', ' ')}: {said}", sent=True)
    told = pb.Error.FromString(raw)
    name = pb.Reason.Name(told.reason)
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Unreachable(f"{address}: {told.text}")
    if name == "DAMAGED":
        return DamageError(told.text)
    kind = BY_REASON.get(name, ServiceError)
    carried: dict[Any, tuple[Any, ...]] = {
        BadNode: (list(told.owners),),
        Busy: (told.retry_after_ms / 1000,),
        Conflict: (list(told.versions),),
        SessionExpired: tuple(told.versions[:1]),
    }
    found = kind(f"{address}: {told.text}" if name == "NONE" else told.text, *carried.get(kind, ()))
    found.counted = told.counted
    return found


def read_tls(tls: Tls) -> list[bytes | None]:
    try:
        return [None if path is None else Path(path).read_bytes() for path in (tls.ca, tls.cert, tls.key)]
    except OSError as error:
        raise DefinitionError(f"the CA {tls.ca}, the certificate {tls.cert} or its key cannot be read: {error}") from error
