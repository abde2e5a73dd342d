"""A table into a view into a table, for drivers that are killed. A folder has a file `dsn`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import millstream as ms

SCHEMA = "id long, name string, n long"


def build(work: Path) -> tuple[ms.Pipeline, Any]:
    dsn = (work / "dsn").read_text()
    p = ms.Pipeline("totals")
    items = p.table("items", ms.sources.postgres(dsn, "items", schema=SCHEMA, max_per_epoch=40), key="id")
    totals = items.by("name").reduce(count=ms.count(), total=ms.sum("n"), name="totals")
    p.publish(totals, ms.sinks.postgres(dsn, "totals", mode="upsert"), mode="latest")
    return p, p.program().topology.injectors["items"].source
