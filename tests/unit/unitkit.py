"""What several unit tests need: a storage and a store that count, one step run by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from millstream.core.arrivals import Arrivals
from millstream.core.computation import Computation
from millstream.core.keys import key_text
from millstream.core.keyspace import LOW_TIMER, ROW, WALL_TIMER, decode_row, timer_entry
from millstream.core.record import ListBatch
from millstream.core.statekind import StateKind
from millstream.core.step import Outcome, Step, Times, Wiring
from millstream.core.time import BEGINNING
from millstream.state.codec import msgpack
from millstream.state.memory_storage import MemoryStorage, MemoryStore
from millstream.state.segment import SegmentRef, encode_segment


class CountingStorage(MemoryStorage):
    """Notes what is read, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        self.reads.append(name)
        return super().read(name, offset, length)


class CountingStore:
    """A store that counts the entries read from it."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.read = 0

    def get(self, key: bytes) -> bytes | None:
        self.read += 1
        return self.store.get(key)

    def scan(self, start: bytes, stop: bytes, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        for entry in self.store.scan(start, stop, reverse):
            self.read += 1
            yield entry


def write_delta(storage: Any, epoch: int, delta: dict[bytes, bytes | None], base: bool = False, first: int | None = None) -> SegmentRef:
    """A delta as one segment in an object of its own."""
    data = encode_segment(sorted(delta.items()))
    name = f"units/{epoch:012d}-delta-{len(storage.list('units'))}"
    storage.put(name, data)
    return SegmentRef(name, 0, len(data), len(delta), epoch if first is None else first, epoch, base)


Arrived = tuple[Any, int, str, Any]  # key, timestamp, id, value


def arrivals(records: Sequence[Arrived], stream: str = "in") -> list[tuple[str, int, str, ListBatch, int]]:
    """Records of one stream as the step wants them."""
    batch = ListBatch(stream, [r[3] for r in records], [r[2] for r in records])
    return [(key_text(key), time, id, batch, at) for at, (key, time, id, _) in enumerate(records)]


def run_step(
    computation: Computation,
    records: Sequence[Arrived] = (),
    *,
    store: Any = None,
    now: int = 0,
    late_before: int = BEGINNING,
    low: int = BEGINNING,
    name: str = "C",
    streams: Sequence[str] = ("out",),
    same_key: Sequence[str] = (),
    codec: Any = msgpack,
    rows: Any = None,
    epoch: int = 0,
    dead_letters: str | None = None,
    scans: dict[str, int] | None = None,
    least: int = BEGINNING,
    late: dict[str, str] | None = None,
    expire: tuple[int, str] | None = None,
) -> Outcome:
    """One step by hand; applies the delta if the store can take it."""
    store = MemoryStore() if store is None else store
    kind = StateKind(computation, codec)
    wiring = Wiring(name, tuple(streams), frozenset(same_key), dead_letters=dead_letters, late=late or {}, expire=expire)
    times = Times(now, late_before, low, epoch, least, least, scans=scans or {})
    step = Step(wiring, computation, kind, store, times, msgpack.encoder(), msgpack.decoder(object))
    outcome = step.run(Arrivals.of(arrivals(records) if rows is None else rows))
    if hasattr(store, "apply"):
        store.apply(outcome.delta)
    return outcome


def dumb_index(entries: dict[bytes, bytes]) -> set[bytes]:
    """The timer index that the rows ask for, from nothing but the rows."""
    found = set()
    for entry, raw in entries.items():
        if entry.startswith(ROW):
            row = decode_row(raw)
            if row.low:
                found.add(timer_entry(LOW_TIMER, min(t for t, _ in row.low), entry[1:]))
            if row.wall:
                found.add(timer_entry(WALL_TIMER, min(t for t, _ in row.wall), entry[1:]))
    return found


def dumb_counts(entries: dict[bytes, bytes]) -> tuple[int, int, int | None, int | None]:
    """Keys, timers, earliest low-watermark timer, earliest wall-clock timer: counted from the rows."""
    rows = [decode_row(raw) for entry, raw in entries.items() if entry.startswith(ROW)]
    low, wall = [t for row in rows for t, _ in row.low], [t for row in rows for t, _ in row.wall]
    return len(rows), len(low) + len(wall), min(low, default=None), min(wall, default=None)
