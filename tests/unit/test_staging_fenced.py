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
from millstream.engine.routing import Departures
from millstream.engine.staging import Staging, Unit
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
    order = EpochOrder(epoch=0, token=token, before=None, times={}, stored=[], driver=0, crash="")
    group = compiled.topology.levels[0][0]
    made = Outcome({}, [Production("out", "k", 1, "1", msgspec.msgpack.encode("row"))], Counts())

    def stage() -> None:
        unit = Unit(storage, "units/0") if shared else None
        Staging(compiled, storage, order, group, 0, lambda name: None, unit).stage(Receipt(0, 0, 0), {"Passes": made}, Departures())

    stage()
    assert sink.staged == [1]
    Runs(storage).claim(token)
    with pytest.raises(Fenced):
        stage()
    assert sink.staged == [1]
