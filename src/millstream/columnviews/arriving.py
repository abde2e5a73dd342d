"""What has come for a table: of every record its version, whether it deletes, and its document as bytes.

Rules
1. Rows of a source whose version and deletion are fields are read as columns. All others are read record by record, by the table's own code.
2. What cannot be read is not blamed here: `SingleRows`, and the record's visit says what is wrong with it.
3. Versions in columns are whole numbers. Others are compared by Python, key by key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.columnviews.packing import BINARY, SingleRows, packed_documents
from millstream.core.record import Record
from millstream.operators.rows import StreamRows
from millstream.views.table import DocumentTable


class Arriving:
    """The records for one shard of a table in one epoch. keys: their texts, as an Arrow array; bodies: of those that delete, anything."""

    def __init__(self, table: DocumentTable, inputs: Sequence[StreamRows]) -> None:
        self._table, self.inputs = table, inputs
        found = [self._read(rows) for rows in inputs]
        self.keys = _together([rows.keys for rows in inputs])
        self.times = np.concatenate([rows.times for rows in inputs])
        self.versions = np.concatenate([versions for versions, _, _ in found])
        self.deleted = np.concatenate([deleted for _, deleted, _ in found])
        self.bodies = _together([bodies for _, _, bodies in found])
        self.starts = np.cumsum([0, *map(len, inputs)])

    def __len__(self) -> int:
        return len(self.times)

    def document(self, at: int) -> Any:
        """The document of a record, as a map gets it."""
        of = int(np.searchsorted(self.starts, at, "right")) - 1
        rows = self.inputs[of]
        index = int(rows.places()[at - self.starts[of]])
        return self._table.read(Record(None, int(self.times[at]), rows.batch, index))[0]

    def _read(self, rows: StreamRows) -> tuple[Any, Any, Any]:
        """Versions, deletions and bodies."""
        rules = self._table.rules
        names = rows.batch.fields()
        if names is None or rules.said is None:
            return self._read_one_by_one(rows)
        version, deleted = rules.said
        kept = list(rules.columns) if rules.columns is not None else sorted(names) if rules.is_sorted else list(names)
        wanted = {*kept, *(name for name in rules.said if name is not None)}
        try:
            if not wanted <= set(names):
                raise SingleRows("a field is missing")
            columns = {name: _whole(rows.batch.column(name), rows.index) for name in wanted}
            versions = rows.times if version is None else _versions(columns[version])
            gone = np.zeros(len(rows), bool) if deleted is None else _true(columns[deleted])
            return versions, gone, packed_documents(kept, [columns[name] for name in kept])
        except SingleRows:
            return self._read_one_by_one(rows)

    def _read_one_by_one(self, rows: StreamRows) -> tuple[Any, Any, Any]:
        table, encode = self._table, self._table.encode
        versions, gone, bodies = [], [], []
        is_versioned = table.rules.versioned
        try:
            for record in rows.records():
                document, version, deleted = table.read(record)
                if is_versioned and version.__class__ is not int:
                    raise SingleRows("versions are no whole numbers")
                versions.append(version if is_versioned else record.timestamp)
                gone.append(deleted)
                bodies.append(b"" if deleted else encode(document))
            return np.array(versions, np.int64), np.array(gone, bool), pa.array(bodies, BINARY)
        except Exception as error:  # rule 2
            raise SingleRows(f"a record cannot be read: {error}") from error


def _together(columns: Sequence[Any]) -> Any:
    return columns[0] if len(columns) == 1 else pa.concat_arrays(columns)


def _whole(column: Any, index: Any) -> Any:
    if column is None:
        raise SingleRows("the values are no columns")
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return column if index is None else column.take(pa.array(index))


def _versions(column: Any) -> Any:
    if not pa.types.is_signed_integer(column.type) or column.null_count:
        raise SingleRows("versions are no whole numbers")
    return column.cast(pa.int64()).to_numpy()


def _true(column: Any) -> Any:
    """What Python takes for true."""
    kind = column.type
    if pa.types.is_null(kind):
        return np.zeros(len(column), bool)
    if pa.types.is_boolean(kind):
        return column.fill_null(False).to_numpy(zero_copy_only=False)
    raise SingleRows("the deletion is no boolean")
