"""Referrals: a guest gives points to whoever invited him, and to the four above, half as many at each step. What did everybody earn per day?

    python examples/referrals.py

runs it on local Spark, and shows what came out. The same from the command line, where `--help` shows what else can be said:

    millstream run examples/referrals.py --available-now --checkpoint example-output/referrals/checkpoint

It makes some signups of its own, if there are none. Everything is in example-output/referrals: the signups, the points, the checkpoint.

Who is above whom is in the state of each user, so the points have to go from user to user: stream `up` leads from the computation back to itself. That is a
cycle, whose edge must be strong: each step is stored, and taken in the next epoch. The low watermark of a cycle waits for what still goes round, so a day's
window, behind it, closes when all points of that day have arrived. Some users have invited each other; LEVELS ends that, too.
"""

import json
import random
from pathlib import Path

import millstream as ms

FOLDER = Path("example-output/referrals")
LEVELS = 5
DAY = 86_400_000


class Follow(ms.Computation):
    """Who has invited a user; and levels that wait to go further up, if they came before we knew."""

    State = dict

    def process_record(self, record: ms.Record) -> None:
        if record.stream == "signups":
            self.state["by"] = record.value["by"]
            for level, at in [(1, record.timestamp), *self.state.pop("waiting", [])]:
                self.go_up(level, at)
        else:
            level = record.value
            self.produce({"user": self.key, "points": 2 ** (LEVELS - level)}, stream="earned")
            if level < LEVELS and "by" in self.state:
                self.go_up(level + 1, record.timestamp)
            elif level < LEVELS:
                self.state.setdefault("waiting", []).append([level + 1, record.timestamp])

    def go_up(self, level: int, at: int) -> None:
        if self.state["by"] is not None:
            self.produce(level, key=self.state["by"], timestamp=max(at, self.cause.timestamp), stream="up")


def make_signups(folder: Path) -> None:
    """Three days of 300 users, in order of arrival: at most ten minutes after their time."""
    dice = random.Random(1)
    signups = []
    for number in range(300):
        by = f"user {dice.randrange(max(0, number - 40), number)}" if number and dice.random() < 0.9 else None
        signups.append({"user": f"user {number}", "by": by, "at": 1_767_225_600_000 + number * DAY // 100})
    for one, other in (("eve", "mallory"), ("mallory", "eve")):
        signups.append({"user": one, "by": other, "at": 1_767_225_600_000 + DAY // 2})
    signups.sort(key=lambda signup: signup["at"] + dice.randrange(600_000))
    folder.mkdir(parents=True)
    (folder / "signups.json").write_text("".join(json.dumps(signup) + "\n" for signup in signups))


if not (FOLDER / "signups").exists():
    make_signups(FOLDER / "signups")

pipeline = ms.Pipeline("referrals")
source = ms.sources.files(FOLDER / "signups", schema="user string, by string, at long")
signups = pipeline.inject("signups", source, timestamp="at", id="user", watermark=ms.watermarks.bounded("10m"))
key = {"signups": "user", "up": lambda record: record.key}
_, earned = pipeline.compute(Follow, signups, "up", key=key, produces=["up", "earned"], production={"up": ms.STRONG})
points = earned.by("user").window(ms.windows.tumbling("1d")).reduce(points=ms.sum("points"), name="points")
pipeline.emit(points, ms.sinks.files(FOLDER / "points"))

if __name__ == "__main__":
    pipeline.run(checkpoint=FOLDER / "checkpoint", available_now=True).await_termination()
    rows = [json.loads(line)["value"] for file in (FOLDER / "points").glob("*.jsonl") for line in file.read_text().splitlines()]
    for day in sorted({row["start"] for row in rows}):
        best = max((row for row in rows if row["start"] == day), key=lambda row: (row["points"], row["user"]))
        print(f"day {(day - 1_767_225_600_000) // DAY + 1}: {best['user']} earned most, {best['points']} points")
    print(f"All points are in {FOLDER / 'points'}.")
