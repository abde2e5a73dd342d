"""Fraud: three failures and then a success, within five minutes, in order of event time, whatever the order of arrival.

    python examples/fraud.py

runs it on local Spark, and shows what came out. The same from the command line, where `--help` shows what else can be said:

    millstream run examples/fraud.py --available-now --checkpoint example-output/fraud/checkpoint

It makes some attempts of its own, if there are none. Everything is in example-output/fraud: the attempts, the alerts, the checkpoint.

There is no language of patterns. `in_order()` gives the attempts of a card in order of time, each when the low watermark has passed it, and the pattern is
eight lines of Python. `expire="10m"` has a card forgotten that nothing has come from for ten minutes.
"""

import json
import random
from pathlib import Path

import millstream as ms

FOLDER = Path("example-output/fraud")
MINUTE = 60_000


class Guessed(ms.Computation):
    """The times of failures in the last five minutes."""

    State = list

    def process_record(self, record: ms.Record) -> None:
        self.state = [at for at in self.state if at >= record.timestamp - 5 * MINUTE]
        if record.value["status"] == "failed":
            self.state.append(record.timestamp)
        elif len(self.state) >= 3:
            self.produce({"card": record.value["card"], "failures": len(self.state)})
            self.state = []


def make_attempts(folder: Path) -> None:
    """An hour of ten cards, in order of arrival: at most ten seconds after their time. Two of them are guessed."""
    dice = random.Random(1)
    start = 1_767_258_000_000
    attempts = []
    for number in range(300):
        status = "failed" if dice.random() < 0.1 else "passed"
        attempts.append({"card": f"card {dice.randrange(10)}", "status": status, "at": start + number * 12_000})
    for card, minute in (("card 11", 10), ("card 12", 40)):
        times = [start + minute * MINUTE + second * 1_000 for second in (0, 4, 7, 9)]
        attempts += [
            {"card": card, "status": status, "at": at} for status, at in zip(["failed", "failed", "failed", "passed"], times, strict=True)
        ]
    attempts.sort(key=lambda attempt: attempt["at"] + dice.randrange(10_000))
    folder.mkdir(parents=True)
    (folder / "attempts.json").write_text("".join(json.dumps(attempt) + "\n" for attempt in attempts))


if not (FOLDER / "attempts").exists():
    make_attempts(FOLDER / "attempts")

pipeline = ms.Pipeline("fraud")
source = ms.sources.files(FOLDER / "attempts", schema="card string, status string, at long")
attempts = pipeline.inject("attempts", source, timestamp="at", watermark=ms.watermarks.bounded("15s"))
ordered = attempts.by("card").in_order(name="ordered")
alerts = pipeline.compute(Guessed, ordered, produces="alerts", expire="10m")
pipeline.emit(alerts, ms.sinks.files(FOLDER / "alerts"))

if __name__ == "__main__":
    pipeline.run(checkpoint=FOLDER / "checkpoint", available_now=True).await_termination()
    rows = [json.loads(line) for file in (FOLDER / "alerts").glob("*.jsonl") for line in file.read_text().splitlines()]
    for row in sorted(rows, key=lambda row: row["timestamp"]):
        print(f"{row['key']}: {row['value']['failures']} failures, and then a success")
    print(f"All alerts are in {FOLDER / 'alerts'}.")
