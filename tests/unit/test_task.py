"""One task, two kinds of inputs: what Spark's shuffle brings as an Arrow table, and a simulation as lists, must come to the same.

A simulated cluster runs every attempt of every task twice, on the same records, and compares. The table is made here, by hand, from the rows that the
source brought, with the columns that `engine/spark/keyed_rows.py` names. Where the two differ by design, the table is given what the lists have:

- the hash of an id, and the id of a record that has none of its own, is Spark's xxhash64 in `ord`; lists have a blake2b. Both are the same on a retry.
- a rejected record that has a key goes to its key's shard on Spark, and to shard 0 here. Its dead letter has no key, so either will do.
- the file that a rejected record stood in (column `bad`) is known on Spark alone.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from effort import some
from millstream.core.keys import key_text, shard_of
from millstream.core.outcome import Times
from millstream.core.time import BEGINNING
from millstream.core.topology import Injector, Route
from millstream.engine.columns.arrow_rows import ArrowInputs
from millstream.engine.columns.batches import ValueColumn
from millstream.engine.program import Compiled
from millstream.engine.receipts import EpochOrder, Receipt
from millstream.engine.task import Result, Task
from millstream.errors import StorageError
from millstream.simulation import loop_tasks
from millstream.simulation.fakes import Host
from millstream.simulation.fault import Fault
from millstream.simulation.list_inputs import Injected, ListInputs
from millstream.simulation.simulated_run import InputPlan
from millstream.sinks import Part, Sink, SinkRow, TaskContext
from millstream.state.memory_storage import MemoryStorage
from millstream.state.storage import Storage
from sparklog import SparkLogSimulation

SHARDS = 2
SOURCE = ms.sources.files("nowhere", schema="k string, g long, n long, at long, id string, s string, mark long", format="json")
VALUE = {"k": pa.string(), "g": pa.int64(), "n": pa.int64(), "at": pa.int64(), "id": pa.string(), "s": pa.string(), "mark": pa.int64()}
CARRIED = {"dedup": {"at": "ts", "id": "id"}, "anonymous": {"at": "ts"}, "marked": {"at": "ts", "id": "id"}}


class Mix(ms.Computation):
    """All that came, in its order, with timers of both kinds; some records make it raise."""

    State = list

    def process_record(self, record: ms.Record) -> None:
        number = record.value["n"]
        self.state.append([record.stream, record.timestamp, record.id, number])
        self.set_timer("low", record.timestamp + 100, hold=record.timestamp)
        self.produce({"n": number, "to": number % 3 or None})
        if number == 7:
            raise ValueError("seven")

    def process_timer(self, timer: ms.Timer) -> None:
        self.produce({"n": len(self.state), "to": 1})


class Echo(ms.Computation):
    """In Mix's task: says it again."""

    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += 1
        self.produce({**record.value, "echo": self.state})


class Gather(ms.Computation):
    """All that came, by ids."""

    State = ms.MapState

    def process_record(self, record: ms.Record) -> None:
        self.state[record.stream, record.id] = record.value["n"]
        self.produce(record.value["n"])


def pipeline() -> ms.Pipeline:
    """Three streams into three computations over five routes; behind them a fused one, a weak edge and a strong one."""
    p = ms.Pipeline("both")
    one = p.inject("dedup", SOURCE, timestamp="at", id="id", watermark=ms.watermarks.bounded("150ms"))
    two = p.inject("anonymous", SOURCE, timestamp="at", watermark=ms.watermarks.percentile(0.9, first="100ms"))
    sub = ms.watermarks.sub_sources("s", ["x", "y"], ms.watermarks.declared("mark", idle="1m"))
    three = p.inject("marked", SOURCE, timestamp="at", id="id", dedup=None, watermark=sub)
    forgiving: Any = {"on_error": ms.DEAD_LETTER}
    mixed = p.compute(Mix, one, two, three, key="k", produces="mixed", late="late", **forgiving)
    p.compute(Echo, mixed, produces="echoes")
    p.compute(Gather, one, key=["g", "k"], name="Pairs", produces="pairs", **forgiving)
    p.compute(Gather, mixed, key=lambda record: record.value["to"], name="Far", produces="far", **forgiving)
    p.compute(
        Gather,
        mixed.via(ms.STRONG),
        two,
        key={"mixed": lambda record: record.key, "anonymous": "k"},
        name="Stored",
        produces="stored",
        **forgiving,
    )
    return p


# --- the same records as a table


def signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def hashed(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def keyed(route: Route, row: dict[str, Any]) -> str | None:
    """The key's text; None if a part of it is null."""
    names = route.key if isinstance(route.key, (tuple, list)) else [route.key]
    parts = [row[name] for name in names]
    return None if None in parts else key_text(tuple(parts) if isinstance(route.key, (tuple, list)) else parts[0])


def injected_row(route: Route, injector: Injector, at: int, row: dict[str, Any]) -> dict[str, Any]:
    text, own = keyed(route, row), row["id"] if injector.id is not None else None
    if injector.id is None:
        order = hashed(repr(sorted(row.items(), key=lambda item: item[0])))
    else:
        order = hashed(f"{text}\x1f{own}")
    sent = {name: value for name, value in row.items() if name not in CARRIED[injector.name]}
    marks = {"sub": row["s"], "mark": row["mark"]} if injector.name == "marked" else {}
    return {"route": route.index, "key": text, "ts": row["at"], "id": own, "ord": signed(order), f"v{at}": sent, **marks}


def usable(injector: Injector, row: dict[str, Any], text: str | None) -> bool:
    good = row["at"] is not None and BEGINNING < row["at"] < 2**63 - 1
    return good and text is not None and (injector.id is None or row["id"] is not None)


def layouts() -> list[list[ValueColumn]]:
    return [[ValueColumn(name, carried.get(name, "")) for name in VALUE] for carried in CARRIED.values()]


def table_of(task: Task, inputs: Both) -> Any:
    """What Spark would bring to a task, from the rows of the source and the productions of other tasks."""
    topology = task.compiled.topology
    found: list[dict[str, Any]] = []
    for injector, row in inputs.injected.rows:
        at = list(topology.injectors).index(injector.name)
        for route in task.compiled.routes_of[injector.name]:
            text = keyed(route, row)
            shard = shard_of(text.encode(), SHARDS) if text is not None and usable(injector, row, text) else 0
            if route.computation in task.group.computations and shard == task.shard:
                found.append(injected_row(route, injector, at, row))
    for computation, productions in inputs.handed.items():
        for one in productions:
            text, time, id, batch, _ = one.arrival
            route = next(r for r in task.compiled.routes_of[batch.stream] if r.computation == computation)
            body = batch.bodies[0]
            found.append({"route": route.index, "key": text, "ts": time, "id": id, "ord": 0, "body": body, "unit": one.unit})
    if not found:
        return None
    types = {"route": pa.int32(), "key": pa.string(), "ts": pa.int64(), "id": pa.string(), "ord": pa.int64()}
    types |= {"body": pa.binary(), "unit": pa.int64(), "sub": pa.string(), "mark": pa.int64()}
    for at, carried in enumerate(CARRIED.values()):
        types[f"v{at}"] = pa.struct([(name, kind) for name, kind in VALUE.items() if name not in carried])
    return pa.table({name: pa.array([row.get(name) for row in found], kind) for name, kind in types.items()})


# --- every task twice


class Noting(Injected):
    """Remembers the rows as they came."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.rows: list[tuple[Injector, dict[str, Any]]] = []

    def add(self, injector: Injector, row: dict[str, Any]) -> None:
        self.rows.append((injector, row))
        super().add(injector, row)


class Both(ListInputs):
    """Lists that know what they were made of."""

    def __init__(self, compiled: Compiled, injected: Any, group: Any, shard: int, handed: Any, *rest: Any) -> None:
        super().__init__(compiled, injected, group, shard, handed, *rest)
        self.injected = injected
        self.handed = handed


def made(result: Result, storage: Storage) -> dict[str, Any]:
    """All that a task made, with the bytes of what it staged in the place of names, which are random."""
    receipt, said = result.receipt, {}
    for computation, work in receipt.work.items():
        ref = work.segment
        data = None if ref is None else storage.read(ref.name, ref.offset, ref.length)
        said[computation] = (data, ref and (ref.entries, ref.first, ref.last), work.counts, work.produced, work.dedup)
    stored_refs = [
        (p.stream, p.computation, p.oldest, {s: (storage.read(p.name, at, size), count) for s, (at, size, count) in p.slices.items()})
        for p in receipt.stored_refs
    ]
    parts = {name: (part.rows, part.own, pickle.loads(storage.read(str(part.staged)))) for name, part in receipt.parts.items()}
    plain = (receipt.level, receipt.group, receipt.shard, receipt.unit, receipt.consumed, receipt.seen, receipt.failure, receipt.message)
    return {"parts": parts, "work": said, "stored_refs": stored_refs, "sent": result.sent, "receipt": plain}


class Twice(Task):
    """A task that is run on both kinds of inputs."""

    compared: list[Receipt] = []

    def run(self, inputs: Any) -> Result:
        before = msgspec.msgpack.encode(self.order)
        table = table_of(self, inputs)
        result = super().run(inputs)
        other = super().run(ArrowInputs(self.compiled, layouts(), table))
        expected, got = made(result, self.storage), made(other, self.storage)
        for what in expected:
            assert got[what] == expected[what], what
        assert msgspec.msgpack.encode(self.order) == before, "a task changes nothing in its order"
        self.compared.append(result.receipt)
        return result


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[Receipt]:
    """Simulated clusters compare from now on. The receipts of the tasks that were compared."""
    found: list[Receipt] = []
    monkeypatch.setattr(loop_tasks, "Injected", Noting)
    monkeypatch.setattr(loop_tasks, "ListInputs", Both)
    monkeypatch.setattr(loop_tasks, "Task", Twice)
    monkeypatch.setattr(Twice, "compared", found)
    return found


ROWS = st.fixed_dictionaries(
    {
        "k": st.sampled_from(["a", "b", "é", "\0nul", None]),
        "g": st.sampled_from([1, 2, None]),
        "n": st.integers(0, 8),
        "at": st.sampled_from([0, 100, 100, 100, 250, 300, 400, None, 2**63 - 1]),
        "id": st.sampled_from(["1", "2", "3", "4", None]),
        "s": st.sampled_from(["x", "y", "z", None]),
        "mark": st.sampled_from([0, 50, 200, None]),
    }
)
EPOCHS = st.lists(st.lists(st.tuples(st.sampled_from(list(CARRIED)), ROWS), max_size=12), min_size=1, max_size=4)


def named_apart(epochs: Sequence[Sequence[tuple[str, dict[str, Any]]]]) -> list[list[tuple[str, dict[str, Any]]]]:
    """Where nothing is deduplicated, no two records have one id: which of them comes first would be anybody's guess."""
    count = iter(range(10**6))
    return [
        [
            (stream, {**row, "id": f"{row['id']}-{next(count)}"} if stream == "marked" and row["id"] is not None else row)
            for stream, row in rows
        ]
        for rows in epochs
    ]


@pytest.mark.slow
@settings(max_examples=some(60), deadline=None)
@given(EPOCHS, st.lists(st.tuples(st.sampled_from(["retry", "recompute", "crash"]), st.integers(0, 3), st.integers(0, 7)), max_size=2))
def test_oracle_a_table_and_lists_of_the_same_records_come_to_the_same(epochs: Any, faults: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        found = compared.__wrapped__(patch)  # a fixture would last for all examples
        plan = InputPlan(named_apart(epochs), [1_000 + 60_000 * at for at in range(len(epochs))])
        schedule = [Fault(kind, epoch, "task.4-staged" if kind == "crash" else "", task=task) for kind, epoch, task in faults]
        SparkLogSimulation(pipeline().program(), plan, schedule, 1, shards=SHARDS).run()
    assert all(receipt.failure is None for receipt in found)


def test_a_table_and_lists_agree_on_all_that_is_promised_above(compared: list[Receipt]) -> None:
    """By hand, so that it is certain that each was there: ties, duplicates, stored productions, rejected records, dead letters, marks."""

    def row(k: Any, n: int, at: Any, id: Any, s: Any = "x", mark: Any = 10, g: Any = 1) -> dict[str, Any]:
        return {"k": k, "g": g, "n": n, "at": at, "id": id, "s": s, "mark": mark}

    first = [
        *[("dedup", row("a", n, 100, id)) for n, id in [(1, "2"), (2, "1"), (1, "2"), (7, "9")]],
        *[("marked", row("a", n, 100, id, s)) for n, id, s in [(4, "1", "x"), (5, "é", "y"), (5, "z", None)]],
        *[("anonymous", row("a", 2, 100, None)) for _ in range(2)],
        *[("dedup", row(k, 1, at, id)) for k, at, id in [(None, 100, "3"), ("b", None, "4"), ("b", 100, None), ("b", 2**63 - 1, "5")]],
        ("anonymous", row(None, 3, 5, None)),
        ("dedup", row("c", 3, 5, "6", g=None)),
    ]
    second = [
        *[("dedup", row("a", 1, 100, "2")), ("dedup", row("a", 5, 500, "10")), ("anonymous", row("b", 1, 400, None))],
        *[("marked", row("b", 1, 400, s, s, 200)) for s in "xy"],
    ]
    third, fourth = [("marked", row("a", 5, 900, "12", "y", 800))], [("dedup", row("a", 5, 120, "late"))]
    plan = InputPlan([first, second, third, fourth], [1_000, 61_000, 121_000, 181_000])
    simulation = SparkLogSimulation(pipeline().program(), plan, [], 1, shards=SHARDS)
    end = simulation.run()
    assert {receipt.level for receipt in compared} == {0, 1}
    assert any(receipt.consumed for receipt in compared) and any(receipt.stored_refs for receipt in compared)
    assert any(seen.subs for r in compared for seen in r.seen.values()) and any(seen.lags for r in compared for seen in r.seen.values())
    assert end.computations["Mix"].dedup.dropped == 2, "one in the epoch, one in a later epoch"
    letters = [value["error"] for *_, value, _ in simulation.ledgers["Mix.dead-letters"].rows("Mix.dead-letters")]
    assert sorted(error.split(":")[0] for error in letters) == ["InputError"] * 5 + ["ValueError"]
    assert end.computations["Pairs"].dead == 5 and end.computations["Far"].dead > 0 and end.computations["Stored"].records > 0
    assert end.computations["Mix"].late > 0


def test_twin_a_table_that_lacks_a_record_is_noticed(compared: list[Receipt], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = table_of
    monkeypatch.setitem(globals(), "table_of", lambda task, inputs: found and found.slice(1) if (found := whole(task, inputs)) else found)
    row = {"k": "a", "g": 1, "n": 1, "at": 100, "id": "1", "s": "x", "mark": 1}
    with pytest.raises(AssertionError, match="parts"):
        SparkLogSimulation(pipeline().program(), InputPlan([[("dedup", row)]], [1_000]), [], 1, shards=SHARDS).run()


# --- a task that fails


class Refusing(Sink):
    """A sink that finds its disk full."""

    def stage(self, context: TaskContext, rows: Sequence[SinkRow]) -> Part:
        raise StorageError("no space left")


class Unclosed(Host):
    """Counts views that were opened and not closed."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage, trusting=False)
        self.open = 0

    def view(self, *args: Any) -> Any:
        view = super().view(*args)
        self.open += 1

        def close() -> None:
            self.open -= 1

        view.close = close  # type: ignore[method-assign]
        return view


class Raising(ms.Computation):
    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += 1
        self.produce(record.value)
        if record.value["n"] == 3:
            raise ValueError("three")


@pytest.mark.parametrize("kind", ["lists", "table"])
@pytest.mark.parametrize(("number", "sink", "failure"), [(3, None, "HookError"), (1, Refusing(), "StorageError")], ids=["hook", "disk"])
def test_a_failure_is_a_receipt_that_names_nothing_and_sends_nothing(kind: str, number: int, sink: Sink | None, failure: str) -> None:
    p = ms.Pipeline("fails")
    out = p.compute(Raising, p.inject("dedup", SOURCE, timestamp="at", id="id"), key="k", produces="out")
    p.compute(Gather, out, key="k")
    if sink is not None:
        p.emit(out, sink)
    storage, compiled = MemoryStorage(), Compiled(p.program())
    simulation = SparkLogSimulation(p.program(), InputPlan([[]], [1_000]), [], 1, shards=1, storage=storage)
    before = simulation.run()
    units = set(storage.list("units"))
    group = compiled.topology.levels[0][0]
    times = {spec.name: Times(1_000, BEGINNING, BEGINNING, 5) for spec in compiled.topology.computations}
    order = EpochOrder(before.epoch + 1, 1_000, before.token, before, times, [], 0, "")
    cache, points = Unclosed(storage), list[str]()
    task = Task(compiled, order, group, 0, shards=1, storage=storage, cache=cache, point=points.append)
    injected = Noting(compiled, 1, 1_000, {})
    injected.add(compiled.topology.injectors["dedup"], {"k": "a", "g": 1, "n": number, "at": 1, "id": "1", "s": "", "mark": 0})
    inputs: Any = Both(compiled, injected, group, 0, {}, random.Random(1), True)
    if kind == "table":
        table = pa.table(
            {
                "route": pa.array([0], pa.int32()),
                "key": ["a"],
                "ts": [1],
                "id": ["1"],
                "ord": [1],
                "v0": [{"k": "a", "g": 1, "n": number, "s": "", "mark": 0}],
            }
        )
        inputs = ArrowInputs(compiled, layouts(), table)
    receipt, sent = task.run(inputs)
    assert sent == {}
    assert receipt.failure == failure and receipt.message
    assert (receipt.work, receipt.parts, receipt.stored_refs, receipt.unit) == ({}, {}, [], 0), "what was staged has no name in it"
    assert points == (["task.3-shuffled"] if failure == "HookError" else ["task.3-shuffled", "task.4-staging"])
    assert len(set(storage.list("units")) - units) == (0 if failure == "HookError" else 1), "a leftover, for collection"
    assert cache.open == 0
