"""Views in a checkpoint that Spark has made: read, checked by a batch job, repaired by a rebuild, and gone on with."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest
from sparkkit import write

import millstream as ms
from millstream.engine.repair import mark_for_rebuild
from millstream.status.check import checked_here, checked_on_spark, planned

pytestmark = pytest.mark.spark

sys.path.insert(0, str(Path(__file__).parent.parent / "views"))
import viewkit  # noqa: E402
from viewjob import people  # noqa: E402


def test_views_are_read_checked_on_spark_and_repaired(spark: Any, tmp_path: Path) -> None:

    dice = random.Random(1)
    names = ["Sue", "Ánn", "Ωmega", "\U0001f600", "\uffff", "z"]  # whose order is one as bytes and another as UTF-16
    rows = [viewkit.user(at, dice.choice(names), age=dice.randrange(60), ts=at + 1) for at in range(300)]
    write(tmp_path / "in", "0.json", rows[:200])
    write(tmp_path / "in", "1.json", rows[200:])
    pipeline = people(str(tmp_path / "in"), str(tmp_path / "out"))
    handle = pipeline.run(spark, checkpoint=tmp_path / "checkpoint", available_now=True, drain=False, quiet=True)
    handle.await_termination()
    expected = {name: sum(row["name"] == name for row in rows) for name in names}
    assert handle.view("names") == expected and handle.view("names", "Sue") == expected["Sue"] and handle.view("names", "nobody") is None
    with pytest.raises(ms.errors.CheckpointError, match="There are: 'users'"):
        handle.view("nobody")
    frame = ms.views.frame(spark, tmp_path / "checkpoint", "names")
    assert {row.key: row.value for row in frame.collect()} == expected
    assert ms.views.frame(spark, tmp_path / "checkpoint", "users").select("value.name", "version").count() == 300

    opened = viewkit.Recorded.opened(tmp_path / "checkpoint", pipeline)
    opened.change("names", "Ωmega", lambda row: row.__setitem__(4, [1]))
    plan = planned(opened.program, opened.latest)
    found = checked_on_spark(opened.program, opened.log, plan, spark)
    assert found.judgements == checked_here(opened.program, opened.log, plan).judgements
    assert [(one.view, one.group, one.what) for one in found.first if one.view == "names"] == [("names", "Ωmega", "shown")]

    mark_for_rebuild(opened.program, opened.log, found.epoch, {name: [] for name in found.wrong})
    write(tmp_path / "in", "2.json", [viewkit.user(8, "new", ts=1000)])
    handle = people(str(tmp_path / "in"), str(tmp_path / "out")).run(
        spark, checkpoint=tmp_path / "checkpoint", available_now=True, drain=False, quiet=True
    )
    handle.await_termination()
    rows[8]["name"] = "new"
    expected = {name: sum(row["name"] == name for row in rows) for name in [*names, "new"]}
    assert handle.view("names") == expected, "what is repaired is gone on with"
    assert not checked_here(opened.program, opened.log, planned(opened.program, opened.latest)).count
    told = handle.output("names")
    assert ("Ωmega", {"prev": 1, "next": expected["Ωmega"]}) in [(key, value) for key, value, _ in told]
    assert {key: value["next"] for key, value, _ in told if value["next"] is not None} == expected
