"""Rows into tables of Delta Lake and Apache Iceberg: each epoch is one commit, once; the races that the libraries leave to us."""

from __future__ import annotations

import contextlib
import json
import pickle
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
from millstream.sinks.epoch_sink import EpochRows, EpochSink, SinkWriter
from millstream.sinks.files import parquet_bytes
from millstream.state.storage import open_storage

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


def test_a_stale_driver_that_wakes_when_its_successor_has_read_the_marker_doubles_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_of(lake, lake.sink())
    first.publish(0, [1])
    old = run_of(lake, lake.sink())
    parts = old.staged(1, [2, 3])
    looks = old.sink._check_run
    younger: list[Any] = []

    def meanwhile(*given: Any) -> None:
        looks(*given)
        if not younger:  # the old run has looked, and is to commit that it is there
            new = run_of(lake, lake.sink())
            younger.append(new)
            writer = new.sink._writer(new._context(False))
            new.sink._written[writer] = new.sink.begin(writer)

    monkeypatch.setattr(old.sink, "_check_run", meanwhile)
    with contextlib.suppress(Fenced):  # Delta refuses it
        old.commit(1, parts)
    younger[0].commit(1, parts)
    assert lake.numbers() == [1, 2, 3]


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


NAMES = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in (("key", "string"), ("n", "long"))]


@pytest.mark.parametrize(
    ("settings", "of_column", "features", "says"),
    [
        (
            {"delta.columnMapping.mode": "name"},
            {"delta.columnMapping.id": 2, "delta.columnMapping.physicalName": "c2"},
            None,
            "delta.columnMapping.mode=name",
        ),
        ({"delta.constraints.positive": "n > 10"}, {}, None, "delta.constraints.positive=n > 10"),
        ({}, {"delta.generationExpression": "1"}, None, "delta.generationExpression"),
        ({}, {}, ["appendOnly", "rowTracking"], "feature rowTracking"),
        ({}, {}, ["appendOnly", "checkConstraints", "generatedColumns"], ""),
    ],
)
def test_a_delta_table_that_asks_more_than_plain_files_is_refused_at_the_start(
    tmp_path: Path, settings: dict[str, str], of_column: dict[str, Any], features: list[str] | None, says: str
) -> None:
    mapped = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "c1"} if settings.get("delta.columnMapping.mode") else {}
    fields = [{**NAMES[0], "metadata": mapped}, {**NAMES[1], "metadata": of_column}]
    protocol = {"minReaderVersion": 2, "minWriterVersion": 5} if features is None else {"minReaderVersion": 3, "minWriterVersion": 7}
    listed = {} if features is None else {"readerFeatures": [], "writerFeatures": features}
    schema = json.dumps({"type": "struct", "fields": fields})
    table = {"id": "x", "format": {"provider": "parquet", "options": {}}, "schemaString": schema, "partitionColumns": []}
    (tmp_path / "_delta_log").mkdir()
    actions = [{"protocol": {**protocol, **listed}}, {"metaData": {**table, "configuration": settings, "createdTime": 1}}]
    (tmp_path / "_delta_log" / f"{0:020d}.json").write_text("\n".join(map(json.dumps, actions)))
    sink = ms.sinks.delta(tmp_path)
    if says:
        with pytest.raises(SinkError, match=f"asks of its writers what this sink does not do: {says}"):
            sink.check()
    else:
        sink.check()
        assert sink.begin(SinkWriter("w", 1)) is None


def test_a_catalog_or_a_table_that_is_away_for_a_moment_is_asked_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyiceberg.exceptions import ServiceUnavailableError

    run = run_of(lake, lake.sink())
    away = [ConnectionResetError("reset by peer"), ServiceUnavailableError("503")] if lake.kind == "iceberg" else [OSError("503")]
    opened = run.sink._table

    def table() -> Any:
        if away:
            raise away.pop()
        return opened()

    monkeypatch.setattr(run.sink, "_table", table)
    run.publish(0, [1])
    away.append(OSError("503"))
    run.sink.check()
    assert lake.numbers() == [1] and not away


def test_a_table_or_its_catalog_is_opened_once_for_all_epochs_of_a_run(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    import deltalake
    import pyiceberg.catalog

    where, name = (deltalake, "DeltaTable") if lake.kind == "delta" else (pyiceberg.catalog, "load_catalog")
    opened, calls = getattr(where, name), list[Any]()
    monkeypatch.setattr(where, name, lambda *given, **named: calls.append(given) or opened(*given, **named))
    run = run_of(lake, lake.sink())
    for epoch in range(3):
        run.publish(epoch, [epoch])
        lake.append(10 + epoch)
    assert len(calls) == (1 if lake.kind == "delta" else 1 + 3), "the foreign writer of Iceberg opens its own"
    monkeypatch.undo()
    assert lake.numbers() == [0, 1, 2, 10, 11, 12]
    run.sink.close()


def test_a_task_asks_the_catalog_again_for_credentials_that_may_be_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake("iceberg", tmp_path)
    sink = lake.sink()
    sink.check()
    sink._place = sink._place._replace(properties={"py-io-impl": "no.such.Store"})
    task = pickle.loads(pickle.dumps(sink))
    with pytest.raises(ValueError, match="FileIO"):
        task.put("a.parquet", b"x")
    monkeypatch.setattr(sys.modules["millstream.sinks.iceberg"], "_FRESH", -1.0)
    task.put("a.parquet", b"x")
    assert [path.read_bytes() for path in tmp_path.rglob("a.parquet")] == [b"x"]


def test_each_file_of_a_commit_says_how_many_rows_it_has(tmp_path: Path) -> None:
    """Waiting rows become two files if the table's columns had other types when they were made."""
    lake = Lake("delta", tmp_path)
    sink = lake.sink()
    sink.check()
    pieces = [parquet_bytes(pa.table({"n": pa.array(given, kind)})) for given, kind in (([1, 2], pa.int64()), (["3"], pa.string()))]
    storage = open_storage(str(tmp_path / "checkpoint"))
    parts = []
    for at, piece in enumerate(pieces):
        storage.put(f"p{at}", piece)
        parts.append(Part(rows=9, staged=f"p{at}", in_checkpoint=True, own={"offset": 0, "length": len(piece)}))
    assert [file.rows for file in sink.files(SinkWriter("w", 1), 1, EpochRows(storage, parts))] == [2, 1]


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
