"""Delivery on Spark: edges of every kind, cycles, deduplication, holds, late records, dead letters, watermark policies, against the local engine."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
from sparkkit import BASE, run, write

import millstream as ms
import support
from millstream.state.manifest_log import ManifestLog
from millstream.state.storage import open_storage

pytestmark = pytest.mark.spark

SCHEMA = "k string, n long, at long, id string"


class Pass(ms.Computation):
    """Hands on what it gets; some of it makes it raise."""

    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += 1
        if record.value["n"] == 13:
            raise ValueError("thirteen")
        self.produce(record.value["n"])


class Windows(ms.Computation):
    """Sums per window of 100, emitted at its middle: held until then."""

    State = dict

    def process_record(self, record: ms.Record) -> None:
        window = record.timestamp - record.timestamp % 100
        self.state[window] = self.state.get(window, 0) + record.value
        self.set_timer("window", window + 100, hold=window + 50)

    def process_timer(self, timer: ms.Timer) -> None:
        assert timer.hold is not None
        self.produce(self.state.pop(timer.time - 100), timestamp=timer.hold)


class Halve(ms.Computation):
    """Sends a number round until it is 0."""

    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += 1
        if record.value > 0:
            self.produce(record.value // 2, stream="again")
        else:
            self.produce(self.state, stream="rounds")


class Gather(ms.Computation):
    """All that came, in order."""

    State = list

    def process_record(self, record: ms.Record) -> None:
        self.state.append([record.stream, record.timestamp, record.value])
        self.produce(len(self.state))


def everything(work: Path) -> ms.Pipeline:
    p = ms.Pipeline("everything")

    def source(name: str) -> Any:
        return ms.sources.files(work / name, schema=SCHEMA, format="json", max_files_per_epoch=1)

    one = p.inject("one", source("one"), timestamp="at", id="id", watermark=ms.watermarks.bounded("40ms"))
    two = p.inject(
        "two", source("two"), timestamp="at", id="id", watermark=ms.watermarks.sub_sources("k", ["a", "b"], ms.watermarks.bounded("40ms"))
    )
    passed = p.compute(Pass, one, two, key="k", produces="passed", production=ms.STRONG, late="late", on_error=ms.DEAD_LETTER)
    windows = p.compute(Windows, passed, key=lambda record: record.key, produces="windows", production=ms.ADAPTIVE)
    p.compute(Halve, windows, "again", key=lambda record: record.key, produces=["again", "rounds"], production={"again": ms.STRONG})
    p.compute(Gather, "rounds", windows, "late", key=lambda record: "all", produces="gathered")
    for stream in ("passed", "late", "windows", "rounds", "gathered"):
        p.emit(stream, ms.sinks.files(work / "out" / stream), ids=True)
    p.emit(p.dead_letters("Pass"), ms.sinks.files(work / "out" / "dead"))
    return p


def inputs(count: int, seed: int) -> list[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """Files for both sources: disorder, late records, repeated records, and some that make a hook raise."""
    dice = random.Random(seed)
    old: list[dict[str, Any]] = []
    files = []
    for at in range(count):
        pair = []
        for source in ("one", "two"):
            rows = []
            for i in range(12):
                if old and dice.random() < 0.15:
                    row = dict(dice.choice([r for r in old if r["id"].startswith(source)] or [old[0]]))
                    if not row["id"].startswith(source):
                        continue
                    rows.append(row)
                    continue
                late = 400 if dice.random() < 0.05 else 0
                rows.append(
                    {
                        "k": dice.choice("abc"),
                        "n": dice.choice([1, 2, 5, 13]),
                        "at": BASE + 100 * at + dice.randrange(100) - late,
                        "id": f"{source}-{at}-{i}",
                    }
                )
            old += rows
            pair.append(rows)
        files.append((pair[0], pair[1]))
    return files


def published(work: Path, stream: str) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = {}
    for path in sorted((work / "out" / stream).glob("*.jsonl"), key=lambda p: p.name.rsplit("-", 1)[-1]):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            found.setdefault(row["key"], []).append((row["value"], row["timestamp"], row.get("id")))
    return found


@pytest.mark.parametrize("shards", [1, 3])
def test_oracle_edges_of_every_kind_with_all_that_can_happen_to_a_record(spark: Any, tmp_path: Path, shards: int) -> None:
    files = inputs(5, shards)
    for at, (one, two) in enumerate(files):
        for name, rows in (("one", one), ("two", two)):
            write(tmp_path / name, f"{at}.json", rows)
    handle = run(everything(tmp_path), spark, tmp_path, shards=shards)
    runner = ms.testing.LocalRunner(everything(tmp_path), shards=shards)
    for one, two in files:
        runner.push("one", *one)
        runner.push("two", *two)
        runner.epoch()
    runner.drain()
    for stream in ("passed", "late", "windows", "rounds", "gathered"):
        expected: dict[Any, list[Any]] = {}
        for emitted in runner.records(stream):
            expected.setdefault(emitted.key, []).append((emitted.value, emitted.timestamp, emitted.id))
        assert published(tmp_path, stream) == expected, stream
    dead = [value["id"] for _, value, _ in runner.output("Pass.dead-letters")]
    assert sorted(row[0]["id"] for rows in published(tmp_path, "dead").values() for row in rows) == sorted(dead) != []
    engine = runner._engine
    for name, found in support.entries(tmp_path / "checkpoint").items():
        assert found == {k: v for shard in range(shards) for k, v in engine.stores[name, shard].entries.items()}, name
    status = handle.status()
    passed = next(c for c in status.computations if c.name == "Pass")
    assert passed.late == runner.late("Pass") == sum(passed.late_by.values()) > 0
    assert passed.dead_letters == len(dead)
    assert passed.dedup.dropped == runner.duplicates > 0
    assert passed.dedup.checked == sum(len(one) + len(two) for one, two in files)
    assert passed.ids_held == sum(len(ids) for ids in engine.ids.values())
    assert passed.last_late and {late.stream for late in passed.last_late} <= {"one", "two"}
    assert all(c.waiting == 0 for c in status.computations)


class Slow(ms.Computation):
    """Takes long while a flag is there; raises while another is."""

    State = int
    slow = broken = ""

    def process_record(self, record: ms.Record) -> None:
        if os.path.exists(self.slow):
            time.sleep(0.4)
        if os.path.exists(self.broken):
            raise RuntimeError("out of order")
        self.state += 1
        self.produce(self.state)


def adaptive(work: Path, sink: ms.sinks.Memory) -> ms.Pipeline:
    p = ms.Pipeline("adaptive")
    source = ms.sources.files(work / "in", schema=SCHEMA, format="json", max_files_per_epoch=1)
    passed = p.compute(Pass, p.inject("in", source, timestamp="at"), key="k", produces="passed", production=ms.ADAPTIVE, slow_after="200ms")
    slow = type("Slow", (Slow,), {"slow": str(work / "slow"), "broken": str(work / "broken")})
    p.emit(p.compute(slow, passed, key=lambda record: "x", produces="out"), sink)
    return p


def one_row(number: int) -> list[dict[str, Any]]:
    return [{"k": "a", "n": 1, "at": BASE + number, "id": str(number)}]


def test_an_adaptive_edge_stores_while_its_consumer_is_slow_and_says_why(spark: Any, tmp_path: Path) -> None:
    sink = ms.sinks.memory()
    (tmp_path / "slow").touch()
    for number in range(3):
        write(tmp_path / "in", f"{number}.json", one_row(number))
    status = run(adaptive(tmp_path, sink), spark, tmp_path, drain=False).status()
    state = status.edges["passed → Slow"]
    assert state.stored and "ms, more than 200 ms" in state.why
    assert next(c for c in status.computations if c.name == "Slow").waiting == 0, "what is stored is delivered before a bounded run ends"
    assert len(sink.collected) == 3
    (tmp_path / "slow").unlink()
    for number in range(3, 9):
        write(tmp_path / "in", f"{number}.json", one_row(number))
    handle = run(adaptive(tmp_path, sink), spark, tmp_path, drain=False)
    assert not handle.status().edges["passed → Slow"].stored
    stored = [bool(epoch["stored"]) for epoch in handle.epochs() if epoch["records"]]
    assert stored[0] and not stored[-1]
    assert [row.value for row in sink.collected] == list(range(1, 10))


def test_when_the_consumer_of_an_adaptive_edge_fails_its_producer_goes_on_and_is_not_repeated(spark: Any, tmp_path: Path) -> None:
    sink = ms.sinks.memory()
    write(tmp_path / "in", "0.json", one_row(0))
    run(adaptive(tmp_path, sink), spark, tmp_path, drain=False)
    (tmp_path / "broken").touch()
    write(tmp_path / "in", "1.json", one_row(1))
    handle = adaptive(tmp_path, sink).run(spark, checkpoint=tmp_path / "checkpoint", available_now=True, drain=False)
    with pytest.raises(ms.errors.HookError, match="out of order"):
        handle.await_termination()  # the input is committed, and what is stored for the consumer cannot be delivered
    state = handle.status().edges["passed → Slow"]
    assert state.stored and "its consumer failed" in state.why and "out of order" in state.why
    assert next(c for c in handle.status().computations if c.name == "Pass").records == 2, "the producer's work is committed"
    with pytest.raises(ms.errors.HookError, match="out of order"):
        run(adaptive(tmp_path, sink), spark, tmp_path, drain=False)
    (tmp_path / "broken").unlink()
    status = run(adaptive(tmp_path, sink), spark, tmp_path).status()
    assert [row.value for row in sink.collected] == [1, 2]
    assert next(c for c in status.computations if c.name == "Pass").records == 2


def chain(work: Path, length: int, kind: str) -> ms.Pipeline:
    p = ms.Pipeline("chain")
    stream = p.inject("in", ms.sources.files(work / "in", schema=SCHEMA, format="json", max_files_per_epoch=1), timestamp="at")
    stream = p.compute(Pass, stream, key="k", name="P0", produces="s0", production=kind)
    for at in range(1, length):
        stream = p.compute(Gather, stream, key=lambda record: record.key, name=f"P{at}", produces=f"s{at}", production=kind)
    return p


def test_a_chain_of_strong_edges_costs_one_stage_per_epoch_whatever_its_length(spark: Any, tmp_path: Path) -> None:
    stages = {}
    for kind, length in ((ms.STRONG, 2), (ms.STRONG, 5), (ms.WEAK, 5)):
        work = tmp_path / f"{kind}{length}"
        write(work / "in", "0.json", one_row(0))
        store = spark._jsc.sc().statusStore()
        before = store.jobsList(None).size()
        handle = run(chain(work, length, kind), spark, work, shards=1)
        assert next(c for c in handle.status().computations if c.name == f"P{length - 1}").records == 1
        jobs = store.jobsList(None)
        mine = sorted((jobs.apply(i) for i in range(jobs.size())), key=lambda job: job.jobId())[before:]
        stages[kind, length] = max(job.stageIds().size() for job in mine)
    assert stages[ms.STRONG, 2] == stages[ms.STRONG, 5] == 2, "reading the source, and one for all computations"
    assert stages[ms.WEAK, 5] == 6


class Times(ms.Computation):
    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += 1


POLICIES = [
    (ms.watermarks.bounded("50ms"), BASE + 250, "its newest record"),
    (ms.watermarks.declared("n"), BASE + 7, "declares"),
    (ms.watermarks.declared(lambda: BASE + 123), BASE + 123, "declares"),
    (ms.watermarks.percentile(0.9, first="77ms"), BASE + 223, "estimated"),
    (ms.watermarks.sub_sources("k", ["a", "b"], ms.watermarks.bounded("10ms")), BASE + 190, "sub-source 'b'"),
    (ms.watermarks.sub_sources("k", ["a", "zz"], ms.watermarks.bounded("10ms")), ms.BEGINNING, "'zz', of which nothing was heard"),
    (ms.watermarks.files(r"/([0-9]+)\.json"), 2, "oldest file"),
]


def test_every_watermark_policy_works_on_spark_and_says_what_holds_it(spark: Any, tmp_path: Path) -> None:
    p = ms.Pipeline("policies")
    for at, (policy, _, _) in enumerate(POLICIES):
        source = ms.sources.files(tmp_path / "in", schema=SCHEMA, format="json", max_files_per_epoch=1)
        p.compute(Times, p.inject(f"in{at}", source, timestamp="at", watermark=policy), key="k", name=f"times{at}")
    for number in range(3):
        rows = [
            {"k": "a", "n": BASE + 5 + number, "at": BASE + 100 * (number + 1), "id": "x"},
            {"k": "b", "n": 0, "at": BASE + 100 * number, "id": "y"},
        ]
        write(tmp_path / "in", f"{number}.json", rows)
    status = run(p, spark, tmp_path, drain=False).status()
    latest = ManifestLog(open_storage(str(tmp_path / "checkpoint"))).latest()
    assert latest is not None
    for (_, expected, held_by), injector, computation in zip(POLICIES, status.injectors, status.computations, strict=True):
        assert injector.watermark == computation.low_watermark == expected
        assert held_by in injector.held_back_by and held_by in computation.held_back_by.text
        assert computation.behind == (latest.now - expected if expected > ms.BEGINNING else None)


def test_status_names_the_key_whose_state_holds_time_back(spark: Any, tmp_path: Path) -> None:
    p = ms.Pipeline("holder")
    source = ms.sources.files(tmp_path / "in", schema=SCHEMA, format="json", max_files_per_epoch=1)
    passed = p.compute(Pass, p.inject("in", source, timestamp="at"), key="k", produces="passed")
    windows = p.compute(Windows, passed, key=lambda record: record.key, produces="windows")
    p.compute(Gather, windows, key=lambda record: "all")
    for number in range(3):
        write(tmp_path / "in", f"{number}.json", [{"k": f"key{number}", "n": 1, "at": BASE + 10 + 40 * number, "id": str(number)}])
    status = run(p, spark, tmp_path, drain=False).status()
    gather = next(c for c in status.computations if c.name == "Gather")
    assert gather.low_watermark == BASE + 50
    assert (
        "the timer 'window' at" in gather.held_back_by.text
        and "of key 'key" in gather.held_back_by.text
        and "'Windows'" in gather.held_back_by.text
    )
