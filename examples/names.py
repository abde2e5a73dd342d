"""Names: how many users are called what, while they are being renamed? A table of users, and views on it that are always right.

    python examples/names.py

runs it on local Spark, and shows what came out. The same from the command line, where `--help` shows what else can be said:

    millstream run examples/names.py --available-now --checkpoint example-output/names/checkpoint

It makes some users and news of them, if there are none. Everything is in example-output/names: the users, what the views published, the checkpoint.

User 7 is Sue, then Joe; Tod comes before the news of Joe is through, so nobody hears of Joe where both are in one epoch. An old version of Bob comes late and
changes nothing. Sam leaves. What is published for a name is what it was and what it is: (33, 32), (null, 1).
"""

import json
from pathlib import Path

import millstream as ms

FOLDER = Path("example-output/names")
SCHEMA = "id long, name string, gone boolean, ts long"


def make_users(folder: Path) -> None:
    """Three files, an epoch each: who is there, what becomes of them, and news that is late."""
    files = [
        [(id, name, 1) for id, name in enumerate(["Sue"] * 33 + ["Joe"] * 4 + ["Tod", "Bob", "Bob", "Sam"])],
        [(7, "Joe", 2), (7, "Tod", 3), (38, "Sue", 2), (40, None, 2)],
        [(38, "Bob", 1), (3, "Bob", 4)],
    ]
    folder.mkdir(parents=True)
    for number, users in enumerate(files):
        rows = [{"id": id, "name": name, "gone": name is None, "ts": ts} for id, name, ts in users]
        (folder / f"users-{number}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))


def size(row):
    """How common a name is."""
    return "common" if row.value >= 5 else "rare"


if not (FOLDER / "users").exists():
    make_users(FOLDER / "users")

pipeline = ms.Pipeline("names")
source = ms.sources.files(FOLDER / "users", schema=SCHEMA, max_files_per_epoch=1)
users = pipeline.table("users", source, key="id", version="ts", deleted="gone")
names = users.by("name").reduce(ms.count(), name="names")
sizes = names.by(size).reduce(name="sizes", names=ms.count(), people=ms.sum())
pipeline.publish(names, ms.sinks.files(FOLDER / "names"))
pipeline.publish(sizes, ms.sinks.files(FOLDER / "sizes"), mode="latest")

if __name__ == "__main__":
    pipeline.run(checkpoint=FOLDER / "checkpoint", available_now=True).await_termination()
    files = sorted((FOLDER / "names").glob("*.jsonl"), key=lambda file: file.stem[-10:])  # a name ends with its epoch
    for file in files:
        for row in map(json.loads, file.read_text().splitlines()):
            print(f"epoch {int(file.stem[-10:])}: {row['key']}, {row['value']['prev']} → {row['value']['next']}")
    print(f"All changes are in {FOLDER / 'names'}, and how common names are in {FOLDER / 'sizes'}. Look at the views themselves:")
    print(f"  millstream view {FOLDER / 'checkpoint'} names")
