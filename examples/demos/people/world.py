"""The users and what happens to them, as files; and the pipeline over them.

Users have a name, a country and an age. Names change, users leave and come back, some news is stale. One country, Atlantis, rises: in the first part of
the demo more and more users move there, in the second most of them leave again.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import millstream as ms

USERS, CHECKPOINT = "users", "checkpoint"
SCHEMA = "id long, name string, country string, age int, gone boolean, ts long"
RISING = "Atlantis"
VIEWS = ("names", "countries", "ages", "sizes")
NAMES = ("Sue", "Joe", "Tod", "Bob", "Sam")
_COUNTRIES = ("Chile", "Ghana", "Italy", "Japan", "Kenya", "Nepal", "Peru", "Spain")
STALE, GONE = 0.02, 0.08


class PeopleWorld(msgspec.Struct, frozen=True):
    """How many users there are, how many files of news follow their load, and how much news is in each."""

    users: int = 200_000
    load: int = 2  # files
    news: int = 20  # files
    each: int = 8_000
    seed: int = 7

    @property
    def epochs(self) -> int:
        """One file an epoch."""
        return self.load + self.news


def write(world: PeopleWorld, output: Path) -> int:
    """Writes the files, and returns how many rows they have. What is complete is kept."""
    folder = output / USERS
    if folder.is_dir():
        return sum(pq.ParquetFile(path).metadata.num_rows for path in folder.glob("*.parquet"))
    unfinished = output / f".{USERS}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    dice = np.random.default_rng(world.seed)
    names = np.array([*NAMES, *[f"{name}-{number}" for number in range(1, 400) for name in NAMES]])
    weights = 1.0 / np.arange(1, len(names) + 1)
    weights /= weights.sum()
    living: set[int] = set()  # in Atlantis
    rows = 0
    for file in range(world.epochs):
        if file < world.load:
            ids, country = np.arange(file, world.users, world.load), None
        else:
            ids, country = _news(world, file - world.load, dice, living)
        count = len(ids)
        ts = 1_000_000 * (file + 1) + np.arange(count)
        if file >= world.load:
            stale = dice.random(count) < STALE
            ts[stale] -= 1_000_000 * dice.integers(1, file + 1, int(stale.sum()))
        if country is None:
            country = _somewhere(dice, count)
        table = pa.table(
            {
                "id": pa.array(ids),
                "name": pa.array(names[dice.choice(len(names), size=count, p=weights)].tolist()),
                "country": pa.array(country.tolist()),
                "age": pa.array(dice.integers(1, 100, count).astype(np.int32)),
                "gone": pa.array(dice.random(count) < (GONE if file >= world.load else 0.0)),
                "ts": pa.array(ts),
            }
        )
        pq.write_table(table, unfinished / f"{file:04d}.parquet")
        rows += count
    unfinished.rename(folder)
    return rows


def _somewhere(dice: Any, count: int) -> Any:
    return np.array(_COUNTRIES, dtype=object)[dice.integers(0, len(_COUNTRIES), count)]


def _news(world: PeopleWorld, number: int, dice: Any, living: set[int]) -> tuple[Any, Any]:
    """Whom a file of news is about, and where they live now. Atlantis more than doubles with each file, then loses most of its users with each."""
    rising = world.news * 3 // 5
    if number < rising:
        movers = dice.integers(0, world.users, min(world.each * 3 // 4, int(4 * 2.2**number)))
        others = dice.integers(0, world.users, world.each - len(movers))
        living.update(movers.tolist())
    else:
        movers = np.array([], dtype=np.int64)
        leaving = np.array(sorted(living), dtype=np.int64)[dice.random(len(living)) < 0.6][: world.each * 4]
        living.difference_update(leaving.tolist())
        others = np.concatenate([leaving, dice.integers(0, world.users, max(world.each - len(leaving), world.each // 4))])
    living.difference_update(others.tolist())
    ids = np.concatenate([others, movers])
    return ids, np.concatenate([_somewhere(dice, len(others)), np.full(len(movers), RISING, dtype=object)])


def size_of(row: Any) -> str:
    """How common a name is."""
    return "rare" if row.value < 100 else "common" if row.value < 5_000 else "everywhere"


def pipeline(output: Path) -> ms.Pipeline:
    """Three views on the users, and a view on one of them."""
    people = ms.Pipeline("people")
    source = ms.sources.files(output / USERS, schema=SCHEMA, format="parquet", max_files_per_epoch=1)
    users = people.table("users", source, key="id", version="ts", deleted="gone")
    names = users.by("name").reduce(ms.count(), name="names")
    countries = users.by("country").reduce(name="countries", people=ms.count(), youngest=ms.min("age"), eldest=ms.max("age"))
    ages = users.by("age").reduce(name="ages", people=ms.count(), names=ms.count_distinct("name"))
    sizes = names.by(size_of).reduce(name="sizes", names=ms.count(), people=ms.sum())
    for view in (names, countries, ages, sizes):
        people.publish(view, ms.sinks.files(output / view.name), mode="latest")
    return people
