"""How a client speaks: channels, one per address and made in the process that uses them; and errors made whole again.

Rules
1. A channel is made when it is first needed, in the process that needs it. gRPC does not survive a fork: who has used it and forks is told so.
2. What a node says in the trailing metadata becomes the error that the node raised, of the same class and with what it carried.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from typing import Any

from millstream.errors import (
    BY_REASON,
    BadNode,
    Busy,
    Conflict,
    DamageError,
    DefinitionError,
    MillstreamError,
    ServiceError,
    SessionExpired,
    Unreachable,
)
from millstream.network import Tls
from millstream.service.grpc_servers import CONTROL_CALLS, CONTROL_SERVICE, COOKIE, DATA_CALLS, DATA_SERVICE, ERRORS, claim_grpc, read_tls
from millstream.service.limits import FRAME
from millstream.service.messages import LIMIT
from millstream.service.proto import grpc
from millstream.service.proto import service_pb2 as pb

#: What gRPC says of a call for which no connection was ever made: it cannot have reached the node.
_NOT_CONNECTED = ("failed to connect to all addresses", "Connection refused", "No such file")


class Backoff:
    """Pauses between two tries: longer each time, and never the same for two clients."""

    def __init__(self) -> None:
        self._next = 0.0

    async def after(self, error: BaseException, deadline: float) -> None:
        """Waits, or raises the error if the next try would be too late."""
        wait = max(self._next, error.retry_after if isinstance(error, Busy) else 0.0) * random.uniform(0.7, 1.3)
        self._next = min(1.0, max(0.01, self._next * 2))
        if time.monotonic() + wait >= deadline:
            raise error
        await asyncio.sleep(wait)


class Channel:
    def __init__(self, address: str, *, tls: Tls | None = None, cookie: str = "") -> None:
        self.address = address
        claim_grpc()
        options = [
            ("grpc.max_receive_message_length", 2 * (LIMIT + FRAME)),
            ("grpc.max_metadata_size", 16 << 10),
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.min_reconnect_backoff_ms", 50),
            ("grpc.max_reconnect_backoff_ms", 1000),
            ("grpc.enable_retries", 0),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        if tls is None:
            self._channel = grpc.aio.insecure_channel(address, options=options)
        else:
            ca, cert, key = read_tls(tls)
            credentials = grpc.ssl_channel_credentials(root_certificates=ca, private_key=key or cert, certificate_chain=cert)
            self._channel = grpc.aio.secure_channel(address, credentials, options=options)
        self._metadata = ((COOKIE, cookie),) if cookie else None
        self._calls: dict[str, Any] = {}
        for service, calls in ((DATA_SERVICE, DATA_CALLS), (CONTROL_SERVICE, CONTROL_CALLS)):
            for name, takes, gives, is_stream in calls:
                make = self._channel.unary_stream if is_stream else self._channel.unary_unary
                path, send, receive = f"/{service}/{name}", takes.SerializeToString, gives.FromString
                self._calls[name] = make(path, request_serializer=send, response_deserializer=receive)

    async def ask(self, name: str, request: Any, timeout: float) -> Any:
        try:
            return await self._calls[name](request, timeout=timeout, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            raise failure(error, self.address) from None

    async def stream(self, name: str, request: Any, timeout: float | None = None) -> AsyncIterator[Any]:
        call = self._calls[name](request, timeout=timeout, metadata=self._metadata)
        try:
            async for reply in call:
                yield reply
        except grpc.aio.AioRpcError as error:
            raise failure(error, self.address) from None
        finally:
            call.cancel()

    async def close(self) -> None:
        await self._channel.close()


def failure(error: Any, address: str) -> MillstreamError:
    """Rule 2."""
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
