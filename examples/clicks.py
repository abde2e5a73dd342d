"""Clicks: what did a user do in one visit, and which clicks came too late to count?

    python examples/clicks.py

runs it on local Spark, and shows what came out. The same from the command line, where `--help` shows what else can be said:

    millstream run examples/clicks.py --available-now --checkpoint example-output/clicks/checkpoint

It makes some clicks of its own, if there are none. Everything is in example-output/clicks: the clicks, the visits, the late clicks, the checkpoint.

It is `examples/sessions.py` as an operator. A visit is a session: clicks with less than thirty minutes between two. It is told when the low watermark says
that no click can lengthen it any more. A click that comes later than that goes to a stream of its own, and no visit that was told changes.
"""

import json
import random
from pathlib import Path

import millstream as ms

FOLDER = Path("example-output/clicks")
MINUTE = 60_000


def make_clicks(folder: Path) -> None:
    """A day of three users, in order of arrival. Phones deliver some clicks hours later."""
    dice = random.Random(1)
    clicks = []
    for user in ("ann", "bob", "cleo"):
        at = 1_767_225_600_000 + dice.randrange(60 * MINUTE)
        while at < 1_767_312_000_000:
            arrives = at + (dice.randrange(120, 300) * MINUTE if dice.random() < 0.05 else dice.randrange(4_000))
            clicks.append((arrives, {"user": user, "page": dice.choice(["/", "/tea", "/jazz", "/basket"]), "at": at, "id": f"{user}-{at}"}))
            at += dice.randrange(31, 240) * MINUTE if dice.random() < 0.1 else dice.randrange(5_000, 10 * MINUTE)
    clicks.sort(key=lambda click: click[0])
    folder.mkdir(parents=True)
    size = len(clicks) // 12 + 1
    for part in range(12):
        lines = [json.dumps(click) + "\n" for _, click in clicks[part * size : (part + 1) * size]]
        (folder / f"clicks-{part:02}.json").write_text("".join(lines))


if not (FOLDER / "clicks").exists():
    make_clicks(FOLDER / "clicks")

pipeline = ms.Pipeline("clicks")
source = ms.sources.files(FOLDER / "clicks", schema="user string, page string, at long, id string", max_files_per_epoch=1)
clicks = pipeline.inject("clicks", source, timestamp="at", id="id", watermark=ms.watermarks.bounded("5s"))
visits = (
    clicks.by("user")
    .window(ms.windows.session("30m"), late="too-late")
    .reduce(clicks=ms.count(), landing=ms.first("page"), exit=ms.last("page"), name="visits")
)
pipeline.emit(visits, ms.sinks.files(FOLDER / "visits"))
pipeline.emit(pipeline.late_records("too-late"), ms.sinks.files(FOLDER / "late"))


def rows(folder: Path) -> list[dict]:
    """The rows of a sink."""
    return [json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]


if __name__ == "__main__":
    pipeline.run(checkpoint=FOLDER / "checkpoint", available_now=True).await_termination()
    visited = [row["value"] for row in rows(FOLDER / "visits")]
    for user in sorted({visit["user"] for visit in visited}):
        mine = [visit for visit in visited if visit["user"] == user]
        longest = max(mine, key=lambda visit: visit["clicks"])
        print(f"{user}: {len(mine)} visits, the longest of {longest['clicks']} clicks, from {longest['landing']} to {longest['exit']}")
    print(f"{len(rows(FOLDER / 'late'))} clicks came too late: they are in {FOLDER / 'late'}. The visits are in {FOLDER / 'visits'}.")
