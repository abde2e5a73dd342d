"""The client for programs without asyncio: the same calls, which wait.

Rules
1. An event loop of its own, in a thread of its own, does the work. It is made when it is first needed, in the process that needs it. So a client that was
   not used yet may be taken through a fork, and begins on both sides, with sessions of its own. One that was used is refused there: gRPC does not
   survive a fork. (Spark's Python workers are forked from a process that uses none.)
2. A client can be pickled; what arrives is its settings.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from millstream.network import Tls
from millstream.service.client import AsyncClient
from millstream.service.messages import Decision, Level
from millstream.service.results import KeyResult, Text, WatchEvent

_T = TypeVar("_T")
_END = object()
_LEFT_BEHIND: list[Any] = []  # of the process that forked this one: gRPC's objects cannot be freed here, where their threads are not


class Client:
    """A client of one table. See `AsyncClient`, whose calls these are.

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
        self._loop: asyncio.AbstractEventLoop | None = None
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
        if self._pid == os.getpid() and self._loop is not None and self._client is not None:
            self._wait(self._client.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._begin()

    def get(self, key: Text, *, level: Level | str = Level.LINEARIZABLE, max_age: str | int = 0) -> bytes | None:
        """The value of a key; None if it is not there."""
        return self._wait(self._ready().get(key, level=level, max_age=max_age))

    def find(
        self,
        keys: Iterable[Text],
        *,
        level: Level | str = Level.LINEARIZABLE,
        max_age: str | int = 0,
        as_of: int | None = None,
        complete_to: int | None = None,
        as_json: bool = False,
    ) -> list[KeyResult]:
        """The values and versions of keys, in their order. Those of one partition are as of one position.

        level: by its name, or as ms.service.Level. max_age: for level "bounded". as_of, complete_to, as_json: for live state, the epoch to read, the
        event time (milliseconds) to wait for, as long as the client's timeout, and rows as JSON text instead of what the pipeline keeps.
        """
        ready = self._ready()
        return self._wait(ready.find(keys, level=level, max_age=max_age, as_of=as_of, complete_to=complete_to, as_json=as_json))

    def put(self, key: Text, value: Text, *, expect: int | None = None) -> int:
        """Writes a key, once; its version. expect: only if it has this version (0: only if it is not there), or `Conflict`."""
        return self._wait(self._ready().put(key, value, expect=expect))

    def put_many(self, rows: Mapping[Text, Text] | Iterable[tuple[Text, Text]], *, txn: str = "") -> int:
        """Writes many keys: batches by partition, each whole or not at all, several at once; how many rows."""
        return self._wait(self._ready().put_many(rows, txn=txn))

    def remove(self, key: Text, *, expect: int | None = None) -> int:
        """Removes a key, once; the position of that."""
        return self._wait(self._ready().remove(key, expect=expect))

    def call(self, function: str, key: Text, argument: Text = b"") -> bytes:
        """Runs a function of the table on a key, once; its result."""
        return self._wait(self._ready().call(function, key, argument))

    def decide(self, partition: int, txns: Sequence[str], decision: Decision, fence: int, keep: Sequence[str] = ()) -> list[int]:
        """Decides staged transactions in one partition; how many rows each has."""
        return self._wait(self._ready().decide(partition, txns, decision, fence, keep))

    def partitions(self) -> list[int]:
        """The ids of the table's partitions, in the order of their points."""
        return self._wait(self._ready().partitions())

    def stage(self, rows: Iterable[tuple[bytes, bytes | None]], txn: str) -> dict[int, int]:
        """Stages rows (a value of None removes the key) under a transaction; how many in each partition."""
        return self._wait(self._ready().stage(list(rows), txn))

    def scan(
        self,
        *,
        start: Text = b"",
        end: Text = b"",
        prefix: Text = b"",
        limit: int = 0,
        keys_only: bool = False,
        part: str = "",
        as_of: int | None = None,
        as_json: bool = False,
    ) -> Iterator[KeyResult]:
        """Entries with start <= key < end, or that begin with a prefix, in the order of their keys. Those of one partition are as of one position.

        part, as_of, as_json: for live state, what to scan ("timers", "holds", "epochs", "map:FIELD" with the key as prefix), the epoch, and rows as JSON.
        """
        what = {"start": start, "end": end, "prefix": prefix, "limit": limit, "keys_only": keys_only}
        return self._each(self._ready().scan(**what, part=part, as_of=as_of, as_json=as_json))  # type: ignore[arg-type]

    def watch(
        self, *, keys: Iterable[Text] = (), prefix: Text = b"", after: Mapping[int, int] | None = None, as_json: bool = False
    ) -> Iterator[WatchEvent]:
        """What is there, then every change, of all partitions. after: by partition (of live state: 1), the position or epoch to go on from."""
        return self._each(self._ready().watch(keys=keys, prefix=prefix, after=after, as_json=as_json))

    # --- the loop

    def _ready(self) -> AsyncClient:
        """Rule 1."""
        if self._pid != os.getpid():
            _LEFT_BEHIND.append((self._client, self._loop))
            self._lock = threading.Lock()
            self._pid, self._client, self._loop = os.getpid(), None, None
        with self._lock:
            if self._client is None or self._loop is None:
                loop = asyncio.new_event_loop()
                threading.Thread(target=loop.run_forever, name="millstream-client", daemon=True).start()
                self._loop = loop
                self._client = AsyncClient(**self._settings)
        return self._client

    def _wait(self, what: Coroutine[Any, Any, _T]) -> _T:
        assert self._loop is not None
        future = asyncio.run_coroutine_threadsafe(what, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _each(self, stream: AsyncIterator[_T]) -> Iterator[_T]:
        async def one() -> Any:
            async for found in stream:
                return found
            return _END

        try:
            while (found := self._wait(one())) is not _END:
                yield found
        finally:
            self._wait(stream.aclose())  # type: ignore[attr-defined]
