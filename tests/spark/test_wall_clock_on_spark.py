"""A wall-clock timer that is due fires in a bounded run, whoever plans its epochs and runs its tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import millstream as ms

pytestmark = pytest.mark.spark

SCHEMA = "k string, at long"


class Beat(ms.Computation):
    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += 1
        self.set_timer("beat", self.now + 1, kind=ms.WALL_CLOCK)

    def process_timer(self, timer: ms.Timer) -> None:
        self.produce("beat")


class Heard(ms.Computation):
    State = list

    def process_record(self, record: ms.Record) -> None:
        self.state.append(record.value)


@pytest.mark.parametrize("drain", [False, True])
@pytest.mark.parametrize("way", ["micro-batch", "resident", "planned by Spark"])
def test_it_fires_without_new_input(spark: Any, tmp_path: Path, way: str, drain: bool) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"k": "a", "at": 1714521600000}\n')
    p = ms.Pipeline("wall")
    files: Any = ms.sources.files(tmp_path / "in", schema=SCHEMA, format="json")
    source = (lambda session: session.readStream.schema(SCHEMA).json(str(tmp_path / "in"))) if way == "planned by Spark" else files
    beats = p.compute(Beat, p.inject("in", source, timestamp="at"), key="k", produces="beats", production=ms.STRONG)
    p.compute(Heard, beats, key=lambda record: record.key)
    for _ in range(2):  # the second run finds no input; whatever the first one's end was too early for is due by then
        handle = p.run(spark, checkpoint=tmp_path / "checkpoint", available_now=True, drain=drain, resident=way == "resident", quiet=True)
        assert handle.await_termination(120)
    status = handle.status()
    assert {c.name: (c.fired, c.late) for c in status.computations} == {"Beat": (1, 0), "Heard": (0, 0)}
    assert handle.state("Heard", "a") == ["beat"] and status.drained == drain
    assert status.committed_at is not None and status.clock is not None and status.committed_at >= status.clock
