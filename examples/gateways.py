"""Gateways: the mean temperature at each of three gateways, per five minutes, although one is cut off for a while and delivers later what it has kept.

    python examples/gateways.py

runs it on local Spark, and shows what came out. The same from the command line, where `--help` shows what else can be said:

    millstream run examples/gateways.py --available-now --checkpoint example-output/gateways/checkpoint

It makes some readings of its own, if there are none. Everything is in example-output/gateways: the readings, the means, the late readings, the checkpoint.

A column names the gateway. `sub_sources` keeps a watermark for each of them, and event time follows the one that is furthest behind: no window closes before
all gateways are past its end, so what the third one has kept is not late. `idle="1m"` is how long it is waited for: after a minute of the clock without a word,
the others go on. What it delivers after that may be late, and has a stream of its own. (This bounded run takes less than a minute: nothing is late.)
"""

import json
import random
from datetime import UTC, datetime
from pathlib import Path

import millstream as ms

FOLDER = Path("example-output/gateways")
GATEWAYS = ["north", "south", "west"]
MINUTE = 60_000


def make_readings(folder: Path) -> None:
    """An hour of three gateways, a file for five minutes. West is cut off from minute 20 to 40."""
    dice = random.Random(1)
    start, kept = 1_767_258_000_000, []
    folder.mkdir(parents=True)
    for part in range(12):
        readings = []
        for second in range(300 * part, 300 * part + 300, 5):
            for gateway in GATEWAYS:
                reading = {
                    "gateway": gateway,
                    "celsius": round(dice.uniform(15, 25), 1),
                    "at": start + second * 1_000 + dice.randrange(2_000),
                }
                (kept if gateway == "west" and 4 <= part < 8 else readings).append(reading)
        if part == 8:
            readings, kept = [*kept, *readings], []
        (folder / f"readings-{part:02}.json").write_text("".join(json.dumps(reading) + "\n" for reading in readings))


if not (FOLDER / "readings").exists():
    make_readings(FOLDER / "readings")

pipeline = ms.Pipeline("gateways")
source = ms.sources.files(FOLDER / "readings", schema="gateway string, celsius double, at long", max_files_per_epoch=1)
each = ms.watermarks.bounded("5s", idle="1m")
readings = pipeline.inject("readings", source, timestamp="at", watermark=ms.watermarks.sub_sources("gateway", GATEWAYS, each))
means = (
    readings.by("gateway")
    .window(ms.windows.tumbling("5m"), late="too-late")
    .reduce(celsius=ms.mean("celsius"), readings=ms.count(), name="means")
)
pipeline.emit(means, ms.sinks.files(FOLDER / "means"))
pipeline.emit(pipeline.late_records("too-late"), ms.sinks.files(FOLDER / "late"))


def rows(folder: Path) -> list[dict]:
    """The rows of a sink."""
    return [json.loads(line)["value"] for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]


if __name__ == "__main__":
    pipeline.run(checkpoint=FOLDER / "checkpoint", available_now=True).await_termination()
    for row in sorted(rows(FOLDER / "means"), key=lambda row: (row["start"], row["gateway"])):
        begins = datetime.fromtimestamp(row["start"] / 1_000, UTC)
        print(f"{begins:%H:%M} {row['gateway']}: {row['celsius']:.1f} degrees, {row['readings']} readings")
    print(f"{len(rows(FOLDER / 'late'))} readings came too late: they are in {FOLDER / 'late'}. The means are in {FOLDER / 'means'}.")
