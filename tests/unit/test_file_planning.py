"""Which files an epoch has: every file once in what was committed, in order, whatever was planned in vain and however often a run starts anew."""

from __future__ import annotations

import json
import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from effort import some
from millstream.sources.filereading.listing import UnreadFiles
from millstream.sources.filereading.reader import FileReader
from millstream.sources.splits import SplitPlan

HOUR = 3_600_000
START = 1_700_000_000_000


def arrow(schema: Any) -> pa.Schema:
    return pa.schema([("a", pa.int64())])


def reader(folder: Path, **options: Any) -> FileReader:
    source = ms.sources.files(folder, schema="a long", format="json", **options)
    assert source.unplanned() is None
    made = source.reader(arrow)
    assert isinstance(made, FileReader)
    return made


def put(folder: Path, name: str, modified: int, text: str = '{"a":1}\n') -> None:
    (folder / f".{name}").write_text(text)
    os.utime(folder / f".{name}", ns=(modified * 1_000_000, modified * 1_000_000))
    (folder / f".{name}").rename(folder / name)


def paths(planned: SplitPlan) -> list[str]:
    return [os.path.basename(split.path) for split in planned.splits]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 30), st.integers(0, 20)),
        st.tuples(st.just("commit"), st.just(0), st.just(0)),
        st.tuples(st.just("vain"), st.just(0), st.just(0)),
        st.tuples(st.just("restart"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


def walk(steps: list[tuple[str, int, int]], limit: int | None, age: int | None, check: Callable[[list[str], list[str]], None]) -> list[str]:
    """What was committed, in order. check: gets what was planned, and what the model says."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        options = {} if age is None else {"maxFileAge": f"{age}h"}
        kept: dict[str, int] = {}
        here = reader(folder, max_files_per_epoch=limit, options=options)
        here.begin(kept, False)
        there: dict[str, int] = {}
        offset, committed, newest = here.first(), list[str](), None
        for what, one, two in steps:
            if what == "put" and f"f{one}" not in there:
                there[f"f{one}"] = START + two * HOUR
                put(folder, f"f{one}", there[f"f{one}"])
            if what == "restart":
                here = reader(folder, max_files_per_epoch=limit, options=options)
                here.begin(kept, False)
                here.committed(offset)
            if what in ("commit", "vain"):
                oldest = 0 if newest is None or age is None else newest - age * HOUR
                model = sorted((at, name) for name, at in there.items() if name not in committed and at >= oldest)[:limit]
                planned = here.plan(offset)
                check(paths(planned), [name for _, name in model])
                assert (planned.end == offset) == (not model)
                if what == "commit":
                    offset = planned.end
                    kept.update(planned.names)
                    for name in planned.gone:
                        del kept[name]
                    committed.extend(name for _, name in model)
                    newest = max([newest or 0, *(at for at, _ in model)]) if model else newest
                    here.committed(offset)
                    if age is None:
                        assert len(kept) == len(committed)
                    elif planned.names:
                        assert all(at >= (newest or 0) - age * HOUR for name, at in kept.items() if name not in planned.names)
        return committed


def equal(planned: list[str], model: list[str]) -> None:
    assert planned == model


@settings(max_examples=some(400), deadline=None)
@given(STEPS, st.one_of(st.none(), st.integers(1, 4)), st.one_of(st.none(), st.integers(0, 12)))
def test_every_file_is_committed_once_and_in_order(steps: list[tuple[str, int, int]], limit: int | None, age: int | None) -> None:
    committed = walk(steps, limit, age, equal)
    assert len(set(committed)) == len(committed)


def test_a_planner_that_takes_planned_for_committed_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = UnreadFiles.plan

    def hasty(self: UnreadFiles, start: int, most: int | None = None) -> Any:
        found = plan(self, start)
        self.settle(found.end)
        return found

    monkeypatch.setattr(UnreadFiles, "plan", hasty)
    with pytest.raises(AssertionError):
        walk([("put", 1, 0), ("vain", 0, 0), ("commit", 0, 0)], None, None, equal)


def test_planning_from_the_end_of_a_stretch_says_that_it_was_committed(tmp_path: Path) -> None:
    put(tmp_path, "a", START)
    here = reader(tmp_path)
    here.begin({}, False)
    first = here.plan(here.first())
    assert here.parts_read() == {str(tmp_path / "a")} == set(here.parts())
    put(tmp_path, "b", START)
    assert paths(here.plan(first.end)) == ["b"]


def test_a_bounded_run_has_what_was_there_at_its_beginning(tmp_path: Path) -> None:
    for name in "cab":
        put(tmp_path, name, START)
    here = reader(tmp_path, max_files_per_epoch=2)
    here.begin({str(tmp_path / "a"): START}, True)
    put(tmp_path, "d", START - 1)
    first = here.plan('{"files":1}')
    assert (first.end, paths(first)) == ('{"files":3}', ["b", "c"])
    assert here.plan(first.end) == SplitPlan(first.end, [], 0, {}, [])


def test_names_that_spark_passes_over_are_passed_over(tmp_path: Path) -> None:
    for name in ("a.json", "_b.json", "_k=1.json", "c._COPYING_", "_metadata", "d=2"):
        put(tmp_path, name, START)
    (tmp_path / ".hidden").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.json").symlink_to(tmp_path / "a.json")
    (tmp_path / "broken.json").symlink_to(tmp_path / "nowhere")
    here = reader(tmp_path)
    here.begin({}, False)
    assert paths(here.plan(here.first())) == ["_k=1.json", "a.json", "d=2", "link.json"]


def test_a_directory_that_has_not_changed_is_not_listed_again(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    put(folder, "a", START)
    os.utime(folder, (1_600_000_000, 1_600_000_000))
    here = reader(folder)
    here.begin({}, False)
    assert paths(here.plan(here.first())) == ["a"]
    put(folder, "b", START)
    os.utime(folder, (1_600_000_000, 1_600_000_000))  # somebody hides the change: so we see that nobody looks
    assert paths(here.plan(here.first())) == ["a"]
    os.utime(folder, (1_600_000_001, 1_600_000_001))
    assert paths(here.plan(here.first())) == ["a", "b"]


def test_a_directory_that_changed_just_now_is_listed_again(tmp_path: Path) -> None:
    put(tmp_path, "a", START)
    changed = os.stat(tmp_path).st_mtime_ns
    here = reader(tmp_path)
    here.begin({}, False)
    assert paths(here.plan(here.first())) == ["a"]
    put(tmp_path, "b", START)
    os.utime(tmp_path, ns=(changed, changed))  # a clock that does not tell the two apart
    assert paths(here.plan(here.first())) == ["a", "b"]


def test_a_folder_that_names_a_value_is_refused_when_it_comes(tmp_path: Path) -> None:
    here = reader(tmp_path)
    here.begin({}, False)
    here.plan(here.first())
    (tmp_path / "k=1").mkdir()
    with pytest.raises(ms.errors.InputError, match="k=1 is a folder"):
        here.plan(here.first())


def test_large_files_are_read_in_pieces_that_have_every_line_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.sources.filereading.reader._SPLIT", 100)
    ends = ["\n", "\r\n", "\r", "\n\n"]
    put(tmp_path, "a", START, "".join(json.dumps({"a": at, "fill": "x" * (at % 37)}) + ends[at % 4] for at in range(200)))
    here = reader(tmp_path)
    here.begin({}, False)
    planned = here.plan(here.first())
    assert len(planned.splits) > 20 and planned.size == os.path.getsize(tmp_path / "a")
    elsewhere = pickle.loads(pickle.dumps(here))
    rows = [
        row
        for split in pickle.loads(pickle.dumps(planned.splits))
        for batch in elsewhere.read(split)
        for row in batch.column(0).to_pylist()
    ]
    assert rows == list(range(200))


def test_a_name_of_another_directory_is_none_of_ours(tmp_path: Path) -> None:
    put(tmp_path, "a", START)
    here = reader(tmp_path)
    here.begin({"/elsewhere/a": START}, False)
    assert paths(here.plan('{"files":1}')) == ["a"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"options": {"latestFirst": "true"}}, "the option latestFirst='true'"),
        ({"options": {"cleanSource": "delete"}}, "the option cleanSource"),
        ({"options": {"wholeNew": "1"}}, "the option wholeNew"),
        ({"options": {"maxFileAge": "soon"}}, "the option maxFileAge"),
        ({"schema": "a interval day"}, "a type in its schema"),
        ({"schema": "a map<int,long>"}, "keys are not strings"),
        ({"schema": "a array<long>", "format": "csv"}, "the type array of column 'a'"),
    ],
)
def test_what_only_spark_knows_is_named(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    source = ms.sources.files(tmp_path, **{"schema": "a long", "format": "json", **change})
    assert says in str(source.unplanned())


def test_places_that_only_spark_knows_are_named(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text("")
    (tmp_path / "parts" / "deep" / "k=1").mkdir(parents=True)
    (tmp_path / "made" / "_spark_metadata").mkdir(parents=True)
    for path, says in (
        ("s3://bucket/in", "not folders of this machine"),
        ("file:/in", "not folders of this machine"),
        (f"{tmp_path}/*", "patterns"),
        (f"{tmp_path}/one.json", "a single file"),
        (f"{tmp_path}/parts", "name a column's value"),
        (f"{tmp_path}/made", "_spark_metadata"),
    ):
        assert says in str(ms.sources.files(path, schema="a long", format="json").unplanned())


def test_options_that_are_understood(tmp_path: Path) -> None:
    options = {"pathGlobFilter": "*.json", "maxFilesPerTrigger": "1", "MAXFILEAGE": "1d", "latestFirst": "false", "samplingRatio": "0.5"}
    for name in ("a.json", "b.txt", "c.json"):
        put(tmp_path, name, START)
    here = reader(tmp_path, options=options)
    here.begin({}, False)
    assert paths(here.plan(here.first())) == ["a.json"]


def test_an_offset_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ms.errors.CheckpointError, match="not an offset of a directory"):
        reader(tmp_path).plan('{"logOffset":1}')


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ms.errors.DefinitionError, match="there is no directory"):
        ms.sources.files(tmp_path / "none", schema="a long", format="json").reader(arrow)
