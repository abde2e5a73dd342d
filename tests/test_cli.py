"""The command line. Checkpoints are made without Spark, by the protocol and the tasks of production."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

import millstream as ms
from millstream.cli import main
from millstream.cli.entry import parser
from millstream.core.time import BEGINNING
from millstream.errors import DamageError, DefinitionError
from millstream.readable import listing
from millstream.simulation.fault import Fault
from millstream.simulation.local import LocalEngine
from millstream.simulation.simulated_run import InputPlan
from millstream.state import heartbeat
from millstream.state.manifest import Manifest
from millstream.state.manifest_log import ManifestLog
from millstream.state.reader import steady
from millstream.state.storage import LocalStorage, open_storage
from millstream.status import render, report
from sparklog import SparkLogDriver, SparkLogSimulation

NOON = 1_714_564_800_000  # 2024-05-01 12:00 UTC


class Count(ms.Computation):
    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += 1
        self.set_timer("close", record.timestamp - record.timestamp % 60_000 + 60_000)
        self.produce(self.state)

    def process_timer(self, timer: ms.Timer) -> None:
        self.state += 100


class Forget(ms.Computation):
    """Gives back its row when the word is 'stop'."""

    State = list

    def process_record(self, record: ms.Record) -> None:
        if record.value["word"] == "stop":
            self.state = []
        else:
            self.state.append(record.value["word"])


@dataclass
class Visit:
    started: int = 0
    pages: ms.MapState = field(default_factory=ms.MapState)
    words: ms.MapState = field(default_factory=ms.MapState)


class Visits(ms.Computation):
    State = Visit

    def process_record(self, record: ms.Record) -> None:
        self.state.started = self.state.started or record.timestamp
        self.state.pages[record.timestamp - NOON] = record.value["word"]
        self.state.words[record.value["word"], record.value["n"]] = 1
        self.set_timer("idle", record.timestamp + 1_000, kind=ms.WALL_CLOCK)


class Whole(ms.Computation):
    State = ms.MapState

    def process_record(self, record: ms.Record) -> None:
        self.state[record.value["word"]] = {"n": record.value["n"]}


class Pickled(ms.Computation):
    State = set
    codec = ms.codecs.pickle

    def process_record(self, record: ms.Record) -> None:
        self.state.add(record.value["word"])


class Recorded:
    """Epochs of the production protocol, with simulated tasks, on a checkpoint in a folder; and the same on the local engine."""

    def __init__(self, pipeline: ms.Pipeline, folder: Path, shards: int = 3) -> None:
        self.local = LocalEngine(pipeline.program(), shards)
        self.simulation = SparkLogSimulation(pipeline.program(), InputPlan([], []), [], seed=1, shards=shards, storage=LocalStorage(folder))
        self.names = [spec.name for spec in self.local.topology.computations]
        self.log = ManifestLog(self.simulation.storage)
        self.log.identify(pipeline.name, shards, shards, list(self.local.topology.injectors))
        self.driver: SparkLogDriver | None = None
        self.rows: list[tuple[str, dict[str, Any]]] = []

    def push(self, stream: str, row: dict[str, Any]) -> None:
        self.rows.append((stream, row))
        self.local.push(stream, row)

    def run_epoch(self) -> None:
        self.driver = self.driver or SparkLogDriver(self.simulation)
        number, rows, self.rows = len(self.simulation.plan.epochs), self.rows, []
        self.simulation.plan.epochs.append(rows)
        self.simulation.plan.clock.append(NOON + number)
        self.driver.run(rows, number)
        self.local.now = NOON + number
        self.local.run_epoch()

    def compact(self) -> None:
        """Chains are compacted beside the next epoch, and the one after it adopts that."""
        self.simulation.schedule.append(Fault("compact", len(self.simulation.plan.epochs)))
        self.run_epoch()
        self.run_epoch()

    def drain(self) -> None:
        assert self.driver is not None
        self.driver.epochs.drain(lambda: False)

    @property
    def token(self) -> str:
        assert self.driver is not None
        return self.driver.epochs.token


def words_pipeline() -> ms.Pipeline:
    pipeline = ms.Pipeline("words")
    source = ms.sources.files("nowhere", schema="word string, n long, at long", format="json")
    words = pipeline.inject("words", source, timestamp="at", watermark=ms.watermarks.bounded("2s"))
    pipeline.compute(Count, words, key="word")
    pipeline.compute(Count, words, key="n", name="CountByNumber")
    pipeline.compute(Count, words, key=["word", "n"], name="CountByBoth")
    pipeline.compute(Visits, words, key="word")
    pipeline.compute(Whole, words, key="n")
    pipeline.compute(Pickled, words, key="n")
    pipeline.compute(Forget, words, key="n")
    return pipeline


def row(word: str, n: int, at: int) -> dict[str, Any]:
    return {"word": word, "n": n, "at": NOON + at}


@pytest.fixture
def engine(tmp_path: Path) -> Recorded:
    """Three epochs of words."""
    engine = Recorded(words_pipeline(), tmp_path / "checkpoint")
    for batch in ([row("tea", 7, 0), row("7", 7, 500)], [row("tea", 8, 1_000), row("coffee", 9, 1_500)], [row("stop", 9, 5_000)]):
        for one in batch:
            engine.push("words", one)
        engine.run_epoch()
    return engine


def newest(engine: Recorded) -> Manifest:
    found = engine.log.latest()
    assert found is not None
    return found


@pytest.fixture
def checkpoint(engine: Recorded) -> str:
    return engine.log.storage.url


def called(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(list(argv)) == 0
    found = capsys.readouterr()
    assert not found.err
    return found.out


def refused(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 1) -> str:
    assert main(list(argv)) == code
    found = capsys.readouterr()
    assert not found.out and "Traceback" not in found.err
    return found.err


def state_of(capsys: pytest.CaptureFixture[str], *argv: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(called(capsys, "state", *argv, "--json"))["rows"]
    return rows


# --- status


def test_status_shows_injectors_and_computations(engine: Recorded, checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = called(capsys, "status", checkpoint).splitlines()
    assert lines[0] == f"words  {checkpoint}"
    assert lines[1].startswith("epoch 2, committed 2024-05-01 12:00:00.002 UTC (") and lines[1].endswith(f"by run {engine.token}")
    assert lines[2] == "driver: no sign of life"
    assert lines[3] == "5 records injected, 3 shards, not drained"
    injector = next(line.split() for line in lines if line.startswith("words ") and checkpoint not in line)
    assert injector[:6] == ["words", "2024-05-01", "12:00:03.000", "2024-05-01", "12:00:05.000", "5"]
    assert " ".join(injector[6:]) == "its newest record, less 2000 ms"
    count = next(line.split() for line in lines if line.startswith("Count "))
    assert count[:11] == ["Count", "2024-05-01", "11:59:59.500", "5.5", "s", "502", "ms", "4", "4", "5", "0"]
    assert not any(line.endswith(" ") for line in lines)


def test_status_as_json(engine: Recorded, checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(called(capsys, "status", checkpoint, "--json"))
    assert (found["checkpoint"], found["shards"], found["token"]) == (checkpoint, 3, engine.token)
    status = found["status"]
    assert (status["pipeline"], status["state"], status["epoch"], status["records"]) == ("words", "committed", 2, 5)
    by_name = {one["name"]: one for one in status["computations"]}
    assert by_name["Count"]["keys"] == 4 and by_name["Visits"]["timers"] == 5
    assert by_name["Count"]["log_bytes"] > 0


@pytest.mark.parametrize(
    ("state", "age", "says"),
    [("running", 2_000, "driver: alive"), ("running", 60_000, "driver: silent"), ("ended", 60_000, "driver: ended 1.0 min ago")],
)
def test_status_says_whether_a_driver_is_alive_and_how_fast(
    checkpoint: str, capsys: pytest.CaptureFixture[str], state: str, age: int, says: str
) -> None:
    at = int(time.time() * 1000) - age
    heartbeat.say(open_storage(checkpoint), heartbeat.Alive("1-abcd", at, "mill", 4711, state, 2, 512.5, 40.0, "files in in/"))
    try:
        assert says in called(capsys, "status", checkpoint)
        found = json.loads(called(capsys, "status", checkpoint, "--json"))
        assert (
            found["alive"] == (says == "driver: alive")
            and found["last_sign"]["at"] == at
            and found["last_sign"]["waits_for"] == "files in in/"
        )
        assert (found["status"]["records_per_second"], found["status"]["epoch_millis"]) == (512.5, 40.0)
    finally:
        open_storage(checkpoint).delete([heartbeat.NAME])


def test_status_before_the_first_epoch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Recorded(words_pipeline(), tmp_path)
    assert "No epoch is committed yet." in called(capsys, "status", str(tmp_path))
    assert json.loads(called(capsys, "status", str(tmp_path), "--json"))["token"] is None
    assert "no committed epoch yet" in refused(capsys, "state", str(tmp_path), "Count")


@pytest.mark.parametrize("command", [["status"], ["state"]])
def test_not_a_checkpoint(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*command, str(tmp_path / "nothing"), *(["Count"] if command == ["state"] else [])]
    assert "is not a checkpoint of Millstream" in refused(capsys, *argv)


class Window(ms.Computation):
    """Holds time at the first record of its window."""

    State = dict

    def process_record(self, record: ms.Record) -> None:
        if record.value["n"] < 0:
            raise ValueError("below nothing")
        if not self.state:
            self.state["first"] = self.hold(record.timestamp)
        self.set_timer("window", NOON + 60_000, hold=record.timestamp)
        self.produce(record.value["n"])

    def process_timer(self, timer: ms.Timer) -> None:
        self.release()


class FailsOnce(ms.Computation):
    State = int
    left = 1

    def process_record(self, record: ms.Record) -> None:
        if FailsOnce.left:
            FailsOnce.left -= 1
            raise RuntimeError("not today")
        self.state += 1
        self.produce(self.state)


@pytest.fixture
def busy(tmp_path: Path) -> str:
    """A checkpoint with a hold, sub-sources, late records, duplicates, dead letters, stored productions and a replaced run: the real protocol, simulated."""
    p = ms.Pipeline("busy")
    source = ms.sources.files("nowhere", schema="k string, host string, n long, at long, id string", format="json")
    policy = ms.watermarks.sub_sources("host", ["eu", "us"], ms.watermarks.bounded("1s"))
    stream = p.inject("in", source, timestamp="at", id="id", watermark=policy)
    options: dict[str, Any] = {"production": ms.ADAPTIVE, "late": ms.DROP, "on_error": ms.DEAD_LETTER}
    windows = p.compute(Window, stream, key="k", produces="windows", **options)
    once = p.compute(FailsOnce, windows, key=lambda record: record.key, produces="once", production=ms.STRONG)
    p.compute(Count, once, key=lambda record: record.key, name="Last")

    def one(k: str, host: str, n: int, at: int) -> tuple[str, dict[str, Any]]:
        return "in", {"k": k, "host": host, "n": n, "at": NOON + at, "id": f"{k}{host}{n}{at}"}

    FailsOnce.left = 1
    first = [one("a", "eu", 1, 0), one("b", "us", 2, 500)]
    epochs = [
        first,
        [one("a", "eu", 1, 9_000), one("b", "us", 2, 20_000), first[1]],
        [one("a", "eu", -1, 30_000)],
        [one("b", "us", 3, 700), one("b", "us", 4, 31_000)],
    ]
    clock = [NOON + 40_000 + at for at in range(len(epochs))]
    schedule = [Fault("zombie", 1, task=0, later=2), Fault("crash", 2, "epoch.5-checked")]
    simulation = SparkLogSimulation(p.program(), InputPlan(epochs, clock), schedule, seed=1)
    simulation.run()
    storage = LocalStorage(tmp_path / "busy")
    ManifestLog(storage).identify("busy", 2, 2, ["in"])
    for name, data in simulation.storage.objects.items():
        epoch = name.removeprefix("manifests/").removesuffix(".json")
        if not (epoch.isdigit() and int(epoch) >= len(epochs)):  # those after the last are the drain's
            storage.put(name, data)
    return storage.url


def test_status_says_what_holds_time_back_and_what_went_astray(busy: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = called(capsys, "status", busy)
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert next(line for line in lines if line.startswith("in ")).endswith(" 8 sub-source 'eu'")
    assert "'eu' 2024-05-01 12:00:29.000" in lines and "'us' 2024-05-01 12:00:30.000" in lines
    assert "Window injector 'in' at 2024-05-01T12:00:29.000Z: sub-source 'eu'" in lines
    assert any(
        line.startswith("FailsOnce a hold at 2024-05-01T12:00:00.000Z by the state of key 'a' of computation 'Window'") for line in lines
    )
    assert "waiting dead letters log" in next(line for line in lines if line.startswith("computation low watermark"))
    assert "Window 8 7 1 7" in lines, "ids checked, by the filter alone, dropped, held"
    assert "windows → FailsOnce stored: its consumer failed: computation 'FailsOnce', key 'a': RuntimeError: not today" in lines
    assert "late in Window: 1 of 'in', the last of them:" in lines
    assert "2024-05-01 12:00:00.700, low watermark 2024-05-01 12:00:08.000, 'in', key 'b': {" in out


def test_status_as_json_has_the_same_facts(busy: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = json.loads(called(capsys, "status", busy, "--json"))["status"]
    window, once, last = (next(c for c in status["computations"] if c["name"] == name) for name in ("Window", "FailsOnce", "Last"))
    assert (window["late_by"], window["dead_letters"], window["ids_held"], window["dedup"]["dropped"]) == ({"in": 1}, 1, 7, 1)
    assert window["last_late"][0]["timestamp"] == NOON + 700
    assert once["waiting"] + last["waiting"] > 0
    assert status["edges"]["windows → FailsOnce"]["stored"]
    assert status["run"].startswith("2-") and set(status["injectors"][0]["sub_sources"]) == {"eu", "us"}


def test_views_of_a_run_in_trouble(busy: str) -> None:
    status = report.overview(ManifestLog(LocalStorage(Path(busy)))).status
    text = render.line(status)
    assert "1 late, 1 duplicate dropped, " in text and " waiting, 1 dead letter, stored: windows → FailsOnce" in text
    status.refused = 2
    for width in (60, 200):
        console = Console(width=width, force_terminal=True, color_system=None, highlight=False)
        with console.capture() as captured:
            console.print(render.progress(status))
        drawn = " ".join(captured.get().split())
        assert "2 writes of replaced runs refused" in drawn and "held back by" in drawn and "stored: its consumer failed" in drawn


def test_nothing_is_held_back_when_event_time_has_ended(engine: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    engine.drain()
    out = called(capsys, "status", engine.log.storage.url)
    assert "injector 'words'" not in out and "adaptive" not in out and "deduplication" not in out and "dead letters" not in out


# --- state


def test_state_shows_the_holds_of_a_key(busy: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = called(capsys, "state", busy, "Window", "--key", "a")
    assert "2024-05-01 12:01:00.000 'window' (low watermark, holds 2024-05-01 12:00:09.000)" in out
    assert [line.split() for line in out.splitlines() if line.startswith("hold")] == [["hold", "2024-05-01", "12:00:00.000"]]
    listing = called(capsys, "state", busy, "Window")
    assert "timers and holds" in listing and "2024-05-01 12:00:00.000 held" in listing
    (found,) = state_of(capsys, busy, "Window", "--key", "a")
    assert found["hold"] == NOON and found["timers"][0]["hold"] == NOON + 9_000


def test_state_of_a_string_key_with_its_timers(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = called(capsys, "state", checkpoint, "Count", "--key", "tea")
    assert "Count, epoch 2" in out and "'tea'  (str, shard" in out
    assert [line.split()[1] for line in out.splitlines() if line.split()[:1] == ["state"]] == ["2"]
    assert "2024-05-01 12:01:00.000 'close' (low watermark)" in out


def test_a_number_and_its_digits_are_two_keys(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert [r["key"] for r in state_of(capsys, checkpoint, "CountByNumber", "--key", "7")] == [7]
    assert [r["key"] for r in state_of(capsys, checkpoint, "Count", "--key", "7")] == ["7"]
    assert [r["key"] for r in state_of(capsys, checkpoint, "Count", "--key", '"7"')] == ["7"]
    assert "no row for key '\"7\"' (str) nor '7' (str)" in refused(capsys, "state", checkpoint, "CountByNumber", "--key", '"7"')


def test_tuple_keys_as_json_and_as_python_writes_them(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ('["tea", 7]', "('tea', 7)"):
        (found,) = state_of(capsys, checkpoint, "CountByBoth", "--key", text)
        assert found["key"] == ["tea", 7] and found["state"] == 1


def test_map_states_in_fields(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = state_of(capsys, checkpoint, "Visits", "--key", "tea")
    assert found["state"] == {"started": NOON}
    assert found["maps"] == [
        {"field": "pages", "entries": 2, "first": [[0, "tea"], [1_000, "tea"]]},
        {"field": "words", "entries": 2, "first": [[["tea", 7], 1], [["tea", 8], 1]]},
    ]
    assert [t["kind"] for t in found["timers"]] == ["wall_clock", "wall_clock"]
    (found,) = state_of(capsys, checkpoint, "Visits", "--key", "tea", "--limit", "1")
    assert found["maps"][0] == {"field": "pages", "entries": 2, "first": [[0, "tea"]]}
    out = called(capsys, "state", checkpoint, "Visits", "--key", "tea", "--limit", "1")
    assert "2 map entries, the first 1:" in out and "('tea', 7): 1" in out and "(wall clock)" in out


def test_a_map_state_that_is_the_whole_state(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = state_of(capsys, checkpoint, "Whole")
    assert [(r["key"], r["maps"][0]["first"]) for r in found] == [
        (7, [["7", {"n": 7}], ["tea", {"n": 7}]]),
        (8, [["tea", {"n": 8}]]),
        (9, [["coffee", {"n": 9}], ["stop", {"n": 9}]]),
    ]
    assert "'coffee': {'n': 9}" in called(capsys, "state", checkpoint, "Whole")
    assert "'coffee': {'n': 9}" in called(capsys, "state", checkpoint, "Whole", "--key", "9")


def test_listing_is_in_order_over_all_shards_and_limited(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert [r["key"] for r in state_of(capsys, checkpoint, "Count")] == ["7", "coffee", "stop", "tea"]
    for limit in range(1, 5):
        assert [r["key"] for r in state_of(capsys, checkpoint, "Count", "--limit", str(limit))] == ["7", "coffee", "stop", "tea"][:limit]
    out = called(capsys, "state", checkpoint, "Count", "--limit", "3")
    assert out.startswith("Count, epoch 2: 4 keys") and "1 more: --limit N" in out and "'tea'" not in out


def test_a_row_that_was_given_back_is_gone(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert [r["key"] for r in state_of(capsys, checkpoint, "Forget")] == [7, 8]
    assert "no row for key '9' (str) nor 9 (int) in epoch 2" in refused(capsys, "state", checkpoint, "Forget", "--key", "9")


def test_pickles_are_loaded_only_on_demand(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = state_of(capsys, checkpoint, "Pickled", "--key", "8")
    assert found["state"]["codec"] == "pickle" and "--unpickle" in found["state"]["hint"]
    assert "bytes of pickle" in called(capsys, "state", checkpoint, "Pickled")
    (found,) = state_of(capsys, checkpoint, "Pickled", "--key", "8", "--unpickle")
    assert found["state"] == ["tea"]


def test_bytes_that_cannot_be_loaded_are_told_not_raised() -> None:
    for codec, raw in (("pickle", b"cno_such_module\nThing\n."), ("msgpack", b"\xc1"), ("mine", b"?")):
        found = listing.decoder(codec, unpickle=True)(raw)
        assert isinstance(found, listing.Opaque) and found.codec == codec and str(len(raw)) in str(found)


def test_an_unknown_computation_names_the_known_ones(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(capsys, "state", checkpoint, "Cuont")
    assert message.startswith("millstream: ") and "no computation called 'Cuont'" in message
    assert "Count, CountByBoth, CountByNumber, Forget, Pickled, Visits, Whole" in message


def test_the_same_rows_after_a_compaction(engine: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    url = engine.log.storage.url
    before = [state_of(capsys, url, name) for name in engine.names]
    engine.compact()
    assert any(
        "-compact-" in ref.name for state in newest(engine).computations.values() for shard in state.shards for ref in shard.segments
    )
    assert [state_of(capsys, url, name) for name in engine.names] == before


@pytest.mark.slow
def test_large_state_agrees_with_the_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline = ms.Pipeline("large")
    source = ms.sources.files("nowhere", schema="word string, at long", format="json")
    pipeline.compute(Count, pipeline.inject("words", source, timestamp="at"), key="word")
    engine = Recorded(pipeline, tmp_path, shards=5)
    for epoch in range(4):
        for n in range(0, 9_000, epoch + 1):
            engine.push("words", {"word": f"w{n:05d}", "at": NOON + epoch * 40_000})
        engine.run_epoch()
    expected = engine.local.state("Count")
    found = steady(engine.log, lambda m: listing.listed(m, "Count", 100_000))
    assert {r.key: r.state for r in found.rows} == expected and found.keys == len(expected) == 9_000
    first = steady(engine.log, lambda m: listing.listed(m, "Count", 10))
    assert [r.key for r in first.rows] == sorted(expected)[:10]
    out = called(capsys, "state", str(tmp_path), "Count", "--key", "w04321")
    assert "1 more" not in out and "'w04321'" in out


# --- while the pipeline runs


def test_objects_that_are_collected_meanwhile(engine: Recorded) -> None:
    log, tries = engine.log, []

    def read(manifest: Any) -> int:
        tries.append(manifest.epoch)
        if len(tries) < 3:
            engine.run_epoch()
            raise DamageError("units/x is missing")
        return manifest.epoch

    assert steady(log, read) == 4 and tries == [2, 3, 4]


def test_an_object_that_the_newest_manifest_misses_is_damage(engine: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    for name in engine.log.storage.list("units"):
        engine.log.storage.delete([name])
    assert "is missing" in refused(capsys, "state", engine.log.storage.url, "Count")


def test_a_manifest_that_is_collected_meanwhile(engine: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [[0], [1, 2]]
    engine.log.storage.delete(["manifests/00000000000000000000.json"])
    monkeypatch.setattr(engine.log, "epochs", lambda: answers.pop(0))
    found = engine.log.latest()
    assert found is not None and found.epoch == 2 and not answers


# --- views


def test_numbers_are_never_cut_in_a_narrow_terminal(engine: Recorded) -> None:
    found = report.overview(engine.log)
    for one in found.status.computations:
        one.records = one.produced = 1_234_567
    console = Console(width=80, force_terminal=True, color_system=None, highlight=False)
    with console.capture() as captured:
        console.print(render.overview(found))
        console.print(render.progress(found.status))
    assert captured.get().count("1,234,567") == 4 * 7 and "…" not in captured.get()


def test_the_line_of_a_log(engine: Recorded) -> None:
    status = report.overview(engine.log).status
    text = render.line(status)
    assert text.startswith("words: epoch 2, 5 records, ")
    assert "low watermark 2024-05-01T11:59:59.500Z (lag 5.5 s)" in text
    before = render.changes(status)
    status.epoch, status.epoch_millis = 3, 9.0
    assert render.changes(status) == before
    status.records += 1
    assert render.changes(status) != before


def test_a_pipeline_that_has_no_epoch_yet(tmp_path: Path) -> None:
    status = report.overview(Recorded(words_pipeline(), tmp_path).log).status
    assert render.line(status) == "words: waiting for the first epoch"
    assert "waiting for the first epoch" in str(render.progress(status))
    assert render.moment(BEGINNING) == "beginning" and render.moment(ms.END) == "end"


# --- the command line itself


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["fly"],
        ["state", "x"],
        ["state", "x", "y", "--limit", "0"],
        ["run", "x.py", "--trigger", "soon"],
        ["run", "x.py", "--trigger", "1s", "--available-now"],
        ["run", "x.py", "--shards", "0"],
        ["run", "no-such-file.py"],
        ["status", "x", "--storage-option", "endpoint"],
    ],
)
def test_wrong_calls(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert capsys.readouterr().err


def commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    return next((dict(action.choices) for action in parser._actions if isinstance(action, argparse._SubParsersAction)), {})


def test_the_help_is_a_table_of_contents_that_fits_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    lines = called(capsys, "--help").splitlines()
    assert 24 <= len(lines) <= 40 and max(map(len, lines)) <= 120
    said = {tuple(re.findall(r"^ {0,2}([a-z]+)(?: ([a-z]+)\b)?", line)[0]) for line in lines if re.match(r" {0,2}[a-z]+ .*  \S", line)}
    for name, command in commands_of(parser()).items():
        actions = commands_of(command)
        if name in ("kv", "partitions"):
            (line,) = [line for line in lines if line.startswith(f"  {name} ")]
            assert sorted(line.split("  ")[-1].strip().partition(":")[0].split(", ")) == sorted(actions)
            said.remove((name, ""))
        else:
            for found in {(name, action) for action in actions or [""]}:
                said.remove(found)
    assert not said, "commands that do not exist"


@pytest.mark.parametrize(("short", "long"), [("status", "status"), ("state", "state"), ("view", "view"), ("check-view", "check")])
def test_the_four_of_inspect_have_short_forms(short: str, long: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = [called(capsys, *words, "--help") for words in ([short], ["inspect", long])]
    assert said[0] == said[1] and said[0].startswith(f"usage: millstream inspect {long} ")


def test_a_group_without_an_action_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("inspect", "serve", "kv", "partitions", "sink"):
        assert refused(capsys, name, code=2).startswith(f"usage: millstream {name} ")


def test_default_ports_do_not_collide_and_every_address_has_one_word() -> None:
    import inspect as signatures

    ports: dict[str, set[str]] = {}
    every = [
        (name, action, one)
        for name, command in commands_of(parser()).items()
        for action, one in (commands_of(command) or {"": command}).items()
    ]
    for name, action, command in every:
        for option in command._actions:
            if {"--listen", "--address"} & set(option.option_strings):
                ports.setdefault(str(option.default), set()).add(f"{name} {action}".split()[0])
            assert not {"--at", "--data", "--control"} & set(option.option_strings)
    assert {address: names for address, names in ports.items() if address[0] == "1"} == {
        "127.0.0.1:7400": {"serve", "kv"},
        "127.0.0.1:7401": {"push"},
        "127.0.0.1:7402": {"sink"},
        "127.0.0.1:4080": {"ui"},
        "127.0.0.1:9464": {"metrics"},
    }
    assert signatures.signature(ms.sources.connector).parameters["listen"].default == "127.0.0.1:7401"


COMPLETE = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_shtab_millstream millstream "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
echo "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("ins", "inspect"), ("s", "serve sink"), ("kv get --l", "--level"), ("inspect st", "status state"), ("completion z", "zsh")],
)
def test_a_shell_completes_commands_and_options(capsys: pytest.CaptureFixture[str], tmp_path: Path, typed: str, offered: str) -> None:
    script = tmp_path / "completion.sh"
    script.write_text(called(capsys, "completion", "bash"))
    command = ["bash", "-c", COMPLETE, "bash", str(script), "millstream", *typed.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == offered.split(), done.stderr


def test_completion_says_what_is_missing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert "needs the extra 'completion'" in refused(capsys, "completion", "bash")


def test_run_serves_live_state_where_it_is_asked_to(monkeypatch: pytest.MonkeyPatch, project: Path) -> None:
    class Launched(Exception):
        pass

    def launch(*args: Any, serve: str | None, **more: Any) -> None:
        raise Launched(serve)

    monkeypatch.chdir(project)
    (project / "code" / "words.py").write_text(PLAIN)
    monkeypatch.setattr("millstream.cli.run.launch", launch)
    for words, said in ((["--serve", "127.0.0.1:0"], "127.0.0.1:0"), ([], "None")):
        with pytest.raises(Launched, match=said):
            main(["run", "code/words.py", *words])


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert called(capsys, "--version").startswith("millstream ")


PIPELINE = """
from dataclasses import dataclass, field
import millstream as ms
from helper import shout

