"""How a store follows its log: after a restart, and where another node takes over.

Rules
1. Records are applied in their order. What a record says by name only (transactions that were staged before, a restore) is looked up where it lies.
2. A restore replaces users' entries, all with the position of its record. What else the partition keeps (sessions, staged rows, ledgers, its clock) stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

import msgspec

from millstream.errors import DamageError
from millstream.service.messages import ENTRY, LogRecord
from millstream.service.stores.base import KeyStore
from millstream.service.turn import expanded_from

#: Gives the users' entries of a restore, by its name.
Restored = Callable[[str], list[tuple[bytes, bytes]]]


RECORD = 512  # bytes that a record has besides what users wrote, about


class Replayed(msgspec.Struct):
    """What was among the records: the names of restores; and about how many bytes they have, for whoever decides when to save."""

    restores: list[str] = []
    size: int = 0


async def bring_up(store: KeyStore, records: AsyncIterator[LogRecord], restored: Restored | None) -> Replayed:
    """Rule 1."""
    found = Replayed()
    async for record in records:
        if record.restored:
            if restored is None:
                raise DamageError(f"position {record.last} of partition {record.partition} is a restore, and nobody knows where it lies")
            put_instead(store, await asyncio.to_thread(restored, record.restored), record.last)
            found.restores.append(record.restored)
        else:
            store.apply([*expanded_from(store, record), *record.changes], record.last)
        found.size += RECORD + sum(len(key) + len(value or b"") for key, value in record.changes)
    return found


def put_instead(store: KeyStore, entries: Iterable[tuple[bytes, bytes]], lsn: int) -> None:
    """Rule 2."""
    version = lsn.to_bytes(8, "big")
    own = [(key, value) for key, value in store.scan(b"", b"\xff") if key[:1] != ENTRY]
    store.replace([*own, *((key, version + value[8:]) for key, value in entries)], lsn)
