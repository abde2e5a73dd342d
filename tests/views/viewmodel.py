"""A model of users and of what all kinds of views over them should show, by plain Python; and a pipeline with all kinds."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import millstream as ms

SCHEMA = "id long, name string, age long, score double, tags array<string>, gone boolean, ts long"


Users = dict[int, dict[str, Any]]


encode = ms.codecs.msgpack.encoder()


def tagged(row: Any) -> list[tuple[str, int]]:
    return [(tag, row.value["age"]) for tag in row.value["tags"]]


def pipeline_of(origins: bool, inline: int) -> ms.Pipeline:
    """A table, views of every kind on it, views on views, and joins."""
    pipeline = ms.Pipeline("model")
    users = pipeline.table("users", ms.sources.files("in/", schema=SCHEMA), key="id", version="ts", deleted="gone")
    more: dict[str, Any] = {"origins": origins, "inline": inline}
    names = users.by("name").reduce(ms.count(), name="names", **more)
    users.by("name").reduce(name="sums", n=ms.count(), age=ms.sum("age"), score=ms.sum("score"), mean=ms.mean("score"), **more)
    users.flat_map(tagged).by(lambda row: row.value[0]).reduce(ms.sum(lambda pair: pair[1]), name="tags", **more)
    users.by("age").reduce(name="kinds", names=ms.count_distinct("name"), n=ms.count(), **more)
    users.by("age").reduce(ms.count_distinct("name"), name="kind", **more)
    names.by(lambda row: "rare" if row.value < 3 else "common").reduce(ms.sum(), name="sizes", **more)
    if origins:
        kept = {"inline": inline}
        users.filter(lambda row: row.value["age"] != 3).by("name").reduce(ms.min("age"), name="least", **kept)
        users.by().reduce(name="all", oldest=ms.top(3, "name", by="age"), stats=ms.stats("age"), names=ms.count_distinct("name"), **kept)
        users.by("name").reduce(
            name="some", first=ms.first("age"), last=ms.last("age"), any=ms.any_value("age"), ages=ms.collect("age", limit=5), **kept
        )
        joined = users.by(lambda row: row.value["age"]).join(users, how="left", name="pairs")
        joined.by(lambda row: (row.value["right"] or {"name": "nobody"})["name"]).reduce(ms.count(), name="friends", **kept)
        users.by(lambda row: row.value["age"]).join(users.filter(lambda row: row.value["name"] != "b"), name="inner").by(
            lambda row: row.value["right"]["name"]
        ).reduce(ms.count(), name="inner_friends", **kept)
        for view in (names,):
            pipeline.publish(view, ms.sinks.files("out/"))
            pipeline.publish(view, ms.sinks.files("latest/"), mode="latest")
    return pipeline


def groups(users: Users, by: Callable[[dict[str, Any]], Any]) -> dict[Any, list[dict[str, Any]]]:
    found: dict[Any, list[dict[str, Any]]] = {}
    for user in users.values():
        found.setdefault(by(user), []).append(user)
    return found


def expected(users: Users, origins: bool) -> dict[str, dict[Any, Any]]:
    by_name = groups(users, lambda user: user["name"])
    names = {name: len(mine) for name, mine in by_name.items()}
    tags: Counter[str] = Counter()
    seen = set()
    for user in users.values():
        for tag in user["tags"]:
            tags[tag] += user["age"]
            seen.add(tag)
    sizes = Counter[str]()
    for n in names.values():
        sizes["rare" if n < 3 else "common"] += n
    found: dict[str, dict[Any, Any]] = {
        "users": dict(users),
        "names": names,
        "sums": {
            name: {
                "n": len(mine),
                "age": sum(user["age"] for user in mine),
                "score": fsum([user["score"] for user in mine if user["score"] is not None]),
                "mean": mean([user["score"] for user in mine if user["score"] is not None]),
            }
            for name, mine in by_name.items()
        },
        "tags": {tag: tags[tag] for tag in seen},
        "sizes": dict(sizes),
        "kind": {age: len({user["name"] for user in mine}) for age, mine in groups(users, lambda user: user["age"]).items()},
        "kinds": {
            age: {"names": len({user["name"] for user in mine}), "n": len(mine)}
            for age, mine in groups(users, lambda user: user["age"]).items()
        },
    }
    if origins:
        ages = [user["age"] for user in users.values()]
        found["least"] = {name: min(left) for name, mine in by_name.items() if (left := [user["age"] for user in mine if user["age"] != 3])}
        top = sorted(((user["age"], user["name"]) for user in users.values()), key=lambda pair: (-pair[0], pair[1]))[:3]
        found["all"] = {"": {"oldest": top, "least": min(ages), "sum": sum(ages), "names": len(names)}} if users else {}
        found["some"] = {
            name: {
                "first": min((user["ts"], user["id"], user["age"]) for user in mine)[0],
                "last": max((user["ts"], user["id"], user["age"]) for user in mine)[0],
                "any": {user["age"] for user in mine},
                "ages": sorted(user["age"] for user in mine)[:5],
            }
            for name, mine in by_name.items()
        }
        friends = Counter(users[user["age"]]["name"] if user["age"] in users else "nobody" for user in users.values())
        found["friends"] = dict(friends)
        found["inner_friends"] = {name: n for name, n in friends.items() if name not in ("nobody", "b")}
    return found


def fsum(values: list[float]) -> float | None:
    return math.fsum(values) if values else None


def mean(values: list[float]) -> float | None:
    from fractions import Fraction

    return float(sum(map(Fraction, values)) / len(values)) if values else None


def compare(name: str, got: dict[Any, Any], want: dict[Any, Any], users: Users) -> None:
    assert got.keys() == want.keys(), name
    if name == "all":
        for key, one in got.items():
            assert [pair for pair in one["oldest"]] == [name for _, name in want[key]["oldest"]]
            assert (one["stats"]["min"], one["stats"]["sum"], one["names"]) == (want[key]["least"], want[key]["sum"], want[key]["names"])
    elif name == "some":
        by_name = groups(users, lambda user: user["name"])
        for key, one in got.items():
            assert one["first"] in {user["age"] for user in by_name[key] if user["ts"] == want[key]["first"]}
            assert one["last"] in {user["age"] for user in by_name[key] if user["ts"] == want[key]["last"]}
            assert one["any"] in want[key]["any"] and one["ages"] == want[key]["ages"]
    else:
        assert got == want, name


def chain(rows: list[tuple[Any, Any, int]]) -> dict[Any, Any]:
    """What a published chain of changes leads to; every prev is the next before it."""
    now: dict[Any, Any] = {}
    for key, change, _ in rows:
        assert now.get(key) == change["prev"] and change["prev"] != change["next"], (key, change)
        now[key] = change["next"]
    return {key: value for key, value in now.items() if value is not None}


def latest(rows: list[tuple[Any, Any, int]]) -> dict[Any, Any]:
    now = {key: value for key, value, _ in rows}
    return {key: value for key, value in now.items() if value is not None}


class Model:
    """Random posts, and what the table must be."""

    def __init__(self, dice: random.Random, ids: int, names: int) -> None:
        self.dice = dice
        self.ids = ids
        self.names = names
        self.users: Users = {}
        self.known: dict[int, Any] = {}
        self.clock = 10

    def post(self) -> dict[str, Any]:
        dice = self.dice
        self.clock += 1
        id = dice.randrange(self.ids)
        kind = dice.random()
        row = {
            "id": id,
            "name": chr(97 + min(dice.randrange(self.names), dice.randrange(self.names))),
            "age": dice.randrange(8),
            "score": dice.choice([None, 0.1, 0.2, 1e16, -1e16, 3.3e-5]),
            "tags": dice.choices("xyz", k=dice.randrange(4)),
            "gone": kind > 0.8,
            "ts": self.clock if kind > 0.1 else dice.randrange(max(1, self.clock - 20), self.clock),
        }
        order = (row["ts"], row["gone"], b"" if row["gone"] else encode(row))
        if id not in self.known or order > self.known[id]:
            self.known[id] = order
            self.users.pop(id, None)
            if not row["gone"]:
                self.users[id] = row
        return row


def play(seed: int, origins: bool, inline: int, ids: int = 12, names: int = 5, epochs: int = 12, each: int = 10) -> None:
    dice = random.Random(seed)
    model = Model(dice, ids, names)
    runner = ms.testing.LocalRunner(pipeline_of(origins, inline), shards=dice.randint(1, 4))
    for _ in range(epochs):
        for _ in range(dice.randrange(each)):
            runner.push("users", model.post())
        if dice.random() < 0.2:
            with pytest.raises(ms.testing.SimulatedCrash):
                runner.epoch(crash=True)
        runner.epoch()
        for name, want in expected(model.users, origins).items():
            compare(name, runner.view(name), want, model.users)
        runner.check()
        if origins:
            assert chain(runner.output("names~changelog")) == latest(runner.output("names~latest")) == runner.view("names")
