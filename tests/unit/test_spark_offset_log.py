"""Spark's offset log as Millstream reads it: what is new, what an epoch consists of, when it was planned; and the safe answer where it cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.engine.plan import Range, Reading
from millstream.engine.spark.spark_planner import SparkOffsets


def entry(folder: Path, epoch: int, *sources: str, at: int = 5) -> None:
    (folder / str(epoch)).write_text("\n".join(["v1", f'{{"batchTimestampMs":{at}}}', *sources]))


def test_only_a_source_that_moved_makes_records_likely(tmp_path: Path) -> None:
    offsets = SparkOffsets(str(tmp_path), ["in"])
    entry(tmp_path, 0, "a0", "tick0")
    entry(tmp_path, 1, "a0", "tick1")
    entry(tmp_path, 2, "a1", "tick2")
    assert [offsets.reading(number).may_have_rows for number in (0, 1, 2)] == [True, False, True]
    assert offsets.reading(0).digest == offsets.reading(1).digest != offsets.reading(2).digest
    assert offsets.reading(2).ranges == {"in": Range("a0", "a1")}
    assert offsets.newest() == 2 and offsets.behind(3) and not offsets.behind(2)


def test_an_epoch_keeps_the_clock_at_which_it_was_planned(tmp_path: Path) -> None:
    entry(tmp_path, 3, "a", "tick", at=1_700_000_000_123)
    assert SparkOffsets(str(tmp_path), ["in"]).reading(3).planned_at == 1_700_000_000_123


@pytest.mark.parametrize("content", ["", "v2\n{}\na\ntick", "v1\n{}\na", "v1\nnot json\na\ntick", "v1\n[]\na\ntick"])
def test_a_log_that_cannot_be_read_gives_the_safe_answer(tmp_path: Path, content: str) -> None:
    entry(tmp_path, 0, "a", "tick")
    (tmp_path / "1").write_text(content)
    assert SparkOffsets(str(tmp_path), ["in"]).reading(1).planned_at is None
    if not content.endswith("a\ntick") or content.startswith("v2"):
        assert SparkOffsets(str(tmp_path), ["in"]).reading(1).may_have_rows
    nowhere = SparkOffsets(None, ["in"])
    assert nowhere.reading(0) == Reading(batch=0) and nowhere.reading(0).may_have_rows and not nowhere.behind(9)
