"""How a client speaks: channels, one per address and made in the process that uses them.

A channel is made when it is first needed, in the process that needs it. gRPC does not survive a fork: who has used it and forks is told so.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from typing import Any

from millstream.errors import Busy
from millstream.network import Tls
from millstream.service.grpc_servers import CONTROL_CALLS, CONTROL_SERVICE, COOKIE, DATA_CALLS, DATA_SERVICE, claim_grpc, failure, read_tls
from millstream.service.limits import FRAME
from millstream.service.messages import LIMIT
from millstream.service.proto import grpc


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
