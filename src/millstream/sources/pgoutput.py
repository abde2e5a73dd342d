"""Messages of PostgreSQL's logical replication (plugin pgoutput, version 1), as bytes: what changed in one table, by transaction. Pure.

Rules
1. A transaction that changes a row several times is one change, the last: nobody else ever saw the others.
2. An update that changes the key is a deletion of the old one, too.
3. A value that an update left alone, and that is stored outside the row (TOAST), is not sent. It is taken of the old row, where all of that is sent (REPLICA
   IDENTITY FULL); of an old row of kind K only the key is, and nothing else may be taken of it. Else the value is `UNSENT`.
4. A column that is wanted and that a change does not have at all is `UNSENT`, too: it was added, renamed or dropped since. A key that is not there is an error.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from millstream.errors import InputError


class Unsent:
    """The class of `UNSENT`."""


UNSENT = Unsent()
SlotValue = str | None | Unsent
SlotRow = dict[str, SlotValue]

_EPOCH = 946_684_800_000_000  # microseconds from 1970 to 2000


class Transaction(NamedTuple):
    """lsn: its end. time: of its commit, microseconds since 1970. rows: by key the row, None where it is deleted."""

    lsn: int
    time: int
    rows: dict[tuple[SlotValue, ...], SlotRow | None]


class ChangeDecoder:
    """Takes messages in, gives transactions."""

    def __init__(self, schema: str, table: str, key: Sequence[str], wanted: Sequence[str] = ()) -> None:
        self._name = (schema, table)
        self._key, self._wanted = tuple(key), tuple(wanted)
        self._columns: dict[int, list[str]] = {}
        self._absent: SlotRow = {}
        self._rows: dict[tuple[SlotValue, ...], SlotRow | None] = {}

    def take(self, message: bytes) -> Transaction | None:
        """A transaction, if the message ends one."""
        kind = message[:1]
        if kind == b"B":
            self._rows = {}
        elif kind == b"C":
            _, lsn, time = struct.unpack_from(">QQq", message, 2)
            rows, self._rows = self._rows, {}
            return Transaction(lsn, time + _EPOCH, rows)
        elif kind == b"R":
            self._relation(message)
        elif kind in (b"I", b"U", b"D"):
            columns = self._columns.get(struct.unpack_from(">I", message, 1)[0])
            if columns is not None:
                self._change(message, columns)
        elif kind == b"T":
            count = struct.unpack_from(">I", message, 1)[0]
            if any(relation in self._columns for relation in struct.unpack_from(f">{count}I", message, 6)):
                raise InputError(
                    f"table {'.'.join(self._name)} was truncated: which rows that removed is not told. Begin with a new checkpoint (and use delete from)"
                )
        return None

    def _relation(self, message: bytes) -> None:
        (relation,) = struct.unpack_from(">I", message, 1)
        schema, at = _text(message, 5)
        table, at = _text(message, at)
        self._columns.pop(relation, None)
        if (schema or "pg_catalog", table) != self._name:
            return
        (count,) = struct.unpack_from(">H", message, at + 1)
        at += 3
        names = []
        for _ in range(count):
            name, at = _text(message, at + 1)
            names.append(name)
            at += 8
        if gone := [name for name in self._key if name not in names]:
            raise InputError(
                f"table {'.'.join(self._name)} has no column {gone[0]!r} any longer, which is of its primary key, or has another name for it. Name it as it "
                f"was, or begin with a new checkpoint"
            )
        self._columns[relation] = names
        self._absent = {name: UNSENT for name in self._wanted if name not in names}

    def _change(self, message: bytes, columns: list[str]) -> None:
        at, old, new, known = 5, None, None, None
        while at < len(message):
            what = message[at : at + 1]
            row, at = _row(message, at + 1, columns)
            if what == b"N":
                new = {**row, **self._absent}
            else:
                old, known = row, row if what == b"O" else None
        if new is not None:
            known = known or self._rows.get(self._key_of(old or new))
        if old is not None and (new is None or self._key_of(old) != self._key_of(new)):
            self._put(self._key_of(old), None)
        if new is not None:
            for name, value in new.items() if known else ():
                if value is UNSENT and known is not None:
                    new[name] = known.get(name, UNSENT)
            self._put(self._key_of(new), new)

    def _put(self, key: tuple[SlotValue, ...], row: SlotRow | None) -> None:
        self._rows.pop(key, None)  # behind what came before it
        self._rows[key] = row

    def _key_of(self, row: SlotRow) -> tuple[SlotValue, ...]:
        return tuple([row.get(name) for name in self._key])


def _text(message: bytes, at: int) -> tuple[str, int]:
    end = message.index(b"\0", at)
    return message[at:end].decode(), end + 1


def _row(message: bytes, at: int, columns: list[str]) -> tuple[SlotRow, int]:
    (count,) = struct.unpack_from(">H", message, at)
    at += 2
    row: SlotRow = {}
    for name in columns[:count]:
        kind = message[at : at + 1]
        at += 1
        if kind == b"t":
            (size,) = struct.unpack_from(">I", message, at)
            row[name] = message[at + 4 : at + 4 + size].decode()
            at += 4 + size
        else:
            row[name] = UNSENT if kind == b"u" else None
    return row, at
