"""Partial results before the exchange: what a task has read becomes one chunk per shard, not a row per record (`operators/panes.py`, `operators/session.py`).

Rules
1. Only where a record cannot be a duplicate: ids are state of the shard, behind the exchange. And only what columns can do: no function of a user's runs here.
2. Rows that a hook could not be called with, and late ones, travel one by one as ever. Late is what the order of the epoch says, the same number on both sides.
3. A chunk travels as a row of its route, under the key "", with the chunk in its body. One of them says what watermark policies want to know of the records.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.core.outcome import Times
from millstream.core.record import Batch
from millstream.core.time import BEGINNING, END
from millstream.core.topology import Injector, Route
from millstream.engine.program import Compiled
from millstream.operators.expressions import NotInColumns
from millstream.operators.rows import StreamRows

from . import hashing
from .arrow_rows import ALL, KEYED, FoldedRows, encode_folded, seen

_SCHEMA = pa.schema([*KEYED, ("body", pa.binary())])


class SourceBatch(Batch):
    """Rows of a source, as columns alone."""

    __slots__ = ("_ids", "_rows")

    def __init__(self, stream: str, rows: Any, ids: Any) -> None:
        super().__init__(stream)
        self._rows, self._ids = rows, ids

    def id_column(self) -> Any:
        if self._ids is None:
            raise NotInColumns("records have no ids of their own")
        return self._ids

    def column(self, name: str | None) -> Any:
        if name is None:
            raise NotInColumns("the value is a whole row")
        return self._rows.column(name)


class Folding:
    """Makes the chunks of one task in one epoch. newest: by stream, the newest timestamp before the epoch."""

    def __init__(self, compiled: Compiled, times: Mapping[str, Times], newest: Mapping[str, int | None]) -> None:
        self._compiled, self._times, self._newest = compiled, times, newest

    def folds(self, injector: Injector, route: Route) -> bool:
        """Rule 1."""
        spec = self._compiled.topology.by_name[route.computation]
        return (
            spec.in_columns
            and injector.dedup is None
            and injector.value is None
            and injector.typed is None
            and bool(self._operator(route).folds_ahead)
        )

    def _operator(self, route: Route) -> Any:
        return self._compiled.operator(route.computation)

    def rows_left(self, route: Route, key: Any, times: Any, ids: Any) -> Any:
        """Which rows must travel one by one (rule 2), as a mask; None: none."""
        given = hashing.numbers(times, np.int64)
        left = (given == END) | (given == BEGINNING)
        for array in (key, times, *([] if ids is None else [ids])):
            if array.null_count:
                left |= ~hashing.valid(array)
        late = self._operator(route).late_times(
            np.where(left, 0, given) if left.any() else given, self._times[route.computation].late_before
        )
        if late is not None:
            left |= late
        return left if left.any() else None

    def folded(
        self, route: Route, injector: Injector, rows: Any, key: Any, times: Any, ids: Any, marks: Mapping[str, Any], shards: int
    ) -> Any:
        """Rows that are not late as a table of chunks. Raises NotInColumns."""
        operator = self._operator(route)
        kind = self._compiled.make(route.computation)[1]
        made, counts = operator.ahead(StreamRows(SourceBatch(route.stream, rows, ids), key, hashing.numbers(times, np.int64)))
        of = hashing.shards_of(made.names, shards)
        bodies, parts = [], []
        reports = self._compiled.routes_of[route.stream][0].index == route.index
        about = seen(injector, pa.table({"ts": times, **marks}), ALL, self._newest[route.stream]) if reports else None
        for shard in np.unique(of).tolist():
            table = made.of_names(of == shard)
            records = int(counts[of[made.codes] == shard].sum())
            bodies.append(encode_folded(FoldedRows(records, table.chunk(kind.encode_sub, kind.decode_sub), about)))
            about = None  # said once
            parts.append(shard + (route.group * shards if route.level == 0 else 0))
        count = len(bodies)
        columns = (parts, [route.index] * count, [""] * count, [0] * count, [""] * count, [0] * count, bodies)
        return pa.Table.from_arrays([pa.array(one, field.type) for one, field in zip(columns, _SCHEMA, strict=True)], schema=_SCHEMA)
