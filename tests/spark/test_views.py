"""Tables and views on Spark: what they publish is what SQL says of the same files, after all epochs and after a kill."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import duckdb
import pytest
from sparkkit import write

import millstream as ms
from demos.people.judge import published
from millstream.core import backfill

pytestmark = pytest.mark.spark

SCHEMA = "id long, name string, country string, age int, gone boolean, ts long"


def name_of(row: Any) -> Any:
    return row.value["name"]


def first_letter(row: Any) -> Any:
    return row.value["name"][0]


def changed(work: Path, version: str, by: Any, more: bool) -> ms.Pipeline:
    """A view in one version or another, and a new one beside it."""
    pipeline = ms.Pipeline("people")
    source = ms.sources.files(work / "users", schema=SCHEMA, format="json", max_files_per_epoch=1)
    users = pipeline.table("users", source, key="id", version="ts", deleted="gone")
    names = users.by(by).reduce(ms.count(), name="names", version=version)
    pipeline.publish(names, ms.sinks.files(work / "changes", format="json"))
    if more:
        countries = users.by("country").reduce(ms.count(), name="countries")
        pipeline.publish(countries, ms.sinks.files(work / "countries", format="json"))
    return pipeline


def people(work: Path) -> ms.Pipeline:
    """Users, three views on them, a view on a view, and a join."""
    pipeline = ms.Pipeline("people")
    source = ms.sources.files(work / "users", schema=SCHEMA, format="json", max_files_per_epoch=1)
    users = pipeline.table("users", source, key="id", version="ts", deleted="gone")
    names = users.by("name").reduce(ms.count(), name="names")
    ages = users.by("country").reduce(name="ages", people=ms.count(), age=ms.sum("age"), youngest=ms.min("age"))
    sizes = names.by(lambda row: "rare" if row.value < 12 else "common").reduce(ms.sum(), name="sizes")
    pairs = users.by("age").join(users, how="left", name="pairs")
    friends = pairs.by(lambda row: (row.value["right"] or {"name": "nobody"})["name"]).reduce(ms.count(), name="friends")
    for view in (names, ages, sizes, friends):
        pipeline.publish(view, ms.sinks.files(work / view.name, format="json"), mode="latest")
    pipeline.publish(names, ms.sinks.files(work / "changes", format="json"))
    return pipeline


def posts(work: Path, files: int, each: int, seed: int = 1) -> None:
    dice = random.Random(seed)
    for file in range(files):
        rows = [
            {
                "id": dice.randrange(150),
                "name": dice.choice("abcdefghij") * 3,
                "country": dice.choice(["de", "fr", "it"]),
                "age": dice.randrange(60),
                "gone": dice.random() < 0.15,
                "ts": file * each + at if dice.random() < 0.95 else dice.randrange(1, file * each + 2),
            }
            for at in range(each)
        ]
        write(work / "users", f"{file:03}.json", rows)


LATEST = """
create or replace view users as
select * from (
    select *, row_number() over (partition by id order by ts desc, gone desc) as place from read_json('{folder}/*.json', columns={{
        id: 'bigint', name: 'varchar', country: 'varchar', age: 'int', gone: 'boolean', ts: 'bigint'}})
) where place = 1 and not gone
"""

JUDGE = {
    "names": "select name, count(*) from users group by name",
    "ages": "select country, {'people': count(*), 'age': sum(age)::bigint, 'youngest': min(age)} from users group by country",
    "sizes": """select case when n < 12 then 'rare' else 'common' end as size, sum(n)::bigint
                from (select count(*) as n from users group by name) group by size""",
    "friends": "select coalesce(r.name, 'nobody') as friend, count(*) from users l left join users r on r.id = l.age group by friend",
}


def judged(work: Path) -> dict[str, dict[Any, Any]]:
    """What DuckDB says of the same files. Two versions of one user with one time are told by nobody, so the input has none that differ."""
    with duckdb.connect() as db:
        db.execute(LATEST.format(folder=work / "users"))
        return {view: dict(db.execute(sql).fetchall()) for view, sql in JUDGE.items()}


def chained(folder: Path) -> dict[Any, Any]:
    """What the published changes lead to; every prev is the next before it."""
    now: dict[Any, Any] = {}
    for path in sorted(folder.glob("*.jsonl"), key=lambda path: path.stem[-10:]):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            assert now.get(row["key"]) == row["value"]["prev"] != row["value"]["next"]
            now[row["key"]] = row["value"]["next"]
    return {key: value for key, value in now.items() if value is not None}


def test_views_are_what_sql_says_of_the_same_files(spark: Any, tmp_path: Path) -> None:
    posts(tmp_path, files=3, each=400)
    handle = people(tmp_path).run(spark, checkpoint=tmp_path / "checkpoint", available_now=True, drain=False)
    handle.await_termination()
    expected = judged(tmp_path)
    for view, rows in expected.items():
        assert published(tmp_path / view) == rows, view
    assert chained(tmp_path / "changes") == expected["names"]
    counted = {one.name: one.tallies for one in handle.status().computations}
    assert counted["users"]["stale"] > 0 and "mismatches" not in counted["names"]
    assert counted["users"]["documents"] == sum(expected["names"].values())
    posts(tmp_path, files=5, each=400)  # two more, and the same three again: they are not read again
    people(tmp_path).run(spark, checkpoint=tmp_path / "checkpoint", available_now=True, drain=False).await_termination()
    for view, rows in judged(tmp_path).items():
        assert published(tmp_path / view) == rows, view


def test_a_changed_view_and_a_new_one_are_filled_beside_the_old(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfill, "FIRST_CHUNK", 40)
    monkeypatch.setattr(backfill, "_chunk", lambda chunk, millis: 40)
    options: dict[str, Any] = {"checkpoint": tmp_path / "checkpoint", "available_now": True, "drain": False, "quiet": True}
    posts(tmp_path, files=2, each=300)
    changed(tmp_path, "1", name_of, more=False).run(spark, **options).await_termination()
    names = judged(tmp_path)["names"]
    assert chained(tmp_path / "changes") == names
    with pytest.raises(ms.errors.CheckpointError, match="view 'names': its code has changed"):
        changed(tmp_path, "1", first_letter, more=False).run(spark, **options)
    posts(tmp_path, files=3, each=300)
    handle = changed(tmp_path, "2", first_letter, more=True).run(spark, **options)
    handle.await_termination()
    assert handle.status().fills == []
    letters: dict[str, int] = {}
    for name, n in judged(tmp_path)["names"].items():
        letters[name[0]] = letters.get(name[0], 0) + n
    assert chained(tmp_path / "changes") == letters  # every prev is what was shown before: the old build, then the new
    assert chained(tmp_path / "countries") == {country: of["people"] for country, of in judged(tmp_path)["ages"].items()}
    first = min(path.stem[-10:] for path in (tmp_path / "countries").glob("*.jsonl"))
    rows = [json.loads(line) for path in (tmp_path / "countries").glob(f"*{first}.jsonl") for line in path.read_text().splitlines()]
    assert {row["key"] for row in rows if row["value"]["prev"] is None} == {"de", "fr", "it"}  # a new view shows itself whole, in one epoch
