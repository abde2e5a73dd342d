"""Wall-clock timers fire when their time has come: also without input, at the end of a bounded run, and after the end of event time."""

from __future__ import annotations

import datetime
from functools import partial
from typing import Any

import pytest
from rich.console import Console

import millstream as ms
from computations import WindowCounts
from effort import some
from millstream.core.authority import Standing, times
from millstream.core.time import BEGINNING, END
from millstream.engine.spark.run import PlannedRun
from millstream.simulation.driver import Driver
from millstream.simulation.simulated_run import InputPlan, Simulation
from millstream.state.manifest import Manifest
from millstream.state.manifest_log import ManifestLog
from millstream.status import render
from millstream.status.report import Overview, status_of
from millstream.testing import LocalRunner, assert_exactly_once
from sparklog import SparkLogDriver, SparkLogSimulation

SOURCE = ms.sources.files("nowhere", schema="k string, at long, id string", format="json")
ROW = {"k": "a", "at": 5_000, "id": "1"}


class Beat(ms.Computation):
    """Produces so long after each record, by the wall clock."""

    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += 1
        self.set_timer("beat", self.now + 1_000, kind=ms.WALL_CLOCK)

    def process_timer(self, timer: ms.Timer) -> None:
        self.produce(timer.time)


class Pulse(Beat):
    """Goes on for ever."""

    def process_timer(self, timer: ms.Timer) -> None:
        super().process_timer(timer)
        self.set_timer("beat", self.now + 1, kind=ms.WALL_CLOCK)


class Heard(ms.Computation):
    """Everything that came, and passes it on."""

    State = list

    def process_record(self, record: ms.Record) -> None:
        self.state.append(record.value["id"] if isinstance(record.value, dict) else record.value)
        self.produce(self.state[-1])


class Window(WindowCounts):
    """In tens."""


def own(record: ms.Record) -> Any:
    return record.key


def pipeline(first: Any = Beat, production: str = ms.WEAK) -> ms.Pipeline:
    """A wall clock at the top, and two levels below it. `Both` has a slower way from the source, too."""
    p = ms.Pipeline("wall")
    source = p.inject("in", SOURCE, timestamp="at", id="id", watermark=ms.watermarks.bounded("0ms"))
    beats = p.compute(first, source, key="k", produces="beats", production=production, name="Beat")
    heard = p.compute(Heard, beats, key=own, produces="heard", production=production)
    p.compute(Heard, heard, key=own, name="Below", produces="below")
    slow = p.compute(Heard, source, key="k", name="Slow", produces="slow", production=ms.STRONG)
    slower = p.compute(Window, slow, key=own, name="Slower", produces="slower", production=ms.STRONG)
    p.compute(Heard, beats, slower, key=own, name="Both", produces="both")
    return p


def bounded_run(simulation: Any, clock: int, drain: bool) -> Manifest:
    """One bounded run from its start to its end, at a wall clock, of whatever has arrived."""
    if isinstance(simulation, Simulation):
        simulation.now = clock
        driver: Any = Driver(simulation)
        driver.epochs.resume()
        topology = driver.epochs.topology
        run = PlannedRun(topology, driver.epochs, driver.planner, bounded=True, drain=drain, every=0.0, eager=False)
        run.start(lambda: None)
        assert run.done.wait(60)
        if run.error is not None:
            raise run.error
    else:
        driver = SparkLogDriver(simulation)
        driver.epochs.resume()
        driver.epochs.clock = lambda: clock
        for number in range(simulation.done + 1, len(simulation.plan.epochs)):
            driver.run(simulation.plan.epochs[number], number)
            simulation.done = number
        (driver.epochs.drain if drain else driver.epochs.settle)(lambda: False)
    latest = ManifestLog(simulation.storage).latest()
    assert latest is not None
    return latest


def simulation_of(kind: Any, made: ms.Pipeline) -> Any:
    return kind(made.program(), InputPlan([[("in", ROW)]], [1_000]), [], seed=1)


ENGINES = pytest.mark.parametrize(
    "kind",
    [SparkLogSimulation, Simulation, partial(Simulation, resident=True)],
    ids=["planned by Spark", "micro-batch", "resident"],
)
EDGES = pytest.mark.parametrize("production", [ms.WEAK, ms.STRONG])


@ENGINES
@EDGES
@pytest.mark.parametrize("drain", [False, True])
def test_a_timer_that_is_due_fires_in_a_bounded_run_without_new_input(kind: Any, production: str, drain: bool) -> None:
    s = simulation_of(kind, pipeline(production=production))
    first = bounded_run(s, 1_000, drain)
    assert first.computations["Beat"].fired == 0 and first.drained == drain
    early = bounded_run(s, 1_999, drain)
    assert early.computations["Beat"].fired == 0
    last = bounded_run(s, 2_000, drain)
    assert last.computations["Beat"].fired == 1 and last.now == 2_000
    assert [row[1:3] for row in s.ledgers["below"].rows("below")] == [(ANY_TIME, 2_000)], "all that follows from it is done, too"
    assert last.pending == [] and last.drained == drain
    again = bounded_run(s, 90_000, drain)
    assert again.computations["Beat"].fired == 1, "once"


class _AnyTime:
    def __eq__(self, other: object) -> bool:
        return isinstance(other, int)


ANY_TIME = _AnyTime()


@ENGINES
@pytest.mark.parametrize("drain", [False, True])
def test_a_timer_that_goes_on_for_ever_does_not_keep_a_bounded_run_from_its_end(kind: Any, drain: bool) -> None:
    s = simulation_of(kind, pipeline(Pulse))
    bounded_run(s, 1_000, drain)
    assert bounded_run(s, 2_000, drain).computations["Beat"].fired == 1
    assert bounded_run(s, 2_001, drain).computations["Beat"].fired == 2