@dataclass
class Seen:
    n: int = 0
    pages: ms.MapState = field(default_factory=ms.MapState)

class Count(ms.Computation):
    State = Seen
    def process_record(self, record):
        self.state.n += 1
        self.state.pages[self.state.n] = shout(record.value["word"])
        self.set_timer("end", record.timestamp - record.timestamp % 60_000 + 60_000)
    def process_timer(self, timer):
        self.produce(self.state.n)

words = ms.Pipeline("words")
def source(spark):  # there is no session yet when this file is executed
    assert spark.conf.get("spark.sql.session.timeZone") == "Europe/Tallinn"
    return spark.readStream.schema("word string, at long").json("in")

stream = words.inject("words", source, timestamp="at", id="concat(word, '-', cast(at as string))")
counts = words.compute(Count, stream, key="coalesce(lower(word), '?')")
words.emit(counts, ms.sinks.files("out"))
"""


PLAIN = """
import millstream as ms

class Count(ms.Computation):
    State = int
    def process_record(self, record):
        self.state += 1

words = ms.Pipeline("words")
words.compute(Count, words.inject("words", ms.sources.files("in", schema="word string, at long", format="json"), timestamp="at"), key="word")
"""


def run_file(folder: Path, *argv: str, timeout: float = 180, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "MILLSTREAM_STATE_CACHE": str(folder / "state_caches"), **(environment or {})}
    return subprocess.run(
        [sys.executable, "-m", "millstream.cli", *argv], cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A pipeline's file in a folder of its own, with a module beside it, and input."""
    (tmp_path / "code").mkdir()
    (tmp_path / "in").mkdir()
    (tmp_path / "code" / "words.py").write_text(PIPELINE)
    (tmp_path / "code" / "helper.py").write_text("def shout(word):\n    return word.upper()\n")
    rows = [{"word": word, "at": NOON + n} for n, word in enumerate(["tea", "tea", "coffee"])]
    (tmp_path / "in" / "1.json").write_text("".join(json.dumps(one) + "\n" for one in rows))
    return tmp_path


