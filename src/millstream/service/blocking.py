"""The client for programs without asyncio: the calls of `AsyncClient`, which wait for their results.

Rules
1. An event loop of its own, in a thread of its own, does the work. It is made when it is first needed, in the process that needs it. So a client that was
   not used yet may be taken through a fork, and begins on both sides, with sessions of its own. One that was used is refused there: gRPC does not
   survive a fork. (Spark's Python workers are forked from a process that uses none.)
2. A client can be pickled; what arrives is its settings.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from millstream.network import Tls
from millstream.service.client import AsyncClient
from millstream.service.loop_thread import LoopThread

_P = ParamSpec("_P")
_T = TypeVar("_T")
_C = TypeVar("_C", bound=AsyncClient)
_END = object()
_LEFT_BEHIND: list[Any] = []  # of the process that forked this one: gRPC's objects cannot be freed here, where their threads are not


def waits(call: Callable[Concatenate[_C, _P], Coroutine[Any, Any, _T]]) -> Callable[Concatenate[Client, _P], _T]:
    """A call of the client for asyncio as one that waits for the result."""

    @functools.wraps(call)
    def method(self: Client, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return self._wait(call(self._ready(), *args, **kwargs))  # type: ignore[arg-type]

    return method


def _iterates(call: Callable[Concatenate[_C, _P], AsyncIterator[_T]]) -> Callable[Concatenate[Client, _P], Iterator[_T]]:
    """A stream of the client for asyncio as an iterator."""

    @functools.wraps(call)
    def method(self: Client, /, *args: _P.args, **kwargs: _P.kwargs) -> Iterator[_T]:
        return self._each(call(self._ready(), *args, **kwargs))  # type: ignore[arg-type]

    return method


class Client:
    """A client of one table. Its calls are those of `AsyncClient`, and wait.

    >>> client = Client("127.0.0.1:7400", "history")
    >>> client
    Client('history' at 127.0.0.1:7400)
    """

    kind: type[AsyncClient] = AsyncClient

    def __init__(
        self, addresses: str | Sequence[str], table: str, *, cookie: str = "", tls: Tls | None = None, timeout: str | int = "10s"
    ) -> None:
        self._settings: dict[str, Any] = {"addresses": addresses, "table": table, "cookie": cookie, "tls": tls, "timeout": timeout}
        self._begin()

    def _begin(self) -> None:
        self._pid = 0
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None
        self._client: AsyncClient | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_settings": self._settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._settings = state["_settings"]
        self._begin()

    def __repr__(self) -> str:
        return f"Client({self._settings['table']!r} at {self._settings['addresses']})"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends its connections and its thread. It may be used again."""
        if self._pid == os.getpid() and self._thread is not None and self._client is not None:
            self._thread.run(self._client.close())
            self._thread.stop()
        self._begin()

    get = waits(AsyncClient.get)
    get_many = waits(AsyncClient.get_many)
    put = waits(AsyncClient.put)
    put_many = waits(AsyncClient.put_many)
    remove = waits(AsyncClient.remove)
    call = waits(AsyncClient.call)
    scan = _iterates(AsyncClient.scan)
    watch = _iterates(AsyncClient.watch)
    partitions = waits(AsyncClient.partitions)

    def _ready(self) -> AsyncClient:
        """Rule 1."""
        if self._pid != os.getpid():
            _LEFT_BEHIND.append((self._client, self._thread))
            self._begin()
            self._pid = os.getpid()
        with self._lock:
            if self._client is None:
                self._thread = LoopThread("millstream-client")
                self._client = self.kind(**self._settings)
        return self._client

    def _wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        assert self._thread is not None
        return self._thread.run(work)

    def _each(self, stream: AsyncIterator[_T]) -> Iterator[_T]:
        async def following() -> Any:
            return await anext(stream, _END)  # type: ignore[call-overload]

        try:
            while (item := self._wait(following())) is not _END:
                yield item
        finally:
            self._wait(stream.aclose())  # type: ignore[attr-defined]
