"""What the engine asks of a sink. The contract is told in the package's docstring."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.core.time import Duration, duration
from millstream.state.compaction import unit_name
from millstream.state.manifest import Part
from millstream.state.storage import Storage

if TYPE_CHECKING:
    from millstream.operators.results import Results

__all__ = ["DriverContext", "IdentifiedRow", "Part", "Sink", "SinkRow", "TaskContext"]


class SinkRow(msgspec.Struct, gc=False):
    key: Any
    timestamp: int
    value: Any


class IdentifiedRow(SinkRow, gc=False):
    """A row with the production's id, which is the same on every retry: for streams that are emitted with `ids=True`."""

    id: str


class ResultRows(Sequence[SinkRow]):
    """Rows that are columns still (`operators/results.py`): made one by one for whoever asks for one."""

    def __init__(self, results: Sequence[Results], ids: bool) -> None:
        self.results, self.ids = results, ids
        self._rows: list[SinkRow] | None = None

    def __len__(self) -> int:
        return sum(map(len, self.results))

    def __getitem__(self, at: Any) -> Any:
        if self._rows is None:
            self._rows = [row for result in self.results for row in self._made(result)]
        return self._rows[at]

    def _made(self, result: Results) -> Iterator[SinkRow]:
        rows = zip(result.python_keys(), result.times.tolist(), result.values(), result.ids(), strict=True)
        return (IdentifiedRow(*row) if self.ids else SinkRow(*row[:3]) for row in rows)


def part_bytes(storage: Storage, part: Part) -> bytes:
    """The bytes of a part that waited in the checkpoint: what `encode_part` gave."""
    assert part.staged is not None
    return storage.read(part.staged, part.own["offset"], part.own["length"])


def roll_millis(roll: Duration | None) -> int | None:
    """What somebody says of how long rows wait; None if nobody does."""
    return None if roll is None else 0 if roll == 0 else duration(roll)


class TaskContext(msgspec.Struct):
    """Where a task stages: `label` is unique to pipeline, emission and shard; `attempt` to this attempt; `token` to the run. `tries` grows when a resident
    run tries an epoch again."""

    checkpoint: Storage
    emission: str
    epoch: int
    label: str
    attempt: str
    token: str = "0-"
    pipeline: str = ""
    shard: int = 0
    tries: int = 0

    def keep(self, data: bytes, rows: int) -> Part:
        """Puts bytes of so many rows into the checkpoint, durably, and returns the part that names them: `part_bytes` gives them back."""
        name = unit_name(self.epoch, "rows", self.token)
        self.checkpoint.put(name, data)
        return Part(rows=rows, staged=name, in_checkpoint=True, own={"offset": 0, "length": len(data)})


class DriverContext(msgspec.Struct):
    """What a sink may use on the driver."""

    checkpoint: Storage
    pipeline: str
    emission: str
    spark: Any = None
    redo: bool = False  # the epoch may have been published before: a part that is gone was moved then
    token: str = "0-"  # of the run
    instead: list[Part] = []  # what this run staged for an epoch that an outgoing run has committed before it


class Sink:
    #: Whether small parts lie inside the task's unit, in the checkpoint, until they are published: one write instead of two. Such a sink has `encode_part`.
    in_units: bool = False
    #: The form of those bytes, where it is not that of `sinks.files`: parts that wait can only be published by a sink with the same one.
    form: str = ""
    #: For how long (milliseconds) committed parts wait, to be published together; 0: not at all. Only for a sink whose parts may lie in units.
    roll_millis: int = 0
    #: "json" or "parquet", where `place` is a folder of such files, which others may read (`published.py`).
    file_format: str = ""
    #: Whether `commit` runs jobs of Spark's, which need a slot of their own.
    needs_spark: bool = False
    #: Whether `stage` takes back what an earlier run has staged, also if that run still commits it: then such runs are shut out first.
    takes_back: bool = False

    def encode_part(self, context: TaskContext, rows: Sequence[SinkRow]) -> bytes:
        """Task, where `in_units`, in the place of `stage`: the rows as bytes. Few are kept in the task's unit, where `commit` finds them with `part_bytes`;
        for many, `stage_encoded` is called."""
        raise NotImplementedError

    def stage_encoded(self, context: TaskContext, data: bytes, rows: int) -> Part:
        """Task, likewise: makes what `encode_part` gave durable and invisible, as `stage` would."""
        raise NotImplementedError

    def takes(self, form: str) -> bool:
        """Driver: whether it can publish parts that were made in that form."""
        return form == self.form

    def by_default(self, roll_millis: int) -> None:
        """Driver, at the start of a run: for how long parts wait if nobody has said it; 0 for micro-batches. The epochs of a resident run are many and
        small. For sinks that make an object per epoch."""

    def check(self) -> None:
        """Driver, at the start of a run: the time to find out that a sink cannot work."""

    def resolve(self, arrow_schema: Any) -> None:
        """Driver, at the start of a run: gets a function that turns a DDL string into an Arrow schema."""

    def stage(self, context: TaskContext, rows: Sequence[SinkRow]) -> Part:
        raise NotImplementedError

    def prepare(self, context: DriverContext, epoch: int, parts: Sequence[Part]) -> None:
        """Driver, before the manifest: the last moment at which a sink can say no. Whatever it does must be undone if no manifest follows."""

    def commit(self, context: DriverContext, epoch: int, parts: Sequence[Part]) -> None:
        raise NotImplementedError

    def sweep(self, context: DriverContext, before_epoch: int, keep: Sequence[str]) -> None:
        """Driver: removes what attempts before an epoch left behind, except the staged names to keep."""

    def close(self) -> None:
        """Driver, at the end of a run, and worker, when the program was not used for a while: lets go of connections. It may be used again."""

    def stats(self) -> msgspec.Struct | None:
        """Driver, whenever somebody looks: how the sink is doing, besides what the engine counts (rows, parts, epochs). Cheap, and safe for threads."""
        return None

    def describe(self) -> str:
        """For people."""
        return type(self).__name__.lower()

    def place(self) -> str:
        """For people: where its rows can be found."""
        return self.describe()