@pytest.mark.spark
def test_run_to_the_end_of_the_input(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = run_file(
        project, "run", "code/words.py:words", "--available-now", "--shards", "2", "--conf", "spark.sql.session.timeZone=Europe/Tallinn"
    )
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    checkpoint = project / "words-checkpoint"
    assert lines[0].endswith("Z words: starting Spark, which takes some seconds")
    assert "this Spark session has spark.sql.session.timeZone=Europe/Tallinn" in lines[1] and lines[2].endswith(
        f"; checkpoint {checkpoint}"
    )
    assert "3 records" in ran.stdout and "words: ended with epoch " in lines[-1] and lines[-1].endswith(", drained; 2 rows in out/")
    assert ran.stderr == "", "nothing of Spark's or Log4j's start-up is shown"
    out = [json.loads(line) for file in (project / "out").glob("*.jsonl") for line in file.read_text().splitlines()]
    assert sorted((one["key"], one["value"]) for one in out) == [("coffee", 1), ("tea", 2)]
    found = json.loads(called(capsys, "status", str(checkpoint), "--json"))["status"]
    assert found["drained"] and found["records"] == 3
    assert "driver: ended" in called(capsys, "status", str(checkpoint))
    (row,) = state_of(capsys, str(checkpoint), "Count", "--key", "tea")
    assert row["state"]["n"] == 2 and row["maps"][0]["first"] == [[1, "TEA"], [2, "TEA"]] and row["timers"] == []


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.parametrize("mode", [pytest.param([], id="micro-batch"), pytest.param(["--resident"], id="resident")])
def test_a_line_that_cannot_be_read_is_two_lines_in_both_modes(project: Path, mode: list[str]) -> None:
    (project / "code" / "words.py").write_text(PLAIN)
    (project / "in" / "2.json").write_text('{"word": "tea", "at": 1}\n{"word": oops\n')
    ran = run_file(project, "run", "code/words.py:words", "--available-now", *mode)
    assert ran.returncode != 0
    first, second = ran.stderr.splitlines()
    assert first.startswith("millstream: an injected stream cannot be read; nothing of this epoch was committed.")
    assert second == f'  file://{project}/in/2.json, line 2: this is not JSON: {{"word": oops'


@pytest.mark.slow
def test_a_definition_error_is_one_message(project: Path) -> None:
    file = project / "code" / "words.py"
    file.write_text(file.read_text().replace("compute(Count, stream", "compute(Count, 'steam'"))
    ran = run_file(project, "run", "code/words.py", "--available-now")
    assert ran.returncode == 1 and "Traceback" not in ran.stderr
    assert ran.stderr.startswith("millstream: computation 'Count' reads a stream 'steam' that nobody produces")


@pytest.mark.slow
def test_what_a_file_raises_is_shown_from_its_first_line_on(project: Path) -> None:
    file = project / "code" / "words.py"
    file.write_text("import no_such_module\n")
    ran = run_file(project, "run", "code/words.py")
    assert ran.returncode == 1
    assert "code/words.py cannot be executed" in ran.stderr and "No module named 'no_such_module'" in ran.stderr
    assert "importlib" not in ran.stderr and "millstream/cli" not in ran.stderr


@pytest.mark.slow
def test_a_column_without_a_session_says_what_to_give_instead(project: Path) -> None:
    text = PIPELINE.replace("key=\"coalesce(lower(word), '?')\"", 'key=__import__("pyspark.sql.functions").sql.functions.lower("word")')
    (project / "code" / "words.py").write_text(text)
    ran = run_file(project, "run", "code/words.py:words", "--available-now")
    assert (
        ran.returncode == 1
        and "There is no Spark session yet when the file is executed. Give keys, timestamps and ids as SQL text" in ran.stderr
    )


def test_finding_the_pipeline() -> None:
    from millstream.cli import pipeline_in

    one, two, file = ms.Pipeline("one"), ms.Pipeline("two"), Path("p.py")
    module = ModuleType("m")
    with pytest.raises(DefinitionError, match="has no pipeline"):
        pipeline_in(module, None, file)
    module.a = module.b = one  # type: ignore[attr-defined]
    assert pipeline_in(module, None, file) is one
    module.c = two  # type: ignore[attr-defined]
    with pytest.raises(DefinitionError, match=r"several pipelines: a, b, c\. Say which, as in p.py:a"):
        pipeline_in(module, None, file)
    assert pipeline_in(module, "c", file) is two
    with pytest.raises(DefinitionError, match="variable 'd'"):
        pipeline_in(module, "d", file)
    module.pipeline = two  # type: ignore[attr-defined]
    assert pipeline_in(module, None, file) is two


@pytest.mark.parametrize(
    ("error", "code"),
    [
        *((name, 1) for name in ("DefinitionError", "CheckpointError", "DamageError")),
        *((name, 3) for name in ("HookError", "InputError")),
        ("Fenced", 4),
        *((name, 5) for name in ("StorageError", "NetworkError", "ClusterError", "TaskLost", "SinkError")),
    ],
)
def test_exit_codes_tell_a_supervisor_whether_to_start_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: str, code: int
) -> None:
    def fails(args: Any) -> int:
        raise getattr(ms.errors, error)("no")

    monkeypatch.setattr("millstream.cli.run._run", fails)
    assert main(["run", "program.py"]) == code and capsys.readouterr().err == "millstream: no\n"
    table = (Path(__file__).parent.parent / "docs" / "operations.md").read_text()
    assert f"\n| {code} |" in table.partition("## Exit codes")[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "said"),
    [("11.0.2", r"bin/java is Java 11\. Install one \(Debian"), (None, "which has no bin/java"), ("gibberish", "of an unknown version")],
)
def test_java_that_is_missing_or_too_old_is_one_message_with_what_to_do(project: Path, version: str | None, said: str) -> None:
    if version is not None:
        (project / "java" / "bin").mkdir(parents=True)
        (project / "java" / "bin" / "java").write_text(
            f"#!/bin/sh\necho 'openjdk version \"{version}\" 2019-01-15' >&2\necho a long story >&2\nexit 1\n"
        )
        (project / "java" / "bin" / "java").chmod(0o755)
    ran = run_file(project, "run", "code/words.py:words", "--available-now", environment={"JAVA_HOME": str(project / "java")})
    assert ran.returncode == 1 and ran.stderr.count("\n") == 1, ran.stderr
    assert re.search(f"^millstream: Spark needs Java 17 or newer: .*{said}", ran.stderr)


def test_the_schema_of_the_status_is_what_the_status_says(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """And what the docs say of it is in it."""
    import msgspec

    assert main(["status", "--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)["$defs"]
    ManifestLog(LocalStorage(tmp_path)).identify("p", 1, 1, ["in"])
    assert main(["status", str(tmp_path), "--json"]) == 0
    msgspec.convert(json.loads(capsys.readouterr().out), report.Overview)
    fields = {name for one in schema.values() for name in one["properties"]}
    table = (
        (Path(__file__).parent.parent / "docs" / "operations.md").read_text().partition("**For programs.**")[2].partition("In a program")[0]
    )
    said = {part for cell in re.findall(r"`([a-z_.\[\]]+)`", table) for part in cell.replace("[]", "").split(".") if part}
    assert said - {"injector", "pending", "state", "timer", "nothing"} <= fields | {"last_sign", "status"}
    assert schema["Holder"]["properties"]["what"]["type"] == "string" and "injector" in schema["Holder"]["description"]
    assert main(["status"]) == 2
