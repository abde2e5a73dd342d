"""The log of a worker's transactions: "MSTX1\\n", then frames (`state/framing.py`) whose payload is msgpack, tagged with the kind of record.

Rules
1. A record is appended whole, and nothing is ever changed in place. A crash leaves a beginning of the record, followed by nothing or by zeros: a torn
   tail. It is dropped, because nobody was told of what it says.
2. Everything else that cannot be read is damage, and an error: who dropped it silently would take back what was committed.
3. The last records alone decide (`recovered`): `Committed` and `RolledBack` close a transaction, `Prepared` and `Vetoed` open one. So a log can be
   replaced by a short one that begins with its last `Committed`, and what is open.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from millstream.connector.sink.protocol.ledger import Open, Recovered
from millstream.errors import DamageError
from millstream.state.framing import HEAD, Defect, frame, framed_at

MAGIC = b"MSTX1\n"


class Named(msgspec.Struct, frozen=True, tag="named"):
    worker: str  # whose log this is: file names do not always tell


class Prepared(msgspec.Struct, frozen=True, tag="prepared"):
    txn: str
    start: int
    end: int  # bytes from start up to here are durable, and will be committed if phase two says so


class Vetoed(msgspec.Struct, frozen=True, tag="vetoed"):
    txn: str  # was voted down, and waits to be rolled back
    why: str


class Committed(msgspec.Struct, frozen=True, tag="committed"):
    txn: str
    offset: int  # bytes below it are committed, for ever


class RolledBack(msgspec.Struct, frozen=True, tag="rolled back"):
    txn: str
    offset: int  # of the last commit


class Sealed(msgspec.Struct, frozen=True, tag="sealed"):
    fence: int  # at which the worker is: who says a lower one is refused


LogEntry = Named | Sealed | Prepared | Vetoed | Committed | RolledBack

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(LogEntry).decode


def encode_entry(entry: LogEntry) -> bytes:
    return frame(_encode(entry))


def decode_log(data: bytes, where: str = "the log") -> tuple[list[LogEntry], int]:
    """The records, and how many bytes they take: what is behind them is a torn tail. Damage is an error that names `where`."""
    if not data.startswith(MAGIC):
        if MAGIC.startswith(data.rstrip(b"\0")):
            return [], 0
        raise DamageError(f"{where} is damaged: it is not a log of transactions")
    entries, at = [], len(MAGIC)
    while at < len(data):
        found = framed_at(data, at)
        if found.defect is Defect.SHORT:
            break
        if found.defect is not None:
            if found.defect is Defect.LENGTH:
                is_torn = not any(data[at + HEAD :]) and data[at + HEAD - 1] == 0
            else:
                is_torn = found.mark == 0 and not any(data[found.end :])
            if is_torn:
                break
            raise _damaged(where, at, found.defect.value)
        try:
            entries.append(_decode(data[found.start : found.stop]))
        except msgspec.MsgspecError:
            raise _damaged(where, at, "a record is of no known kind") from None
        at = found.end
    return entries, at


def _damaged(where: str, at: int, what: str) -> DamageError:
    return DamageError(
        f"{where} is damaged at byte {at}: {what}. What is committed cannot be told from it. Restore it from a copy, together with the output beside it."
    )


def recovered(entries: Iterable[LogEntry]) -> Recovered:
    committed, last, found, fence = 0, None, None, 0
    for entry in entries:
        if isinstance(entry, Prepared):
            found = Open(entry.txn, entry.end)
        elif isinstance(entry, Vetoed):
            found = Open(entry.txn, committed, entry.why)
        elif isinstance(entry, Committed):
            committed, last, found = entry.offset, entry.txn, None
        elif isinstance(entry, RolledBack):
            found = None
        elif isinstance(entry, Sealed):
            fence = entry.fence
    return Recovered(committed, found, last, fence)


def condensed(worker: str, found: Recovered) -> bytes:
    entries: list[LogEntry] = [Named(worker)]
    if found.fence:
        entries.append(Sealed(found.fence))
    if found.last is not None:
        entries.append(Committed(found.last, found.committed))
    if found.open is not None:
        txn = found.open
        entries.append(Prepared(txn.txn, found.committed, txn.end) if txn.veto is None else Vetoed(txn.txn, txn.veto))
    return MAGIC + b"".join(map(encode_entry, entries))
