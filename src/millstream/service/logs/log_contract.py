"""What a partition asks of its log: the contract that every log keeps, and that a log of your own must keep.

The log decides. A write is durable once it is in the log. Only then is it visible. "Which protocol?" is "which log?".

L1  After seal(t) has returned, an append of a term below t is refused (`Fenced`), also one that is under way.
L2  What append has confirmed is in every later read, by any process.
L3  What append has neither confirmed nor refused (`UnknownOutcome`) is there for all readers or for none.
L4  Positions follow each other without a hole: a record's `first` is its predecessor's `last` + 1.
L5  seal returns the last position, which is final: nothing of a lower term comes behind it.
L6  confirm(t) returns only if no higher term had been sealed when it was called; otherwise it raises `Fenced`.
L7  A torn end, of which nothing was confirmed, is dropped. Any other damage is a `DamageError` that names the object and the place.

`millstream.testing.check_log` runs the contract against a log.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Protocol

from millstream.service.messages import LogRecord
from millstream.state.storage import Storage


class Log(Protocol):
    """The log of one partition, in one process. All calls come from one event loop, which they must not keep waiting."""

    #: confirm() has nothing to ask, because no other process can seal this log while this one lives. Reads are then answered without waiting.
    alone: bool

    async def seal(self, term: int) -> int:
        """Ends all lower terms. The last position there is (0: none)."""

    def read(self, after: int) -> AsyncIterator[LogRecord]:
        """The records with `last` > after, in order and without holes. DamageError if what is needed for that has been trimmed."""

    def append(self, record: LogRecord) -> Awaitable[None]:
        """Done when the record is durable. Raises Fenced: it never will be; UnknownOutcome: it may be.

        Several may be under way; they are given in order, and may be done in any order.
        """

    async def confirm(self, term: int) -> None:
        """L6."""

    async def trim(self, upto: int) -> None:
        """A snapshot covers the records up to this position: they may go."""

    async def close(self) -> None:
        """Ends the log of this process."""


class SharedLog(Protocol):
    """What the partitions of one node share of a log: its files, its thread."""

    def of(self, partition: int) -> Log:
        """The log of one partition. Costs nothing until it is used: no task, no timer, no file of its own."""

    def home(self, partition: int) -> Storage:
        """Where the snapshots of a partition lie, so that a node that can read the log can read them."""

    def forget(self, partition: int) -> None:
        """The partition was removed: nothing of it is needed any more."""

    def pressing(self) -> list[int]:
        """The partitions without a recent snapshot that keep old records from being removed. A node asks now and then."""

    async def close(self) -> None:
        """Ends thread and files, after what is under way."""


class LogKind(Protocol):
    """A log as a table asks for it (`log=`)."""

    @property
    def shared(self) -> bool:
        """Whether another node can read it, and so take over."""

    @property
    def keeps(self) -> bool:
        """Whether the records are kept. If not, the store must be durable by itself."""

    def open(self, folder: Path) -> SharedLog:
        """Makes it ready in a node's folder."""

    def describe(self) -> str:
        """For people."""
