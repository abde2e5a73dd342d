"""Scans: a visit of every row of a shard, in the order of row keys, a chunk per epoch. How far one comes is settled before the first visit.

The entry of a scan (`S <name>` in the keyspace) says how far it has come: up to a row, or that it has been at all of them.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from millstream.core.backfill import PAUSED
from millstream.core.keyspace import ROW, SCAN, Store, after

_ENDED, _AT = b"\x02", b"\x01"

#: Where a scan begins in this epoch (None: it had ended), and the last row that it comes to (None: it ends).
Chunk = tuple[bytes | None, bytes | None]


class Settled(NamedTuple):
    """A scan in one epoch: its chunk, the rows in it, whether it has ended then, and what its entry says then (None: what it says already)."""

    chunk: Chunk
    rows: list[bytes]
    ended: bool
    says: bytes | None


def scan_entry(name: str) -> bytes:
    """The entry of a scan."""
    return SCAN + name.encode()


def settled(store: Store, name: str, limit: int) -> Settled:
    """How far a scan comes in this epoch. limit: rows, 0 for all that are left, PAUSED for none."""
    raw = store.get(scan_entry(name))
    if raw == _ENDED:
        return Settled((None, None), [], True, None)
    begins = b"" if raw is None else raw[1:] + b"\0"  # the first row that it has not been at; a row key may be empty
    if limit == PAUSED:
        return Settled((begins, b""), [], False, None)
    rows = [key[len(ROW) :] for key, _ in islice(store.scan(ROW + begins, after(ROW)), limit or None)]
    ends = not limit or len(rows) < limit
    return Settled((begins, None if ends else rows[-1]), rows, ends, _ENDED if ends else _AT + rows[-1])
