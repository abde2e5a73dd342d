"""The words of a partition: what is asked of it, what it answers, what it writes to its log, and who it is.

Rules
1. A partition keeps one sorted map from bytes to bytes. The first byte of an entry's key says what it is:

       K <key>              a user's entry: 8 bytes of version (big-endian), then the value
       S <session>          what a session has written here: the last seq, the answers that may be asked for again
       T <txn> 0 <number>   a staged row, not visible before its transaction is committed
       L <label>            which transactions of a label were decided
       M <name>             what the partition remembers of itself: its clock, the sessions that it has forgotten

   So store, log and snapshot know entries only, and sessions survive whatever the entries survive.
2. A position (lsn) counts the writes of a partition, from 1 on, by one. The version of a key is the position of its last write.
3. A log record is what one turn changed: effects, never commands. So functions may be random, and what follows a log never differs from it.
4. A record's positions follow those of the record before it, without a hole: `first` is its `last` + 1.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from millstream.errors import RefusedRequest

LIMIT = 1 << 20  # bytes of keys and values in one request, and of changes in one turn

LONGEST_KEY = 4096  # bytes

ENTRY = b"K"
SESSION = b"S"
STAGED = b"T"
LABEL = b"L"
MEMORY = b"M"

#: An entry of the partition's map that is put (bytes) or deleted (None).
Change = tuple[bytes, bytes | None]


class Op(enum.IntEnum):
    GET = 0
    UPSERT = 2
    REMOVE = 3
    CALL = 4
    STAGE = 5
    DECIDE = 6


class Decision(enum.IntEnum):
    """What becomes of staged rows (`staged_txns.py`). The numbers are those of service.proto."""

    CHECK = 0
    COMMIT = 1
    DROP = 2
    SWEEP = 3


class Level(enum.IntEnum):
    """What a read is promised. The numbers are those of service.proto."""

    LINEARIZABLE = 0
    SESSION = 1
    BOUNDED = 2
    AS_OF = 3


def level_of(level: Level | str) -> Level:
    """A level by its name.

    >>> level_of("session").name
    'SESSION'
    """
    try:
        return level if isinstance(level, Level) else Level[str(level).upper()]
    except KeyError:
        raise RefusedRequest(f"there is no level {level!r}; there are: {', '.join(name.lower() for name in Level.__members__)}") from None


class Decide(msgspec.Struct, frozen=True):
    """What is decided of which transactions, and in which fence that is said. keep: what a sweep leaves."""

    decision: Decision
    txns: list[str]
    fence: int
    keep: list[str] = []


class Request(msgspec.Struct, gc=False, frozen=True):
    """One request to a partition. It is never changed.

    session, seq: who writes, and which of its writes here it is (0: it does not say). done: writes up to this seq will not be sent again.
    size: in bytes, for bounds.
    """

    op: Op
    keys: list[bytes]
    values: list[bytes] = []
    expect: list[int] = []
    function: str = ""
    argument: bytes = b""
    txn: str = ""
    decide: Decide | None = None
    session: bytes = b""
    seq: int = 0
    done: int = 0
    level: Level = Level.LINEARIZABLE
    seen: int = 0
    size: int = 0

    @property
    def writes(self) -> bool:
        return self.op >= Op.UPSERT


class Answer(msgspec.Struct, gc=False):
    """What a request is answered. A write: the position. A read: values and versions (0: not there). A call: its result. A decision: rows by transaction."""

    lsn: int = 0
    values: list[bytes] = []
    versions: list[int] = []
    result: bytes = b""
    again: bool = False
    rows: list[int] = []


class LogRecord(msgspec.Struct, gc=False, array_like=True):
    """What one turn changed: positions first to last of a partition, written by the owner of a term. Rules 3 and 4.

    promoted: transactions whose staged rows became visible, with the position of each; their rows are in the store already, and not repeated here.
    restored: the name of a restore, whose entries lie beside the log (`snapshotting.py`) and replace those of users.
    """

    partition: int
    term: int
    first: int
    last: int
    time: int
    changes: list[tuple[bytes, bytes | None]] = []
    promoted: list[tuple[str, int]] = []
    restored: str = ""


class Descriptor(msgspec.Struct, frozen=True, omit_defaults=True):
    """A partition: who it is, which points it has (closed-open; an empty end is none), and who serves it, in which term."""

    id: int
    table: str
    start: bytes = b""
    end: bytes = b""
    term: int = 1
    node: str = ""
    point: str = "key"

    @property
    def descriptor(self) -> Descriptor:
        """So that descriptors can lie on a map themselves (`range_map.py`)."""
        return self

    def covers(self, point: bytes) -> bool:
        """Whether a point is in the range.

        >>> Descriptor(1, "t", b"b", b"d").covers(b"c"), Descriptor(1, "t", b"b").covers(b"a")
        (True, False)
        """
        return self.start <= point and (not self.end or point < self.end)

    def overlaps(self, other: Descriptor) -> bool:
        """Whether two partitions would serve the same point of one table.

        >>> Descriptor(1, "t", b"", b"m").overlaps(Descriptor(2, "t", b"m")), Descriptor(1, "t").overlaps(Descriptor(2, "t", b"x", b"y"))
        (False, True)
        """
        return self.table == other.table and (not other.end or self.start < other.end) and (not self.end or other.start < self.end)


def user_row(entry: tuple[bytes, bytes]) -> tuple[bytes, bytes, int]:
    """A user's entry of the store as a key, its value and its version.

    >>> user_row((b"Ktea", bytes(7) + b"\\x02green"))
    (b'tea', b'green', 2)
    """
    name, raw = entry
    return name[1:], raw[8:], int.from_bytes(raw[:8], "big")


encode_record = msgspec.msgpack.Encoder().encode
decode_record: Any = msgspec.msgpack.Decoder(LogRecord).decode
