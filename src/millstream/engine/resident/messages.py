"""What driver and tasks of a resident run say to each other. Plain data; frames and sockets are `wire`.

HELLO       task to driver: which slot, where others reach it
GENERATION  driver to task: all slots are filled; who sits where
ORDER       driver to task: an epoch, and what is to be read for it
RECEIPTS    task to driver: what became of it
FAILED      task to driver: something that is no receipt: a peer that is gone, an error that nobody expected
ROWS        task to task: rows for a level; one frame per level and attempt, also if there are none
COMPACT        driver to task; COMPACTED: task to driver
BEAT        task to driver: it is alive, and what it is at
GIVE_UP     driver to task: an attempt is over before its end
END         driver to task: the run is over; or (recycle) this process is to be replaced
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from millstream.core.membership import Member
from millstream.engine.receipts import EpochOrder, Receipt

_T = TypeVar("_T")

HELLO, GENERATION, ORDER, RECEIPTS, FAILED, ROWS, COMPACT, COMPACTED, BEAT, GIVE_UP, END = range(1, 12)


class TaskHello(msgspec.Struct):
    """A task sits down. address: where its peers reach it; job: the number of the job that it is of."""

    slot: int
    host: str
    pid: int
    address: str
    job: int


class Generation(msgspec.Struct):
    """Who sits where."""

    number: int
    members: list[Member]


class TaskReads(msgspec.Struct):
    """What one task reads of an injector: splits, pickled by the driver."""

    injector: int
    splits: bytes


class TaskOrder(msgspec.Struct):
    """One epoch, for one task. rows: by level, keyed rows that the driver has read for it, as Arrow bytes. reads: what it reads itself; None: nobody reads,
    so there is nothing to exchange before the first level."""

    order: EpochOrder
    rows: dict[int, bytes] = {}
    reads: list[TaskReads] | None = None


class TaskReceipts(msgspec.Struct):
    """What the shards of one task did, and how long what took (milliseconds)."""

    receipts: list[Receipt]
    phases: dict[str, float] = {}


class TaskFailure(msgspec.Struct):
    """Why a task could not answer. lost: the slots that it could not reach; error: the class and text of an error that nobody expected; slot: of a task that
    could not even start."""

    lost: list[int] = []
    error: str = ""
    text: str = ""
    slot: int = 0


class Beat(msgspec.Struct):
    """What a task is at. millis: for how long it has been at this key. rss: its memory, in bytes."""

    computation: str = ""
    shard: int = -1
    key: str = ""
    millis: int = 0
    rss: int = 0

    def __str__(self) -> str:
        return f"computation {self.computation!r}, shard {self.shard}, key {self.key}"


class Ending(msgspec.Struct):
    """The end of a task. recycle: somebody is to take its slot."""

    recycle: bool = False


encode = msgspec.msgpack.Encoder().encode


def decode(data: Any, kind: type[_T]) -> _T:
    return _decoder(kind).decode(data)  # type: ignore[no-any-return]


_decoder: Any = lru_cache(msgspec.msgpack.Decoder)
