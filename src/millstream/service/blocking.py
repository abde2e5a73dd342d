"""For programs without asyncio: a client, whose calls are those of `AsyncClient` and wait for their results, and servers in threads.

Rules
1. An event loop of its own, in a thread of its own, does the work. A client's is made when it is first needed, in the process that needs it. So a client that
   was not used yet may be taken through a fork, and begins on both sides, with sessions of its own. One that was used is refused there: gRPC does not
   survive a fork. (Spark's Python workers are forked from a process that uses none.)
2. A client can be pickled; what arrives is its settings.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from millstream.network import Tls
from millstream.service.client import AsyncClient

_P = ParamSpec("_P")
_T = TypeVar("_T")
_END = object()
_LEFT_BEHIND: list[Any] = []  # of the process that forked this one: gRPC's objects cannot be freed here, where their threads are not


class LoopThread:
    """Runs coroutines for other threads, until it is stopped.

    >>> thread = LoopThread("example")
    >>> thread.run(asyncio.sleep(0, "done"))
    'done'
    >>> thread.stop()
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Waits for a coroutine, which is cancelled if the wait is interrupted."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
            if not self._thread.is_alive():
                self._loop.close()


class StartableServer(Protocol):
    """What runs on an event loop between its start and its stop: a node, a live server."""

    @property
    def address(self) -> str: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class ServerThread:
    """A server in a thread of its own. It listens when this returns; what stands in the way is raised."""

    def __init__(self, server: StartableServer) -> None:
        self._server: StartableServer | None = server
        self._thread = LoopThread("millstream-server")
        try:
            self._thread.run(server.start())
        except BaseException:
            self._thread.stop()
            raise
        self.address = server.address

    def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            try:
                self._thread.run(server.stop())
            finally:
                self._thread.stop()


def _waits(call: Callable[Concatenate[AsyncClient, _P], Coroutine[Any, Any, _T]]) -> Callable[Concatenate[Client, _P], _T]:

    @functools.wraps(call)
    def method(self: Client, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return self._wait(call(self._ready(), *args, **kwargs))

    return method


def _iterates(call: Callable[Concatenate[AsyncClient, _P], AsyncIterator[_T]]) -> Callable[Concatenate[Client, _P], Iterator[_T]]:

    @functools.wraps(call)
    def method(self: Client, /, *args: _P.args, **kwargs: _P.kwargs) -> Iterator[_T]:
        return self._each(call(self._ready(), *args, **kwargs))

    return method


class Client:
    """A client of one table. Its calls are those of `AsyncClient`, and wait.

    >>> client = Client("127.0.0.1:7400", "history")
    >>> client
    Client('history' at 127.0.0.1:7400)
    """

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

    get = _waits(AsyncClient.get)
    get_many = _waits(AsyncClient.get_many)
    put = _waits(AsyncClient.put)
    put_many = _waits(AsyncClient.put_many)
    remove = _waits(AsyncClient.remove)
    call = _waits(AsyncClient.call)
    scan = _iterates(AsyncClient.scan)
    watch = _iterates(AsyncClient.watch)
    partitions = _waits(AsyncClient.partitions)
    stage = _waits(AsyncClient.stage)
    decide = _waits(AsyncClient.decide)

    def _ready(self) -> AsyncClient:
        """Rule 1."""
        if self._pid != os.getpid():
            _LEFT_BEHIND.append((self._client, self._thread))
            self._begin()
            self._pid = os.getpid()
        with self._lock:
            if self._client is None:
                self._thread = LoopThread("millstream-client")
                self._client = AsyncClient(**self._settings)
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
