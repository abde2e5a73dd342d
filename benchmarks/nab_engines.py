"""The same verdicts on every engine: in the local one, on Spark in micro-batches and in resident tasks, and after drivers were killed.

    python -m benchmarks.nab_engines FOLDER [--resident]    one driver, on the points of FOLDER: what `compare` starts, and kills

Rule: two runs are the same if their rows are, anomalies and forecasts with their scores, as bags of key, timestamp and value.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import millstream as ms
from benchmarks.nab import _STREAMS, pipeline, rows_of
from benchmarks.nab_series import LabelledSeries

FILES = 8
KILLS = (("epoch.6-committed", 2), ("task.4-staging", 4), ("epoch.5-checked", 6))

Rows = dict[str, Counter[str]]


def compare(corpus: Sequence[LabelledSeries], folder: Path) -> None:
    """Prints how the rows of each way compare with those of the local engine; raises if any differ."""
    rows = sorted((row for series in corpus for row in rows_of(series)), key=lambda row: (row["at"], row["id"]))
    parts = [rows[len(rows) * n // FILES : len(rows) * (n + 1) // FILES] for n in range(FILES)]
    print(f"{len(rows):,} points of {', '.join(series.name for series in corpus)}, in {FILES} epochs")
    wanted = in_the_local_engine(parts)
    print(f"local engine: {wanted[_STREAMS[0]].total()} begins and ends, {wanted[_STREAMS[1]].total():,} scores", flush=True)
    wrong = []
    for way, options, kills in (
        ("one epoch, local engine", None, ()),
        ("Spark, micro-batches", [], ()),
        ("Spark, resident", ["--resident"], ()),
        ("Spark, micro-batches, killed", [], KILLS),
        ("Spark, resident, killed", ["--resident"], KILLS),
    ):
        got = in_the_local_engine([rows]) if options is None else on_spark(folder / way.replace(", ", "-"), parts, options, kills)
        told = f"{way}{f' {len(kills)} times' if kills else ''}"
        print(f"{told}: {'the same' if got == wanted else 'NOT the same'}", flush=True)
        if got != wanted:
            wrong.append(told)
            for stream in _STREAMS:
                print(f"  {stream}: missing {list(wanted[stream] - got[stream])[:3]}, extra {list(got[stream] - wanted[stream])[:3]}")
    if wrong:
        raise SystemExit(f"other verdicts: {'; '.join(wrong)}")


def in_the_local_engine(parts: Sequence[Sequence[dict[str, object]]]) -> Rows:
    runner = ms.testing.LocalRunner(pipeline(Path("unused")))
    for part in parts:
        runner.push("points", *part)
        runner.epoch()
    runner.drain()
    return {stream: Counter(_line(key, at, value) for key, value, at in runner.output(stream)) for stream in _STREAMS}


def on_spark(folder: Path, parts: Sequence[Sequence[dict[str, object]]], options: list[str], kills: Sequence[tuple[str, int]]) -> Rows:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "points").mkdir(parents=True)
    for n, part in enumerate(parts):
        (folder / "points" / f"{n:02d}.json").write_text("".join(json.dumps(row) + "\n" for row in part))
    program = ["-m", "benchmarks.nab_engines", str(folder), *options]
    faults = ms.testing.SparkFaults(program, env={"MILLSTREAM_STATE_CACHE": str(folder / "caches")})
    for point, epoch in kills:
        faults.kill_at(point, epoch=epoch)
    faults.run()
    found: Rows = {}
    for stream in _STREAMS:
        rows = [json.loads(line) for file in sorted((folder / stream).glob("*.jsonl")) for line in file.read_text().splitlines()]
        found[stream] = Counter(_line(row["key"], row["timestamp"], row["value"]) for row in rows)
    return found


def _line(key: object, at: int, value: object) -> str:
    return json.dumps([key, at, value], sort_keys=True)


def main(arguments: Sequence[str]) -> None:
    folder = Path(arguments[0])
    run = pipeline(folder, per_epoch=1).run(checkpoint=folder / "checkpoint", available_now=True, resident="--resident" in arguments)
    run.await_termination()


if __name__ == "__main__":
    main(sys.argv[1:])
