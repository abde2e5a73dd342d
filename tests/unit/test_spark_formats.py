"""What the Spark formats decide without Spark: which epoch a read is of, which keys a filter leaves, where offsets go."""

from __future__ import annotations

import importlib
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import DataSource

from millstream.engine.spark.published_format import PublishedStreamReader
from millstream.engine.spark.spark_folder import spark_folder
from millstream.engine.spark.state_format import StateRead, _Pushed, check_options, store_options
from millstream.errors import DefinitionError, Overtaken
from millstream.state.heartbeat import Alive, say
from millstream.state.manifest import ComputationState, Manifest
from millstream.state.manifest_log import ManifestLog
from millstream.state.storage import LocalStorage


def checkpoint(folder: Path, *nows: int) -> LocalStorage:
    storage = LocalStorage(folder)
    log = ManifestLog(storage)
    log.identify("p", 1, 1, ["in"])
    for epoch, now in enumerate(nows):
        log.commit(Manifest(epoch, "1-a", now, [(0, "1-a")], computations={"C": ComputationState()}))
    return storage


def epoch_of(storage: LocalStorage, **options: str) -> int:
    return StateRead({"path": storage.url, **options}).cut.epoch


@pytest.mark.parametrize("state, age, epoch", [("running", 0, 2), ("ended", 0, 4), ("running", 3_600_000, 4)])
def test_of_a_pipeline_at_work_the_epoch_that_lasts_is_read_and_of_another_the_last(
    tmp_path: Path, state: str, age: int, epoch: int
) -> None:
    storage = checkpoint(tmp_path, 1_000, 1_900, 2_100, 2_200, 2_999)
    assert epoch_of(storage) == 4, "nobody has given a sign"
    say(storage, Alive("1-a", int(time.time() * 1000) - age, "here", 1, state))
    assert epoch_of(storage) == epoch
    assert epoch_of(storage, epoch="1") == 1
    with pytest.raises(Overtaken, match=r"no epoch 7. There are the epochs 0 to 4"):
        epoch_of(storage, epoch="7")


class EqualTo:
    """As PySpark's, which not every version has."""

    def __init__(self, attribute: tuple[str, ...], value: Any) -> None:
        self.attribute, self.value = attribute, value


class In(EqualTo):
    pass


class GreaterThan(EqualTo):
    pass


class Narrowed:
    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def narrow(self, keys: list[str]) -> None:
        self.calls.append(keys)


def test_filters_on_the_key_narrow_the_read_and_all_are_left_to_spark() -> None:
    reader = Narrowed()
    filters = [
        EqualTo(("key",), "a"),
        In(("key",), ("a", "b")),
        GreaterThan(("key",), "a"),
        EqualTo(("value",), "a"),
        EqualTo(("a", "key"), "b"),
    ]
    assert list(_Pushed(reader)(filters)) == filters  # type: ignore[arg-type]
    assert reader.calls == [["a"], ["a", "b"]]


def test_offsets_never_go_back(tmp_path: Path) -> None:
    class Schema:
        names = ["key"]

    def file(epoch: int) -> Path:
        found = tmp_path / f"p-out-0000-{epoch:010d}.jsonl"
        found.write_text("")
        return found

    first, second = file(4), file(7)
    reader = PublishedStreamReader({"path": str(tmp_path)}, Schema())
    assert reader.initialOffset() == {"epoch": -1} and reader.latestOffset() == {"epoch": 6}
    first.unlink(), second.unlink()
    assert reader.latestOffset() == {"epoch": 6}
    again = PublishedStreamReader({"path": str(tmp_path)}, Schema())
    assert again.latestOffset({"epoch": 6}) == {"epoch": 6} and again.partitions({"epoch": 6}, {"epoch": 6}) == []
    file(9)
    again.prepareForTriggerAvailableNow()
    file(12)
    assert again.latestOffset({"epoch": 6}) == {"epoch": 8}, "a bounded query ends where its input ended when it began"


def test_many_files_are_few_partitions_in_their_order(tmp_path: Path) -> None:
    class Schema:
        names = ["key"]

    for epoch in range(50):
        (tmp_path / f"p-out-0000-{epoch:010d}.jsonl").write_text("")
    reader = PublishedStreamReader({"path": str(tmp_path), "partitions": "4"}, Schema())
    parts = reader.partitions({"epoch": 1}, {"epoch": 42})
    names = [name for part in parts for name in part.value]
    assert len(parts) <= 4 and names == sorted(names) and len(names) == 41


def test_spark_keeps_its_log_where_hadoop_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    assert spark_folder("s3a://bucket/a/b") == "s3a://bucket/a/b/spark"
    whole = "abfss://box@acme.dfs.core.windows.net/shop"
    assert spark_folder(whole) == f"{whole}/spark"
    assert spark_folder("abfss://box/shop", {"azure_storage_account_name": "acme"}) == f"{whole}/spark"
    with pytest.raises(DefinitionError, match="account_name in storage_options"):
        spark_folder("az://box/shop", {"account_key": "x"})
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "acme")
    assert spark_folder("az://box/shop") == f"{whole}/spark"
    with pytest.raises(DefinitionError, match="spark_checkpoint="):
        spark_folder("http://somewhere/shop")


def test_options_that_nobody_would_hear_are_refused() -> None:
    check_options("f", {"path": "x"}, ("path",))
    with pytest.raises(DefinitionError, match=r"format 'f' has no option 'pth'\. It has: path\."):
        check_options("f", {"pth": "x"}, ("path",))
    assert store_options({}) is None and store_options({"storage_options": '{"region": "x"}'}) == {"region": "x"}
    for text in ("region=x", "[1]"):
        with pytest.raises(DefinitionError, match="give a JSON object"):
            store_options({"storage_options": text})


def test_the_wheel_has_the_modules_that_spark_looks_for() -> None:
    root = Path(__file__).parents[2]
    packed = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert sorted(packed) == sorted(f"src/{path.parent.name}" for path in root.glob("src/*/__init__.py"))
    for name in ("pyspark_millstream", "pyspark_millstream_state"):
        assert issubclass(importlib.import_module(name).DefaultSource, DataSource)
