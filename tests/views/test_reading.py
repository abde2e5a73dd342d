"""Reading tables, views and joins of a checkpoint without the code that made them; as Arrow, as dicts, from the command line."""

from __future__ import annotations

import datetime
import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from viewkit import SCHEMA, Recorded, user
from viewmodel import Model, pipeline_of

import millstream as ms
from effort import some
from millstream.cli import main
from millstream.readable import relations, shard_rows
from millstream.readable.columns import column, is_mixed
from millstream.readable.listing import plain
from millstream.state.manifest_log import ManifestLog
from millstream.state.reader import CommittedState


def people(version: int = 1, by: Any = "name") -> ms.Pipeline:
    pipeline = ms.Pipeline("people")
    users = pipeline.table("users", ms.sources.files("in/", schema=SCHEMA), key="id", version="ts", deleted="gone")
    names = users.by(by).reduce(ms.count(), name="names", version=version)
    users.by("name", "age").reduce(name="both", n=ms.count(), oldest=ms.max("age"))
    names.by(lambda row: row.value).reduce(ms.count(), name="sizes", origins=False)
    users.by("age").join(users, name="pairs", how="left")
    pipeline.compute(Own, users.changes, key=None)
    return pipeline


class Own(ms.Computation):
    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += 1


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    found = Recorded(people())
    found.push(user(7, "Sue"), user(8, "Sue", 8), user(9, "Ann", ts=3), user(10, "Tod"))
    found.epoch()
    found.push(user(9, "Ánn", ts=4), user(10, "", ts=5, gone=True))
    found.epoch()
    return found


def read(recorded: Recorded, name: str, epoch: int | None = None, **how: Any) -> list[relations.ShownRow]:
    return relations.at(recorded.log, epoch, lambda cut: list(relations.shown(cut, name, **how)))


def flat(recorded: Recorded, name: str, keys: list[str] | None = None) -> list[tuple[str, str]]:
    """Keys and values as other programs get them, shard by shard, of the shards that they are told to look at."""
    asked = shard_rows.Asked(name, "view", keys)
    with CommittedState(recorded.log).newest() as cut:
        shards = shard_rows.shards_of(cut.computation(name), asked, cut)
        return sorted((row[0], row[2]) for shard in shards for row in shard_rows.rows(shard_rows.OneShard(cut, shard), asked))


def told(view: dict[Any, Any]) -> list[tuple[str, str]]:
    return sorted((shard_rows.text_of(key), json.dumps(plain(value), ensure_ascii=False)) for key, value in view.items())


# --- against what the local engine shows


@pytest.mark.parametrize("inline", [1024, 0])
@pytest.mark.parametrize("seed", range(6))
def test_what_is_read_is_what_the_local_engine_shows(seed: int, inline: int) -> None:
    dice = random.Random(seed)
    model = Model(dice, ids=40, names=4)
    recorded = Recorded(pipeline_of(True, inline), shards=dice.randint(1, 3))
    for _ in range(5):
        recorded.push(*[model.post() for _ in range(dice.randrange(40))])
        recorded.epoch()
    views = ["users", "names", "sums", "tags", "sizes", "least", "all", "some", "pairs", "inner", "friends"]
    for name in views:
        assert relations.by_key(read(recorded, name)) == recorded.runner.view(name), name
        assert flat(recorded, name) == told(recorded.runner.view(name)), name
        for key in list(recorded.runner.view(name))[:3]:
            same = {other: row for other, row in recorded.runner.view(name).items() if shard_rows.text_of(other) == shard_rows.text_of(key)}
            assert flat(recorded, name, [shard_rows.text_of(key)]) == told(same), (name, key)
    for group in recorded.runner.view("names"):
        found = relations.at(recorded.log, None, lambda cut, group=group: relations.given(cut, "names", group))  # type: ignore[misc]
        assert found == recorded.runner.contributions("names", group) and len(found) == recorded.runner.view("names", group)
    assert {row.key: row.version for row in read(recorded, "users")} == {id: row["ts"] for id, row in model.users.items()}


