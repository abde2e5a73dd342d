"""What a sink server asks of an output: where one worker's bytes end up, a file, a table, a bucket. `SinkServer` is given a function that makes one from
a worker's name.

The contract
1. `recover` comes first, at every connection of the worker, perhaps many times on the same object. It says what survived: the committed offset, and
   the transaction that is open. It drops everything else that was appended.
2. `begin`, `append`..., then `prepare` or nothing. `begin` says at which offset the bytes go on: the committed one. What `append` takes need not be durable.
3. `begin_next` comes instead of `begin` if a transaction is prepared, and says at which offset that one ends: `append` is then about the transaction
   behind it. `commit` of the first leaves those bytes where they are; the next `prepare` promises them with whatever follows; `rollback` (of all
   bytes from `committed` on) and `recover` drop them. Who returns False gets none: they are refused, and come again after a rollback.
4. When `prepare` returns, the bytes and the promise to commit them survive a crash of the machine. So does what `commit`, `rollback` and `veto` say.
   Nothing of a transaction is visible to a reader before `commit`.
5. `commit` and `rollback` come for the open transaction only. If a crash falls into one of them, either it happened, or `recover` still says that the
   transaction is open.
6. Calls for one worker come one after another, in a thread that may block; calls for different workers come at the same time.
7. An exception ends that worker's connection, with the text as the reason. The worker comes back, and `recover` is called.
"""

from __future__ import annotations

from millstream.connector.sink.protocol.ledger import Recovered
from millstream.errors import SinkError


class Output:
    """One worker's output. Six methods are to be implemented; the others have defaults that are safe."""

    def recover(self) -> Recovered:
        raise NotImplementedError

    def begin(self, offset: int) -> None:
        raise NotImplementedError

    def append(self, data: bytes) -> None:
        raise NotImplementedError

    def begin_next(self, offset: int) -> bool:
        """Bytes of the next transaction follow, while one is prepared. False: they cannot be kept apart from it, and are refused."""
        return False

    def prepare(self, txn: str, start: int, end: int) -> None:
        raise NotImplementedError

    def commit(self, txn: str, end: int) -> None:
        """Makes the bytes below `end` visible, for ever; those behind it stay as they are."""
        raise NotImplementedError

    def rollback(self, txn: str, committed: int) -> None:
        raise NotImplementedError

    def veto(self, txn: str, why: str) -> None:
        """Remembers, if it can, that this transaction is open and can only be rolled back. To forget it after a crash rolls it back as well."""

    def seal(self, fence: int) -> None:
        """Remembers, if it can, that the worker is at this fence. To forget it lets an attempt in that comes too late, after a crash of the sink."""

    def same(self, offset: int, data: bytes) -> bool:
        """Whether these bytes are held at this offset. No costs the worker a rollback, so an output that cannot read may say no."""
        return False

    def archive(self) -> None:
        """The worker has left: puts its output aside, durably, so that the name begins again at 0. May be called for a name that was never here."""
        raise SinkError(f"{type(self).__name__} cannot archive the output of a worker that has left")

    def close(self) -> None:
        """The worker's connection is over. `recover` may follow."""
