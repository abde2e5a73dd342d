"""What a pipeline does, on the local engine, on a simulated cluster, and on Spark in micro-batches and resident: one definition, one expected output, written
by hand.

A behaviour builds its part of a pipeline on a source of its own, says what the source brings in each of four epochs, and what must come of it. The local
engine and the simulation run each alone. Spark runs all of them as one pipeline, once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

import millstream as ms
from computations import Windows
from millstream.simulation.simulated_run import InputPlan, Simulation
from millstream.state.manifest import Manifest
from millstream.state.manifest_log import ManifestLog
from millstream.state.storage import open_storage
from sparklog import SparkLogSimulation

EPOCHS = 4
SCHEMA = "k string, n long, at long, id string"
Row = tuple[Any, ...]  # key, n, timestamp and, where it matters, id
Rows = dict[Any, list[tuple[Any, int]]]  # by key: value and timestamp of each row, in order


class Outcome(NamedTuple):
    """What a run has made of behaviours: rows and ids by stream, and how many keys each computation keeps."""

    rows: dict[str, list[tuple[Any, Any, int, str]]]
    keys: dict[str, int]


class Behaviour:
    """One behaviour, on its way into a pipeline. Names get its own name in front, so that all fit into one."""

    def __init__(self, name: str, pipeline: ms.Pipeline, work: Path) -> None:
        self.name = name
        self.pipeline = pipeline
        self.work = work
        self.input: dict[str, list[list[dict[str, Any]]]] = {}
        self.expected: dict[str, Rows] = {}
        self.ids: dict[str, list[str]] = {}
        self.keys: dict[str, int] = {}

    def called(self, name: str) -> str:
        """A name in the pipeline."""
        return f"{self.name}_{name}"

    def brings(self, *epochs: Sequence[Row], name: str = "in", **options: Any) -> ms.Stream:
        """A source, and its rows by epoch. A window of 50 ms is waited for the late."""
        folder = self.work / self.called(name)
        given = [
            [{"k": r[0], "n": r[1], "at": r[2], "id": r[3] if len(r) > 3 else f"{e}-{i}"} for i, r in enumerate(rows)]
            for e, rows in enumerate(epochs)
        ]
        self.input[self.called(name)] = given + [[] for _ in range(EPOCHS - len(given))]
        source = ms.sources.files(folder, schema=SCHEMA, format="json", max_files_per_epoch=1)
        watermark = ms.watermarks.bounded("50ms")
        return self.pipeline.inject(self.called(name), source, timestamp="at", id="id", **{"watermark": watermark, **options})

    def compute(self, computation: Any, *streams: Any, produces: str = "out", key: Any = "k", **options: Any) -> Any:
        """A computation; its name is that of its class."""
        name = self.called(computation.__name__)
        return self.pipeline.compute(computation, *streams, name=name, produces=self.called(produces), key=key, **options)

    def comes(self, *rows: tuple[Any, Any, int], stream: str = "out") -> None:
        """What the stream must carry: key, value, timestamp; in order within a key."""
        found = self.expected.setdefault(self.called(stream), {})
        for key, value, timestamp in rows:
            found.setdefault(key, []).append((value, timestamp))


BEHAVIOURS: dict[str, Callable[[Behaviour], None]] = {}


def behaviour(function: Callable[[Behaviour], None]) -> Callable[[Behaviour], None]:
    BEHAVIOURS[function.__name__] = function
    return function


# --- computations that several behaviours use


class Count(ms.Computation):
    """Counts, and says it each time."""

    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += 1
        self.produce(self.state)


class Numbers(ms.Computation):
    """All that came, in order."""

    State = list

    def process_record(self, record: ms.Record) -> None:
        self.state.append(record.value["n"] if isinstance(record.value, dict) else record.value)
        self.produce(list(self.state))


class Letters(ms.Computation):
    """Dead letters without what differs by engine: tracebacks, and the file that Spark read."""

    State = int

    def process_record(self, record: ms.Record) -> None:
        letter = record.value
        self.produce([letter["value"]["n"], letter["error"].split(" (file")[0]])


def own(record: ms.Record) -> Any:
    """The producer's key, by a way of its own."""
    return record.key


def everybody(record: ms.Record) -> str:
    return "all"


# --- records


@behaviour
def counts_per_key(b: Behaviour) -> None:
    b.compute(Count, b.brings([("a", 1, 10), ("b", 1, 20)], [("a", 1, 30)]))
    b.comes(("a", 1, 10), ("b", 1, 20), ("a", 2, 30))


