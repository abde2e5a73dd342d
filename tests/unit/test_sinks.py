"""Sinks: staged is invisible, committed is there once, what does not fit is named."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from effort import some
from millstream.errors import DefinitionError, SinkError
from millstream.sinks.base import DriverContext, Part, SinkRow, TaskContext
from millstream.state.compaction import unit_name
from millstream.state.memory_storage import MemoryStorage

SCHEMA = pa.schema([("key", pa.string()), ("timestamp", pa.int64()), ("value", pa.int64())])


def task(epoch: int = 3, shard: int = 0, attempt: str = "a1", emission: str = "counts", checkpoint: Any = None) -> TaskContext:
    """As the engine names things."""
    return TaskContext(checkpoint or MemoryStorage(), emission, epoch, f"pipe-{emission}-{shard:04d}", attempt)


def driver(emission: str = "counts", checkpoint: Any = None, spark: Any = None, redo: bool = False) -> DriverContext:
    return DriverContext(checkpoint or MemoryStorage(), "pipe", emission, spark, redo)


ROWS = [SinkRow("tea", 10, 1), SinkRow("rum", 20, 2), SinkRow("tea", 30, 3)]


def seen(folder: Path) -> list[dict[str, Any]]:
    """What a plain reader finds."""
    found = []
    for path in sorted(folder.glob("*")):
        if path.is_dir() or path.name.startswith(("_", ".")):
            continue
        found += (
            pq.ParquetFile(path).read().to_pylist()
            if path.suffix == ".parquet"
            else [json.loads(line) for line in path.read_text().splitlines()]
        )
    return found


def made(folder: Path, format: str) -> ms.sinks.Files:
    return ms.sinks.files(folder, format=format, schema=SCHEMA if format == "parquet" else None)


@pytest.fixture(params=["json", "parquet"])
def format(request: pytest.FixtureRequest) -> str:
    return request.param


def test_rows_are_seen_after_the_commit_in_order(tmp_path, format):
    sink = made(tmp_path, format)
    part = sink.stage(task(), ROWS)
    sink.commit(driver(), 3, [part])
    assert seen(tmp_path) == [{"key": r.key, "timestamp": r.timestamp, "value": r.value} for r in ROWS]


def test_staged_rows_are_invisible_to_a_plain_reader(tmp_path, format):
    sink = made(tmp_path, format)
    part = sink.stage(task(), ROWS)
    assert seen(tmp_path) == []
    assert list(tmp_path.glob("*.*")) == []
    assert (tmp_path / part.staged).exists() and part.rows == 3


def test_a_part_goes_into_a_manifest(tmp_path, format):
    part = made(tmp_path, format).stage(task(), ROWS)
    assert msgspec.json.decode(msgspec.json.encode(part), type=ms.sinks.Part) == part


def test_committing_twice_is_harmless(tmp_path, format):
    sink = made(tmp_path, format)
    part = sink.stage(task(), ROWS)
    for _ in range(3):
        made(tmp_path, format).commit(driver(redo=True), 3, [part])
    assert len(seen(tmp_path)) == 3


def test_only_the_attempt_in_the_manifest_is_ever_seen(tmp_path, format):
    sink = made(tmp_path, format)
    sink.stage(task(attempt="a1"), ROWS)
    part = sink.stage(task(attempt="a2"), ROWS)
    sink.commit(driver(), 3, [part])
    assert len(seen(tmp_path)) == 3


def test_a_crash_between_the_parts_of_an_epoch_is_fixed_by_the_next_commit(tmp_path, format):
    sink = made(tmp_path, format)
    parts = [sink.stage(task(shard=shard), [SinkRow(f"k{shard}", 1, shard)]) for shard in range(3)]
    sink.commit(driver(), 3, parts[:2])
    assert len(seen(tmp_path)) == 2
    sink.commit(driver(redo=True), 3, parts)
    assert sorted(row["key"] for row in seen(tmp_path)) == ["k0", "k1", "k2"]


def test_a_part_that_the_driver_cannot_see_is_an_error_and_not_taken_for_published(tmp_path, format):
    sink = made(tmp_path, format)
    part = sink.stage(task(), ROWS)
    (tmp_path / part.staged).unlink()
    with pytest.raises(SinkError, match="same on every host"):
        sink.commit(driver(), 3, [part])


def test_epochs_and_shards_have_files_of_their_own(tmp_path, format):
    sink = made(tmp_path, format)
    for epoch in range(3):
        sink.commit(driver(), epoch, [sink.stage(task(epoch, shard), ROWS[:1]) for shard in range(2)])
    assert len(seen(tmp_path)) == 6


def test_a_file_of_another_run_is_a_sink_error_and_stays_as_it_is(tmp_path, format):
    sink = made(tmp_path, format)
    sink.commit(driver(), 3, [sink.stage(task(attempt="theirs"), ROWS)])
    before = seen(tmp_path)
    mine = sink.stage(task(attempt="mine"), ROWS[:1])
    with pytest.raises(SinkError, match="another run's output"):
        sink.commit(driver(), 3, [mine])
    assert seen(tmp_path) == before


def test_parquet_has_the_types_of_the_schema(tmp_path):
    schema = pa.schema([("key", pa.large_string()), ("value", pa.struct([("n", pa.int32())])), ("timestamp", pa.timestamp("ms", "UTC"))])
    sink = ms.sinks.files(tmp_path, format="parquet", schema=schema)
    sink.commit(driver(), 3, [sink.stage(task(), [SinkRow("a", 1, {"n": 1}), SinkRow("b", 2, {}), SinkRow("c", 3, None)])])
    (path,) = tmp_path.glob("*.parquet")
    table = pq.ParquetFile(path).read()
    assert table.schema.remove_metadata() == schema
    assert table.column("value").to_pylist() == [{"n": 1}, {"n": None}, None]


def test_parquet_without_a_schema_takes_the_types_of_the_values(tmp_path):
    sink = ms.sinks.files(tmp_path, format="parquet")
    sink.commit(driver(), 3, [sink.stage(task(), [SinkRow(("a",), 1, 1.5)])])
    assert seen(tmp_path) == [{"key": ["a"], "timestamp": 1, "value": 1.5}]


def test_a_schema_in_words_is_resolved_once_at_the_start(tmp_path):
    sink = ms.sinks.files(tmp_path, format="parquet", schema="key string, timestamp long, value long")
    sink.resolve(lambda ddl: SCHEMA if ddl.startswith("key string") else None)
    assert sink.schema is SCHEMA
    sink.resolve(lambda ddl: None)
    assert sink.schema is SCHEMA


BAD = [
    ("string for long", SinkRow("culprit", 1, "many"), SCHEMA, "value"),
    ("dict for long", SinkRow("culprit", 1, {"a": 1}), SCHEMA, "value"),
    ("list for long", SinkRow("culprit", 1, [1]), SCHEMA, "value"),
    ("too large", SinkRow("culprit", 1, 2**63), SCHEMA, "value"),
    ("fraction for long", SinkRow("culprit", 1, 1.5), SCHEMA, "value"),
    ("object for long", SinkRow("culprit", 1, object()), SCHEMA, "value"),
    ("surrogate", SinkRow("culprit", 1, "\ud800"), pa.schema([("key", pa.string()), ("value", pa.string())]), "value"),
    ("int for string", SinkRow("culprit", 1, 5), pa.schema([("key", pa.string()), ("value", pa.string())]), "value"),
    (
        "string for struct",
        SinkRow("culprit", 1, "x"),
        pa.schema([("key", pa.string()), ("value", pa.struct([("n", pa.int32())]))]),
        "value",
    ),
    (
        "wrong field of struct",
        SinkRow("culprit", 1, {"n": "x"}),
        pa.schema([("key", pa.string()), ("value", pa.struct([("n", pa.int32())]))]),
        "value",
    ),
    ("number for list", SinkRow("culprit", 1, 5), pa.schema([("key", pa.string()), ("value", pa.list_(pa.int32()))]), "value"),
    ("not a decimal", SinkRow("culprit", 1, "1.x"), pa.schema([("key", pa.string()), ("value", pa.decimal128(5, 2))]), "value"),
    ("key is no number", SinkRow("culprit", 1, 5), pa.schema([("key", pa.int64()), ("value", pa.int64())]), "key"),
    ("object without schema", SinkRow("culprit", 1, object()), None, "value"),
]


@pytest.mark.parametrize(("row", "schema", "column"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_a_value_that_does_not_fit_is_a_sink_error_that_names_key_and_column(tmp_path, row, schema, column):
    good = {"key": 1 if column == "key" else "fine", "value": None}
    sink = ms.sinks.files(tmp_path, format="parquet", schema=schema)
    with pytest.raises(SinkError, match=f"'counts'.*'culprit'.*'{column}'"):
        sink.stage(task(), [SinkRow(good["key"], 1, good["value"]), row])
    assert not (tmp_path / "_staging").exists()


def test_values_of_two_types_without_a_schema_are_a_sink_error_that_says_what_to_do(tmp_path):
    sink = ms.sinks.files(tmp_path, format="parquet")
    with pytest.raises(SinkError, match=r"'counts'.*schema="):
        sink.stage(task(), [SinkRow("a", 1, 1), SinkRow("b", 1, {"a": 1})])


def test_a_schema_with_other_columns_is_a_sink_error(tmp_path):
    sink = ms.sinks.files(tmp_path, format="parquet", schema=pa.schema([("term", pa.string())]))
    with pytest.raises(SinkError, match="term"):
        sink.stage(task(), ROWS)


def test_a_value_that_is_no_json_is_a_sink_error_that_names_its_key(tmp_path):
    sink = ms.sinks.files(tmp_path)
    with pytest.raises(SinkError, match=r"'counts'.*'culprit'"):
        sink.stage(task(), [*ROWS, SinkRow("culprit", 1, object())])
    assert not (tmp_path / "_staging").exists()


plain = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=6,
)


@settings(max_examples=some(50))
@given(st.lists(st.tuples(st.text(), st.integers(-(2**53), 2**53), plain), max_size=5))
def test_plain_values_come_back_from_json_line_by_line(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("json")
    sink = ms.sinks.files(folder)
    part = sink.stage(task(), [SinkRow(*row) for row in rows])
    lines = (folder / part.staged).read_text().split("\n")
    assert [tuple(json.loads(line).values()) for line in lines if line] == rows


def test_bytes_are_written_as_base64_in_json(tmp_path):
    sink = ms.sinks.files(tmp_path)
    sink.commit(driver(), 3, [sink.stage(task(), [SinkRow(b"\xff", 1, {"a": b"\x00"})])])
    assert seen(tmp_path) == [{"key": "/w==", "timestamp": 1, "value": {"a": "AA=="}}]


def test_sweeping_removes_leftovers_and_nothing_else(tmp_path, format):
    sink = made(tmp_path, format)
    published = sink.stage(task(1), ROWS)
    sink.commit(driver(), 1, [published])
    dead = sink.stage(task(2, attempt="dead"), ROWS)
    kept = sink.stage(task(3, attempt="kept"), ROWS)
    recent = sink.stage(task(9), ROWS)
    theirs = sink.stage(task(2, emission="others"), ROWS)
    longer = sink.stage(task(2, emission="my-counts"), ROWS)
    sink.sweep(driver(), 5, [kept.staged])
    there = {part.staged for part in (dead, kept, recent, theirs, longer) if (tmp_path / part.staged).exists()}
    assert there == {kept.staged, recent.staged, theirs.staged, longer.staged}
    assert len(seen(tmp_path)) == 3


def test_sweeping_an_empty_directory_is_harmless(tmp_path):
    ms.sinks.files(tmp_path / "new").sweep(driver(), 5, [])


def test_a_directory_that_cannot_be_is_a_sink_error_at_the_start(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SinkError, match="cannot make"):
        ms.sinks.files(tmp_path / "file" / "out").check()
    ms.sinks.files(tmp_path / "new" / "out").check()
    assert (tmp_path / "new" / "out").is_dir()


def test_another_format_is_a_definition_error(tmp_path):
    with pytest.raises(DefinitionError, match="csv"):
        ms.sinks.files(tmp_path, format="csv")


# --- memory


def test_memory_takes_an_epoch_once():
    checkpoint = MemoryStorage()
    sink = ms.sinks.memory()
    part = sink.stage(task(checkpoint=checkpoint), ROWS)
    assert sink.collected == []
    for _ in range(2):
        sink.commit(driver(checkpoint=checkpoint), 3, [part])
    assert sink.collected == ROWS
    later = sink.stage(task(4, checkpoint=checkpoint), ROWS[:1])
    sink.commit(driver(checkpoint=checkpoint), 4, [later])
    assert len(sink.collected) == 4


def test_memory_tells_two_streams_apart():
    checkpoint = MemoryStorage()
    sink = ms.sinks.memory()
    part = sink.stage(task(checkpoint=checkpoint), ROWS)
    sink.commit(driver(checkpoint=checkpoint), 3, [part])
    sink.commit(driver("others", checkpoint), 3, [part])
    assert len(sink.collected) == 6


def test_an_epoch_without_rows_is_not_taken_for_one_that_was_handed_over():
    checkpoint = MemoryStorage()
    sink = ms.sinks.memory()
    sink.commit(driver(checkpoint=checkpoint), 3, [])
    sink.commit(driver(checkpoint=checkpoint), 3, [sink.stage(task(checkpoint=checkpoint), ROWS)])
    assert sink.collected == ROWS


@pytest.mark.parametrize("key", ["a", 1, True, b"\xff", ("a", 1), ("a", ("b", 1)), None], ids=repr)
def test_memory_gives_keys_back_as_they_were(key):
    checkpoint = MemoryStorage()
    sink = ms.sinks.memory()
    sink.commit(driver(checkpoint=checkpoint), 3, [sink.stage(task(checkpoint=checkpoint), [SinkRow(key, 1, 1)])])
    assert sink.collected == [SinkRow(key, 1, 1)]


def test_a_pickled_memory_sink_carries_no_rows():
    sink = ms.sinks.memory()
    sink.collected.append(ROWS[0])
    assert pickle.loads(pickle.dumps(sink)).collected == []
    assert sink.collected == ROWS[:1]


def test_a_value_that_cannot_wait_in_the_checkpoint_is_a_sink_error():
    with pytest.raises(SinkError, match="'counts' into memory"):
        ms.sinks.memory().stage(task(), [SinkRow("culprit", 1, object())])


def test_staged_rows_wait_in_the_checkpoint_under_the_name_of_their_epoch():
    from millstream.state.compaction import made_in

    checkpoint = MemoryStorage()
    part = ms.sinks.memory().stage(task(7, checkpoint=checkpoint), ROWS)
    assert part.in_checkpoint and made_in(part.staged) == 7
    assert checkpoint.exists(part.staged)


# --- each_epoch


class FakeSpark:
    """Stands in for a session: a DataFrame is the table that it would be made of."""

    def createDataFrame(self, table: Any) -> Any:
        return table


def test_each_epoch_hands_over_the_rows_and_the_epoch():
    calls: list[Any] = []
    checkpoint = MemoryStorage()
    sink = ms.sinks.each_epoch(lambda frame, epoch: calls.append((frame, epoch)), schema=SCHEMA)
    parts = [sink.stage(task(5, shard, checkpoint=checkpoint), rows) for shard, rows in enumerate((ROWS[:2], ROWS[2:]))]
    assert calls == []
    for _ in range(2):
        sink.commit(driver(checkpoint=checkpoint, spark=FakeSpark()), 5, parts)
    assert [epoch for _, epoch in calls] == [5, 5]
    table = calls[0][0]
    assert table.schema == SCHEMA
    assert [tuple(row.values()) for row in table.to_pylist()] == [(r.key, r.timestamp, r.value) for r in ROWS]
    assert calls[1][0] == table


def test_each_epoch_is_not_called_without_rows():
    calls: list[Any] = []
    ms.sinks.each_epoch(lambda frame, epoch: calls.append(epoch)).commit(driver(spark=FakeSpark()), 5, [])
    assert calls == []


def test_a_function_that_raises_is_a_sink_error_that_names_it_and_the_epoch():
    def upload(frame, epoch):
        raise OSError("no route")

    checkpoint = MemoryStorage()
    sink = ms.sinks.each_epoch(upload)
    part = sink.stage(task(5, checkpoint=checkpoint), ROWS)
    with pytest.raises(SinkError, match=r"'counts'.*upload.*OSError: no route.*Epoch 5"):
        sink.commit(driver(checkpoint=checkpoint, spark=FakeSpark()), 5, [part])
    assert checkpoint.exists(part.staged)


def test_rows_that_do_not_fit_the_schema_of_each_epoch_are_named():
    checkpoint = MemoryStorage()
    sink = ms.sinks.each_epoch(lambda frame, epoch: None, schema=SCHEMA)
    part = sink.stage(task(5, checkpoint=checkpoint), [*ROWS, SinkRow("culprit", 1, "x")])
    with pytest.raises(SinkError, match=r"'culprit'.*'value'"):
        sink.commit(driver(checkpoint=checkpoint, spark=FakeSpark()), 5, [part])


def test_a_pickled_each_epoch_carries_no_function():
    lock = __import__("threading").Lock()  # cannot be pickled
    sink = ms.sinks.each_epoch(lambda frame, epoch: lock.locked(), schema=SCHEMA)
    copy = pickle.loads(pickle.dumps(sink))
    assert copy.schema == SCHEMA
    assert copy.stage(task(), ROWS).rows == 3


@pytest.mark.parametrize("value", [float("nan"), {"a": [1.0, float("inf")]}, ["x", {"b": float("-inf")}]])
def test_a_number_that_json_cannot_say_is_an_error_that_names_the_key_unless_null_is_asked_for(tmp_path, value):
    rows = [SinkRow("good", 1, None), SinkRow("bad", 2, value)]
    with pytest.raises(SinkError, match=r"key 'bad'.*JSON has no NaN and no infinity"):
        ms.sinks.files(tmp_path / "a").stage(task(), rows)
    sink = ms.sinks.files(tmp_path / "b", nan="null")
    sink.commit(driver(), 3, [sink.stage(task(), rows)])
    assert "null" in (tmp_path / "b" / "pipe-counts-0000-0000000003.jsonl").read_text()
    with pytest.raises(DefinitionError, match="use 'error' or 'null'"):
        ms.sinks.files(tmp_path, nan="zero")


# --- parts that wait in the checkpoint, beside those that have files of their own

_PART = st.sampled_from(["none", "small", "large"])


@settings(max_examples=some(200), deadline=None)
@given(
    epochs=st.lists(st.tuples(st.tuples(_PART, _PART), st.booleans()), min_size=1, max_size=8),
    redo=st.booleans(),
    format=st.sampled_from(["json", "parquet"]),
)
def test_files_in_the_order_of_their_epochs_have_the_rows_of_a_key_in_order(
    tmp_path_factory: pytest.TempPathFactory, epochs: list[tuple[tuple[str, str], bool]], redo: bool, format: str
) -> None:
    """epochs: what each shard has, and whether what waits is published then."""
    sink = ms.sinks.files(tmp_path_factory.mktemp("rolled"), format=format)
    checkpoint, waiting = MemoryStorage(), []
    given: list[tuple[str, int]] = []
    for epoch, (kinds, publishes) in enumerate([*epochs, (("none", "none"), True)]):
        for shard, kind in enumerate(kinds):
            rows = [SinkRow(f"k{shard}", epoch, epoch)]
            where = task(epoch, shard, checkpoint=checkpoint)
            if kind == "large":
                waiting.append(sink.stage(where, rows))
            elif kind == "small":
                data, name = sink.encode_part(where, rows), unit_name(epoch, f"t{shard}")
                checkpoint.put(name, data)
                waiting.append(Part(rows=1, staged=name, in_checkpoint=True, own={"offset": 0, "length": len(data)}))
            given += [(row.key, row.value) for row in rows if kind != "none"]
        if publishes and waiting:
            sink.commit(driver(checkpoint=checkpoint), epoch, waiting)
            if redo:
                sink.commit(driver(checkpoint=checkpoint, redo=True), epoch, waiting)
            waiting = []
    found = [(row.key, row.value) for row in sink.read("pipe", "counts")]
    for shard in ("k0", "k1"):
        assert [value for key, value in found if key == shard] == [value for key, value in given if key == shard]
