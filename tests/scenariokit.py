"""Scenarios: text files with a pipeline, a seed and a schedule of faults, as the fault kit prints it.

# what it shows
pipeline: two levels
mode: micro-batch | resident | spark log
seed: 17
guard: tokens            with this guard off, the scenario must fail
  1. crash in epoch 2: task.4-staged, task 1
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import millstream as ms
from computations import Sum, Windows
from millstream.core.guards import Guards
from millstream.simulation.fault import Fault, read_schedule
from millstream.simulation.schedules import Counterexample, trial
from millstream.simulation.simulated_run import Simulation
from sparklog import SparkLogSimulation

FOLDER = Path(__file__).parent / "scenarios"
ROWS = [("in", {"k": "abc"[i % 3], "n": i % 5, "at": 1_000 + 70 * i, "id": str(i)}) for i in range(24)]
SOURCE = ms.sources.files("nowhere", schema="k string, n long, at long, id string", format="json")


class Scenario(NamedTuple):
    pipeline: str
    mode: str
    seed: int
    guard: str
    schedule: list[Fault]


def elsewhere(record: ms.Record) -> Any:
    return f"to {record.key}"


def _two_levels(production: str, id: str | None = "id") -> ms.Pipeline:
    p = ms.Pipeline("two")
    stream = p.inject("in", SOURCE, timestamp="at", id=id, watermark=ms.watermarks.bounded("60ms"))
    sums = p.compute(Sum, stream, key="k", produces="sums", production=production)
    p.compute(Windows, sums, key=elsewhere, produces="windows")
    return p


PIPELINES = {"two levels": lambda: _two_levels(ms.WEAK), "strong edge": lambda: _two_levels(ms.STRONG)}


def read(path: Path) -> Scenario:
    text = path.read_text()
    fields = dict(re.findall(r"^(\w+): *(.+)$", text, re.MULTILINE))
    return Scenario(fields["pipeline"], fields["mode"], int(fields["seed"]), fields.get("guard", ""), read_schedule(text))


def run(scenario: Scenario, guards: str = "") -> Counterexample | None:
    return trial(
        PIPELINES[scenario.pipeline]().program(),
        ROWS,
        scenario.seed,
        guards=Guards.without(guards),
        resident=scenario.mode == "resident",
        simulate=SparkLogSimulation if scenario.mode == "spark log" else Simulation,
        schedule=scenario.schedule,
    )