@behaviour
def records_of_a_key_come_in_the_order_of_time_within_an_epoch(b: Behaviour) -> None:
    b.compute(Numbers, b.brings([("a", 3, 30), ("a", 1, 10), ("b", 9, 5), ("a", 2, 20)]))
    b.comes(("a", [1], 10), ("a", [1, 2], 20), ("a", [1, 2, 3], 30), ("b", [9], 5))


@behaviour
def of_records_of_one_time_the_ids_decide(b: Behaviour) -> None:
    b.compute(Numbers, b.brings([("a", 2, 10, "b"), ("a", 1, 10, "a"), ("a", 3, 10, "c")]))
    b.comes(("a", [1], 10), ("a", [1, 2], 10), ("a", [1, 2, 3], 10))


@behaviour
def a_repeated_id_counts_once_in_an_epoch_and_later(b: Behaviour) -> None:
    b.compute(Count, b.brings([("a", 1, 10, "x"), ("a", 1, 10, "x")], [("a", 1, 10, "x"), ("a", 1, 20, "y")]))
    b.comes(("a", 1, 10), ("a", 2, 20))


class Merge(Numbers):
    def process_record(self, record: ms.Record) -> None:
        self.state.append([record.stream.rsplit("_", 1)[1], record.value["n"]])
        self.produce(self.state[-1])


@behaviour
def two_inputs_are_one_sequence(b: Behaviour) -> None:
    one, two = b.brings([("a", 1, 10), ("a", 3, 30)], name="one"), b.brings([("a", 2, 20)], [("a", 4, 40)], name="two")
    b.compute(Merge, one, two)
    b.comes(("a", ["one", 1], 10), ("a", ["two", 2], 20), ("a", ["one", 3], 30), ("a", ["two", 4], 40))


# --- the end of a visit, and of a step


class OncePerVisit(ms.Computation):
    """Says its count once, however many came."""

    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += record.value["n"]

    def finish_key(self) -> None:
        self.produce(self.state)


@behaviour
def a_key_is_finished_once_per_epoch_at_the_time_of_its_newest_record(b: Behaviour) -> None:
    b.compute(OncePerVisit, b.brings([("a", 1, 10), ("a", 2, 30), ("b", 1, 20)], [("a", 4, 40)]))
    b.comes(("a", 3, 30), ("b", 1, 20), ("a", 7, 40))


class Bundles(ms.Computation):
    """Sends one production per target, however many keys have something for it."""

    State = type(None)

    def process_record(self, record: ms.Record) -> None:
        if record.value["n"] < 0:
            self.later("odd", "before it fails")
            raise ValueError("negative")
        self.later("odd" if record.value["n"] % 2 else "even", record.value["n"])

    def finish_epoch(self, gathered: Sequence[tuple[Any, Any, int]]) -> None:
        for target in ("odd", "even"):
            mine = [(value, time) for name, value, time in gathered if name == target]
            if mine:
                self.produce([value for value, _ in mine], key=target, timestamp=max(time for _, time in mine))


class Unpacked(ms.Computation):
    """What came for a target, from all shards."""

    State = list

    def process_record(self, record: ms.Record) -> None:
        self.state += record.value

    def finish_key(self) -> None:
        self.produce(sorted(self.state))


@behaviour
def what_keys_gather_leaves_once_per_target_under_the_key_of_the_production(b: Behaviour) -> None:
    bundles = b.compute(Bundles, b.brings([("a", 1, 10), ("b", 3, 30), ("c", 2, 20), ("d", 5, 25)], [("a", 7, 40)]), produces="bundles")
    b.compute(Unpacked, bundles, key=ms.PRODUCED)
    b.comes(("odd", [1, 3, 5], 30), ("even", [2], 20), ("odd", [1, 3, 5, 7], 40))


@behaviour
def what_a_dead_letter_undoes_is_not_gathered(b: Behaviour) -> None:
    came = b.brings([("a", 1, 10), ("a", -1, 20), ("a", 3, 30)])
    bundles = b.compute(Bundles, came, produces="bundles", on_error=ms.DEAD_LETTER)
    b.compute(Unpacked, bundles, key=ms.PRODUCED)
    b.compute(Letters, b.pipeline.dead_letters(b.called("Bundles")), key=own, produces="dead")
    b.comes(("odd", [1, 3], 30))
    b.comes(("a", [-1, "ValueError: negative"], 20), stream="dead")


