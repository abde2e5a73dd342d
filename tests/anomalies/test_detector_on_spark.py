"""The detector on Spark: over small series, counts and gauges, the same rows as in the local engine: in micro-batches, in resident tasks, after kills."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
from serieskit import daily, poisson, readings

import millstream as ms
from millstream.anomalies.settings import COUNTS, GAUGE

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import nab_engines
from benchmarks.nab_series import BEGIN, LabelledSeries, moved

pytestmark = pytest.mark.spark

FILES, STREAMS = 4, ("odd", "odd.forecasts", "rare", "rare.forecasts")


def parts() -> list[list[dict[str, Any]]]:
    """Three series of three days in quarters of an hour, with a spike, a dip and gaps, in order of time, in files."""
    dice = Random(4)
    busy: list[float | None] = [float(poisson(dice, 40 * (1.3 + daily(n)))) * (0 if 230 <= n < 240 else 1) for n in range(288)]
    noisy: list[float | None] = [None if n % 11 == 5 else 20 + dice.gauss(0, 1) + (30 if n == 250 else 0) for n in range(288)]
    seldom: list[float | None] = [float(poisson(dice, 0.5)) or None for _ in range(288)]
    rows = [row for device, values in (("busy", busy), ("noisy", noisy), ("seldom", seldom)) for row in readings(device, values)]
    rows.sort(key=lambda row: row["at"] + dice.randrange(1_200_000))
    return [rows[len(rows) * n // FILES : len(rows) * (n + 1) // FILES] for n in range(FILES)]


def both(folder: Path) -> ms.Pipeline:
    """A detector of counts and one of gauges on the same readings."""
    made = ms.Pipeline("both")
    source = ms.sources.files(folder, schema="device string, at long, value double, id string", format="json", max_files_per_epoch=1)
    keyed = made.inject("readings", source, timestamp="at", id="id", watermark=ms.watermarks.bounded("30m")).by("device")
    for name, kind in (("odd", GAUGE), ("rare", COUNTS)):
        for stream in keyed.detect(bucket="15m", value="value", kind=kind, rarity=100, forecasts=True, name=name):
            made.emit(stream, ms.sinks.memory())
    return made


def bags(rows: dict[str, list[tuple[Any, Any, int]]]) -> dict[str, list[str]]:
    return {stream: sorted(json.dumps(row, sort_keys=True) for row in found) for stream, found in rows.items()}


@pytest.mark.parametrize("resident", [False, True])
def test_the_verdicts_on_spark_are_those_of_the_local_engine(resident: bool, spark: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    made = both(tmp_path / "in")
    runner = ms.testing.LocalRunner(made)
    for n, part in enumerate(parts()):
        (tmp_path / "in" / f"{n}.json").write_text("".join(json.dumps(row) + "\n" for row in part))
        runner.push("readings", *part)
        runner.epoch()
    runner.drain()
    wanted = bags({stream: list(runner.output(stream)) for stream in STREAMS})
    made.run(spark, checkpoint=tmp_path / "checkpoint", available_now=True, resident=resident, quiet=True).await_termination()
    sinks = {emission.name: emission.sink for emission in made.topology().emissions}
    got = bags({stream: [(row.key, row.value, row.timestamp) for row in sinks[stream].collected] for stream in STREAMS})
    assert got == wanted
    assert len(wanted["odd"]) > 1 and len(wanted["rare"]) > 1 and len(wanted["odd.forecasts"]) > 500


@pytest.mark.crash
@pytest.mark.soak
@pytest.mark.parametrize("options", [[], ["--resident"]], ids=["micro-batches", "resident"])
def test_the_verdicts_after_kills_are_those_of_the_local_engine(options: list[str], tmp_path: Path) -> None:
    dice = Random(6)
    values = [20 + 5 * daily(n, 288) + dice.gauss(0, 1) + (20 if n == 700 else 0) for n in range(864)]
    series = moved(LabelledSeries("one", [BEGIN + 300_000 * n for n in range(len(values))], values, []))
    rows = nab_engines.rows_of(series)
    given = [rows[len(rows) * n // FILES : len(rows) * (n + 1) // FILES] for n in range(FILES)]
    wanted = nab_engines.in_the_local_engine(given)
    kills = (("epoch.6-committed", 1), ("task.4-staging", 2))
    assert nab_engines.on_spark(tmp_path / "run", given, options, kills) == wanted
    assert wanted["anomalies"].total() > 0
