"""The planned reader of a Python data source: PySpark's own reader, asked on the driver for offsets and partitions, and in tasks for rows.

Rules
1. The driver has one reader for the whole run, as Spark has; each task process makes its own, and keeps it.
2. Rows become Arrow by PySpark's own conversion, with its checks and errors.
3. A simple reader reads where it is planned: its rows travel in the piece. That is what PySpark's wrapper of it does, too.
4. `commit` is called when an epoch is committed and published, with its end; never before.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkNotImplementedError
from pyspark.sql import types as T
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.worker.plan_data_source_read import records_to_arrow_batches

from millstream.errors import CheckpointError, DefinitionError, InputError, MillstreamError
from millstream.sources.splits import PlannedReader, SplitPlan

from . import pickling
from .versions import ReadAllAvailable, SupportsTriggerAvailableNow, arrow_schema

_ROWS = 10_000  # of a batch
_IN_TASKS = 1 << 30  # nobody knows how much a partition holds: tasks read it
_A_ROW = 100  # bytes, about


class DataSourceReader(PlannedReader):
    """Plans and reads a Python data source."""

    def __init__(self, cls: type, options: Mapping[str, str], schema: Any) -> None:
        self._name = cls.__name__
        self._cls = pickling.dumps(cls)
        self._options = dict(options)
        source = cls(CaseInsensitiveDict(options))
        given = source.schema() if schema is None else schema  # type: ignore[attr-defined]
        self._struct = T.StructType.fromDDL(given) if isinstance(given, str) else given
        if not isinstance(self._struct, T.StructType):
            raise DefinitionError(f"data source {self._name}: its schema is {given!r}: give a StructType, or DDL text")
        self.schema = arrow_schema(self._struct)
        self._reader: Any = None
        self._is_simple = False
        # a bounded run whose reader cannot tell its target has one epoch, with all there is, that ends here
        self._only: str | None = None
        self._is_bounded = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}  # what it keeps open stays on the driver

    def _own(self) -> Any:
        if self._reader is None:
            source = pickling.loads(self._cls)(CaseInsensitiveDict(self._options))
            try:
                self._reader = source.streamReader(schema=self._struct)
                self._is_simple = False
            except PySparkNotImplementedError:
                self._reader = source.simpleStreamReader(schema=self._struct)
                self._is_simple = True
        return self._reader

    # --- the driver

    def begin(self, names: Mapping[str, int], bounded: bool) -> None:
        reader = self._own()
        self._only = None
        self._is_bounded = bounded and not isinstance(reader, SupportsTriggerAvailableNow)  # such a one knows its target itself
        if bounded and not self._is_bounded:
            reader.prepareForTriggerAvailableNow()

    def first(self) -> str:
        return _text(self._asked("initialOffset"), self._name)

    def plan(self, start: str) -> SplitPlan:
        if self._is_bounded and self._only is not None:
            return SplitPlan(start)
        begin = _offset(start, self._name)
        if self._is_simple:
            take = self._simple(start, begin)
        else:
            end = self._latest(begin)
            text = start if end is None else _text(end, self._name)
            take = SplitPlan(start) if text == start else SplitPlan(text, list(self._asked("partitions", begin, end)), _IN_TASKS)
        self._only = take.end if self._is_bounded else None
        return take

    def _latest(self, start: dict[str, Any]) -> Any:
        """The end of the next epoch. Data sources of Spark before 4.2 are asked without a start."""
        reader = self._own()
        if not inspect.signature(reader.latestOffset).parameters:
            return self._asked("latestOffset")
        everything = self._is_bounded or not hasattr(reader, "getDefaultReadLimit")
        return self._asked("latestOffset", start, ReadAllAvailable() if everything else self._asked("getDefaultReadLimit"))

    def _simple(self, start: str, begin: dict[str, Any]) -> SplitPlan:
        found, end = self._asked("read", begin)
        rows, text = list(found), _text(end, self._name)
        if text == start and rows:
            raise InputError(
                f"data source {self._name}: read({begin!r}) gave {len(rows)} rows and did not move on: its end must be another offset"
            )
        return SplitPlan(text, [rows] if rows else [], len(rows) * _A_ROW)

    def _asked(self, method: str, *given: Any) -> Any:
        try:
            return getattr(self._own(), method)(*given)
        except MillstreamError:
            raise
        except Exception as error:
            raise InputError(f"data source {self._name}: {method} raised {type(error).__name__}: {error}") from error

    def committed(self, end: str) -> None:
        self._asked("commit", _offset(end, self._name))

    def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None and hasattr(reader, "stop"):
            reader.stop()

    # --- anywhere

    def read(self, piece: Any) -> Iterator[pa.RecordBatch]:
        try:
            rows = iter(piece) if isinstance(piece, list) else iter(self._own().read(piece))
            yield from records_to_arrow_batches(rows, _ROWS, self._struct, SimpleNamespace(name=lambda: self._name))
        except MillstreamError:
            raise
        except Exception as error:
            raise InputError(f"data source {self._name}: reading raised {type(error).__name__}: {error}") from error


def _text(offset: Any, name: str) -> str:
    try:
        return json.dumps(offset)
    except (TypeError, ValueError) as error:
        raise InputError(f"data source {name}: its offset {offset!r} cannot be written as JSON: {error}") from error


def _offset(text: str, name: str) -> dict[str, Any]:
    try:
        return json.loads(text)  # type: ignore[no-any-return]
    except ValueError:
        raise CheckpointError(f"{text!r} is not an offset of data source {name}") from None