class Judge(Count):
    """Takes records as they come."""

    judges_lateness = True


@behaviour
def who_judges_lateness_gets_late_records_like_others(b: Behaviour) -> None:
    b.compute(Judge, b.brings([("a", 1, 1000)], [("a", 1, 10)], [("a", 1, 20)]))
    b.comes(("a", 1, 1000), ("a", 2, 10), ("a", 3, 950))


# --- timers


@behaviour
def a_low_watermark_timer_fires_when_time_has_come_that_far(b: Behaviour) -> None:
    b.compute(Windows, b.brings([("a", 1, 10), ("a", 2, 40)], [("b", 5, 250)]))
    b.comes(("a", 3, 100), ("b", 5, 300))


class Rings(ms.Computation):
    State = list

    def process_record(self, record: ms.Record) -> None:
        self.state.append("record")
        self.set_timer("wall", self.now + 1, ms.WALL_CLOCK)

    def process_timer(self, timer: ms.Timer) -> None:
        self.produce([*self.state, timer.tag], timestamp=9_000)


@behaviour
def a_wall_clock_timer_fires_when_the_clock_has_come_that_far(b: Behaviour) -> None:
    b.compute(Rings, b.brings([("a", 1, 10)]))
    b.comes(("a", ["record", "wall"], 9_000))


class Cancels(ms.Computation):
    State = int

    def process_record(self, record: ms.Record) -> None:
        if record.value["n"] == 1:
            for tag in ("kept", "cancelled"):
                self.set_timer(tag, 500)
            self.set_timer("cancelled", 600)
        else:
            self.cancel_timer("cancelled")

    def process_timer(self, timer: ms.Timer) -> None:
        self.produce(timer.tag)


@behaviour
def a_cancelled_timer_does_not_fire(b: Behaviour) -> None:
    b.compute(Cancels, b.brings([("a", 1, 10), ("b", 1, 10)], [("a", 2, 20)]))
    b.comes(("a", "kept", 500), ("b", "cancelled", 500), ("b", "kept", 500), ("b", "cancelled", 600))


class Past(ms.Computation):
    State = list

    def process_record(self, record: ms.Record) -> None:
        self.state.append(record.value["n"])
        if record.value["n"] == 2:
            self.set_timer("past", 900)
        self.produce(list(self.state))

    def process_timer(self, timer: ms.Timer) -> None:
        self.state.append(timer.tag)


@behaviour
def a_timer_set_in_the_past_fires_at_once(b: Behaviour) -> None:
    b.compute(Past, b.brings([("a", 1, 1_000)], [("a", 2, 1_010), ("a", 3, 1_020)]))
    b.comes(("a", [1], 1_000), ("a", [1, 2], 1_010), ("a", [1, 2, "past", 3], 1_020))


@behaviour
def a_drain_ends_time_and_fires_what_waits_for_it_in_order(b: Behaviour) -> None:
    b.compute(Windows, b.brings([("a", 1, 10), ("a", 2, 5_000), ("a", 3, 900)]))
    b.comes(("a", 1, 100), ("a", 3, 1_000), ("a", 2, 5_100))


# --- late records: what the first epoch implies is used in the second, and whoever is older is late in the third

LATE: list[list[Row]] = [[("a", 1, 1_000)], [("a", 2, 1_100)], [("a", 3, 20, "too-late"), ("a", 4, 1_200)]]


class Forgives(Count):
    def process_late_record(self, record: ms.Record) -> None:
        self.produce(["late", record.value["n"], record.timestamp], timestamp=3_000)


@behaviour
def a_late_record_goes_to_its_hook(b: Behaviour) -> None:
    b.compute(Forgives, b.brings(*LATE))
    b.comes(("a", 1, 1_000), ("a", 2, 1_100), ("a", ["late", 3, 20], 3_000), ("a", 3, 1_200))


@behaviour
def a_late_record_is_dropped(b: Behaviour) -> None:
    b.compute(Forgives, b.brings(*LATE), late=ms.DROP)
    b.comes(("a", 1, 1_000), ("a", 2, 1_100), ("a", 3, 1_200))


