"""Where are committed entries kept? The stores of the state service, behind one contract.

    store_contract  S1 to S4, which every store keeps
    memory          a dict, and a dict of numbers for counts and sums
    lmdb_store      one LMDB environment per node
    snapshots       a store's entries as of one position, as objects: written, read, uploaded

It must not know logs, partitions or gRPC.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.service.stores.memory import counters, memory

if TYPE_CHECKING:
    from millstream.service.stores.lmdb_store import LmdbKind as lmdb

__all__ = ["counters", "lmdb", "memory"]


def __getattr__(name: str) -> Any:
    """LMDB is imported when it is used."""
    if name != "lmdb":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from millstream.service.stores.lmdb_store import LmdbKind

    return LmdbKind