@ENGINES
@EDGES
@pytest.mark.parametrize("at", [5_000, 10, 10**12])
def test_what_a_wall_clock_timer_produces_after_the_end_of_event_time_is_late_for_nobody(kind: Any, production: str, at: int) -> None:
    s = kind(pipeline(production=production).program(), InputPlan([[("in", {**ROW, "at": at})]], [1_000]), [], seed=1)
    bounded_run(s, 1_000, True)
    last = bounded_run(s, 2_000, True)
    assert {name: c.late for name, c in last.computations.items() if c.late} == {}
    assert [row[2] for row in s.ledgers["both"].rows("both")].count(2_000) == 1


@EDGES
@pytest.mark.parametrize("at", [5_000, 10, 10**12])
@pytest.mark.parametrize("epochs", range(6))
def test_nor_is_it_while_a_drain_goes_on(production: str, at: int, epochs: int) -> None:
    runner = LocalRunner(pipeline(production=production), now=1_000)
    runner.push("in", {**ROW, "at": at})
    runner.run()
    runner._engine.drained = True
    for _ in range(epochs):
        runner.epoch()
    runner._engine.now = 2_000  # in the middle of it
    runner.drain()
    assert [runner.late(name) for name in ("Heard", "Below", "Slower", "Both")] == [0, 0, 0, 0]
    assert runner.state("Both", "a").count(2_000) == 1 and runner.state("Below", "a") == [2_000]


def test_twin_the_timer_s_own_time_would_be_late_at_who_still_waits_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    import millstream.core.authority as authority

    monkeypatch.setattr(authority, "_newest", lambda *standings: BEGINNING)
    with pytest.raises(AssertionError):
        for epochs in range(6):
            test_nor_is_it_while_a_drain_goes_on(ms.WEAK, 10**12, epochs)


def test_after_the_end_a_production_is_as_new_as_what_anybody_still_waits_for() -> None:
    topology = pipeline().program().topology
    ended = {name: Standing(low=END, output=END) for name in topology.by_name}
    waiting = {**ended, "Both": Standing(low=7_000, output=7_000)}
    assert times(topology, waiting, waiting, 1, 1)["Beat"].least == 7_000
    assert times(topology, ended, ended, 1, 1)["Beat"].least == BEGINNING
    assert times(topology, ended, ended, 1, 1)["Both"].late_before == BEGINNING


@pytest.mark.slow
@pytest.mark.parametrize("resident", [False, True])
@EDGES
def test_it_is_so_under_faults(production: str, resident: bool) -> None:
    rows = [{"k": "ab"[at % 2], "at": at, "id": str(at)} for at in range(0, 60, 7)]
    assert_exactly_once(pipeline(production=production), rows, seeds=range(some(20)), epochs="same", resident=resident)


@ENGINES
def test_the_time_of_the_commit_and_the_clock_of_the_epoch_are_two_things(kind: Any) -> None:
    """A run that only settles what is left gives its epochs the clock of the last input; they are committed when they are committed."""
    s = simulation_of(kind, pipeline(Heard, ms.STRONG))
    s.now = 1_000
    driver: Any = Driver(s) if isinstance(s, Simulation) else SparkLogDriver(s)
    if isinstance(s, Simulation):
        driver.turn()
    else:
        driver.run(s.plan.epochs[0], 0)
    driver.epochs.clock = lambda: 77_000_000
    driver.epochs.settle(lambda: False)
    latest = ManifestLog(s.storage).latest()
    assert latest is not None and latest.settle and (latest.now, latest.committed_at) == (1_000, 77_000_000)
    status = status_of("wall", latest)
    assert (status.clock, status.committed_at) == (1_000, 77_000_000)
    console = Console(width=200)
    with console.capture() as said:
        console.print(render.overview(Overview("here", "id", 2, "1-a", status)))
    assert "committed 1970-01-01 21:23:20.000 UTC" in said.get() and "its clock (self.now) is 1970-01-01 00:00:01.000" in said.get()


def test_a_manifest_that_does_not_say_when_it_was_committed_shows_its_clock_as_ever() -> None:
    old = Manifest(3, "1-a", 5_000, [(0, "1-a")])
    assert (status_of("wall", old).clock, status_of("wall", old).committed_at) == (5_000, 5_000)


@pytest.mark.parametrize("to", [1_005_000, "5s", "5000 ms", datetime.timedelta(seconds=5)])
def test_the_clock_of_a_test_goes_to_a_time_or_by_a_step(to: Any) -> None:
    runner = LocalRunner(pipeline(), now=1_000_000)
    runner.push("in", ROW)
    runner.run()
    runner.advance_clock(to)
    assert runner.output("beats") == [("a", 1_001_000, 5_000)]
    runner.push("in", {**ROW, "id": "2"})
    runner.run()
    assert [timer.time for timer in runner.timers("Beat", "a")] == [1_006_000], "the clock stands at 1,005,000"


@pytest.mark.parametrize(
    ("to", "says"),
    [
        (5_000, r"a number is a time, not a step, and the clock stands at 1000000 already.*write advance_clock\('5000ms'\)"),
        (5.5, "give a time as an int"),
        (None, "give a time as an int"),
        (True, "give a time as an int"),
        (datetime.timedelta(seconds=-5), "does not go back"),
    ],
)
def test_a_clock_that_is_told_something_else_says_what_it_wants(to: Any, says: str) -> None:
    runner = LocalRunner(pipeline(), now=1_000_000)
    with pytest.raises(ValueError, match=says):
        runner.advance_clock(to)
    with pytest.raises(ms.errors.DefinitionError, match="is not a duration"):
        runner.advance_clock("5 parsecs")
