"""Pipelines and helpers for the paper's statements."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

import millstream as ms
from computations import Gather, Sum, Windows
from effort import some
from millstream.core.guards import Guards
from millstream.simulation.fault import Fault
from millstream.simulation.schedules import make_plan
from millstream.simulation.simulated_run import InputPlan
from millstream.state.storage import Storage
from sparklog import SparkLogSimulation

SOURCE = ms.sources.files("nowhere", schema="k string, n long, at long, id string", format="json")


class Echo(ms.Computation):
    """Says what it hears, and keeps nothing."""

    def process_record(self, record: ms.Record) -> None:
        self.produce(record.value["n"])


class Dice(ms.Computation):
    """Not deterministic: a random number for every record, and what it said so far."""

    State = list

    def process_record(self, record: ms.Record) -> None:
        number = random.SystemRandom().randrange(10**9)
        self.state.append(number)
        self.produce(number)


def key(record: ms.Record) -> Any:
    """The producer's key, through a way of its own."""
    return record.key


def rows(count: int = 30, seed: int = 1) -> list[dict[str, Any]]:
    dice = random.Random(seed)
    return [
        {"k": dice.choice("abcd"), "n": dice.randrange(9), "at": 1_000 + 10 * i + dice.randrange(50), "id": str(i)} for i in range(count)
    ]


def inject(p: ms.Pipeline, **options: Any) -> ms.Stream:
    return p.inject("in", SOURCE, timestamp="at", **{"id": "id", "watermark": ms.watermarks.bounded("60ms"), **options})


def sums(production: str = ms.WEAK, **options: Any) -> ms.Pipeline:
    """Sums per key, then windows over the sums behind an edge."""
    p = ms.Pipeline("sums")
    stream = p.compute(Sum, inject(p, **options), key="k", produces="sums", production=production)
    p.compute(Windows, stream, key=key, produces="windows")
    return p


def echoes() -> ms.Pipeline:
    """Windows behind a strong edge. Before it nothing is kept, so that a unit of the producer holds stored productions and nothing else."""
    p = ms.Pipeline("echoes")
    stream = p.compute(Echo, inject(p, dedup=None), key="k", produces="echoes", production=ms.STRONG)
    p.compute(Windows, stream, key=key, produces="windows")
    return p


def dice(production: str) -> ms.Pipeline:
    p = ms.Pipeline("dice")
    p.compute(Gather, p.compute(Dice, inject(p), key="k", produces="dice", production=production), key=key)
    return p


def simulate(
    pipeline: ms.Pipeline,
    faults: Sequence[Fault],
    seed: int = 1,
    guards: str = "",
    plan: InputPlan | None = None,
    storage: Storage | None = None,
) -> tuple[SparkLogSimulation, Any]:
    """One run under a schedule made by hand; the simulation and the last manifest."""
    plan = plan or make_plan([("in", row) for row in rows()], seed)
    simulation = SparkLogSimulation(pipeline.program(), plan, faults, seed, guards=Guards.without(guards), storage=storage)
    return simulation, simulation.run()


def states(simulation: SparkLogSimulation, manifest: Any, computation: str) -> dict[str, Any]:
    """The committed state of every key of a computation."""
    from millstream.core.keyspace import ROW, decode_row
    from millstream.state.segment import merge

    _, kind = simulation.compiled.make(computation)
    return {
        entry[1:].decode(): kind.decode(decode_row(raw).state)
        for shard in manifest.computations[computation].shards
        for entry, raw in merge(simulation.storage, shard.segments, drop_deleted=True)
        if entry.startswith(ROW) and raw is not None
    }


def holds(pipeline: ms.Pipeline, faults: Sequence[str], seeds: int = 40) -> None:
    """The guarantee: under these faults everything ends as if nothing had happened.

    Records are out of order and most computations tell each one, so results depend on how they fall into epochs: compared are the same epochs.
    """
    ms.testing.assert_exactly_once(pipeline, rows(), seeds=range(some(seeds)), faults=faults, epochs="same")


def fails_without(guards: str, pipeline: ms.Pipeline, faults: Sequence[str], match: str = "is not exactly once", seeds: int = 60) -> None:
    """The negative twin: with the guard off, some seed fails."""
    with pytest.raises(AssertionError, match=match):
        ms.testing.assert_exactly_once(pipeline, rows(), seeds=range(seeds), faults=faults, guards=Guards.without(guards), epochs="same")
