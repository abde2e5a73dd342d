"""No log: the store is durable by itself, on a disk that is managed elsewhere.

Rules
1. An append is done at once. What makes a write durable is the store's `apply`, which comes right behind it.
2. seal returns 0: the store's `applied` says where the partition is. Terms are known to this process only, so it locks the folder.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from pathlib import Path

from millstream.errors import Fenced, StorageError
from millstream.service.logs.wal import lock_node_folder
from millstream.service.messages import LogRecord
from millstream.state.storage import LocalStorage, Storage


class NoLog:
    alone = True

    def __init__(self, partition: int) -> None:
        self._partition = partition
        self._term = 0

    def _check(self, term: int) -> None:
        if term < self._term:
            raise Fenced(f"partition {self._partition} is sealed in term {self._term}: term {term} is over")

    async def seal(self, term: int) -> int:
        self._check(term)
        self._term = term
        return 0

    async def read(self, after: int) -> AsyncIterator[LogRecord]:
        return
        yield

    def append(self, record: LogRecord) -> Awaitable[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            self._check(record.term)
        except Fenced as error:
            done.set_exception(error)
        else:
            self._term = record.term
            done.set_result(None)
        return done

    async def confirm(self, term: int) -> None:
        self._check(term)

    async def trim(self, upto: int) -> None:
        """Nothing was kept."""

    async def close(self) -> None:
        """Nothing is open."""


class SharedNoLog:
    """What partitions without a log share: the lock on the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._logs: dict[int, NoLog] = {}
        try:
            self._lock = lock_node_folder(folder, "stores.lock")
        except OSError as error:
            raise StorageError(f"cannot use {folder}: {error.strerror or error}") from error

    def of(self, partition: int) -> NoLog:
        return self._logs.setdefault(partition, NoLog(partition))

    def home(self, partition: int) -> Storage:
        return LocalStorage(self.folder)

    def forget(self, partition: int) -> None:
        self._logs.pop(partition, None)

    def pressing(self) -> list[int]:
        return []

    async def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


@dataclass(frozen=True)
class NoKind:
    """No log, for a durable store. A write is durable when the store has applied it."""

    shared = False
    keeps = False

    def open(self, folder: Path) -> SharedNoLog:
        return SharedNoLog(folder)

    def describe(self) -> str:
        return "none"


none = NoKind
