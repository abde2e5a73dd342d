"""A pipeline with tables, views and joins, as a user writes it in a file."""

from __future__ import annotations

import millstream as ms

SCHEMA = "id long, name string, age long, ts long, gone boolean"


def people(source: str = "in/", out: str = "out/") -> ms.Pipeline:
    """A table, views in rows and in trees, one without origins, one on a view, and joins."""
    pipeline = ms.Pipeline("people")
    users = pipeline.table(
        "users", ms.sources.files(source, schema=SCHEMA, format="json", max_files_per_epoch=1), key="id", version="ts", deleted="gone"
    )
    names = users.by("name").reduce(ms.count(), name="names")
    users.by("name").reduce(ms.min("age"), name="least", inline=100)
    users.by("name").reduce(name="lean", n=ms.count(), age=ms.sum("age"), origins=False)
    users.by("name").reduce(ms.count_distinct("age"), name="ages", inline=100)
    sizes = names.by(lambda row: "rare" if row.value < 5 else "common").reduce(ms.sum(), name="sizes")
    pairs = users.by("age").join(users, name="pairs", how="left")
    friends = pairs.by(lambda row: (row.value["right"] or {"name": "nobody"})["name"]).reduce(ms.count(), name="friends")
    for view in (names, sizes, friends):
        pipeline.publish(view, ms.sinks.files(out, format="json"))
    return pipeline


pipeline = people()
