"""A task of a run that has been replaced stages nothing, also where many shards share a unit that is written later."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from plannedkit import pipeline

from millstream.core.outcome import Counts, Outcome
from millstream.core.record import Production
from millstream.engine.program import Compiled
from millstream.engine.receipts import EpochOrder, Receipt
from millstream.engine.routing import Routed
from millstream.engine.staging import Unit, stage
from millstream.engine.task import Task
from millstream.errors import Fenced
from millstream.sinks import Part, Sink, SinkRow, TaskContext
from millstream.state.fencing import Runs
from millstream.state.memory_storage import MemoryStorage


class Elsewhere(Sink):
    """Somewhere that a stranger would notice."""

    def __init__(self) -> None:
        self.staged: list[int] = []

    def stage(self, context: TaskContext, rows: Sequence[SinkRow]) -> Part:
        self.staged.append(len(rows))
        return Part(rows=len(rows))


@pytest.mark.parametrize("shared", [False, True])
def test_a_replaced_run_stages_nothing_at_a_sink(shared: bool) -> None:
    storage, sink = MemoryStorage(), Elsewhere()
    compiled = Compiled(pipeline(sink).program())
    token = Runs(storage).claim(None)
    order = EpochOrder(epoch=0, now=0, token=token, before=None, times={}, stored=[], driver=0, crash="")
    group = compiled.topology.levels[0][0]
    made = Outcome({}, [Production("out", "k", 1, "1", msgspec.msgpack.encode("row"))], Counts())

    def attempt() -> None:
        unit = Unit(storage, "units/0") if shared else None
        task = Task(compiled, order, group, 0, 1, storage, cache=None, point=lambda name: None, unit=unit)  # type: ignore[arg-type]
        stage(task, Receipt(0, 0, 0), {"Passes": made}, Routed())

    attempt()
    assert sink.staged == [1]
    Runs(storage).claim(token)
    with pytest.raises(Fenced):
        attempt()
    assert sink.staged == [1]
