"""What a sink's session asks of its caller. How and in which order, say the caller's duties in `session`."""

from __future__ import annotations

import msgspec

from millstream.connector.wire.messages import Close as Close
from millstream.connector.wire.messages import Send as Send


class Recover(msgspec.Struct, frozen=True):
    """Find out what survived of this worker's output, and drop what was neither committed nor promised. Answer: a `Recovered`."""

    worker: str


class Begin(msgspec.Struct, frozen=True):
    """Bytes of a new transaction follow, the first at this offset."""

    offset: int


class BeginNext(msgspec.Struct, frozen=True):
    """Bytes of the next transaction follow, while one is open that ends at this offset. Answer: a bool, whether the output can take them."""

    offset: int


class Append(msgspec.Struct, frozen=True):
    data: bytes


class Compare(msgspec.Struct, frozen=True):
    """Is this what is held at that offset? Answer: a bool."""

    offset: int
    data: bytes


class Prepare(msgspec.Struct, frozen=True):
    """Make the bytes from start to end durable, then the promise to commit them under this name."""

    txn: str
    start: int
    end: int


class Veto(msgspec.Struct, frozen=True):
    """Remember that this transaction is open and can only be rolled back."""

    txn: str
    why: str


class Commit(msgspec.Struct, frozen=True):
    txn: str
    end: int


class Rollback(msgspec.Struct, frozen=True):
    """Cut to the last committed offset."""

    txn: str
    committed: int


class Ignored(msgspec.Struct, frozen=True):
    """Phase two of a transaction that is not open: the one that was committed last, again, or one that is not known. To be noted."""

    txn: str
    commit: bool
    known: bool


class Seal(msgspec.Struct, frozen=True):
    """Remember that this worker is at this fence."""

    fence: int


class Archive(msgspec.Struct, frozen=True):
    """These workers have left: put their output aside, so that the names begin at 0."""

    workers: tuple[str, ...]


SinkEffect = Send | Close | Recover | Begin | BeginNext | Append | Compare | Prepare | Veto | Commit | Rollback | Ignored | Seal | Archive
