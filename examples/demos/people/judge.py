"""An independent judge: what the views have published, row by row, against what DuckDB makes of the same files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from demos.people.world import USERS
from millstream.extras import needed

_LATEST = """
select id, name, country, age from (
    select *, row_number() over (partition by id order by ts desc) as place from read_parquet('{files}')
) where place = 1 and not gone
"""

_SIZE = "case when n < 100 then 'rare' when n < 5000 then 'common' else 'everywhere' end"

SQL = {
    "names": "select name, count(*) from users group by name",
    "countries": "select country, {'people': count(*), 'youngest': min(age), 'eldest': max(age)} from users group by country",
    "ages": "select age, {'people': count(*), 'names': count(distinct name)} from users group by age",
    "sizes": f"""select {_SIZE} as size, {{'names': count(*), 'people': sum(n)::bigint}}
                 from (select name, count(*) as n from users group by name) group by size""",
}


def judged(output: Path) -> dict[str, dict[Any, Any]]:
    """By view, what SQL says."""
    with needed("a comparison with SQL"):
        import duckdb
    with duckdb.connect() as db:
        files = str(output / USERS / "*.parquet").replace("'", "''")
        db.execute(f"create table users as {_LATEST.format(files=files)}")
        return {view: dict(db.execute(sql).fetchall()) for view, sql in SQL.items()}


def history(folder: Path) -> dict[int, dict[Any, Any]]:
    """What a view showed behind each epoch that changed it. A file's name ends with its epoch."""
    found: dict[int, dict[Any, Any]] = {}
    now: dict[Any, Any] = {}
    for path in sorted(folder.glob("*.jsonl"), key=lambda path: path.stem[-10:]):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            now[row["key"]] = row["value"]
        found[int(path.stem[-10:])] = {key: value for key, value in now.items() if value is not None}
    return found


def published(folder: Path) -> dict[Any, Any]:
    """The last row of every key."""
    return next(reversed(history(folder).values()), {})


def differences(output: Path) -> tuple[int, list[str]]:
    """How many rows were compared, and those that differ, in words."""
    rows, found = 0, []
    for view, expected in judged(output).items():
        got = published(output / view)
        rows += len(expected)
        for key in sorted(got.keys() | expected.keys(), key=str):
            if got.get(key) != expected.get(key):
                found.append(f"{view}, {key!r}: {got.get(key)} is published, SQL says {expected.get(key)}")
    return rows, found