def test_keys_prefixes_limits_and_epochs(recorded: Recorded) -> None:
    assert [tuple(row) for row in read(recorded, "names")] == [("Sue", 2, None), ("Ánn", 1, None)]
    assert relations.by_key(read(recorded, "names", epoch=0)) == {"Ann": 1, "Sue": 2, "Tod": 1}
    assert relations.by_key(read(recorded, "names", key="Sue")) == {"Sue": 2} and read(recorded, "names", key="Ann") == []
    assert relations.by_key(read(recorded, "names", epoch=0, prefix="A")) == {"Ann": 1}
    assert relations.by_key(read(recorded, "names", prefix="Á")) == {"Ánn": 1}
    assert relations.by_key(read(recorded, "both", prefix=("Sue",))) == {
        ("Sue", 8): {"n": 1, "oldest": 8},
        ("Sue", 30): {"n": 1, "oldest": 30},
    }
    assert [row.key for row in read(recorded, "pairs", key=7)] == [7] and read(recorded, "pairs", key="7") == []
    assert read(recorded, "users", key=10) == [], "a deleted document is kept as a tombstone, and not shown"
    assert read(recorded, "users", key=9)[0].version == 4


def test_what_cannot_be_read_says_what_can(recorded: Recorded) -> None:
    with pytest.raises(
        ms.errors.CheckpointError, match=r"'nobody'.*There are: 'users' \(a table\), 'names' \(a view\).*'pairs' \(a join\)"
    ):
        read(recorded, "nobody")
    with pytest.raises(ms.errors.CheckpointError, match="a computation of the pipeline's own"):
        read(recorded, "Own")
    with pytest.raises(ms.errors.DefinitionError, match="key= or prefix="):
        read(recorded, "names", key="Sue", prefix="S")
    with pytest.raises(ms.errors.DefinitionError, match="give a text"):
        read(recorded, "names", prefix=7)
    with pytest.raises(ms.errors.DefinitionError, match="a float cannot be a key"):
        read(recorded, "names", key=7.5)
    for name, why in (("users", "is a table"), ("sizes", "origins=False")):
        with pytest.raises(ms.errors.DefinitionError, match=why):
            relations.at(recorded.log, None, lambda cut, name=name: relations.given(cut, name, 1))  # type: ignore[misc]


def test_a_view_that_is_filled_anew_shows_the_old_generation_until_the_cutover() -> None:
    recorded = Recorded(people(), shards=1)
    recorded.push(*[user(at, "Sue" if at % 2 else "Ann") for at in range(10)])
    recorded.epoch()
    recorded.become(people(version=2, by=lambda row: row.value["name"].lower()), chunk=2)
    seen = []
    for _ in range(12):
        recorded.push(user(100 + len(seen), "Tod"))
        recorded.epoch()
        seen.append(relations.by_key(read(recorded, "names")))
        assert seen[-1] == recorded.runner.view("names")
    assert seen[0] == seen[1] == {"Ann": 5, "Sue": 5} and seen[-1] == {"ann": 5, "sue": 5, "tod": 12}
    assert all(one.keys() <= {"Ann", "Sue"} or one.keys() == {"ann", "sue", "tod"} for one in seen), "never parts of two generations"


def test_a_view_that_is_filled_for_the_first_time_shows_nothing() -> None:
    bare = ms.Pipeline("people")
    bare.table("users", ms.sources.files("in/", schema=SCHEMA), key="id", version="ts", deleted="gone")
    recorded = Recorded(bare, shards=1)
    recorded.push(*[user(at, "Sue", age=at) for at in range(10)])
    recorded.epoch()
    recorded.become(people(), chunk=2)
    recorded.epoch()
    assert recorded.latest.builds["names"].is_filling and recorded.latest.builds["pairs"].is_filling
    assert read(recorded, "names") == read(recorded, "pairs") == []
    for _ in range(8):
        recorded.epoch()
    assert relations.by_key(read(recorded, "names")) == {"Sue": 10} and len(read(recorded, "pairs")) == 10


# --- as Arrow


def test_a_folder_is_read_as_arrow(recorded: Recorded, tmp_path: Path) -> None:
    folder = recorded.saved(tmp_path / "checkpoint")
    found = ms.views.read(folder, "names")
    assert found.to_pylist() == [{"key": "Sue", "value": 2}, {"key": "Ánn", "value": 1}]
    assert found.schema.types == [pa.string(), pa.int64()]
    users = ms.views.read(folder, "users", limit=2)
    assert users.column_names == ["key", "value", "version"] and users.num_rows == 2
    assert users.column("value").type.field("name").type == pa.string()
    assert ms.views.read(folder, "names", epoch=0, prefix="T").to_pylist() == [{"key": "Tod", "value": 1}]
    assert ms.views.origins(folder, "names", "Sue") == {7: [1], 8: [1]}
    assert ms.views.read(folder, "names", key="nobody").to_pylist() == []
    assert ms.views.read(folder, "both").column("key").to_pylist() == ['["Sue", 8]', '["Sue", 30]', '["Ánn", 30]'], (
        "no type in common: JSON"
    )
    with pytest.raises(ms.errors.CheckpointError, match="There are the epochs 0 to 1"):
        ms.views.read(folder, "names", epoch=17)


