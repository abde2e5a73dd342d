"""A lakehouse: readings as they come in a bronze table of Delta Lake, and the mean of every minute in a silver one. Exactly once, both.

    python examples/connections/lake.py

runs it on local Spark, over readings of its own, and shows what came out. Everything is in example-output/lake: the readings, both tables, the checkpoint.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import millstream as ms

FOLDER = Path("example-output/lake")


def make_readings(folder: Path) -> None:
    """Ten minutes of ten sensors, every second."""
    dice = random.Random(1)
    rows = [
        {"sensor": f"s{n}", "at": 1_767_258_000_000 + second * 1000, "degrees": 20 + n + dice.random()}
        for second in range(600)
        for n in range(10)
    ]
    folder.mkdir(parents=True)
    (folder / "readings.json").write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_tables() -> None:
    import pyarrow as pa
    from deltalake import DeltaTable

    bronze = pa.schema([("sensor", pa.string()), ("timestamp", pa.timestamp("us", "UTC")), ("degrees", pa.float64())])
    silver = pa.schema([("key", pa.string()), ("start", pa.timestamp("us", "UTC")), ("degrees", pa.float64()), ("readings", pa.int64())])
    for name, schema in (("bronze", bronze), ("silver", silver)):
        DeltaTable.create(str(FOLDER / name), schema=schema, mode="ignore")


if not (FOLDER / "readings").exists():
    make_readings(FOLDER / "readings")

pipeline = ms.Pipeline("lake")
source = ms.sources.files(FOLDER / "readings", schema="sensor string, at long, degrees double")
readings = pipeline.inject("readings", source, timestamp="at", watermark=ms.watermarks.bounded("5s"))
pipeline.emit(readings, ms.sinks.delta(str(FOLDER / "bronze")))
minutes = readings.by("sensor").window(ms.windows.tumbling("1m")).reduce(degrees=ms.mean("degrees"), readings=ms.count(), name="minutes")
pipeline.emit(minutes, ms.sinks.delta(str(FOLDER / "silver")))

if __name__ == "__main__":
    from deltalake import DeltaTable

    make_tables()
    pipeline.run(checkpoint=FOLDER / "checkpoint", available_now=True).await_termination()
    bronze, silver = (DeltaTable(str(FOLDER / name)).count() for name in ("bronze", "silver"))
    print(f"{bronze:,} readings are in {FOLDER / 'bronze'}, and {silver} minutes in {FOLDER / 'silver'}.")
