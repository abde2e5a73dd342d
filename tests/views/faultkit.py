"""What the tests of views under faults share: the users of the notes, a store that counts, runs of the simulated cluster, and chains of changes."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import millstream as ms
from millstream.core.guards import ALL_GUARDS, Guards
from millstream.core.keys import key_bytes, shard_of
from millstream.core.keyspace import ROW, SUB
from millstream.simulation.comparison import compare, undisturbed
from millstream.simulation.driver import InputPlan, Simulation
from millstream.simulation.fault import Fault
from millstream.simulation.view_checks import EpochJudge
from millstream.state.memory_storage import MemoryStore

SCHEMA = "id long, name string, gone boolean, ts long"
SOURCE = ms.sources.files("in/", schema=SCHEMA)
START = 1_700_000_000_000


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
) -> tuple[Simulation, str | None]:
    """A run under faults, and how it differs from the undisturbed one."""
    plan = plan_of(epochs)
    judge = EpochJudge() if guards == ALL_GUARDS else None  # of a twin the end is to be seen
    simulation = Simulation(pipeline.program(), plan, list(faults), 1, shards, guards, judge=judge)
    manifest = simulation.run()
    assert all(fault in simulation.used for fault in faults), "a fault did not strike"
    return simulation, compare(simulation, manifest, undisturbed(pipeline.program(), plan, shards))


def told(simulation: Simulation, stream: str = "names~changelog") -> dict[Any, Any]:
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


def by_epoch(simulation: Simulation, stream: str) -> dict[int, list[tuple[Any, Any]]]:
    """What a run has published of a stream, by epoch: (key, value)."""
    found: dict[int, list[tuple[Any, Any]]] = {}
    folder = f"out/{stream}"
    for name in simulation.storage.list(folder):
        rows = pickle.loads(simulation.storage.read(name))
        found.setdefault(int(name[len(folder) + 1 :].split("-")[0]), []).extend((row[0], row[2]) for row in rows)
    return found


def snapshots(simulation: Simulation, stream: str) -> list[dict[Any, Any]]:
    """What published changes have led to, after each epoch."""
    rows, now, found = by_epoch(simulation, stream), dict[Any, Any](), []
    for epoch in range(len(simulation.plan.epochs)):
        for key, change in rows.get(epoch, ()):
            assert now.get(key) == change["prev"], (epoch, key, change)
            now[key] = change["next"]
        found.append({key: value for key, value in now.items() if value is not None})
    return found
