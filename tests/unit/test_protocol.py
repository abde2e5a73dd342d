"""The epoch protocol, step by step, on the simulated cluster: drains that are interrupted, downtime, epochs that an outgoing run has committed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from computations import WindowCounts
from millstream.connector import SinkServer
from millstream.connector.sink.outputs import files
from millstream.core.watermark import Progress, Seen
from millstream.engine import epochs as epochs_module
from millstream.simulation.fakes import Killed
from millstream.simulation.fault import Fault
from millstream.simulation.simulated_run import InputPlan
from millstream.sinks.base import DriverContext, SinkRow, TaskContext
from millstream.state.manifest_log import ManifestLog
from sparklog import SparkLogDriver, SparkLogSimulation

SOURCE = ms.sources.files("nowhere", schema="k string, n long, at long", format="json")


class Down(ms.Computation):
    """Counts down, once round the cycle for every step."""

    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += 1
        if record.value["n"] > 0:
            self.produce({"n": record.value["n"] - 1}, stream="back")


class Pass(ms.Computation):
    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += 1
        self.produce(record.value)


def cycle() -> ms.Pipeline:
    p = ms.Pipeline("cycle")
    stream = p.inject("in", SOURCE, timestamp="at")
    p.compute(Down, stream, "back", key={"in": "k", "back": lambda record: record.key}, produces=["back"], production=ms.STRONG)
    return p


def chain() -> ms.Pipeline:
    p = ms.Pipeline("chain")
    stream = p.compute(Pass, p.inject("in", SOURCE, timestamp="at"), key="k", name="A", produces="a", production=ms.STRONG)
    p.compute(
        Pass,
        p.compute(Pass, stream, key=lambda r: r.key, name="B", produces="b", production=ms.STRONG),
        key=lambda r: r.key,
        name="C",
        produces="c",
    )
    return p


def simulation(pipeline: ms.Pipeline, *epochs: list[dict[str, Any]]) -> SparkLogSimulation:
    plan = InputPlan([[("in", row) for row in rows] for rows in epochs], [1_000 + at for at in range(len(epochs))])
    return SparkLogSimulation(pipeline.program(), plan, [], 1)


def test_a_drain_longer_than_the_manifests_kept_may_be_interrupted_and_run_again() -> None:
    s = simulation(cycle(), [{"k": "a", "at": 100, "n": 40}], [])
    first = SparkLogDriver(s)
    first.run(s.plan.epochs[0], 0)
    for _ in range(25):
        first.epochs.run_outside(drain=True)
    second = SparkLogDriver(s)
    second.epochs.resume()
    second.run([], 1)  # Spark knows nothing of the drain: it asks for the epoch behind its last
    second.epochs.drain(lambda: False)
    third = SparkLogDriver(s)
    third.epochs.resume()
    third.run([], 1)
    assert third.epochs.latest is not None and third.epochs.latest.drained and third.epochs.latest.computations["Down"].records == 41


def test_new_input_behind_a_drain_is_refused_even_if_the_drain_was_interrupted() -> None:
    s = simulation(chain(), [{"k": "a", "at": 100}], [], [], [{"k": "a", "at": 200}])
    first = SparkLogDriver(s)
    first.run(s.plan.epochs[0], 0)
    first.epochs.run_outside(drain=True)
    second = SparkLogDriver(s)
    second.epochs.resume()
    for epoch in (1, 2):
        second.run(s.plan.epochs[epoch], epoch)
    with pytest.raises(ms.errors.CheckpointError, match="was drained"):
        second.run(s.plan.epochs[3], 3)


def test_while_nobody_listened_nobody_was_silent() -> None:
    p = ms.Pipeline("idle")
    one = p.inject("one", SOURCE, timestamp="at")
    two = p.inject("two", SOURCE, timestamp="at", watermark=ms.watermarks.bounded(0, idle="60s"))
    p.compute(Pass, one, two, key="k")
    plan = InputPlan(
        [[("one", {"k": "a", "at": 1}), ("two", {"k": "a", "at": 1})], [("one", {"k": "a", "at": 2})], []], [1_000, 700_000, 759_000]
    )
    s = SparkLogSimulation(p.program(), plan, [], 1)
    SparkLogDriver(s).run(plan.epochs[0], 0)
    again = SparkLogDriver(s)  # ten minutes later
    again.run(plan.epochs[1], 1)
    assert not again.epochs.latest.injectors["two"].idle  # type: ignore[union-attr]
    again.run(plan.epochs[2], 2)
    assert not again.epochs.latest.injectors["two"].idle  # type: ignore[union-attr]
    s.plan.clock[2] = 761_000
    again.run([], 3)
    assert again.epochs.latest.injectors["two"].idle, "now it has been silent for a minute"  # type: ignore[union-attr]


def test_a_sub_source_never_heard_of_goes_idle_while_others_talk_and_strangers_are_forgotten() -> None:
    policy = ms.watermarks.sub_sources("host", ["a", "b"], ms.watermarks.bounded(0, idle="5s"))
    progress = Progress()
    for second in range(8):
        progress = policy.advance(
            progress, Seen(2, 100 + second, subs={"a": (100 + second, None), f"stranger {second}": (10**9, None)}), 1_000 * second
        )
    assert progress.watermark == 107
    assert list(progress.subs) == ["a"]


def test_state_in_a_cycle_cannot_hold() -> None:
    class Holding(Down):
        def process_record(self, record: ms.Record) -> None:
            self.hold(record.timestamp)

    p = ms.Pipeline("holding")
    stream = p.inject("in", SOURCE, timestamp="at")
    p.compute(Holding, stream, "back", key={"in": "k", "back": lambda record: record.key}, produces=["back"], production=ms.STRONG)
    runner = ms.testing.LocalRunner(p)
    runner.push("in", {"k": "a", "at": 100, "n": 1})
    with pytest.raises(ms.errors.HookError, match="part of a cycle"):
        runner.epoch()


def test_a_connector_sink_commits_its_own_rows_for_an_epoch_that_an_outgoing_run_committed(tmp_path: Path) -> None:
    """The old driver had prepared and was about to create the manifest; the new run has rolled that back and prepared the same rows; the old one wakes up and
    creates the manifest; the new one adopts it. The rows are there once."""

    def task(epoch: int, token: str) -> TaskContext:
        return TaskContext(None, "counts", epoch, "p-counts-0000", token, token, "p", 0)  # type: ignore[arg-type]

    def driver(token: str, redo: bool = False, instead: Any = ()) -> DriverContext:
        return DriverContext(None, "p", "counts", None, redo, token, list(instead))  # type: ignore[arg-type]

    rows, other = [SinkRow("a", 1, 1)], [SinkRow("a", 1, 2)]
    with SinkServer(files.FileOutputs(tmp_path)) as server:
        old, new = ms.sinks.connector(server.address, patience="1s"), ms.sinks.connector(server.address, patience="1s")
        theirs = [old.stage(task(3, "3-x"), rows)]
        old.prepare(driver("3-x"), 3, theirs)
        ours = [new.stage(task(3, "4-x"), rows)]
        new.prepare(driver("4-x"), 3, ours)
        new.commit(driver("4-x", redo=True, instead=ours), 3, theirs)
        assert b"".join(files.read(tmp_path, theirs[0].own["worker"])) == b'{"key":"a","timestamp":1,"value":1}\n'
        theirs = [new.stage(task(4, "4-x"), rows)]
        ours = [new.stage(task(4, "5-x"), other)]
        with pytest.raises(ms.errors.SinkError, match="was committed by a run that was being replaced"):
            new.commit(driver("5-x", redo=True, instead=ours), 4, theirs)
        with pytest.raises(ms.errors.SinkError, match="another checkpoint"):
            new.stage(task(0, "1-y"), rows)


class Window(WindowCounts):
    """In tens."""


def windows() -> ms.Pipeline:
    """Windows behind windows over a strong edge: time needs three epochs to get through."""
    p = ms.Pipeline("windows")
    first = p.compute(Window, p.inject("in", SOURCE, timestamp="at"), key="k", produces="first", production=ms.STRONG)
    p.compute(Window, first, key=lambda r: r.key, name="Second", produces="second")
    return p


BATCHES = [[{"k": "ab"[at % 2], "at": at} for at in range(start, start + 40, 3)] for start in (0, 40, 80)]


def outcome(s: SparkLogSimulation) -> Any:
    latest = ManifestLog(s.storage).latest()
    assert latest is not None
    return [
        (c.records, c.late, c.fired, c.produced, c.low_watermark, [shard.next_low for shard in c.shards])
        for c in latest.computations.values()
    ]


def bounded_runs(s: SparkLogSimulation, killed: int | None = None) -> None:
    """One bounded run per batch. killed: so many epochs into settling the first one, its driver dies."""
    for number, rows in enumerate(s.plan.epochs):
        driver = SparkLogDriver(s)
        driver.epochs.resume()
        driver.run(rows, number)
        if number == 0 and killed is not None:
            left = iter(range(killed))
            driver.epochs.settle(lambda left=left: next(left, None) is None)  # type: ignore[misc]
        else:
            driver.epochs.settle(lambda: False)


def continuous_run(s: SparkLogSimulation) -> None:
    """The same batches in one run, with idle epochs between them, as a ticking source gives them."""
    driver = SparkLogDriver(s)
    for number, rows in enumerate(s.plan.epochs):
        driver.run(rows, number)


def test_runs_from_cron_leave_nothing_due_and_equal_one_continuous_run() -> None:
    s = simulation(windows(), *BATCHES)
    bounded_runs(s)
    idle = 6
    spread = [rows for batch in BATCHES for rows in [batch, *[[] for _ in range(idle)]]]
    one = simulation(windows(), *spread)
    one.plan.clock[:] = [1_000 + at // (idle + 1) for at in range(len(spread))]
    continuous_run(one)
    assert outcome(s) == outcome(one)
    latest = ManifestLog(s.storage).latest()
    assert latest is not None and latest.outside > 3 and latest.last_batch == 2
    assert latest.computations["Window"].low_watermark == 119, "the last input's own watermark has been used"


@pytest.mark.parametrize("killed", [0, 1, 2, 3])
def test_a_run_that_is_killed_while_it_settles_goes_on_with_that_at_the_next_start(killed: int) -> None:
    s, undisturbed = simulation(windows(), *BATCHES), simulation(windows(), *BATCHES)
    bounded_runs(undisturbed)
    bounded_runs(s, killed)
    if killed:
        assert outcome(s) == outcome(undisturbed)
    else:  # killed before its first epoch of settling it had not ended its input either: the next run's input is its own
        assert outcome(s)[0][0] == outcome(undisturbed)[0][0]


def test_without_settling_a_bounded_run_lags_behind_its_own_input() -> None:
    s = simulation(windows(), *BATCHES)
    for number, rows in enumerate(s.plan.epochs):
        SparkLogDriver(s).run(rows, number)
    latest = ManifestLog(s.storage).latest()
    assert latest is not None and latest.computations["Window"].low_watermark < 119


def test_a_batch_that_spark_asks_for_again_behind_epochs_outside_the_query_is_found_and_not_repeated() -> None:
    s = simulation(windows(), *BATCHES)
    bounded_runs(s)
    before = outcome(s)
    again = SparkLogDriver(s)
    again.epochs.resume()
    again.run(s.plan.epochs[2], 2)
    assert outcome(s) == before


def taken_over(simulation: SparkLogSimulation) -> SparkLogDriver:
    """A driver that is replaced between its look at the claims and the work of its tasks; the new owner compacts, commits and collects."""
    driver = SparkLogDriver(simulation)
    work = driver.tasks.run

    def run(input: Any, order: Any) -> Any:
        if order.epoch == 1:
            newer = SparkLogDriver(simulation)
            for number in range(1, 40):
                newer.run([], number)
            for name in simulation.storage.list("units"):
                simulation.storage.delete([name])  # as collection does with what has been compacted
        return work(input, order)

    driver.tasks.run = run  # type: ignore[method-assign]
    return driver


def test_a_driver_that_was_replaced_while_it_worked_is_fenced_and_does_not_speak_of_damage() -> None:
    rows = [{"k": key, "at": 100, "n": 1} for key in "abcdef"]
    s = simulation(chain(), rows, rows, *[[] for _ in range(40)])
    first = taken_over(s)
    first.run(s.plan.epochs[0], 0)
    with pytest.raises(ms.errors.Fenced, match="another driver owns"):
        first.run(s.plan.epochs[1], 1)


def test_a_unit_that_is_missing_is_damage_when_nobody_else_has_the_checkpoint() -> None:
    rows = [{"k": key, "at": 100, "n": 1} for key in "abcdef"]
    s = simulation(chain(), rows, rows)
    SparkLogDriver(s).run(s.plan.epochs[0], 0)
    s.storage.delete(s.storage.list("units"))
    with pytest.raises(ms.errors.DamageError):
        SparkLogDriver(s).run(s.plan.epochs[1], 1)


def test_a_checkpoint_that_is_deleted_under_a_run_is_told_so_and_nothing_is_put_in_its_place(tmp_path: Path) -> None:
    s = simulation(chain(), [{"k": "a", "at": 100, "n": 1}], [])
    driver = SparkLogDriver(s)
    driver.run(s.plan.epochs[0], 0)
    for folder in ("manifests", "runs", "units"):
        s.storage.delete(s.storage.list(folder))
    s.storage.delete(["identity.json"])
    with pytest.raises(ms.errors.CheckpointError, match="has been deleted or moved"):
        driver.run([], 1)
    assert s.storage.list("manifests") == []


def test_a_batch_behind_a_drain_that_was_committed_and_not_published_is_published_again() -> None:
    def published(*faults: Fault) -> dict[str, int]:
        plan = InputPlan([[("in", {"k": "a", "at": 100, "n": 1})], [], []], [1_000, 1_001, 1_002])
        s = SparkLogSimulation(chain().program(), plan, list(faults), 1)
        driver = SparkLogDriver(s)
        driver.run(plan.epochs[0], 0)
        driver.epochs.run_outside(drain=True)  # and killed in the midst of it
        driver = SparkLogDriver(s)
        driver.epochs.resume()
        try:
            driver.run([], 1)
        except Killed:
            driver = SparkLogDriver(s)
            driver.epochs.resume()
            driver.run([], 1)
        driver.epochs.drain(lambda: False)
        return {name: len(ledger.rows(name)) for name, ledger in s.ledgers.items()}

    assert published(Fault("crash", 2, "epoch.6-committed")) == published() == {"a": 1, "b": 1, "c": 1}


def test_downtime_before_a_settling_that_is_resumed_is_no_silence() -> None:
    p = ms.Pipeline("idle")
    one = p.inject("one", SOURCE, timestamp="at")
    two = p.inject("two", SOURCE, timestamp="at", watermark=ms.watermarks.bounded(0, idle="60s", onward="60s"))
    first = p.compute(Pass, one, two, key="k", name="A", produces="a", production=ms.STRONG)
    p.compute(Pass, first, key=lambda record: record.key, name="B")
    plan = InputPlan([[("one", {"k": "a", "at": 1}), ("two", {"k": "a", "at": 1})], [("one", {"k": "a", "at": 2})]], [1_000, 700_000])
    s = SparkLogSimulation(p.program(), plan, [], 1)
    driver = SparkLogDriver(s)
    driver.run(plan.epochs[0], 0)
    driver.epochs.run_outside(drain=False)  # killed while it settled
    again = SparkLogDriver(s)
    again.epochs.resume()
    again.run(plan.epochs[1], 1)
    assert again.epochs.latest is not None
    assert not again.epochs.latest.injectors["two"].idle and again.epochs.latest.injectors["two"].watermark == 1


def test_a_bounded_run_of_a_cycle_that_goes_round_for_ever_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochs_module, "MOST_SETTLING", 20)
    s = simulation(cycle(), [{"k": "a", "at": 100, "n": 10**9}])
    driver = SparkLogDriver(s)
    driver.run(s.plan.epochs[0], 0)
    driver.epochs.settle(lambda: False)
    assert driver.epochs.latest is not None and driver.epochs.latest.outside == 20 and driver.epochs.latest.pending
