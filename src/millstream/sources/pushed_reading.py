"""The intake as a planned source: the server in this process wakes the planner, and says what is durable.

Rules
1. An offset is `{"position": n}`, as Spark's source writes it too: a position in the intake's log. What is between two of them never changes.
2. `committed` tells the pushers: everything before is published. It writes that down, which takes a disk a moment, so a thread does it beside the epochs: only
   the last position counts. What it could not write is raised where the next epoch is planned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.connector.intake import reader as intake_reader
from millstream.sources.pushed import IntakeOffset, PushedSource
from millstream.sources.pushed_rows import SCHEMA, rows_between
from millstream.sources.splits import PlannedReader, SplitPlan

if TYPE_CHECKING:
    import pyarrow as pa

_SPLIT = 256 << 10  # bytes that are worth a task of their own


class IntakeReader(PlannedReader):
    """Plans and reads what was pushed."""

    schema = SCHEMA

    def __init__(self, source: PushedSource, messages: int | None, size: int | None, partitions: int | None) -> None:
        self._source: PushedSource | None = source
        self._folder = Path(source.folder)
        self._messages, self._size, self._partitions = messages, size, partitions or 64
        self._target: int | None = None
        self._telling: _Telling | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_source": None, "_telling": None}  # the server stays on the driver

    def begin(self, names: Mapping[str, int], bounded: bool) -> None:
        if bounded:
            self._target = intake_reader.durable_end(self._folder) or 0

    def first(self) -> str:
        return IntakeOffset(intake_reader.acknowledged(self._folder).position).text()

    def plan(self, start: str) -> SplitPlan:
        if self._telling is not None:
            self._telling.check()
        begin = IntakeOffset.read(start).position
        end = intake_reader.readable_end(self._folder, begin, self._target)
        if begin == end:
            return SplitPlan(start)
        most = self.most if self._messages is None and self._size is None else self._size
        if most is None or self._messages is not None or end - begin > most:
            end = intake_reader.until(self._folder, begin, end, self._messages, most)
        return SplitPlan(IntakeOffset(end).text(), intake_reader.split(self._folder, begin, end, self._partitions, _SPLIT), end - begin)

    def read(self, split: Any) -> Iterator[pa.RecordBatch]:
        return rows_between(self._folder, *split)

    def committed(self, end: str) -> None:
        if self._source is None:
            return
        if self._telling is None:
            self._telling = _Telling(self._source.acknowledge)
        self._telling.tell(end)

    def close(self) -> None:
        telling, self._telling = self._telling, None
        if telling is not None:
            telling.close()

    def wake(self, call: Callable[[], None]) -> bool:
        assert self._source is not None
        self._source.start().on_durable(call)
        return True


class _Telling:
    """Says the last of what it is told, in a thread of its own."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._last = ""
        self._error: BaseException | None = None
        self._thread = ThreadPoolExecutor(1, "millstream-acknowledgements")

    def tell(self, what: str) -> None:
        self._last = what
        self._thread.submit(self._say_unless_there_is_more, what)

    def _say_unless_there_is_more(self, what: str) -> None:
        if what is self._last:
            try:
                self._say(what)
            except BaseException as error:
                self._error = error

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """When all is said."""
        self._thread.shutdown()
