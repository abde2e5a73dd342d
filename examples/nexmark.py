"""Nexmark, queries 5, 7, 8 and 11: an auction house, and four questions about it that are windows.

    python examples/nexmark.py

runs it on local Spark, and shows what came out. The same from the command line, where `--help` shows what else can be said:

    millstream run examples/nexmark.py --available-now --checkpoint example-output/nexmark/checkpoint

It makes some persons, auctions and bids of its own, if there are none. Everything is in example-output/nexmark: the input, the answers, the checkpoint.

Query 5: which auctions had the most bids in the last ten seconds, every two seconds? A count per auction, and then a second window on its results: `same()`
is the window that a result came from. Query 7: the highest bids per ten seconds. Query 8: who came, and opened an auction in the same ten seconds? Two streams
with a key each, in one window. Query 11: how many bids did a bidder make without a pause of ten seconds?

`tests/operators/test_nexmark.py` compares the answers with those of DuckDB over the same rows.
"""

import json
import random
from pathlib import Path

import millstream as ms

FOLDER = Path("example-output/nexmark")
SCHEMAS = {
    "persons": "id long, name string, at long",
    "auctions": "id long, seller long, item string, at long",
    "bids": "id long, auction long, bidder long, price long, at long",
}


def make_rows(bids: int, seed: int = 1, disorder: int = 2_000) -> dict[str, list[dict]]:
    """Rows by stream, in order of arrival: at most so many milliseconds after their time. Prices are few, so that there are ties."""
    dice = random.Random(seed)
    rows: dict[str, list[dict]] = {"persons": [], "auctions": [], "bids": []}
    at = 1_767_258_000_000  # 9:00 on the first of January 2026
    for number in range(bids):
        at += dice.choice([0, 10, 40, 150, 300]) if dice.random() < 0.98 else 12_000  # and a pause now and then
        if number % 20 == 0:
            person = len(rows["persons"])
            rows["persons"].append({"id": person, "name": f"person {person % 7}", "at": at})
        if number % 12 == 0:
            seller = max(0, len(rows["persons"]) - 1 - dice.randrange(8))
            opened = {"id": len(rows["auctions"]), "seller": seller, "item": f"item {number}", "at": at + dice.randrange(3_000)}
            rows["auctions"].append(opened)
        auction, bidder = max(0, len(rows["auctions"]) - 1 - dice.randrange(6)), max(0, len(rows["persons"]) - 1 - dice.randrange(5))
        rows["bids"].append({"id": number, "auction": auction, "bidder": bidder, "price": dice.randrange(100, 160), "at": at})
    return {name: sorted(some, key=lambda row: row["at"] + dice.randrange(disorder)) for name, some in rows.items()}


if not FOLDER.exists():
    for name, rows in make_rows(600).items():
        (FOLDER / name).mkdir(parents=True)
        (FOLDER / name / "rows.json").write_text("".join(json.dumps(row) + "\n" for row in rows))

pipeline = ms.Pipeline("nexmark")
persons, auctions, bids = (
    pipeline.inject(name, ms.sources.files(FOLDER / name, schema=schema), timestamp="at", watermark=ms.watermarks.bounded("6s"))
    for name, schema in SCHEMAS.items()
)

# 5: the auctions with the most bids in ten seconds, every two seconds
counts = bids.by("auction").window(ms.windows.hopping("10s", every="2s")).reduce(num=ms.count(), name="counts")
hot = counts.by().window(ms.windows.same()).reduce(hot=ms.top(1, by="num", ties=True), name="hot")

# 7: the highest bids per ten seconds
highest = bids.by().window(ms.windows.tumbling("10s")).reduce(bids=ms.top(1, by="price", ties=True), name="highest")

# 8: people who came and opened an auction in the same ten seconds
new = (
    persons.by("id")
    .merge(auctions.by("seller"))
    .window(ms.windows.tumbling("10s"))
    .reduce(person=ms.first("name", of=persons), auctions=ms.count(of=auctions), name="new")
    .filter("person is not null and auctions > 0")
)

# 11: bids per session of a bidder
sessions = bids.by("bidder").window(ms.windows.session("10s")).reduce(bids=ms.count(), name="sessions")

for name, stream in {"hot": hot, "highest": highest, "new": new, "sessions": sessions}.items():
    pipeline.emit(stream, ms.sinks.files(FOLDER / "answers" / name))

if __name__ == "__main__":
    pipeline.run(checkpoint=FOLDER / "checkpoint", available_now=True).await_termination()
    for name in ("hot", "highest", "new", "sessions"):
        folder = FOLDER / "answers" / name
        answers = [json.loads(line)["value"] for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]
        print(f"{name}: {len(answers)} answers, the first of them {min(answers, key=lambda answer: (answer['end'], str(answer)))}")
    print(f"All of them are in {FOLDER / 'answers'}.")
