"""Points of reference of one worker at a sink: what fits, what is a repetition, what is missing, and who may commit.

A point of reference is an offset: how many bytes the worker has put out since the beginning. Bytes below `committed` are for ever; those from there
to `received` wait for a transaction. The end of an open one that was promised lies between the two; what is behind it belongs to the next.

Rules
1. Bytes that begin at `received` are appended. Nothing else moves `received` forward, so what is held never has holes.
2. Bytes below `received` are a repetition. If they equal what is held they are dropped (and what reaches beyond is appended); if not, the worker's
   output has two versions, and the transaction is vetoed.
3. Bytes that begin beyond `received` leave a gap: the transaction is vetoed. Once vetoed, everything is dropped until a rollback.
4. The vote is yes only for exactly one range, of stream 1, from `committed` to `received`, if nothing is vetoed, no other transaction is open, and no
   transaction of that name was the last to be committed. A start that the peer sent is compared and never used.
5. A transaction that was voted upon is open until phase two, whichever the vote was, also after a restart: a vetoed one can only be rolled back. A
   veto that was never asked for needs no memory: after a restart rule 4 sees that the range's end is not `received`. At most one transaction is open,
   since a worker that is told of two gives up; the vote on a second one is no and leaves no trace.
6. While a transaction is open, what comes, and a veto that it earns, is of the next one. A promise is not taken back. Behind a transaction that was
   voted down everything is dropped.
7. Rollback cuts to `committed`, and lifts every veto; the worker sends again from there. Commit moves `committed` to the end of the transaction; what
   came behind it stays, and so does a veto of that.
8. Phase two that comes again, or of an unknown transaction, does nothing. To commit what was vetoed, and to roll back what is known to be committed, is
   the peer's error: it would be believed to have happened.
"""

from __future__ import annotations

import msgspec

from millstream.connector.wire.messages import DATA_STREAM, Phase1, Phase2
from millstream.errors import RemoteProtocolError


class Open(msgspec.Struct, frozen=True):
    """A transaction between the phases. `end` is where it will move `committed` to; of a vetoed one `veto` says why it cannot."""

    txn: str
    end: int
    veto: str | None = None


class Recovered(msgspec.Struct, frozen=True):
    """What an output knows of a worker after recovery: all that survives a crash. `last` is the last transaction to be committed; `fence` the highest
    number under which the worker was here."""

    committed: int = 0
    open: Open | None = None
    last: str | None = None
    fence: int = 0

    @property
    def held(self) -> int:
        """The bytes that survive: those that are committed, and those of a promise."""
        return self.committed if self.open is None or self.open.veto is not None else self.open.end


class Ledger:
    def __init__(self, recovered: Recovered) -> None:
        self.committed = recovered.committed
        self.open = recovered.open
        self.last = recovered.last
        self.veto: str | None = None
        #: committed <= received; committed <= open.end <= received while a transaction is open that was not vetoed
        self.received = recovered.held

    def held(self, offset: int) -> int | None:
        """Rules 1 to 3: how many of the bytes from this offset on are held already, to be `compared`. None: what comes there is dropped."""
        if self.veto is not None or (self.open is not None and self.open.veto is not None):
            return None
        if offset > self.received:
            self.veto = f"bytes {self.received} to {offset} never came"
            return None
        return self.received - offset

    def compared(self, equal: bool, offset: int) -> None:
        if not equal:
            self.veto = f"bytes from {offset} on came again and were not the same"

    def appended(self, size: int) -> None:
        self.received += size

    def refused(self) -> None:
        self.veto = f"bytes from {self.received} on came between the phases, when the output takes none"

    def vote(self, asked: Phase1) -> Open:
        """Rules 4 and 5: the transaction as it is now open, with a veto or without. One that is refused because of another is not kept."""
        if self.open is not None and self.open.txn != asked.txn:
            return Open(asked.txn, self.received, f"transaction {self.open.txn!r} is still open")
        if self.open is None:
            self.open = Open(asked.txn, self.received, self.veto or self._objection(asked, self.received))
        elif self.open.veto is None and (why := self._objection(asked, self.open.end)) is not None:
            return Open(asked.txn, self.open.end, why)  # asked again, with another range: the promise that was made stays as it is
        return self.open

    def _objection(self, asked: Phase1, held: int) -> str | None:
        if asked.txn == self.last:
            return f"transaction {asked.txn!r} is already committed"
        if len(asked.ranges) != 1:
            return f"{len(asked.ranges)} ranges instead of one"
        ((stream, start, end),) = asked.ranges
        if stream != DATA_STREAM:
            return f"a range of stream {stream}"
        if start != self.committed:
            return f"the range starts at {start}, but {self.committed} bytes are committed"
        if end != held:
            return f"the range ends at {end}, but {held} bytes are here"
        return None

    def resolve(self, told: Phase2) -> str:
        """Rules 5 to 8: what it comes to, in the words of the session's table."""
        if self.open is None or told.txn != self.open.txn:
            if told.txn == self.last and not told.commit:
                raise RemoteProtocolError(f"transaction {told.txn!r} is committed and cannot be rolled back")
            return "known already" if told.txn == self.last else "unknown"
        if not told.commit:
            self.open, self.received, self.veto = None, self.committed, None
            return "rolled back"
        if self.open.veto is not None:
            raise RemoteProtocolError(f"transaction {told.txn!r} was voted down and cannot be committed: {self.open.veto}")
        self.committed, self.last, self.open = self.open.end, told.txn, None
        return "committed"
