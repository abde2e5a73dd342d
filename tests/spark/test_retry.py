"""Attempts that do not fit together: stages recomputed in mid-epoch, zombies that wake up late. Never mixed, never visible."""

from __future__ import annotations

import glob
import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sparkkit import BASE, run, write

import job
import millstream as ms
import support
from millstream.core import authority
from millstream.engine.receipts import EpochOrder, Receipt, checked
from millstream.engine.spark import task_function
from millstream.engine.spark.versions import VERSION
from millstream.status.report import standings_of

pytestmark = pytest.mark.spark


class Roll(ms.Computation):
    """Produces a number for every record: at random, or one that follows from the key."""

    State = int
    random = True

    def process_record(self, record: ms.Record) -> None:
        self.produce(random.SystemRandom().randrange(10**12) if self.random else int(record.key[1:]))


class Collect(ms.Computation):
    """Passes on what it got. The first attempt of all deletes the shuffle that feeds it, so that Spark must recompute the stage before."""

    State = int
    marker = ""

    def process_record(self, record: ms.Record) -> None:
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            pass
        else:
            found = [p for d in os.environ["SPARK_LOCAL_DIRS"].split(",") for p in glob.glob(f"{d}/**/shuffle_*_*", recursive=True)]
            newest = max(int(os.path.basename(p).split("_")[1]) for p in found)
            for path in found:
                if os.path.basename(path).startswith(f"shuffle_{newest}_"):
                    os.unlink(path)
        self.produce(record.value)


def recomputed(spark: Any, work: Path, is_random: bool) -> tuple[Any, set[int], set[int]]:
    """Runs the two computations; returns the handle, what was rolled and what was collected."""
    write(work / "in", "a.json", [{"k": f"k{i}", "at": BASE + i} for i in range(60)])
    p = ms.Pipeline("retry")
    stream = p.inject("in", ms.sources.files(work / "in", schema="k string, at long"), timestamp="at")
    rolled = p.compute(type("Roll", (Roll,), {"random": is_random}), stream, key="k", produces="rolled")
    collect = type("Collect", (Collect,), {"marker": str(work / "deleted")})
    collected = p.compute(collect, rolled, key=lambda record: record.key, produces="collected")
    sinks = ms.sinks.memory(), ms.sinks.memory()
    p.emit(rolled, sinks[0])
    p.emit(collected, sinks[1])
    handle = run(p, spark, work, shards=6)
    assert (work / "deleted").exists()
    assert len(sinks[0].collected) == len(sinks[1].collected) == 60
    return handle, {row.value for row in sinks[0].collected}, {row.value for row in sinks[1].collected}


@pytest.mark.parametrize("is_random", [True, False])
def test_a_stage_recomputed_in_mid_epoch_abandons_the_epoch_and_never_mixes_attempts(spark: Any, tmp_path: Path, is_random: bool) -> None:
    handle, rolled, collected = recomputed(spark, tmp_path, is_random)
    assert handle._epochs.abandoned >= (is_random or VERSION >= (4, 2))  # before, Spark goes on where both attempts gave the same
    assert rolled == collected


def test_receipts_of_mixed_missing_or_doubled_attempts_are_refused_and_equal_ones_are_not(tmp_path: Path) -> None:
    topology = job.pipeline(tmp_path).topology()
    first, second = Receipt(0, 0, 0, unit=1), Receipt(1, 0, 0, unit=2, consumed=[1])
    assert checked([first, second], topology, 1, True) == [first, second]
    for bad in (
        [first, Receipt(1, 0, 0, unit=2, consumed=[1, 7])],  # fed by an attempt that is not the one staged
        [first],
        [first, second, second],
        [first, first, second],
    ):
        with pytest.raises(ms.errors.EpochAbandoned):
            checked(bad, topology, 1, True)


def test_a_zombie_attempt_that_wakes_up_late_changes_nothing_and_is_collected(spark: Any, tmp_path: Path) -> None:
    files = support.queries(14, 20)
    support.write_queries(tmp_path / "queries", files[:2])
    epochs = run(job.pipeline(tmp_path), spark, tmp_path, drain=False)._epochs
    before, units = epochs.latest, tmp_path / "checkpoint" / "units"
    honest = set(units.iterdir())
    then = standings_of(before)
    times = authority.times(epochs.topology, then, then, before.now, before.epoch)
    order = EpochOrder(before.epoch, before.now, epochs.token, epochs.log.read(before.epoch - 1), times, [], os.getpid(), "")
    rows, jobs = files[0], epochs.runner._jobs
    table = pa.table(
        {
            "part": pa.array([0] * len(rows), pa.int32()),
            "route": pa.array([0] * len(rows), pa.int32()),
            "key": [r["term"] for r in rows],
            "ts": [r["at"] for r in rows],
            "id": [r["id"] for r in rows],
            "ord": [0] * len(rows),
            "v0": pa.array([{"nothing": None}] * len(rows), pa.struct([("nothing", pa.bool_())])),
        }
    )
    import msgspec

    zombie = list(
        task_function.run_partition(
            jobs._digest,
            jobs._program,
            jobs._place,
            msgspec.msgpack.encode(order),
            0,
            jobs._schemas[0][1],
            0,
            iter(table.to_batches()),
        )
    )
    assert zombie
    left = set(units.iterdir()) - honest
    assert left, "the zombie staged something"
    support.write_queries(tmp_path / "queries", files)
    run(job.pipeline(tmp_path), spark, tmp_path, drain=False)
    run(job.pipeline(tmp_path), spark, tmp_path, drain=False)
    support.assert_same(tmp_path, support.oracle(tmp_path, files))
    assert not left & set(units.iterdir()), "what no manifest names is collected"
