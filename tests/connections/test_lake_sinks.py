"""Rows into tables of Delta Lake and Apache Iceberg: each epoch is one commit, once; the races that the libraries leave to us."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import millstream as ms
from millstream.errors import DefinitionError, Fenced, SinkError
from millstream.simulation.sink_checks import Stage
from millstream.sinks.base import Part, SinkRow
from millstream.sinks.epoch_sink import EpochSink

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

SCHEMA = pa.schema([("key", pa.string()), ("timestamp", pa.timestamp("us", "UTC")), ("n", pa.int64())])


class Lake:
    """A table, its sink, and a client of its own."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        if kind == "delta":
            from deltalake import DeltaTable

            DeltaTable.create(str(folder / "rows"), schema=SCHEMA)
        else:
            from pyiceberg.catalog import load_catalog

            self.properties = {
                "name": "test",
                "type": "sql",
                "uri": f"sqlite:///{folder}/catalog.db",
                "warehouse": f"file://{folder}/warehouse",
            }
            catalog = load_catalog(**self.properties)
            catalog.create_namespace("shop")
            catalog.create_table("shop.rows", SCHEMA)

    def sink(self, **options: Any) -> Any:
        if self.kind == "delta":
            return ms.sinks.delta(self.folder / "rows", **options)
        return ms.sinks.iceberg("shop.rows", catalog=self.properties, **options)

    def _open(self) -> Any:
        if self.kind == "delta":
            from deltalake import DeltaTable

            return DeltaTable(str(self.folder / "rows"))
        from pyiceberg.catalog import load_catalog

        return load_catalog(**self.properties).load_table("shop.rows")

    def numbers(self) -> list[int]:
        table = self._open()
        rows = table.to_pyarrow_dataset().to_table(use_threads=False) if self.kind == "delta" else table.scan().to_arrow()
        return sorted(rows.column("n").to_pylist())

    def commits(self) -> int:
        table = self._open()
        return int(table.version()) if self.kind == "delta" else len(table.snapshots())

    def append(self, n: int) -> None:
        """A foreign writer."""
        rows = pa.table({"key": ["x"], "timestamp": [0], "n": [n]}).cast(SCHEMA)
        if self.kind == "delta":
            from deltalake import write_deltalake

            write_deltalake(str(self.folder / "rows"), rows, mode="append")
        else:
            self._open().append(rows)


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(request.param, tmp_path)


def run_of(lake: Lake, sink: Any, row: Callable[[int], SinkRow] | None = None) -> Any:
    return Stage(lake.folder / "checkpoint", row or (lambda n: SinkRow(f"k{n}", n, {"n": n}))).run(sink)


@pytest.mark.crash
def test_it_passes_the_kit(lake: Lake) -> None:
    ms.testing.check_sink(lake.sink(), lake.numbers, kills=2)


def test_an_epoch_is_one_commit_and_waiting_parts_one_file(lake: Lake) -> None:
    run = run_of(lake, lake.sink())
    run.publish(0, [1])
    before = lake.commits()
    run.publish(1, list(range(10, 20)))
    assert lake.commits() == before + 1 and lake.numbers() == [1, *range(10, 20)]


