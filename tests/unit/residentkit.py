"""Programs for resident faults: their productions go to other tasks, on up to three levels."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import millstream as ms
from computations import Sum
from millstream.core.guards import Guards
from millstream.simulation.fault import Fault
from millstream.simulation.schedules import make_plan
from millstream.simulation.simulated_run import Simulation
from millstream.state.manifest import Manifest

SOURCE = ms.sources.files("nowhere", schema="k string, n long, at long, id string", format="json")
ROWS = [{"k": "abcde"[i * 7 % 5], "n": i % 6, "at": 1_000 + 10 * i + 35 * (i % 3), "id": str(i)} for i in range(20)]


class Windows(ms.Computation):
    """Sums per window, told by a timer."""

    State = dict

    def process_record(self, record: ms.Record) -> None:
        window = record.timestamp - record.timestamp % 100
        self.state[window] = self.state.get(window, 0) + record.value
        self.set_timer("w", window + 100)
        self.set_timer("wall", self.now + 700, kind=ms.WALL_CLOCK)

    def process_timer(self, timer: ms.Timer) -> None:
        self.produce(self.state.pop(timer.time - 100) if timer.kind == ms.LOW_WATERMARK else "wall")


class Fragile(Sum):
    """Fails now and then; dead letters have what it failed on."""

    def process_record(self, record: ms.Record) -> None:
        super().process_record(record)
        if record.value["n"] == 3:
            raise ValueError("three")


class Collect(ms.Computation):
    """Everything that came, by id: nothing may be lost, nothing may be there twice."""

    State = ms.MapState

    def process_record(self, record: ms.Record) -> None:
        self.state[record.stream, record.id] = record.value


class Roll(ms.Computation):
    """Does not repeat itself: a random number for every record, and all that it said."""

    State = list

    def process_record(self, record: ms.Record) -> None:
        number = random.SystemRandom().randrange(10**9)
        self.state.append(number)
        self.produce(number)


class Heard(ms.Computation):
    """All that it heard."""

    State = list

    def process_record(self, record: ms.Record) -> None:
        self.state.append(record.value)


def inject(p: ms.Pipeline, **options: Any) -> ms.Stream:
    return p.inject("in", SOURCE, timestamp="at", id="id", watermark=ms.watermarks.bounded("60ms"), **options)


def elsewhere(record: ms.Record) -> Any:
    """Another key than the producer's, so most likely another task."""
    return f"to {record.key}"


def one_level() -> ms.Pipeline:
    p = ms.Pipeline("one")
    p.compute(Sum, inject(p), key="k", produces="sums")
    return p


def two_levels(production: str = ms.WEAK) -> ms.Pipeline:
    p = ms.Pipeline("two")
    sums = p.compute(Sum, inject(p), key="k", produces="sums", production=production)
    p.compute(Windows, sums, key=elsewhere, produces="windows")
    return p


def three_levels(computation: Any = Fragile, production: str = ms.WEAK) -> ms.Pipeline:
    p = ms.Pipeline("three")
    sums = p.compute(
        computation, inject(p), key="k", produces="sums", production=production, on_error=ms.DEAD_LETTER, late="late", name="First"
    )
    windows = p.compute(Windows, sums, key=elsewhere, produces="windows", production=ms.STRONG)
    p.compute(Sum, "late", key=elsewhere, name="Late", produces="latesums", on_error=ms.DEAD_LETTER)
    p.compute(Collect, windows, sums, key=lambda record: "all")
    return p


def rolling() -> ms.Pipeline:
    """Numbers that are never the same again, over a weak edge into other tasks."""
    p = ms.Pipeline("rolling")
    p.compute(Heard, p.compute(Roll, inject(p), key="k", produces="numbers"), key=lambda record: str(record.value % 7))
    return p


def simulate(
    pipeline: ms.Pipeline, faults: Sequence[Fault], seed: int = 1, guards: str = "", shards: int = 4
) -> tuple[Simulation, Manifest]:
    """One resident run under a schedule made by hand; the simulation and the last manifest."""
    plan = make_plan([("in", row) for row in ROWS], seed)
    simulation = Simulation(pipeline.program(), plan, faults, seed, shards, Guards.without(guards), resident=True)
    return simulation, simulation.run()