def test_the_package_has_no_other_names() -> None:
    with pytest.raises(AttributeError, match="no attribute 'wright'"):
        ms.views.wright  # noqa: B018


_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.dates(),
    st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-1000, max_value=1000),
)
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=2), inner, max_size=3))
)


def filled(value: Any, like: Any) -> Any:
    """A value as a column of a type gives it back: fields that are lacking are null."""
    if value is None:
        return None
    if pa.types.is_struct(like):
        return {field.name: filled(value.get(field.name), field.type) for field in like}
    if pa.types.is_list(like):
        return [filled(one, like.value_type) for one in value]
    return value


@settings(max_examples=some(150), deadline=None)
@given(st.lists(_VALUES, max_size=6))
def test_a_column_gives_back_every_value_or_is_json_throughout(values: list[Any]) -> None:
    made = column(values)
    if pa.types.is_string(made.type) and not all(value is None or isinstance(value, str) for value in values):
        for text, value in zip(made.to_pylist(), values, strict=True):
            assert (text is None) == (value is None) and (text is None or json.loads(text) is not None or text == "null")
    else:
        back = made.to_pylist()
        assert back == [filled(value, made.type) for value in values]
        assert all(type(a) is type(b) or {type(a), type(b)} == {int, float} for a, b in zip(back, values, strict=True))


def test_columns_of_one_kind_keep_their_type() -> None:
    assert column([datetime.date(2024, 5, 1)]).type == pa.date32() and column([Decimal("1.50")]).to_pylist() == [Decimal("1.50")]
    assert column([2**63]).type in (pa.uint64(), pa.string()) and column([2**70]).to_pylist() == [str(2**70)]
    assert column([1, 0.5]).to_pylist() == [1.0, 0.5] and column([2**60, 0.5]).to_pylist() == [str(2**60), "0.5"]
    assert is_mixed([{1: 2}]) and is_mixed([{}]) and not is_mixed([None, None])


# --- a handle, and the command line


def test_old_manifests_without_kinds_have_no_views(recorded: Recorded) -> None:
    manifest = recorded.latest
    for state in manifest.computations.values():
        state.kind = ""
    copy = ManifestLog(type(recorded.storage)())
    copy.storage.objects.update(recorded.storage.objects)  # type: ignore[attr-defined]
    copy.commit(manifest, exclusive=False)
    with pytest.raises(ms.errors.CheckpointError, match="There are: none"):
        relations.at(copy, None, lambda cut: list(relations.shown(cut, "names")))


def called(capsys: pytest.CaptureFixture[str], *args: object, code: int = 0) -> str:
    assert main([str(arg) for arg in args]) == code
    out, err = capsys.readouterr()
    return out if not code else err


@pytest.fixture
def folder(recorded: Recorded, tmp_path: Path) -> Path:
    return recorded.saved(tmp_path / "checkpoint")


