"""Where are committed entries kept? The stores of the state service, behind one contract.

    store_contract  S1 to S4, which every store keeps
    memory          a dict, and a dict of numbers for counts and sums
    lmdb_store      one LMDB environment per node
    snapshots       a store's entries as of one position, as objects: written, read, uploaded

It must not know logs, partitions or gRPC.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.service.stores.memory import counters, memory

if TYPE_CHECKING:
    from millstream.service.stores.store_contract import StoreKind

__all__ = ["counters", "lmdb", "memory"]


def lmdb(durable: bool = False, map_size: int = 1 << 38) -> StoreKind:
    """A store on a disk of the node, for more than fits into memory: one LMDB environment for all its partitions.

    durable: every change is on the disk before it counts, so that no log is needed (`log=ms.service.logs.none()`). map_size: the most that it may hold.

    >>> lmdb().describe()
    'lmdb'
    """
    from millstream.service.stores.lmdb_store import LmdbKind

    return LmdbKind(durable, map_size)
