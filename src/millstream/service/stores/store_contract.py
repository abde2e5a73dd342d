"""What a partition asks of its store: the committed entries, and the contract that every store keeps, and that a store of your own must keep.

S1  `apply` does all of it, and moves `applied`, or nothing. A store is never ahead of the log.
S2  `get` and `scan` see what was applied, in the order of the keys' bytes.
S3  What is pinned does not change, whatever is applied meanwhile.
S4  A store that says `durable` has what it applied after a power cut. Any other may lose its end, or all of it, and knows: `applied` says how far it is.
    It may not keep a part of what `apply` was given.

A store that does not take every value has a method `check(changes)` besides, which raises `RefusedRequest`: it is called in the turn, before the log has
anything, so that what the log has can always be applied.

`millstream.testing.check_store` runs the contract against a store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from millstream.service.messages import Change


class Pinned(Protocol):
    """The entries as of one position."""

    applied: int

    def get(self, key: bytes) -> bytes | None:
        """The value of an entry."""

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Entries with start <= key < stop, in order. May be gone through beside turns."""

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """All of them, in any order. May be gone through beside turns."""

    def close(self) -> None:
        """Ends the pin."""


class KeyStore(Protocol):
    """The committed entries of one partition."""

    #: The last position that was applied; 0 if nothing ever was.
    applied: int
    #: S4.
    durable: bool

    def get(self, key: bytes) -> bytes | None:
        """The value of an entry."""

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Entries with start <= key < stop, in order. Gone through within one turn."""

    def apply(self, changes: Sequence[Change], upto: int) -> None:
        """S1. Later changes of a key count."""

    def pin(self) -> Pinned:
        """S3. Cheap: a snapshot, a scan and a watch begin so."""

    def replace(self, entries: Iterable[tuple[bytes, bytes]], upto: int) -> None:
        """These entries instead of all that are there, or nothing of it."""

    def close(self) -> None:
        """Ends the store. A durable one keeps its entries."""


class SharedStore(Protocol):
    """What the partitions of one node share of a store: an environment, a cache."""

    def of(self, partition: int) -> KeyStore:
        """The store of one partition. Costs no task, no timer and no file of its own."""

    def forget(self, partition: int) -> None:
        """The partition was removed: its entries may go."""

    def close(self) -> None:
        """The node ends."""


class StoreKind(Protocol):
    """A store as a table asks for it (`store=`)."""

    @property
    def durable(self) -> bool:
        """S4."""

    def open(self, folder: Path) -> SharedStore:
        """Makes it ready in a node's folder."""

    def describe(self) -> str:
        """For people."""
