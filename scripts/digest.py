"""Prints a digest of every unit that fixed seeds write: state segments and stored productions, byte for byte.

    PYTHONPATH=src python scripts/digest.py            before a change, and after it: the two must be equal
    PYTHONPATH=src python scripts/digest.py --spark    the same of a run on Spark

What is written: by the simulated cluster, under schedules of faults that follow from the seeds (every attempt counts, also those that are lost), and by a
run of the same pipeline on Spark. Names of objects carry random tokens and are left out; so are manifests, which carry the run's token.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import millstream as ms
from millstream.state.manifest_log import ManifestLog
from millstream.state.memory_storage import MemoryStorage
from millstream.state.segment import merge
from millstream.state.storage import open_storage


class Counter(ms.Computation):
    """Records per key and second, with a hold until the second is told."""

    State = dict

    def process_record(self, record: ms.Record) -> None:
        second = record.timestamp - record.timestamp % 1000
        self.state[second] = self.state.get(second, 0) + record.value["n"]
        self.set_timer("second", second + 1000, hold=second)
        if record.value["n"] % 5 == 0:
            self.set_timer("look", self.now + 10, ms.WALL_CLOCK)

    def process_timer(self, timer: ms.Timer) -> None:
        if timer.tag == "second":
            self.produce({"second": timer.time - 1000, "sum": self.state.pop(timer.time - 1000)})


class Ranks(ms.Computation):
    """In the counter's task: the largest sum so far."""

    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state = max(self.state, record.value["sum"])
        self.produce(self.state)


class Totals(ms.Computation):
    """Sums over groups of keys, a sub-row per second."""

    State = ms.MapState

    def process_record(self, record: ms.Record) -> None:
        second = record.value["second"]
        self.state[second] = self.state.get(second, 0) + record.value["sum"]
        self.set_timer("total", second + 3000)

    def process_timer(self, timer: ms.Timer) -> None:
        self.produce({"second": timer.time - 3000, "total": self.state.pop(timer.time - 3000)})


def group_of(record: ms.Record) -> int:
    """Three groups of keys."""
    return int(record.key[1:]) % 3


def pipeline(work: Path, production: str, **options: Any) -> ms.Pipeline:
    """The graph; production: of the edge behind the counter; options: of the injector."""
    p = ms.Pipeline("digest")
    source = ms.sources.files(work / "input", schema="key string, at long, id string, n long", format="json", max_files_per_epoch=1)
    queries = p.inject("queries", source, timestamp="at", id="id", watermark=ms.watermarks.bounded("1s"), **options)
    sums = p.compute(Counter, queries, key="key", produces="sums")
    ranks = p.compute(Ranks, sums, produces="ranks")
    totals = p.compute(Totals, sums.via(production), key=group_of, produces="totals")
    p.emit(ranks, ms.sinks.files(work / "ranks"))
    p.emit(totals, ms.sinks.files(work / "totals"))
    return p


def rows(file: int) -> list[dict[str, Any]]:
    """The rows of an epoch, some of them twice."""
    dice = random.Random(file)
    found = [
        {
            "key": f"k{dice.randrange(12)}",
            "at": 1_000_000 + file * 700 + dice.randrange(1500),
            "id": f"{file}-{at}",
            "n": dice.randrange(10),
        }
        for at in range(20)
    ]
    return found + found[:2]


def of_simulations(seeds: int) -> Iterable[bytes]:
    """Everything that simulated clusters put into their storage."""
    written: list[bytes] = []
    put = MemoryStorage.put

    def noted(self: MemoryStorage, name: str, data: bytes) -> None:
        if name.startswith("units/"):
            written.append(bytes(data))
        put(self, name, data)

    MemoryStorage.put = noted  # type: ignore[method-assign]
    try:
        for production in (ms.WEAK, ms.STRONG):
            records = [("queries", row) for file in range(6) for row in rows(file)]
            ms.testing.assert_exactly_once(pipeline(Path("nowhere"), production), records, seeds=range(seeds), epochs="same")
    finally:
        MemoryStorage.put = put  # type: ignore[method-assign]
    return sorted(written)


def of_spark() -> Iterable[bytes]:
    """What the chains of a run on Spark hold in the end, and its stored productions in the order of the epochs."""
    for production in (ms.WEAK, ms.STRONG):
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder)
            (work / "input").mkdir()
            for file in range(8):
                path = work / "input" / f"{file:02d}.json"
                path.write_text("".join(json.dumps({**row, "n": row["n"] or 1}) + "\n" for row in rows(file) if row["n"] % 5))
                os.utime(path, (1_700_000_000 + file, 1_700_000_000 + file))
            pipeline(work, production, dedup=None).run(
                checkpoint=str(work / "checkpoint"), available_now=True, shards=2, drain=False
            ).await_termination()
            storage = open_storage(work / "checkpoint")
            log = ManifestLog(storage)
            for epoch in log.epochs():
                manifest = log.read(epoch)
                for name, state in sorted(manifest.computations.items()):
                    for shard, one in enumerate(state.shards):
                        for ref in one.segments:
                            if ref.first == ref.last == epoch:
                                yield f"{production} {epoch} {name} {shard}".encode() + storage.read(ref.name, ref.offset, ref.length)
                for stored_ref in sorted(manifest.pending, key=lambda p: (p.stream, p.computation, sorted(p.slices), p.oldest)):
                    for shard, (offset, length, _) in sorted(stored_ref.slices.items()):
                        yield f"{production} {epoch} {stored_ref.stream} {shard}".encode() + storage.read(stored_ref.name, offset, length)
            newest = log.latest()
            assert newest is not None
            for _, state in sorted(newest.computations.items()):
                for one in state.shards:
                    yield repr(
                        [(key, value) for key, value in merge(storage, one.segments, drop_deleted=True) if not key.startswith(b"D")]
                    ).encode()


def main() -> None:
    """Prints the digest."""
    parser = argparse.ArgumentParser(description="A digest of all that fixed seeds write.")
    parser.add_argument("--spark", action="store_true", help="of a run on Spark instead of simulations")
    parser.add_argument("--seeds", type=int, default=100)
    options = parser.parse_args()
    digest, count = blake2b(digest_size=16), 0
    for data in of_spark() if options.spark else of_simulations(options.seeds):
        digest.update(len(data).to_bytes(8, "big") + data)
        count += 1
    print(
        f"{digest.hexdigest()}  {count} {'pieces of a run on Spark' if options.spark else f'units of {options.seeds} seeds'}, millstream "
        f"in {os.path.dirname(ms.__file__)}"
    )


if __name__ == "__main__":
    sys.exit(main())
