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
from millstream.service.state_machine import promoted_rows
from millstream.service.stores.store_contract import KeyStore

#: Gives the users' entries of a restore, by its name.
RestoreReader = Callable[[str], list[tuple[bytes, bytes]]]


RECORD = 512  # bytes that a record has besides what users wrote, about


class RecoveredLog(msgspec.Struct):
    """What was among the records: the names of restores; and about how many bytes they have, to decide when to save."""

    restores: list[str] = []
    size: int = 0


async def replay_log(store: KeyStore, records: AsyncIterator[LogRecord], restored: RestoreReader | None) -> RecoveredLog:
    """Rule 1."""
    found = RecoveredLog()
    async for record in records:
        if record.restored:
            if restored is None:
                raise DamageError(f"position {record.last} of partition {record.partition} is a restore, and its entries cannot be found")
            replace_user_entries(store, await asyncio.to_thread(restored, record.restored), record.last)
            found.restores.append(record.restored)
        else:
            store.apply([*promoted_rows(store, record), *record.changes], record.last)
        found.size += RECORD + sum(len(key) + len(value or b"") for key, value in record.changes)
    return found


def replace_user_entries(store: KeyStore, entries: Iterable[tuple[bytes, bytes]], lsn: int) -> None:
    """Rule 2."""
    version = lsn.to_bytes(8, "big")
    own = [(key, value) for key, value in store.scan(b"", b"\xff") if key[:1] != ENTRY]
    store.replace([*own, *((key, version + value[8:]) for key, value in entries)], lsn)
