"""Sessions: which clicks of a user belong together? Those with less than thirty seconds between them.

    python examples/sessions.py

runs it on local Spark, and shows what came out. The same from the command line, where `--help` shows what else can be said:

    millstream run examples/sessions.py --available-now --checkpoint example-output/sessions/checkpoint

It makes some clicks of its own, if there are none. Everything is in example-output/sessions: the clicks, the sessions, the checkpoint.

Clicks come out of order, so a click may begin a session, lengthen one at either end, or join two. A session is told when the low
watermark says that no click can lengthen it any more. Only open sessions are kept, not their clicks, and a click looks at the session
before it and the one behind it: the work grows with the number of clicks, however long sessions are and however many of them an epoch has.
"""

import json
import random
from bisect import bisect
from pathlib import Path

import millstream as ms

FOLDER = Path("example-output/sessions")
GAP = 30_000


class Sessions(ms.Computation):
    """The open sessions of a user, oldest first: [first click, last click, clicks]."""

    State = list

    def process_record(self, record: ms.Record) -> None:
        at = record.timestamp
        here = bisect(self.state, [at + 1])  # sessions before this place begin with this click or before it
        begin, end = here, here
        if here > 0 and at < self.state[here - 1][1] + GAP:
            begin = here - 1
        if here < len(self.state) and self.state[here][0] < at + GAP:
            end = here + 1
        joined = [[at, at, 1], *self.state[begin:end]]
        session = [min(one[0] for one in joined), max(one[1] for one in joined), sum(one[2] for one in joined)]
        self.state[begin:end] = [session]
        self.set_timer("end", session[1] + GAP)

    def process_timer(self, timer: ms.Timer) -> None:
        # If the session has become longer since, it has a later timer. The session that ends first is the oldest one.
        if self.state and self.state[0][1] + GAP == timer.time:
            first, last, clicks = self.state.pop(0)
            self.produce({"from": first, "seconds": (last - first) / 1_000, "clicks": clicks})


def make_clicks(folder: Path) -> None:
    """An hour of three users, in order of arrival: at most four seconds after their time."""
    dice = random.Random(1)
    clicks = []
    for user in ("ann", "bob", "cleo"):
        at = 1_767_258_000_000 + dice.randrange(60_000)  # 9:00 on the first of January 2026, and a bit
        while at < 1_767_261_600_000:
            clicks.append({"user": user, "page": dice.choice(["/", "/tea", "/jazz", "/basket"]), "at": at, "id": f"{user}-{at}"})
            at += dice.randrange(120_000, 600_000) if dice.random() < 0.15 else dice.randrange(500, 25_000)
    clicks.sort(key=lambda click: click["at"] + dice.randrange(4_000))
    folder.mkdir(parents=True)
    third = len(clicks) // 3 + 1
    for part in range(3):
        lines = [json.dumps(click) + "\n" for click in clicks[part * third : (part + 1) * third]]
        (folder / f"clicks-{part}.json").write_text("".join(lines))


if not (FOLDER / "clicks").exists():
    make_clicks(FOLDER / "clicks")

pipeline = ms.Pipeline("sessions")
source = ms.sources.files(FOLDER / "clicks", schema="user string, page string, at long, id string")
clicks = pipeline.inject("clicks", source, timestamp="at", id="id", watermark=ms.watermarks.bounded("5s"))
sessions = pipeline.compute(Sessions, clicks, key="user", produces="sessions")
pipeline.emit(sessions, ms.sinks.files(FOLDER / "sessions"))

if __name__ == "__main__":
    pipeline.run(checkpoint=FOLDER / "checkpoint", available_now=True).await_termination()
    rows = [json.loads(line) for file in (FOLDER / "sessions").glob("*.jsonl") for line in file.read_text().splitlines()]
    for user in sorted({row["key"] for row in rows}):
        mine = [row["value"] for row in rows if row["key"] == user]
        longest = max(mine, key=lambda session: session["seconds"])
        print(f"{user}: {len(mine)} sessions, the longest of {longest['clicks']} clicks in {longest['seconds']:.0f} s")
    print(f"All of them are in {FOLDER / 'sessions'}.")
