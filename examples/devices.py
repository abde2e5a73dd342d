"""Devices: which of them have been silent for five minutes, and what was the last that they said? Also if all of them are silent.

    python examples/devices.py

runs it on local Spark, and shows what came out. The same from the command line, where `--help` shows what else can be said:

    millstream run examples/devices.py --available-now --checkpoint example-output/devices/checkpoint

It makes some readings of its own, if there are none. Everything is in example-output/devices: the readings, what was told, the checkpoint.

A session of a device ends five minutes after its last reading. The other devices move time on, so its end is told although nothing comes from it. If nothing
comes from any of them, event time would stop: `onward="30s"` has it go on with the clock after half a minute of silence. (This bounded run ends with a drain,
which closes all sessions.)
"""

import json
import random
from datetime import UTC, datetime
from pathlib import Path

import millstream as ms

FOLDER = Path("example-output/devices")
MINUTE = 60_000


def make_readings(folder: Path) -> None:
    """An hour of four devices, of which two are silent for a while."""
    dice = random.Random(1)
    readings = []
    for second in range(0, 3_600, 30):
        for device, silent in {"attic": range(0), "cellar": range(900, 1_500), "garden": range(2_000, 3_600), "hall": range(0)}.items():
            if second not in silent:
                at = 1_767_258_000_000 + second * 1_000 + dice.randrange(2_000)
                readings.append({"device": device, "temperature": round(dice.uniform(15, 25), 1), "at": at})
    readings.sort(key=lambda reading: reading["at"] + dice.randrange(4_000))
    folder.mkdir(parents=True)
    (folder / "readings.json").write_text("".join(json.dumps(reading) + "\n" for reading in readings))


if not (FOLDER / "readings").exists():
    make_readings(FOLDER / "readings")

pipeline = ms.Pipeline("devices")
source = ms.sources.files(FOLDER / "readings", schema="device string, temperature double, at long")
readings = pipeline.inject("readings", source, timestamp="at", watermark=ms.watermarks.bounded("5s", onward="30s"))
offline = readings.by("device").window(ms.windows.session("5m")).reduce(last=ms.last("temperature"), name="offline")
pipeline.emit(offline, ms.sinks.files(FOLDER / "offline"))

if __name__ == "__main__":
    pipeline.run(checkpoint=FOLDER / "checkpoint", available_now=True).await_termination()
    rows = [json.loads(line)["value"] for file in (FOLDER / "offline").glob("*.jsonl") for line in file.read_text().splitlines()]
    for row in sorted(rows, key=lambda row: (row["end"], row["device"])):
        since = datetime.fromtimestamp((row["end"] - 5 * MINUTE) / 1_000, UTC)
        print(f"{row['device']}: silent since {since:%H:%M:%S}, at {row['last']} degrees")
    print(f"All of them are in {FOLDER / 'offline'}.")