@behaviour
def a_late_record_goes_to_a_stream(b: Behaviour) -> None:
    b.compute(Forgives, b.brings(*LATE), late=b.called("late"))
    b.comes(("a", 1, 1_000), ("a", 2, 1_100), ("a", 3, 1_200))
    value = {"k": "a", "n": 3, "at": 20, "id": "too-late"}
    letter = {"stream": b.called("in"), "value": value, "timestamp": 20, "id": "too-late", "low_watermark": 950}
    b.comes(("a", letter, 950), stream="late")  # what was promised: a letter is not late itself


# --- state


class Shelf(ms.Computation):
    State = ms.MapState

    def process_record(self, record: ms.Record) -> None:
        number = record.value["n"]
        if number < 0:
            del self.state[-number]
        else:
            self.state[number] = record.timestamp
        self.produce(list(self.state.items()))


@behaviour
def a_map_state_is_in_order_and_forgets_what_is_deleted(b: Behaviour) -> None:
    b.compute(Shelf, b.brings([("a", 2, 10), ("a", 1, 20)], [("a", -2, 30)], [("a", 3, 40)]))
    b.comes(("a", [[2, 10]], 10), ("a", [[1, 20], [2, 10]], 20), ("a", [[1, 20]], 30), ("a", [[1, 20], [3, 40]], 40))


class Best(msgspec.Struct):
    most: int = 0
    when: dict[int, int] = {}


class Typed(ms.Computation):
    State = Best

    def process_record(self, record: ms.Record) -> None:
        assert type(self.state) is Best
        self.state.most = max(self.state.most, record.value["n"])
        self.state.when[record.value["n"]] = record.timestamp
        self.produce([self.state.most, self.state.when[self.state.most]])


@behaviour
def a_typed_state_comes_back_as_what_it_was(b: Behaviour) -> None:
    b.compute(Typed, b.brings([("a", 5, 10)], [("a", 7, 20)], [("a", 6, 30)]))
    b.comes(("a", [5, 10], 10), ("a", [7, 20], 20), ("a", [7, 20], 30))


class Balance(ms.Computation):
    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += record.value["n"]
        self.produce(self.state)


@behaviour
def a_row_that_is_as_new_is_not_kept(b: Behaviour) -> None:
    b.compute(Balance, b.brings([("a", 5, 10), ("b", 1, 10)], [("a", -5, 20)], [("c", 0, 30)]))
    b.comes(("a", 5, 10), ("a", 0, 20), ("b", 1, 10), ("c", 0, 30))
    b.keys[b.called("Balance")] = 1


# --- edges

TWO_KEYS: list[list[Row]] = [[("a", 1, 10), ("b", 1, 20)], [("a", 1, 30)]]


@behaviour
def a_weak_edge_carries_in_the_same_epoch(b: Behaviour) -> None:
    b.compute(Numbers, b.compute(Count, b.brings(*TWO_KEYS), produces="counts"), key=everybody)
    b.comes(("all", [1], 10), ("all", [1, 1], 20), ("all", [1, 1, 2], 30))


@behaviour
def a_strong_edge_stores_and_carries_in_the_next(b: Behaviour) -> None:
    b.compute(Numbers, b.compute(Count, b.brings(*TWO_KEYS), produces="counts", production=ms.STRONG), key=everybody)
    b.comes(("all", [1], 10), ("all", [1, 1], 20), ("all", [1, 1, 2], 30))


@behaviour
def a_computation_without_a_key_of_its_own_has_its_producers(b: Behaviour) -> None:
    b.compute(Numbers, b.compute(Count, b.brings(*TWO_KEYS), produces="counts"), key=None)
    b.comes(("a", [1], 10), ("b", [1], 20), ("a", [1, 2], 30))


# --- what goes wrong


class Fragile(Count):
    def process_record(self, record: ms.Record) -> None:
        super().process_record(record)
        if record.value["n"] == 13:
            raise ValueError("thirteen")


@behaviour
def what_makes_a_hook_raise_is_a_dead_letter_and_undone(b: Behaviour) -> None:
    b.compute(Fragile, b.brings([("a", 1, 10), ("a", 13, 20), ("a", 1, 30)]), on_error=ms.DEAD_LETTER)
    b.comes(("a", 1, 10), ("a", 2, 30))
    b.compute(Letters, b.pipeline.dead_letters(b.called("Fragile")), key=own, produces="letters")
    b.comes(("a", [13, "ValueError: thirteen"], 20), stream="letters")


