"""Sinks that are handed a whole epoch on the driver: a user's function, or a list in memory. A crash in between hands it over again, with the same epoch
number and the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from millstream.errors import SinkError
from millstream.sinks.base import DriverContext, Part, SinkRow
from millstream.sinks.epoch_sink import EpochRows, KeptRows
from millstream.sinks.files import to_table


class EachEpoch(KeptRows):
    """Calls `function(DataFrame, epoch)` on the driver after each commit with rows: at least once, in order of epochs. The same epoch number may come again
    after a crash, with the same rows: use it to make the effect idempotent. The rows pass through the driver; for bulk output use `files`."""

    needs_spark = True

    def __init__(self, function: Callable[[Any, int], None], *, schema: Any = None) -> None:
        self.function, self.schema = function, schema

    def resolve(self, arrow_schema: Any) -> None:
        if isinstance(self.schema, str):
            self.schema = arrow_schema(self.schema)

    def commit(self, context: DriverContext, epoch: int, parts: Sequence[Part]) -> None:
        if not parts:
            return
        table = to_table(list(EpochRows(context.checkpoint, parts)), self.schema, f"stream {context.emission!r} into {self.describe()}")
        try:
            self.function(context.spark.createDataFrame(table), epoch)
        except Exception as error:
            what = f"raised {type(error).__name__}: {error}. Epoch {epoch} is committed; its rows are handed over again at the next start."
            raise SinkError(f"stream {context.emission!r}: {self.describe()} {what}") from error

    def describe(self) -> str:
        return f"each_epoch({getattr(self.function, '__name__', 'function')})"

    def __getstate__(self) -> dict[str, Any]:
        return {"schema": self.schema, "function": None}  # tasks only stage


class MemorySink(KeptRows):
    """Collects rows in `.collected`, for tests: exactly once within one process."""

    def __init__(self) -> None:
        self.collected: list[SinkRow] = []
        self.epochs: set[tuple[str, int]] = set()

    def commit(self, context: DriverContext, epoch: int, parts: Sequence[Part]) -> None:
        if parts and (context.emission, epoch) not in self.epochs:
            self.collected.extend(EpochRows(context.checkpoint, parts))
            self.epochs.add((context.emission, epoch))

    def place(self) -> str:
        return "memory (sink.collected)"

    def read(self, pipeline: str, emission: str) -> list[SinkRow]:
        return self.collected

    def __getstate__(self) -> dict[str, Any]:
        return {"collected": [], "epochs": set()}


each_epoch, memory = EachEpoch, MemorySink
