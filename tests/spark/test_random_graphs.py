"""Random graphs on random input: the local engine, micro-batches and resident tasks agree, row by row and key by key."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.state.manifest_log import ManifestLog
from millstream.state.storage import open_storage

pytestmark = pytest.mark.spark

EPOCHS = 4
GRAPHS = 5
SCHEMA = "k string, n long, at long, id string"


class Running(ms.Computation):
    """A running total, told with every record."""

    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += number(record.value)
        self.produce(self.state)


class Windows(ms.Computation):
    """Totals of windows of 100 ms, told when they are complete; what is late is told at once."""

    State = dict

    def process_record(self, record: ms.Record) -> None:
        end = record.timestamp - record.timestamp % 100 + 100
        self.state[end] = self.state.get(end, 0) + number(record.value)
        self.set_timer("end", end)

    def process_timer(self, timer: ms.Timer) -> None:
        self.produce(self.state.pop(timer.time))

    def process_late_record(self, record: ms.Record) -> None:
        self.produce(-number(record.value))


class Several(ms.Computation):
    """As many rows as there are units, under other keys; entries in a MapState."""

    State = ms.MapState

    def process_record(self, record: ms.Record) -> None:
        n = number(record.value) % 4
        for i in range(n):
            self.state[i] = self.state.get(i, 0) + 1
            self.produce(self.state[i] + i)


def number(value: Any) -> int:
    return int(value["n"] if isinstance(value, dict) else value)


def parity(record: ms.Record) -> int:
    return number(record.value) % 3


def same(record: ms.Record) -> Any:
    return record.key


class Graph:
    """A random graph: one or two sources, two to five computations, edges of every kind."""

    def __init__(self, seed: int, pipeline: ms.Pipeline, work: Path) -> None:
        dice = random.Random(seed)
        self.input: dict[str, list[list[dict[str, Any]]]] = {}
        self.streams: list[str] = []
        self.computations: list[str] = []
        sources = []
        for at in range(dice.randint(1, 2)):
            name = f"g{seed}.in{at}"
            self.input[name] = [self._rows(dice, epoch) for epoch in range(EPOCHS)]
            source = ms.sources.files(work / name, schema=SCHEMA, format="json", max_files_per_epoch=1)
            policy = dice.choice([ms.watermarks.bounded("50ms"), ms.watermarks.bounded("0s"), ms.watermarks.declared("n")])
            id = dice.choice(["id", None])
            sources.append(pipeline.inject(name, source, timestamp="at", id=id, watermark=policy))
        known: list[Any] = list(sources)
        for at in range(dice.randint(2, 5)):
            inputs = dice.sample(known, dice.randint(1, min(2, len(known))))
            keys = {
                (one.name if hasattr(one, "name") else one): dice.choice(["k", ["k", "n"], "n"])
                if one in sources
                else dice.choice([same, parity])
                for one in inputs
            }
            given = [one if one in sources else one.via(dice.choice([ms.WEAK, ms.STRONG])) for one in inputs]
            name = f"g{seed}.c{at}"
            made = pipeline.compute(
                dice.choice([Running, Windows, Several]),
                *given,
                name=name,
                produces=f"{name}.out",
                key=keys,
                **dice.choice([{"late": ms.DROP}, {}]),
            )
            self.streams.append(f"{name}.out")
            self.computations.append(name)
            known.append(made)

    @staticmethod
    def _rows(dice: random.Random, epoch: int) -> list[dict[str, Any]]:
        return [
            {
                "k": dice.choice(["a", "b", "ü", "", "\0x"]),
                "n": dice.randint(-5, 30),
                "at": 1_000 * (epoch + 1) + dice.randint(-600, 600),
                "id": f"{dice.randint(0, 25)}",
            }
            for _ in range(dice.randint(0, 12))
        ]


Found = tuple[dict[str, dict[Any, list[tuple[Any, int]]]], dict[str, int]]


def on_spark(spark: Any, work: Path, **options: Any) -> Found:
    p = ms.Pipeline("graphs")
    graphs = [Graph(seed, p, work) for seed in range(GRAPHS)]
    for graph in graphs:
        for stream, epochs in graph.input.items():
            (work / stream).mkdir(parents=True)
            for at, rows in enumerate(epochs):
                path = work / stream / f"{at}.json"
                path.write_text("".join(json.dumps(row) + "\n" for row in rows))
                os.utime(path, (1_700_000_000 + at, 1_700_000_000 + at))
    sinks = {stream: ms.sinks.memory() for graph in graphs for stream in graph.streams}
    for stream, sink in sinks.items():
        p.emit(stream, sink)
    p.run(spark, checkpoint=work / "checkpoint", available_now=True, shards=3, quiet=True, **options).await_termination()
    end = ManifestLog(open_storage(work / "checkpoint")).latest()
    assert end is not None
    rows = {stream: _by_key([(r.key, r.value, r.timestamp) for r in sink.collected]) for stream, sink in sinks.items()}
    return rows, {name: sum(shard.keys for shard in state.shards) for name, state in end.computations.items()}


def locally(seed: int, work: Path) -> Found:
    p = ms.Pipeline("graphs")
    graph = Graph(seed, p, work)
    runner = ms.testing.LocalRunner(p, shards=3)
    for epoch in range(EPOCHS):
        for stream, epochs in graph.input.items():
            runner.push(stream, *epochs[epoch])
        runner.epoch()
    runner.drain()
    rows = {stream: _by_key([(e.key, e.value, e.timestamp) for e in runner.records(stream)]) for stream in graph.streams}
    return rows, {name: len(runner.state(name)) for name in graph.computations}


def _by_key(rows: list[tuple[Any, Any, int]]) -> dict[Any, list[tuple[Any, int]]]:
    found: dict[Any, list[tuple[Any, int]]] = {}
    for key, value, timestamp in rows:
        found.setdefault(key, []).append((value, timestamp))
    return found


def test_the_three_agree(spark: Any, tmp_path: Path) -> None:
    micro, resident = on_spark(spark, tmp_path / "micro"), on_spark(spark, tmp_path / "resident", resident=True)
    told = 0
    for seed in range(GRAPHS):
        rows, keys = locally(seed, tmp_path)
        for stream, expected in rows.items():
            assert micro[0][stream] == expected, f"seed {seed}, micro-batch, {stream}"
            assert resident[0][stream] == expected, f"seed {seed}, resident, {stream}"
            told += sum(map(len, expected.values()))
        assert {name: count for name, count in micro[1].items() if name in keys} == keys, f"seed {seed}"
        assert {name: count for name, count in resident[1].items() if name in keys} == keys, f"seed {seed}"
    assert told > 100