@behaviour
def a_record_without_a_key_is_a_dead_letter_without_one(b: Behaviour) -> None:
    b.compute(Count, b.brings([("a", 1, 10), (None, 2, 20)]), on_error=ms.DEAD_LETTER)
    b.comes(("a", 1, 10))
    b.compute(Letters, b.pipeline.dead_letters(b.called("Count")), key=everybody, produces="letters")
    b.comes(("all", [2, "InputError: its key ('k') is null"], 20), stream="letters")


# --- productions


class Held(Windows):
    def process_record(self, record: ms.Record) -> None:
        window = record.timestamp - record.timestamp % 100
        self.state[window] = self.state.get(window, 0) + record.value["n"]
        self.set_timer("window", window + 100, hold=window)

    def process_timer(self, timer: ms.Timer) -> None:
        assert timer.hold is not None
        self.produce(self.state.pop(timer.time - 100), timestamp=timer.hold)


@behaviour
def a_hold_lets_a_timer_speak_with_the_time_of_its_window(b: Behaviour) -> None:
    held = b.compute(Held, b.brings([("a", 1, 10), ("a", 2, 40)], [("a", 5, 250)], [("a", 1, 400)]), produces="held")
    b.compute(Forgives, held, key=own)
    b.comes(("a", 3, 0), ("a", 5, 200), ("a", 1, 400), stream="held")
    b.comes(("a", 1, 0), ("a", 2, 200), ("a", 3, 400))


class Named(ms.Computation):
    State = int

    def process_record(self, record: ms.Record) -> None:
        self.produce(record.value["n"], id=f"my-{record.id}")


@behaviour
def a_production_may_bring_its_own_id(b: Behaviour) -> None:
    b.compute(Named, b.brings([("a", 1, 10, "x"), ("a", 2, 20, "y")]))
    b.comes(("a", 1, 10), ("a", 2, 20))
    b.ids[b.called("out")] = ["my-x", "my-y"]


class Twice(ms.Computation):
    State = int

    def process_record(self, record: ms.Record) -> None:
        for _ in range(2):
            self.produce(record.value["n"])


@behaviour
def ids_in_a_sink_follow_from_key_computation_stream_cause_and_place(b: Behaviour) -> None:
    b.compute(Twice, b.brings([("a", 1, 10, "x")]))
    b.comes(("a", 1, 10), ("a", 1, 10))

    def id_of(place: int) -> str:
        said = f"a\0{b.called('Twice')}\0{b.called('out')}\0record/{b.called('in')}/x\0{place}"
        return blake2b(said.encode(), digest_size=16).hexdigest()

    b.ids[b.called("out")] = sorted([id_of(0), id_of(1)])


class Tardy(ms.Computation):
    State = int

    def process_record(self, record: ms.Record) -> None:
        self.produce(record.value["n"])

    def process_late_record(self, record: ms.Record) -> None:
        self.produce(record.value["n"], timestamp=record.timestamp, late=True)


class Hears(Count):
    def process_late_record(self, record: ms.Record) -> None:
        self.produce(["late", record.value, record.timestamp], timestamp=3_000)


@behaviour
def a_production_may_be_late_and_is_so_for_whoever_reads_it(b: Behaviour) -> None:
    b.compute(Hears, b.compute(Tardy, b.brings(*LATE), produces="tardy"), key=own)
    b.comes(("a", 1, 1_000), ("a", 2, 1_100), ("a", 3, 20), ("a", 4, 1_200), stream="tardy")
    b.comes(("a", 1, 1_000), ("a", 2, 1_100), ("a", ["late", 3, 20], 3_000), ("a", 3, 1_200))


class Tells(ms.Computation):
    State = int

    def process_record(self, record: ms.Record) -> None:
        assert self.cause is record
        self.set_timer("t", 1_200)
        self.produce(["record", max(self.output_watermark, 0), max(self.low_watermark, 0)])

    def process_timer(self, timer: ms.Timer) -> None:
        assert self.cause is timer
        self.produce(["timer", self.output_watermark, min(self.low_watermark, 9_999)])


@behaviour
def a_hook_knows_its_cause_and_what_was_promised(b: Behaviour) -> None:
    b.compute(Tells, b.brings([("a", 1, 1_000)], [("a", 2, 1_100)], [("a", 2, 1_110)]))
    b.comes(("a", ["record", 0, 0], 1_000), ("a", ["record", 0, 950], 1_100), ("a", ["record", 950, 1_050], 1_110))
    b.comes(("a", ["timer", 1_060, 9_999], 1_200))


# --- the engines