def test_a_foreign_writer_between_two_epochs_and_inside_one_costs_nothing(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(lake, lake.sink())
    run.publish(0, [1])
    lake.append(100)
    files = type(run.sink).files
    others = iter([101])

    def meanwhile(self: Any, *given: Any) -> Any:
        found = files(self, *given)
        for n in others:  # once: the table has been loaded, and its commit is still to come
            lake.append(n)
        return found

    monkeypatch.setattr(type(run.sink), "files", meanwhile)
    run.publish(1, [2, 3])
    assert lake.numbers() == [1, 2, 3, 100, 101]


def test_a_stale_driver_that_looked_before_the_other_one_committed_is_refused(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    old = run_of(lake, lake.sink())
    old.publish(0, [1])
    parts = old.staged(1, [2])
    files = type(old.sink).files
    calls: list[int] = []

    def meanwhile(self: Any, *given: Any) -> Any:
        found = files(self, *given)
        if not calls:
            calls.append(1)
            run_of(lake, lake.sink()).commit(1, parts)
        return found

    monkeypatch.setattr(type(old.sink), "files", meanwhile)
    with pytest.raises(Fenced):
        old.commit(1, parts)
    assert lake.numbers() == [1, 2]


def test_pyiceberg_by_itself_would_add_the_files_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin of the last one: the library's own retry doubles rows."""
    lake = Lake("iceberg", tmp_path)
    monkeypatch.setattr(sys.modules["millstream.sinks.iceberg"], "_RETRIES", "no-such-property")
    old = run_of(lake, lake.sink())
    old.publish(0, [1])
    parts = old.staged(1, [2])
    files = type(old.sink).files
    calls: list[int] = []

    def meanwhile(self: Any, *given: Any) -> Any:
        found = files(self, *given)
        if not calls:
            calls.append(1)
            run_of(lake, lake.sink()).commit(1, parts)
        return found

    monkeypatch.setattr(type(old.sink), "files", meanwhile)
    try:
        old.commit(1, parts)
    except Fenced:
        pytest.skip("this version of pyiceberg does not repeat a commit by itself")
    assert lake.numbers() == [1, 2, 2]


def test_a_value_that_does_not_fit_is_found_in_the_task(lake: Lake) -> None:
    run = run_of(lake, lake.sink(), lambda n: SinkRow("tea", n, {"n": "x"}))
    with pytest.raises(SinkError, match="key 'tea': column 'n': 'x' does not fit"):
        run.staged(0, [1])


def test_what_will_not_do_is_told_at_the_start(lake: Lake, tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="has no column 'x'; it has key, timestamp, n"):
        lake.sink(columns={"x": "key"}).check()
    if lake.kind == "delta":
        with pytest.raises(SinkError, match=r"cannot be opened.*Make it: deltalake\.DeltaTable\.create"):
            ms.sinks.delta(tmp_path / "nowhere").check()
        with pytest.raises(DefinitionError, match="with the columns of the key"):
            ms.sinks.delta(tmp_path / "rows", mode="upsert")
    else:
        with pytest.raises(SinkError, match=r"Iceberg table 'shop\.other' cannot be opened: NoSuchTableError"):
            ms.sinks.iceberg("shop.other", catalog=lake.properties).check()


def test_upserts_of_delta(tmp_path: Path) -> None:
    lake = Lake("delta", tmp_path)
    rows = {
        0: SinkRow("a", 1, {"n": 1}),
        1: SinkRow("b", 2, {"n": 2}),
        2: SinkRow("a", 3, {"n": 3}),
        3: SinkRow("b", 4, None),
        4: SinkRow("c", 5, {"prev": None, "next": {"n": 5}}),
    }
    run = run_of(lake, lake.sink(mode="upsert", key="key"), rows.__getitem__)
    run.publish(0, [0, 1])
    assert lake.numbers() == [1, 2]
    run.publish(1, [2, 3, 4])
    assert lake.numbers() == [3, 5]


@pytest.mark.crash
def test_upserts_of_delta_pass_the_kit(tmp_path: Path) -> None:
    lake = Lake("delta", tmp_path)
    ms.testing.check_sink(lake.sink(mode="upsert", key="key"), lake.numbers, latest=True, kills=2)


def test_few_commits_for_many_small_epochs(lake: Lake) -> None:
    sink = lake.sink()
    assert isinstance(sink, EpochSink)
    sink.by_default(5_000)
    assert sink.roll_millis == 5_000
    sink.by_default(0)
    assert sink.roll_millis == 0
    run = run_of(lake, lake.sink())
    parts: list[Part] = [part for epoch in range(30) for part in run.staged(epoch, [epoch])]
    before = lake.commits()
    run.commit(29, parts)
    assert lake.commits() - before <= 2 and lake.numbers() == list(range(30))
