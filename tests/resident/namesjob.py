"""Users by their names, in a child process on Spark that can be killed: `python namesjob.py WORK`. One file of posts is one epoch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import millstream as ms

SHARDS = 3  # in which Sue, Joe and user 7 lie apart


def size(row: Any) -> str:
    return "rare" if row.value < 4 else "common"


SCHEMA = "id long, name string, gone boolean, ts long"


def pipeline(work: Path, source: Any) -> ms.Pipeline:
    """A table on level 0, a view on level 1, a view on it on level 2; what each says goes to a sink."""
    p = ms.Pipeline("people")
    users = p.table("users", source, key="id", version="ts", deleted="gone")
    names = users.by("name").reduce(ms.count(), name="names")
    sizes = names.by(size).reduce(ms.sum(), name="sizes")
    for relation in (users, names, sizes):
        p.publish(relation, ms.sinks.files(work / relation.name))
    return p


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    posts = ms.sources.files(folder / "posts", schema=SCHEMA, format="json", max_files_per_epoch=1)
    pipeline(folder, posts).run(
        checkpoint=folder / "checkpoint", available_now=True, drain=False, shards=SHARDS, quiet=True
    ).await_termination()