def built(name: str, pipeline: ms.Pipeline, work: Path) -> Behaviour:
    b = Behaviour(name, pipeline, work)
    BEHAVIOURS[name](b)
    return b


def locally(b: Behaviour) -> Outcome:
    runner = ms.testing.LocalRunner(b.pipeline)
    for epoch in range(EPOCHS):
        for stream, epochs in b.input.items():
            runner.push(stream, *epochs[epoch])
        if epoch:
            runner._engine.now = 1_000 * epoch
        runner.epoch()
    runner.drain()
    topology = b.pipeline.topology()
    streams = [stream for spec in topology.computations for stream in spec.streams]
    return Outcome(
        {stream: [(e.key, e.value, e.timestamp, e.id) for e in runner.records(stream)] for stream in streams},
        {spec.name: len(runner.state(spec.name)) for spec in topology.computations},
    )


def simulated(simulate: Callable[..., Simulation], b: Behaviour) -> Outcome:
    plan = InputPlan(
        [[(stream, row) for stream, epochs in b.input.items() for row in epochs[at]] for at in range(EPOCHS)],
        [1_000 * (epoch + 1) for epoch in range(EPOCHS)],
    )
    simulation = simulate(b.pipeline.program(), plan, [], seed=1)
    end = simulation.run()
    rows = {stream: [(k, v, t, id) for k, t, v, id in ledger.rows(stream)] for stream, ledger in simulation.ledgers.items()}
    return Outcome(rows, kept(end))


SIMULATED: dict[str, Callable[..., Simulation]] = {
    "simulated": Simulation,
    "simulated resident": partial(Simulation, resident=True),
    "simulated, Spark's log": SparkLogSimulation,
}


def kept(manifest: Manifest) -> dict[str, int]:
    return {name: sum(shard.keys for shard in state.shards) for name, state in manifest.computations.items()}


@pytest.fixture(scope="module")
def on_spark(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return all_together(spark, tmp_path_factory.mktemp("behaviours"))


@pytest.fixture(scope="module")
def resident(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return all_together(spark, tmp_path_factory.mktemp("resident-behaviours"), resident=True)


def all_together(spark: Any, work: Path, **options: Any) -> Outcome:
    """All behaviours, as one pipeline."""
    p = ms.Pipeline("behaviours")
    every = [built(name, p, work) for name in BEHAVIOURS]
    for b in every:
        for stream, epochs in b.input.items():
            (work / stream).mkdir()
            for at, rows in enumerate(epochs):
                path = work / stream / f"{at}.json"
                path.write_text("".join(json.dumps(row) + "\n" for row in rows))
                os.utime(path, (1_700_000_000 + at, 1_700_000_000 + at))
    sinks = {stream: ms.sinks.memory() for b in every for stream in b.expected}
    for stream, sink in sinks.items():
        p.emit(stream, sink, ids=True)
    p.run(spark, checkpoint=work / "checkpoint", available_now=True, shards=2, **options).await_termination()
    end = ManifestLog(open_storage(work / "checkpoint")).latest()
    assert end is not None
    rows = {stream: [(r.key, r.value, r.timestamp, r.id) for r in sink.collected] for stream, sink in sinks.items()}
    return Outcome(rows, kept(end))


@pytest.fixture(
    params=["local", *SIMULATED, pytest.param("spark", marks=pytest.mark.spark), pytest.param("resident", marks=pytest.mark.spark)]
)
def engine(request: pytest.FixtureRequest) -> Callable[[Behaviour], Outcome]:
    """Runs a behaviour, or finds it among those that were run."""
    if request.param in ("spark", "resident"):
        found: Outcome = request.getfixturevalue("on_spark" if request.param == "spark" else "resident")
        return lambda b: found
    return locally if request.param == "local" else partial(simulated, SIMULATED[request.param])


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_it_is_the_same_on_every_engine(name: str, engine: Callable[[Behaviour], Outcome], tmp_path: Path) -> None:
    b = built(name, ms.Pipeline("behaviours"), tmp_path)
    found = engine(b)
    for stream, expected in b.expected.items():
        got: Rows = {}
        for key, value, timestamp, _ in found.rows[stream]:
            got.setdefault(key, []).append((json.loads(json.dumps(value)), timestamp))
        assert got == expected, stream
    for stream, ids in b.ids.items():
        assert sorted(id for *_, id in found.rows[stream]) == ids
    for computation, count in b.keys.items():
        assert found.keys[computation] == count, computation
