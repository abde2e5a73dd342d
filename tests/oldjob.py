"""The pipeline of the checkpoint in tests/data/checkpoint-0.1, and the program that made it.

Version 0.1 made it (commit 6fe6e12), and nothing else may make it again: it is there to be opened by every later version.

    PYTHONPATH=<0.1>/src:tests python tests/oldjob.py WORK     then without the input, without .crc files, and with /WORK/ for the folder
    python tests/oldjob.py WORK --go-on                        what every later version must be able to do with a copy

The driver is killed behind epoch 9, in a moment in which all of this is true: keys have more timers due than an epoch may fire, productions wait on
a strong edge, ids are held, a MapState has entries, two sinks have parts, one shard's compaction is adopted, and another's lies there unadopted.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

import millstream as ms
from millstream.core import step

MAX_DUE = 6  # keys of a shard that an epoch visits for their timers alone
FILES = 16
LAST = 9  # the epoch behind which the driver is killed


class Counter(ms.Computation):
    """Records per key and second; a record for every second that is over."""

    State = dict

    def process_record(self, record: ms.Record) -> None:
        second = record.timestamp - record.timestamp % 1000
        self.state[second] = self.state.get(second, 0) + record.value["n"]
        self.set_timer("second", second + 1000)

    def process_timer(self, timer: ms.Timer) -> None:
        self.produce({"second": timer.time - 1000, "sum": self.state.pop(timer.time - 1000)})


class Totals(ms.Computation):
    """Sums over groups of keys: a sub-row per second."""

    State = ms.MapState

    def process_record(self, record: ms.Record) -> None:
        second = record.value["second"]
        self.state[second] = self.state.get(second, 0) + record.value["sum"]
        self.set_timer("total", second + 3000)

    def process_timer(self, timer: ms.Timer) -> None:
        self.produce({"second": timer.time - 3000, "total": self.state.pop(timer.time - 3000)})


def few_at_once() -> Counter:
    """A counter of a process in which few keys may be visited for their timers."""
    step.MAX_DUE = MAX_DUE
    return Counter()


def group_of(record: ms.Record) -> int:
    """Three groups of keys."""
    return int(record.key[1:]) % 3


def pipeline(work: Path) -> ms.Pipeline:
    """The graph, in a folder."""
    p = ms.Pipeline("old")
    source = ms.sources.files(work / "input", schema="key string, at long, id string, n long", format="json", max_files_per_epoch=1)
    queries = p.inject("queries", source, timestamp="at", id="id", watermark=ms.watermarks.bounded("1s"), dedup="876000h")
    sums = p.compute(few_at_once, queries, key="key", name="Counter", produces="sums")
    totals = p.compute(Totals, sums.via(ms.STRONG), key=group_of, produces="totals")
    p.emit(sums, ms.sinks.files(work / "sums"))
    p.emit(totals, ms.sinks.files(work / "totals"))
    return p


def rows(file: int) -> list[dict[str, object]]:
    """What a file of the input has: some of it twice, and some of it also in the file before."""
    dice = random.Random(file)
    found: list[dict[str, object]] = []
    for at in range(40):
        found.append(
            {
                "key": f"k{dice.randrange(60)}",
                "at": 1_000_000 + file * 700 + dice.randrange(1500),
                "id": f"{file}-{at}",
                "n": dice.randrange(10),
            }
        )
    return found + found[:3] + (rows(file - 1)[:2] if file else [])


def write(work: Path) -> None:
    """The input, one file after the other also by their times."""
    (work / "input").mkdir(parents=True)
    for file in range(FILES):
        path = work / "input" / f"{file:02d}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows(file)))
        os.utime(path, (1_700_000_000 + file, 1_700_000_000 + file))


def main(work: Path) -> None:
    """Makes the checkpoint, and dies."""
    import time

    from millstream.engine.spark import compaction_job
    from millstream.state import compaction

    write(work)
    compaction.MAX_RUNS = 3
    step.MAX_DUE = MAX_DUE
    adopt = compaction_job.SparkCompaction.adopt

    def first_shard_only(self: compaction_job.SparkCompaction, computation: str, shard: int, chain: list) -> list:  # type: ignore[type-arg]
        time.sleep(0.2)  # let compactions end
        return adopt(self, computation, shard, chain) if shard == 0 else chain

    compaction_job.SparkCompaction.adopt = first_shard_only  # type: ignore[method-assign]
    os.environ["MILLSTREAM_CRASH"] = f"epoch.7-done@{LAST}"
    pipeline(work).run(checkpoint=str(work / "checkpoint"), available_now=True, shards=2, drain=False).await_termination()


def go_on(work: Path) -> None:
    """To the end of the input and of event time."""
    step.MAX_DUE = MAX_DUE
    pipeline(work).run(checkpoint=str(work / "checkpoint"), available_now=True).await_termination()


if __name__ == "__main__":
    import oldjob  # by its name: workers import it too

    (oldjob.go_on if "--go-on" in sys.argv else oldjob.main)(Path(sys.argv[1]).resolve())