def test_the_command_lists_tables_views_and_joins(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [" ".join(line.split()) for line in called(capsys, "view", folder).splitlines()]
    assert lines[0] == "epoch 1"
    assert any(line.startswith("users table 3 1 ") and line.endswith(" users by id") for line in lines)
    assert any(line.startswith("names view 2 3 1 ") and line.endswith(" users by 'name': count()") for line in lines)
    assert any(line.startswith("pairs join 4 1 ") and line.endswith(" users by 'age' with users, left") for line in lines)
    assert not any(line.startswith("Own ") for line in lines)
    found = {one["name"]: one for one in json.loads(called(capsys, "view", folder, "--json"))["relations"]}
    assert found["names"]["rows"] == 2 and found["names"]["contributions"] == 3 and found["sizes"]["senders"] == ["names"]
    assert [found[name]["stage"] for name in ("users", "names", "sizes", "pairs")] == [1, 2, 3, 2]


def test_the_command_shows_rows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = called(capsys, "view", folder, "names")
    assert [line.split() for line in out.splitlines()] == [
        ["key", "value"],
        ["'Sue'", "2"],
        ["'Ánn'", "1"],
        [],
        ["names,", "epoch", "1:", "2", "rows"],
    ]
    assert "; there are more, see --limit and --to" in called(capsys, "view", folder, "names", "--limit", 1)
    assert called(capsys, "view", folder, "names", "--prefix", "nobody") == "names, epoch 1: 0 rows\n"
    assert "('Sue', 8)" in called(capsys, "view", folder, "both", "--prefix", '["Sue"]')
    one = json.loads(called(capsys, "view", folder, "users", "--key", "9", "--json"))
    assert one["rows"] == [{"key": 9, "value": user(9, "Ánn", ts=4), "version": 4}]
    assert json.loads(called(capsys, "view", folder, "names", "--epoch", 0, "--json"))["rows"][0] == {"key": "Ann", "value": 1}
    err = called(capsys, "view", folder, "names", "--key", "7", code=1)
    assert "shows nothing for key '7' (str) nor 7 (int) in epoch 1" in err
    assert "There are: 'users' (a table)" in called(capsys, "view", folder, "nobody", code=1)


def test_the_command_says_which_documents_make_a_row(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = called(capsys, "view", folder, "names", "--key", "Sue", "--origins")
    assert [line.split() for line in out.splitlines()][:3] == [["document", "gives"], ["7", "1"], ["8", "1"]]
    assert out.endswith("names, group 'Sue', epoch 1: 2 documents\n")
    found = json.loads(called(capsys, "view", folder, "both", "--key", '["Sue", 8]', "--origins", "--json"))
    assert found["group"] == ["Sue", 8] and [one["document"] for one in found["origins"]] == [8]
    assert "has no group 'Ann' (str)" in called(capsys, "view", folder, "names", "--key", "Ann", "--origins", code=1)
    assert "say which, with --key" in called(capsys, "view", folder, "names", "--origins", code=2)


@pytest.mark.parametrize("suffix", ["parquet", "csv", "json", "jsonl"])
def test_the_command_writes_files(folder: Path, suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder.parent / f"both.{suffix}"
    out = called(capsys, "view", folder, "both", "--to", file)
    assert out == f"both: 3 rows of epoch 1 are in {file}\n" and [path.name for path in folder.parent.iterdir() if path.is_file()] == [
        file.name
    ]
    if suffix == "parquet":
        import pyarrow.parquet

        assert pyarrow.parquet.read_table(file).to_pylist()[0] == {"key": '["Sue", 8]', "value": {"n": 1, "oldest": 8}}
    elif suffix == "csv":
        assert file.read_text().splitlines()[1] == '"[""Sue"", 8]","{""n"": 1, ""oldest"": 8}"'
    else:
        assert json.loads(file.read_text().splitlines()[0]) == {"key": ["Sue", 8], "value": {"n": 1, "oldest": 8}}
    called(capsys, "view", folder, "both", "--to", folder.parent / "both.xls", code=2)
    called(capsys, "view", folder, "both", "--to", folder / "nowhere" / "both.csv", code=2)
    called(capsys, "view", folder, "--to", file, code=2)


def test_the_command_explains_layout_and_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline = ms.Pipeline("people")
    users = pipeline.table("users", ms.sources.files("in/", schema=SCHEMA), key="id", version="ts", deleted="gone")
    users.filter(lambda row: row.value["age"] > 1).by("name").reduce(ms.min("age"), name="least", inline=100)
    recorded = Recorded(pipeline)
    recorded.push(*[user(at, "Sue", age=at) for at in range(400)], *[user(1000 + at, f"n{at}") for at in range(5)])
    recorded.epoch()
    folder = recorded.saved(tmp_path / "checkpoint")
    out = " ".join(called(capsys, "view", folder, "least", "--explain").split())
    assert (
        "derives from users.filter(<lambda>), by 'name'" in out and "reducer min('age'); nodes above the leaves: of partial results" in out
    )
    assert "origins kept: 403 contributions in 6 groups, 6 changes" in out
    assert "layout 5 groups in one row each (up to 100 bytes); 1 with leaves: 1 of depth 3" in out
    assert (
        "8 messages, 0.02 per change of users; each reads and writes one entry in a group of one row, and per document at most 4 in the deepest"
        in out
    )
    assert "stage 2 of an epoch's job" in out and "generation 1" in out
    assert "table users" in called(capsys, "view", folder, "--explain")


def test_the_command_says_how_far_a_fill_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded = Recorded(people(), shards=1)
    recorded.push(*[user(at, "Sue") for at in range(10)])
    recorded.epoch()
    recorded.become(people(version=2, by="age"), chunk=4)
    recorded.epoch()
    folder = recorded.saved(tmp_path / "checkpoint")
    assert "names: generation 2 is being filled: 4 of 10 rows of users (40 %), 4 rows/s" in called(capsys, "view", folder)
    assert "generation 2 is being filled: 4 of 10" in called(capsys, "view", folder, "names", "--explain")
