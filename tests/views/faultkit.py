"""What the tests of views under faults share: users whose names change, a store that counts, runs of the simulated cluster, and chains of changes."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator, Sequence
from typing import Any

import millstream as ms
from millstream.core.guards import ALL_GUARDS, Guards
from millstream.core.keys import key_bytes, shard_of
from millstream.core.keyspace import ROW, SUB
from millstream.simulation.comparison import compare, undisturbed
from millstream.simulation.fault import Fault
from millstream.simulation.simulated_run import InputPlan
from millstream.simulation.view_checks import EpochJudge
from millstream.state.memory_storage import MemoryStore
from sparklog import SparkLogSimulation

SCHEMA = "id long, name string, gone boolean, ts long"
SOURCE = ms.sources.files("in/", schema=SCHEMA)
START = 1_700_000_000_000
Runner = ms.testing.LocalRunner


def user(name: str, ts: int, id: int = 7, gone: bool = False) -> dict[str, Any]:
    """A post: user[7] has a name since a time."""
    return {"id": id, "name": name, "gone": gone, "ts": ts}


def people(**options: Any) -> ms.Pipeline:
    """Users by their names, both told."""
    pipeline = ms.Pipeline("people")
    users = pipeline.table("users", SOURCE, key="id", version="ts", deleted="gone")
    names = users.by("name").reduce(ms.count(), name="names", **options)
    pipeline.publish(users, ms.sinks.files("users/"))
    pipeline.publish(names, ms.sinks.files("names/"))
    return pipeline


def chain(rows: Sequence[tuple[Any, ...]]) -> dict[Any, Any]:
    """What changes of (key, change, ...) lead to. Every prev is the next before it, and none changes nothing."""
    now: dict[Any, Any] = {}
    for key, change, *_ in rows:
        assert now.get(key) == change["prev"] != change["next"], (key, change, now.get(key))
        now[key] = change["next"]
    return {key: value for key, value in now.items() if value is not None}


class CountedStore(MemoryStore):
    """Counts the entries of rows and maps that are read one by one, and those that are written."""

    def __init__(self) -> None:
        super().__init__()
        self.gets = self.writes = 0

    def get(self, key: bytes) -> bytes | None:
        self.gets += key.startswith((ROW, SUB))
        return super().get(key)

    def apply(self, delta: Any) -> None:
        self.writes += sum(key.startswith((ROW, SUB)) for key in delta)
        super().apply(delta)


class Counted:
    """A runner on one shard, and what its epochs cost."""

    def __init__(self, pipeline: ms.Pipeline) -> None:
        self.runner = ms.testing.LocalRunner(pipeline, shards=1)
        engine = self.runner._engine
        engine.stores = {place: CountedStore() for place in engine.stores}

    def epoch(self, *posts: dict[str, Any]) -> dict[str, tuple[int, int, int]]:
        """By computation: entries read, entries written, messages sent."""
        engine, runner = self.runner._engine, self.runner
        stores: dict[str, Any] = {name: store for (name, _), store in engine.stores.items()}
        for store in stores.values():
            store.gets = store.writes = 0
        before = {name: engine.tallies.get(name, {}).get("messages", 0) for name in stores}
        runner.push("users", *posts)
        runner.epoch()
        return {
            name: (store.gets, store.writes, engine.tallies.get(name, {}).get("messages", 0) - before[name])
            for name, store in stores.items()
        }


# --- the simulated cluster


def plan_of(epochs: Sequence[Sequence[dict[str, Any]]]) -> InputPlan:
    """Posts, epoch by epoch, and two empty epochs."""
    given = [[("users", row) for row in rows] for rows in [*epochs, [], []]]
    return InputPlan(given, [START + 1000 * at for at in range(len(given))])


def simulated(
    pipeline: ms.Pipeline, epochs: Sequence[Sequence[dict[str, Any]]], *faults: Fault, guards: Guards = ALL_GUARDS, shards: int = 2
) -> tuple[SparkLogSimulation, str | None]:
    """A run under faults, and how it differs from the undisturbed one."""
    plan = plan_of(epochs)
    judge = EpochJudge() if guards == ALL_GUARDS else None  # of a twin the end is to be seen
    simulation = SparkLogSimulation(pipeline.program(), plan, list(faults), 1, shards, guards, judge=judge)
    manifest = simulation.run()
    assert all(fault in simulation.used for fault in faults), "a fault did not strike"
    return simulation, compare(simulation, manifest, undisturbed(pipeline.program(), plan, shards))


def told(simulation: SparkLogSimulation, stream: str = "names~changelog") -> dict[Any, Any]:
    """What the published changes of a run lead to."""
    return chain([(key, value) for key, _, value, _ in simulation.ledgers[stream].rows(stream)])


def task_of(pipeline: ms.Pipeline, computation: str, key: Any, shards: int = 2) -> int:
    """The number of the task that has a key of a computation."""
    at = shard_of(key_bytes(key), shards)
    groups: Iterator[Any] = (group for level in pipeline.topology().levels for group in level)
    return next(number * shards + at for number, group in enumerate(groups) if computation in group.computations)


def apart(*names: str, shards: int = 2) -> bool:
    """Whether keys lie in different shards."""
    return len({shard_of(key_bytes(name), shards) for name in names}) == len(names)


def by_epoch(simulation: SparkLogSimulation, stream: str) -> dict[int, list[tuple[Any, Any]]]:
    """What a run has published of a stream, by epoch: (key, value)."""
    found: dict[int, list[tuple[Any, Any]]] = {}
    folder = f"out/{stream}"
    for name in simulation.storage.list(folder):
        rows = pickle.loads(simulation.storage.read(name))
        found.setdefault(int(name[len(folder) + 1 :].split("-")[0]), []).extend((row[0], row[2]) for row in rows)
    return found


def snapshots(simulation: SparkLogSimulation, stream: str) -> list[dict[Any, Any]]:
    """What published changes have led to, after each epoch."""
    rows, now, found = by_epoch(simulation, stream), dict[Any, Any](), []
    for epoch in range(len(simulation.plan.epochs)):
        for key, change in rows.get(epoch, ()):
            assert now.get(key) == change["prev"], (epoch, key, change)
            now[key] = change["next"]
        found.append({key: value for key, value in now.items() if value is not None})
    return found


def ran(pipeline: ms.Pipeline, *epochs: Sequence[dict[str, Any]], **options: Any) -> Runner:
    """A pipeline after some epochs of posts."""
    runner = Runner(pipeline, **options)
    for rows in epochs:
        runner.push("users", *rows)
        runner.epoch()
    return runner


def several() -> ms.Pipeline:
    """Every kind of relation, all told."""
    pipeline = ms.Pipeline("people")
    users = pipeline.table("users", SOURCE, key="id", version="ts", deleted="gone")
    names = users.by("name").reduce(ms.count(), name="names", inline=30)
    first = users.by("name").reduce(ms.min("id"), name="first", inline=30, production=ms.STRONG)
    sizes = names.by(lambda row: row.value).reduce(ms.count(), name="sizes")
    pairs = users.by(lambda row: row.value["ts"] % 4).join(users, how="left", name="pairs")
    for relation in (users, names, first, sizes, pairs):
        pipeline.publish(relation, ms.sinks.files("out/"))
    return pipeline


def random_posts(seed: int, count: int = 30) -> list[dict[str, Any]]:
    dice = random.Random(seed)
    return [
        user(
            dice.choice(["Sue", "Joe", "Tod", "Bob", "Sam"]),
            dice.choice([at, at, dice.randrange(at + 1)]),
            dice.randrange(6),
            dice.random() < 0.2,
        )
        for at in range(count)
    ]


#: Three epochs of posts by two users.
STORY = [[user("Sue", 1), user("Sue", 1, 8)], [user("Joe", 2)], [user("Bob", 3), user("Joe", 2, 8)]]


USERS = ms.sources.files("in/", schema="id long, name string, gone boolean, ts long")
ORDERS = ms.sources.files("in/", schema="id long, user long, amount long, gone boolean, ts long")
Rows = list[tuple[str, dict[str, Any]]]


def shop(production: str = ms.WEAK, inline: int = 1024, origins: bool = True, version: int = 1, more: bool = False) -> ms.Pipeline:
    """Users and orders; three views, one on a view, and a join by foreign key with a view behind it. version: of the names. more: new views."""
    pipeline = ms.Pipeline("shop")
    users = pipeline.table("users", USERS, key="id", version="ts", deleted="gone")
    orders = pipeline.table("orders", ORDERS, key="id", version="ts", deleted="gone")
    options: dict[str, Any] = {"inline": inline, "production": production}
    by: Any = (lambda row: row.value["name"]) if version == 1 else (lambda row: row.value["name"].upper())
    names = users.by(by).reduce(ms.count(), name="names", version=version, origins=origins, **options)
    spent = orders.by("user").reduce(name="spent", n=ms.count(), most=ms.max("amount"), sum=ms.sum("amount"), **options)
    total = orders.by().reduce(ms.sum("amount"), name="total", origins=False)
    sizes = names.by(lambda row: row.value).reduce(ms.count(), name="sizes", **options)
    paid = orders.by("user").join(users, how="left", name="paid")
    revenue = paid.by(lambda row: (row.value["right"] or {"name": "nobody"})["name"]).reduce(
        ms.sum(lambda value: value["left"]["amount"]), name="revenue", **options
    )
    for at, relation in enumerate((users, names, spent, total, sizes, revenue)):
        pipeline.publish(relation, ms.sinks.files("out/"), mode="changes" if at % 2 else "latest")
    if more:
        busy = orders.by("user").reduce(ms.count(), name="busy", origins=origins, inline=inline)
        busy.by(lambda row: row.value).reduce(ms.count(), name="busyness")
        pipeline.publish(busy, ms.sinks.files("out/"))
    return pipeline


def trade(seed: int, count: int = 26, users: int = 5, orders: int = 9) -> Rows:
    """Users change their names and go; orders move from one to another; some records are stale."""
    dice = random.Random(seed)
    rows: Rows = []
    for at in range(count):
        ts = at if dice.random() < 0.8 else dice.randrange(at + 1)
        if dice.random() < 0.4:
            rows.append(("users", {"id": dice.randrange(users), "name": dice.choice("abc"), "gone": dice.random() < 0.2, "ts": ts}))
        else:
            order = {
                "id": dice.randrange(orders),
                "user": dice.randrange(users),
                "amount": dice.randrange(100),
                "gone": dice.random() < 0.15,
            }
            rows.append(("orders", {**order, "ts": ts}))
    return rows
